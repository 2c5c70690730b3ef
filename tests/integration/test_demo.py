"""``jm demo`` as a user runs it: a process of its own, judged by what it prints and by what it leaves behind."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest

from jm_cli.demo.app import STDLIB
from jm_cli.demo.workload import FLAKY_EVERY, FLAKY_FIRST, stdlib_files
from jm_cli.exits import ExitCode

ROOT = Path(__file__).resolve().parents[2]
GONE_WITHIN_S = 20.0  # after a SIGKILL the guards give each process ten seconds


def start_demo(temp: Path, *options: str) -> subprocess.Popen[str]:
    """All it makes is below ``temp``, and all it starts can be told by that variable."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JM_")}
    env |= {"TMPDIR": str(temp), "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli")])}
    return subprocess.Popen(
        [sys.executable, "-m", "jm_cli", "demo", *options],
        cwd=temp.parent,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # as in a terminal of its own
    )


def run_demo(temp: Path, *options: str) -> tuple[int, str, str]:
    with start_demo(temp, *options) as demo:
        try:
            stdout, stderr = demo.communicate(timeout=100)
        finally:
            demo.kill()
    return demo.returncode, stdout, stderr


def left_behind(temp: Path) -> list[str]:
    """Processes and files of a demo over ``temp``."""
    found = [str(path) for path in temp.iterdir()]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(temp) or any(str(temp) in word for word in process.cmdline()):
                found.append(f"{process.pid} {process.cmdline()}")
    return found


