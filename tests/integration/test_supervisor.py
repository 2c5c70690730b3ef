"""``jm worker --processes``: what dies is started again, what it held is given to others at once, all of it stops."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from jm_cli.exits import ExitCode
from jm_cli.serving import ECHO_S
from jm_core import wire
from jm_nats import submission
from jm_nats.connection import connect
from jm_nats.kv import CasKv
from jm_nats.subjects import Names
from tests.support.cli import Running
from tests.support.health import HealthClient
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

APP = "tests.support.app:jm"


@pytest.fixture
async def cluster(nats_server, database, cluster_name):
    async with Cluster(nats_server.url, database, cluster_name, JM_LEASE_S="4", JM_HEARTBEAT_S="1") as made:
        yield made


def supervised(cluster, folder, *more, app=APP, **variables):
    settings = {"JM_NATS_URL": cluster.nats_url, "JM_CLUSTER": cluster.name}
    settings |= {"JM_LEASE_S": "4", "JM_HEARTBEAT_S": "1"} | variables
    return Running("worker", app, "--processes", "2", *more, cwd=folder, **settings)


@pytest.fixture
async def workers(cluster):
    """Who beats, by worker id."""
    async with await connect(cluster.client().config, client_name="test") as link:
        kv = CasKv(link, Names(cluster.name).workers_kv)

        async def look():
            return {entry.key: wire.decode_worker(entry.value) for entry in await kv.entries()}

        yield look


async def ready(running, count):
    await wait_until(lambda: running.err().count("worker ready") >= count, what=f"{count} ready", shown=running.err)


async def test_a_killed_child_is_started_again_and_its_job_runs_again(cluster, workers, tmp_path):
    await cluster.start_coordinator().wait_ready()
    with supervised(cluster, tmp_path, "--name", "w") as running:
        await ready(running, 2)
        async with cluster.client() as client:
            receipt = await client.submit(submission("waits_for_file", {"path": str(tmp_path / "go")}, max_attempts=5))
        mark = tmp_path / f"go.{receipt.job_id}"
        await wait_until(mark.exists, what="the start of the job")
        [busy] = await wait_until(lambda: busy_ones(workers), what="the worker that has it")
        mark.unlink()
        os.kill(busy.pid, signal.SIGKILL)
        await ready(running, 3)
        await wait_until(mark.exists, 40, what="the second start of the job", shown=running.err)
        (tmp_path / "go").touch()
        assert await cluster.ended([receipt.job_id]) == {"succeeded": 1}
        assert set(await workers()) == {"w-1", "w-2"}
        assert busy.pid not in {record.pid for record in (await workers()).values()}
        assert await running.end() == ExitCode.OK


async def busy_ones(workers):
    return [record for record in (await workers()).values() if record.running]


async def test_the_heartbeat_of_a_dead_child_is_gone_long_before_its_lease(cluster, workers, tmp_path):
    lease = {"JM_LEASE_S": "600", "JM_HEARTBEAT_S": "1"}
    with supervised(cluster, tmp_path, **lease) as running:
        await ready(running, 2)
        before = await workers()
        dead, other = sorted(before.values(), key=lambda record: record.pid)
        os.kill(dead.pid, signal.SIGKILL)
        await wait_until(lambda: is_gone(workers, dead.worker), what="the heartbeat removed", shown=running.err)
        assert other.worker in await workers()
        await ready(running, 3)
        assert await running.end() == ExitCode.OK
        assert await workers() == {}


async def is_gone(workers, name):
    return name not in await workers()


async def test_a_signal_drains_all_and_a_second_one_hurries_them(cluster, workers, tmp_path):
    await cluster.start_coordinator().wait_ready()
    with supervised(cluster, tmp_path, "--drain-timeout", "600") as running:
        await ready(running, 2)
        async with cluster.client() as client:
            await client.submit(submission("waits_for_file", {"path": str(tmp_path / "go")}))
        await wait_until(lambda: list(tmp_path.glob("go.*")), what="the start of the job")
        pids = {record.pid for record in (await workers()).values()}
        running.process.send_signal(signal.SIGTERM)
        await running.wait_for("worker drains")
        assert running.process.poll() is None
        await asyncio.sleep(ECHO_S)  # sooner it would be taken for an echo of the first
        running.process.send_signal(signal.SIGTERM)
        assert await running.wait_exit(timeout_s=30) == ExitCode.INTERRUPTED
    assert not [pid for pid in pids if is_alive(pid)]


async def test_children_do_not_outlive_a_supervisor_that_was_killed(cluster, workers, tmp_path):
    with supervised(cluster, tmp_path) as running:
        await ready(running, 2)
        pids = {record.pid for record in (await workers()).values()}
        running.process.kill()
        await wait_until(lambda: not [pid for pid in pids if is_alive(pid)], what="the end of the children")


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/exe").exists()  # a zombie has none


async def test_what_ends_by_itself_with_0_is_not_started_again(cluster, workers, tmp_path):
    with supervised(cluster, tmp_path) as running:
        await ready(running, 2)
        for record in (await workers()).values():
            os.kill(record.pid, signal.SIGTERM)
        assert await running.wait_exit() == ExitCode.OK
        assert "it is started again" not in running.err()


async def test_a_child_that_cannot_use_its_settings_ends_the_supervisor(cluster, tmp_path):
    """The application is fine for the supervisor and not for its children."""
    (tmp_path / "odd.py").write_text(
        "import pathlib\nfrom jm_nats import JobMaster\n"
        "jm = JobMaster('x')\n@jm.handler('h')\nasync def h() -> None: ...\n"
        "mark = pathlib.Path('seen')\n"
        "if mark.exists():\n    raise RuntimeError('not twice')\nmark.touch()\n"
    )
    with supervised(cluster, tmp_path, app="odd") as running:
        assert await running.wait_exit() == ExitCode.USAGE
        assert "not twice" in running.err()
        assert "its own error is above" in running.err()


async def test_the_health_port_is_the_supervisor_s_and_shows_who_is_missing(cluster, workers, tmp_path):
    with supervised(cluster, tmp_path, "--health-port", "0") as running:
        await ready(running, 2)
        health = HealthClient(running.err)
        assert (await health.get("/health")).body["status"] == "healthy"
        assert running.err().count("health is served") == 1
        [first, _] = (await workers()).values()
        os.kill(first.pid, signal.SIGKILL)
        await wait_until(lambda: has_status(health, "degraded"), what="degraded")
        await wait_until(lambda: has_status(health, "healthy"), what="healthy", shown=running.err)
        assert await running.end() == ExitCode.OK


async def has_status(health, status):
    return (await health.get("/health")).body["status"] == status


async def test_one_that_dies_again_and_again_is_unhealthy(cluster, tmp_path):
    """Without NATS every child ends with code 3."""
    away = {"JM_NATS_URL": "nats://127.0.0.1:1", "JM_NATS_CONNECT_TIMEOUT_S": "0.05"}
    with supervised(cluster, tmp_path, "--health-port", "0", **away) as running:
        body = await HealthClient(running.err).wait_status("/readyz", 503, timeout_s=60)
        assert "times in a row" in body["reasons"][0]
        assert (await HealthClient(running.err).get("/livez")).status == 200
        await running.end()
