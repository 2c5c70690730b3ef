"""Tests that are skipped: told with the reason, and in CI a failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.skips import complaint

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="sometool is not installed")
def test_by_mark():
    pass

def test_inside():
    pytest.skip("no small disk can be mounted here")

@pytest.mark.xfail(strict=True)
def test_known():
    assert False
"""


@pytest.mark.parametrize(
    ("ci", "code", "counts"),
    [({"CI": "true"}, 1, "1 skipped, 1 xfailed, 1 error"), ({}, 0, "2 skipped, 1 xfailed")],
    ids=["in CI", "on a laptop"],
)
def test_in_ci_a_missing_tool_fails_and_elsewhere_it_is_told(tmp_path, ci, code, counts):
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rs",
        "-p",
        "tests.support.skips",
        "--rootdir",
        str(tmp_path),
        "-c",
        os.devnull,
    ]
    env = {**{name: value for name, value in os.environ.items() if name != "CI"}, **ci, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert counts in done.stdout
    assert "sometool is not installed" in done.stdout


@pytest.mark.parametrize("ci", ["", "false", "0"])
def test_ci_that_is_off_is_no_ci(ci):
    assert complaint("sometool is not installed", {"CI": ci}) is None
    assert complaint("sometool is not installed", {"CI": "true"}) is not None


def test_every_run_of_the_build_tells_its_skips():
    runs = re.findall(r"pytest (.*)", (ROOT / ".ci" / "run").read_text())
    assert sum(run.startswith("-rs ") for run in runs) == 3


def test_what_ci_tried_to_get_in_vain_is_skipped_and_nothing_else():
    environment = {"CI": "true", "JM_CI_WITHOUT": "sometool is not installed"}
    assert complaint("sometool is not installed", environment) is None
    assert complaint("othertool is not installed", environment) is not None