def assert_nothing_left(temp: Path, within_s: float = GONE_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while (found := left_behind(temp)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == []


def wait_for_worker(temp: Path) -> psutil.Process:
    """One that is ready: its log says so."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if any("worker ready" in log.read_text() for log in temp.glob("*/logs/worker-*.log")):
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if process.environ().get("TMPDIR") == str(temp) and "worker" in process.cmdline():
                        return process
        time.sleep(0.05)
    raise AssertionError("no worker came up")


@pytest.fixture
def temp(tmp_path):
    folder = tmp_path / "temp"
    folder.mkdir()
    return folder


class Facts:
    """What a plain walk over the same files says."""

    def __init__(self, files: list[str]) -> None:
        self.functions = self.classes = self.lines = 0
        self.broken: list[str] = []
        self.longest: list[tuple[int, str, int]] = []
        for path in files:
            self._add(path, (STDLIB / path).read_bytes())
        self.longest.sort(key=lambda f: (-f[0], f[1], f[2]))

    def _add(self, path: str, source: bytes) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError):
            self.broken.append(path)
            return
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self.functions += len(functions)
        self.classes += sum(isinstance(node, ast.ClassDef) for node in nodes)
        self.lines += len(source.splitlines())
        self.longest += [(f.end_lineno - f.lineno + 1, path, f.lineno) for f in functions]


@pytest.mark.slow
def test_every_job_of_the_demo_is_in_postgres_with_the_right_result(temp):
    files = stdlib_files(150)
    code, stdout, stderr = run_demo(temp, "--files", "150", "--jobs", "2000", "--json")
    assert code == ExitCode.OK, stderr
    report = json.loads(stdout)
    facts = Facts(files)
    rows = {row["handler"]: row for row in report["handlers"]}

    assert (report["ok"], report["problems"], report["rejected"]) == (True, [], {})
    assert rows["parse"]["jobs"] == 150
    assert rows["parse"]["succeeded"] == 150 - len(facts.broken)
    assert report["unparsable"] == facts.broken
    assert rows["no-op"]["succeeded"] == 2000
    assert report["submitted"] == sum(row["jobs"] for row in rows.values())
    assert all(row["other"] == 0 for row in rows.values())

    flaky = files[FLAKY_FIRST::FLAKY_EVERY]
    assert report["retries"]["retried_jobs"] == report["made_to_fail"] == len(flaky)
    assert rows["parse"]["first_attempts"] == 150 - len(flaky)
    assert report["lateness"]["jobs"] == rows["reminder"]["jobs"]
    assert report["lateness"]["early"] == 0

    assert report["totals"] == {
        "files": 150 - len(facts.broken),
        "lines": facts.lines,
        "functions": facts.functions,
        "classes": facts.classes,
    }
    assert [(f["lines"], f["path"], f["line"]) for f in report["longest"]] == facts.longest[:10]
    assert "done" in stderr
    assert_nothing_left(temp)


@pytest.mark.slow
def test_the_tables_are_for_people_and_the_kept_folder_holds_the_data(temp, tmp_path):
    keep = tmp_path / "kept"
    code, stdout, stderr = run_demo(temp, "--files", "20", "--keep", str(keep))
    assert code == ExitCode.OK, stderr
    assert "jobs are accounted for" in stdout
    assert "longest functions" in stdout
    assert (keep / "postgres" / "data" / "PG_VERSION").exists()
    assert (keep / "logs" / "coordinator.log").exists()
    assert_nothing_left(temp)
    code, _, stderr = run_demo(temp, "--files", "20", "--keep", str(keep))
    assert code == ExitCode.USAGE
    assert "give --keep a new one" in stderr


# From before the first server to after the last job; a little beside them, so that over many runs every moment is met.
@pytest.mark.slow
@pytest.mark.parametrize("moment_s", [0.2, 0.6, 0.9, 1.3, 1.8, 2.4, 3.2, 4.5, 6.5])
def test_ctrl_c_at_any_moment_leaves_nothing_behind(temp, moment_s):
    with start_demo(temp, "--files", "300") as demo:
        try:
            time.sleep(moment_s + random.uniform(-0.15, 0.15))
            demo.send_signal(signal.SIGINT)
            _, stderr = demo.communicate(timeout=20)
        finally:
            demo.kill()
    assert demo.returncode in (ExitCode.INTERRUPTED, -signal.SIGINT), stderr
    assert_nothing_left(temp, within_s=2.0)


@pytest.mark.slow
def test_a_second_ctrl_c_changes_nothing(temp):
    with start_demo(temp, "--files", "300") as demo:
        try:
            time.sleep(4)
            for _ in range(5):
                demo.send_signal(signal.SIGINT)
                time.sleep(0.05)
            demo.communicate(timeout=20)
        finally:
            demo.kill()
    assert_nothing_left(temp, within_s=2.0)


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_demo_with_its_last_words(temp):
    with start_demo(temp, "--files", "300") as demo:
        try:
            worker = wait_for_worker(temp)
            worker.kill()
            _, stderr = demo.communicate(timeout=30)
        finally:
            demo.kill()
    assert demo.returncode == ExitCode.UNEXPECTED
    assert "has ended; its last words" in stderr
    assert_nothing_left(temp, within_s=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("moment_s", [2.0, 4.0])
def test_a_killed_demo_takes_its_processes_along(temp, moment_s):
    with start_demo(temp, "--files", "300") as demo:
        time.sleep(moment_s)
        demo.kill()
    assert_nothing_left(temp)


@pytest.mark.slow
def test_chaos_breaks_no_promise_and_says_what_each_fault_cost(temp):
    code, stdout, stderr = run_demo(temp, "--chaos", "--files", "200", "--json")
    assert code == ExitCode.OK, stderr
    report = json.loads(stdout)
    chaos = report["chaos"]
    assert [fault["fault"] for fault in chaos["faults"]] == ["kill -9", "kill -STOP", "restart"]
    assert (chaos["lost"], chaos["recorded_twice"], report["problems"]) == (0, 0, [])
    for fault in chaos["faults"][:2]:
        assert fault["moved"] >= 1
        assert fault["recovery_s"] <= fault["promised_s"]
    assert chaos["lost_attempts"] >= 1
    assert chaos["twice_started"] >= 1
    assert "leases of 3 s instead of 10 s" in stderr
    assert report["handlers"][0]["other"] == 0
    assert_nothing_left(temp)


@pytest.mark.slow
@pytest.mark.parametrize("said", ["chaos: kill -9", "chaos: kill -STOP", "chaos: restart nats"])
def test_ctrl_c_in_the_middle_of_a_fault_leaves_nothing_behind(temp, said):
    with start_demo(temp, "--chaos", "--files", "50") as demo:
        try:
            for line in demo.stderr:
                if said in line:
                    break
            demo.send_signal(signal.SIGINT)
            _, stderr = demo.communicate(timeout=30)
        finally:
            demo.kill()
    assert demo.returncode == ExitCode.INTERRUPTED, stderr
    assert_nothing_left(temp, within_s=2.0)
