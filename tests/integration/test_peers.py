"""The benchmark of peers, with ourselves, few jobs, and whoever is not installed left out with a reason."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_every_cell_of_ours_is_measured_and_who_is_missing_is_named(tmp_path):
    out = tmp_path / "peers.json"
    command = [sys.executable, "-m", "benchmarks.peers", "--only", "jobmaster,streaq", "--jobs", "500", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--workloads", "submit,sleepers", "--out", str(out)],
        capture_output=True,
        check=False,
        text=True,
        cwd=ROOT,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    submit, sleepers = result["cells"]["jobmaster/submit/0"], result["cells"]["jobmaster/sleepers/0"]
    assert (submit["complete"], sleepers["complete"]) == (True, True), result
    assert submit["drained"] >= 500
    assert min(submit["one_per_s"], submit["bulk_per_s"], submit["drain_per_s"], sleepers["sleep_per_s"]) > 0
    assert "streaq" in result["skipped"] or "streaq/submit/0" in result["cells"]
    assert "| submit in bulk, jobs/s |" in done.stdout


def test_an_unknown_peer_is_refused_with_those_that_are_known():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--only", "sidekiq"],
        capture_output=True,
        check=False,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "sidekiq unknown; use some of jobmaster, procrastinate" in done.stderr
