"""Two applications in one ``jm worker``, of which one fails stop: the other one goes on, and the health port tells."""

import pytest

from jm_cli.exits import ExitCode
from jm_nats import JobClient, NatsConfig, submission
from tests.support.cli import Running, jm
from tests.support.health import HealthClient
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

# Both are healthy until the file `break-<name>` is there; then that one's `run` raises.
TWO = """
import asyncio, os
from pathlib import Path
from jm_nats import JobMaster
from jm_nats.worker.runtime import Worker

cluster = os.environ["JM_CLUSTER"]
one, two = JobMaster(cluster), JobMaster(cluster)
real = Worker.run

@one.handler("in_one", lane="one")
async def in_one() -> int:
    return 1

@two.handler("in_two", lane="two")
async def in_two() -> int:
    return 2

async def broken(name):
    while not Path("break-" + name).exists():
        await asyncio.sleep(0.05)

async def run(worker, stop, hurry=None):
    running = asyncio.ensure_future(real(worker, stop, hurry))
    breaking = asyncio.ensure_future(broken("one" if worker.app is one else "two"))
    await asyncio.wait({running, breaking}, return_when=asyncio.FIRST_COMPLETED)
    if breaking.done():
        running.cancel()
        await asyncio.wait({running})
        raise KeyError("a bug")
    breaking.cancel()
    await running

Worker.run = run
"""


@pytest.fixture
async def cluster(nats_server, database, cluster_name):
    async with Cluster(nats_server.url, database, cluster_name) as made:
        await made.start_coordinator().wait_ready()
        yield made


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "two_apps.py").write_text(TWO)
    return tmp_path


def worker(cluster, folder, *more, **variables):
    settings = {"JM_NATS_URL": cluster.nats_url, "JM_CLUSTER": cluster.name}
    return Running("worker", "two_apps:one", "two_apps:two", *more, cwd=folder, **settings, **variables)


async def result_of(cluster, handler, lane):
    async with JobClient(cluster.name, NatsConfig(servers=(cluster.nats_url,))) as client:
        receipt = await client.submit(submission(handler, lane=lane))
        return await client.result(receipt.job_id, timeout=20)


async def both_ready(running):
    await wait_until(lambda: running.err().count("worker ready") == 2, what="both", shown=running.err)


async def test_one_halts_the_other_works_on_and_a_signal_ends_the_process_with_1(cluster, folder):
    with worker(cluster, folder, "--health-port", "0", "--name", "w") as running:
        await both_ready(running)
        assert "worker=w-a " in running.err()
        assert "worker=w-b " in running.err()
        health = HealthClient(running.err)
        await health.wait_status("/readyz", 200)
        (folder / "break-two").touch()
        body = await health.wait_status("/health", 503)
        assert {group["name"]: group["health"] for group in body["groups"]} == {
            "two_apps:one": "healthy",
            "two_apps:two": "unhealthy",
        }
        assert (await health.get("/livez")).status == 200
        answer = await health.get("/readyz")
        assert (answer.status, answer.body["reasons"]) == (503, ["two_apps:two: halted: KeyError: 'a bug'"])
        assert await result_of(cluster, "in_one", "one") == 1
        assert await running.end() == ExitCode.UNEXPECTED
        assert running.err().count("halted for good") == 1


async def test_with_a_health_port_it_says_why_after_all_have_halted(cluster, folder):
    with worker(cluster, folder, "--health-port", "0") as running:
        await both_ready(running)
        for name in ("one", "two"):
            (folder / f"break-{name}").touch()
        await running.wait_for("health is served until a signal")
        answer = await HealthClient(running.err).get("/livez")
        assert answer.status == 503
        assert len(answer.body["reasons"]) == 2
        assert await running.end() == ExitCode.UNEXPECTED


async def test_without_one_it_ends_with_1_after_its_last_group(cluster, folder):
    with worker(cluster, folder) as running:
        await both_ready(running)
        for name in ("one", "two"):
            (folder / f"break-{name}").touch()
        assert await running.wait_exit() == ExitCode.UNEXPECTED


async def test_mode_full_is_a_whole_cluster_in_one_process(nats_server, database, cluster_name, folder):
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name, "JM_POSTGRES_DSN": database}
    command = ("worker", "two_apps:one", "--mode", "full", "--health-port", "0")
    with Running(*command, cwd=folder, **variables) as running:
        health = HealthClient(running.err)
        await health.wait_status("/readyz", 200)
        groups = (await health.get("/health")).body["groups"]
        assert [(group["name"], group["kind"]) for group in groups] == [
            ("two_apps:one", "worker"),
            ("coordinator", "coordinator"),
        ]
        async with Cluster(nats_server.url, database, cluster_name) as cluster:
            assert await result_of(cluster, "in_one", "one") == 1
        assert await running.end() == ExitCode.OK


BAD = [
    (["two_apps:one", "two_apps:one"], "named twice"),
    (["two_apps:one", "--mode", "full"], "JM_POSTGRES_DSN"),
    (["two_apps:one", "--mode", "coordinator"], "--mode"),
    (["two_apps:one", "--health-port", "70000"], "--health-port"),
    (["two_apps:one", "--health-port", "0", "--health-host", "no.such.host.invalid"], "no.such.host.invalid"),
    (["two_apps:one", "--processes", "0"], "--processes"),
    (["two_apps:one", "--processes", "2", "--slots", "0"], "slots"),
    (["two_apps:one", "two_apps:two", "--name", "x" * 39], "worker"),
    (["jm_cli.example:jm", "two_apps:one", "--mode", "full", "--dsn", "postgresql://h/d"], "{cluster}"),
]


@pytest.mark.parametrize(("arguments", "part"), BAD, ids=[part for _, part in BAD])
def test_bad_settings_end_with_code_2_and_name_it(folder, arguments, part):
    done = jm("worker", *arguments, cwd=folder, JM_CLUSTER="x", JM_NATS_URL="nats://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, ""), done
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert part in line
