"""The smoke test of compose.yaml itself, where Docker can be used or started: ``pytest -m soak -k compose_smoke``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from deploy.smoke import daemon
from deploy.smoke.shell import succeeds
from tests.support.compose_file import ROOT

RUNS = succeeds(["docker", "version"])

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (RUNS or daemon.can_start()), reason="no Docker daemon runs, and none can be started here"),
]


@pytest.mark.parametrize("faults", ["nats worker", "nats-turns leader postgres worker"])
def test_nothing_is_lost_in_the_compose_cluster(faults: str) -> None:
    """Without a registry with stand-in images; no daemon of the test's own where one runs."""
    command = [sys.executable, "-m", "deploy.smoke", "--json", "--jobs", "1000", "--faults", *faults.split()]
    command += [] if RUNS else ["--start-dockerd"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False, timeout=1700)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["accepted"] == report["recorded"] == report["succeeded"] == 1000
    print(done.stdout)  # noqa: T201
