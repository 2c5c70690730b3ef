"""``python -m jm_cli`` is ``jm``."""

from jm_cli.app import main

if __name__ == "__main__":
    main()
