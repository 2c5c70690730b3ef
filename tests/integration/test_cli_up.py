"""``jm up``: everything in one terminal, found by a second one, and nothing left behind however it ends."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from jm_cli.exits import ExitCode
from jm_cli.serving import ECHO_S
from tests.support.cli import Running, jm
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

MARK_VARIABLE = "TEST_CLI_UP_MARK"
GONE_TIMEOUT_S = 25  # the guards give ten seconds, and Postgres has some to do


class Up:
    """A folder in which ``jm up`` is run, and everything that was ever started from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex

    @contextmanager
    def running(self, *arguments, **variables):
        with Running("up", *arguments, cwd=self.folder, **{MARK_VARIABLE: self.mark}, **variables) as process:
            yield process

    def jm(self, *arguments, **variables):
        """From the second terminal: no setting at all."""
        return jm(*arguments, cwd=self.folder, **variables)

    def result_of(self, *arguments):
        done = self.jm("submit", *arguments, "--wait", "result")
        assert done.returncode == ExitCode.OK, done.stderr
        return json.loads(done.stdout)

    def processes(self):
        """(pid, command) of all that ``jm up`` started, also of what it no longer knows: they inherit our mark."""
        return {p.pid: command_of(p) for p in psutil.process_iter() if self.mark == mark_of(p)}

    def pids(self, part):
        return [pid for pid, command in self.processes().items() if part in command]

    async def wait_gone(self):
        await wait_until(lambda: not self.processes(), GONE_TIMEOUT_S, what="the end of all", shown=self.processes)


def command_of(process):
    try:
        return " ".join(process.cmdline()[:8])
    except psutil.Error:
        return "(it has just ended)"


def mark_of(process):
    try:
        return process.environ().get(MARK_VARIABLE)
    except psutil.Error:
        return None


@pytest.fixture
def up():
    # Not below pytest's own folder: every pytest that starts makes that one root's alone again, and Postgres, which
    # runs as another user, can then not pass.
    folder = Path(tempfile.mkdtemp(prefix="jm-test-up-"))
    made = Up(folder)
    yield made
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


async def until_up(process):
    await process.wait_for("Ctrl-C stops everything", timeout_s=60)


async def test_a_newcomer_submits_from_a_second_terminal_and_ctrl_c_stops_all_in_order(up):
    with up.running("--workers", "2") as process:
        await until_up(process)
        said = process.out()
        assert """jm submit hello '{"name": "you"}' --wait result""" in said
        assert up.result_of("hello", '{"name": "you"}') == "hello you"
        assert up.result_of("add", '{"a": 1, "b": 2}') == 3
        assert up.result_of("flaky", '{"failures": 1}') == "succeeded at attempt 2"
        assert up.jm("doctor").returncode == ExitCode.OK
        assert up.jm("migrate").returncode == ExitCode.OK
        listed = json.loads(up.jm("job", "list", "--json").stdout)["jobs"]
        assert {job["handler"] for job in listed} == {"hello", "add", "flaky"}
        assert len(up.pids("jm_cli worker")) == 2
        assert await process.end(signal.SIGINT) == ExitCode.OK
        assert up.processes() == {}
        said = process.err()
        assert said.count("worker drains") == 2
        assert said.rindex("worker drains") < said.index("stepping down")


async def test_a_second_one_says_that_it_runs_already(up):
    with up.running() as process:
        await until_up(process)
        second = up.jm("up")
        assert second.returncode == ExitCode.ALREADY_RUNNING
        assert second.stdout == ""
        assert second.stderr.count("\n") == 1
        assert f"pid {process.pid}" in second.stderr
        assert up.result_of("hello") == "hello you"  # the first one took no harm
        assert await process.end(signal.SIGHUP) == ExitCode.OK
        assert up.processes() == {}


async def test_a_signal_during_the_start_leaves_nothing(up):
    for delay_s in (0.2, 0.6, 1.2, 2.0):
        with up.running() as process:
            await asyncio.sleep(delay_s)
            assert await process.end() in (ExitCode.OK, ExitCode.INTERRUPTED, -signal.SIGTERM)
            await up.wait_gone()


async def test_data_are_kept_and_its_address_too(up):
    with up.running() as process:
        await until_up(process)
        assert up.result_of("hello") == "hello you"
        [job] = json.loads(up.jm("job", "list", "--json").stdout)["jobs"]
        before = (up.folder / ".jm" / "env").read_text()
        assert await process.end() == ExitCode.OK
    away = up.jm("job", "list", JM_NATS_CONNECT_TIMEOUT_S="1")
    assert away.returncode == ExitCode.NATS
    assert "start it with 'jm up'" in away.stderr
    with up.running() as process:
        await until_up(process)
        assert (up.folder / ".jm" / "env").read_text() == before
        assert json.loads(up.jm("job", "show", job["id"], "--json").stdout)["result"] == "hello you"
        assert await process.end() == ExitCode.OK


