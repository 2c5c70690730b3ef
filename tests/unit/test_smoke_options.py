"""``python3 -m deploy.smoke``: its command line, and what it makes of Docker's answers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

from deploy.smoke.cluster import Container, _health
from deploy.smoke.shell import SmokeError, output_of
from tests.support.compose_file import ROOT

COMMAND: Final = [sys.executable, "-m", "deploy.smoke"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--jobs", "0"], "--jobs 0: at least 1"),
        (["--keep", "--start-dockerd"], "--keep with --start-dockerd: the daemon ends with the test"),
        (["--faults", "meteorite"], "invalid choice: 'meteorite'"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_done(arguments: list[str], said: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_without_docker_it_says_so_and_has_an_exit_code_of_its_own() -> None:
    nowhere = {"PATH": "", "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = subprocess.run(
        [*COMMAND, "--json"], cwd=ROOT, env=nowhere, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert not report["ok"]
    assert "no Docker daemon answers" in report["problems"][0]


@pytest.mark.parametrize(
    ("status", "health"),
    [
        ("Up 5 seconds (health: starting)", "starting"),
        ("Up About a minute (healthy)", "healthy"),
        ("Up 2 hours (unhealthy)", "unhealthy"),
        ("Up 2 hours", ""),
        ("Exited (137) 3 seconds ago", ""),
        ("Restarting (1) 2 seconds ago", ""),
    ],
)
def test_health_is_read_from_the_status(status: str, health: str) -> None:
    assert _health(status) == health


def test_a_container_is_known_inside_by_the_beginning_of_its_id() -> None:
    assert Container("5ccb5b2e6b56aaaa", "worker", "w", "running", "healthy").host_name == "5ccb5b2e6b56"


def test_a_command_that_fails_is_reported_with_its_last_words() -> None:
    with pytest.raises(SmokeError, match=r"exit code 7 of: .*\n    the reason"):
        output_of([sys.executable, "-c", "import sys; print('the reason'); sys.exit(7)"])
