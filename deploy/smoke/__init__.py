"""The smoke test of compose.yaml: ``python3 -m deploy.smoke --help``. Needs Python 3.11 and Docker, nothing else."""