async def test_sigkill_leaves_no_process_and_the_next_one_recovers(up):
    """Also at once, while the guards are still at work; jobs that ran run again, those that waited still wait."""
    with up.running() as process:
        await until_up(process)
        waiting = up.jm("submit", "hello", "{}", "--in", "1h", "--wait", "recorded").stdout.split()[1]
        napping = up.jm("submit", "nap", '{"seconds": 2}', "--wait", "recorded").stdout.split()[1]
        before = up.processes()
        process.process.kill()
        await process.wait_exit()
        with up.running() as successor:
            await until_up(successor)
            assert not set(before) & set(up.processes())
            assert json.loads(up.jm("job", "show", waiting, "--json").stdout)["status"] == "on_master"
            await wait_until(lambda: status(up, napping) == "succeeded", 40, what="the end of the interrupted job")
            assert await successor.end() == ExitCode.OK
    await up.wait_gone()


def status(up, job_id):
    return json.loads(up.jm("job", "show", job_id, "--json").stdout)["status"]


async def test_sigkill_alone_leaves_no_process(up):
    with up.running() as process:
        await until_up(process)
        process.process.kill()
        await up.wait_gone()


async def test_what_dies_is_started_again_and_that_is_said(up):
    with up.running() as process:
        await until_up(process)
        for times, victim in enumerate(("jm_cli worker", "jm_cli coordinator", "nats-server", "postgres -D"), 1):
            for pid in up.pids(victim):
                if "jm-guard" not in up.processes().get(pid, ""):
                    os.kill(pid, signal.SIGKILL)
            await wait_until(
                lambda n=times: process.err().count("started again") >= n, 30, what=f"the loss of {victim}"
            )
            await wait_until(lambda: up.jm("doctor").returncode == ExitCode.OK, 60, what=f"the recovery of {victim}")
            assert up.result_of("hello") == "hello you"
        assert await process.end() == ExitCode.OK
    await up.wait_gone()


async def test_an_application_of_one_s_own(up):
    (up.folder / "shop.py").write_text(
        "from jm_nats import JobMaster\n"
        "jm = JobMaster('shop-1')\n"
        "@jm.handler('double')\n"
        "async def double(n: int) -> int:\n"
        "    print('from the handler \\x1b[31m', flush=True)\n"
        "    return 2 * n\n"
    )
    variables = {"JM_WORKER_SLOTS": "7", "JM_NATS_URL": "nats://127.0.0.1:1", "JM_CLUSTER": "elsewhere"}
    with up.running("--app", "shop", "--data", "kept", "--log-level", "warning", **variables) as process:
        await until_up(process)
        assert "JM_DATA=kept jm submit double" in process.out()
        assert up.jm("submit", "double", '{"n": 4}', "--wait", "result", JM_DATA="kept").stdout == "8\n"
        await process.wait_for("from the handler")
        assert "\x1b" not in process.err()
        assert "of 7 slots" in up.jm("doctor", JM_DATA="kept").stdout
        assert await process.end() == ExitCode.OK
    assert not (up.folder / ".jm").exists()
    with up.running("--data", "kept") as process:  # another application on the same data: a database of its own
        await until_up(process)
        assert json.loads(up.jm("job", "list", "--json", JM_DATA="kept").stdout)["jobs"] == []
        assert await process.end() == ExitCode.OK


async def test_a_worker_that_cannot_run_ends_it(up):
    """A setting that no restart would mend."""
    with up.running(JM_WORKER_SLOTS="0") as process:
        assert await process.wait_exit() == ExitCode.USAGE
        assert "worker-1 cannot run" in process.err()
        assert "slots is 0" in process.err().splitlines()[-1]
    await up.wait_gone()


async def test_a_second_signal_hurries(up):
    with up.running(JM_WORKER_DRAIN_TIMEOUT_S="600") as process:
        await until_up(process)
        up.jm("submit", "nap", '{"seconds": 500}', "--wait", "recorded")
        await wait_until(lambda: "1 processing" in up.jm("doctor").stdout, what="the start of the job")
        process.process.send_signal(signal.SIGINT)
        await process.wait_for("worker drains")
        await asyncio.sleep(ECHO_S)  # sooner it would be taken for an echo of the first
        assert await process.end(signal.SIGINT) == ExitCode.INTERRUPTED
    await up.wait_gone()


async def test_a_port_that_is_taken_is_named(up, nats_server):
    with up.running("--nats-port", str(nats_server.port)) as process:
        assert await process.wait_exit() == ExitCode.NATS
        assert f"port {nats_server.port}" in process.err()
    await up.wait_gone()


def test_a_folder_that_cannot_be_used_is_named(up):
    (up.folder / "file").write_text("")
    done = up.jm("up", "--data", "file/x")
    assert done.returncode == ExitCode.USAGE
    assert "file/x" in done.stderr
