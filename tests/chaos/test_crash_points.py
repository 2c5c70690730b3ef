"""Every row of the crash table that concerns client, writer and coordinator, with real processes and real SIGKILLs.

Twenty kills a point, under load. After each: nothing is lost, every effect is recorded once, and, since no worker died,
nothing ran twice.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from jm_nats.embedded import NatsServer
from tests.support.app import RUNS_VARIABLE, counted, fail_once, runs_in
from tests.support.load import load, mix
from tests.support.processes import ROOT, Cluster, environment
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path


KILLS: Final = 20
# A short lease, so that the next leader need not wait long. A restarted coordinator has to sit out what is left of it.
TIMING: Final = {"JM_LEASE_S": "1.2", "JM_HEARTBEAT_S": "0.3"}
KILLED: Final = -signal.SIGKILL
GROUPS: Final = (
    ("writer.after_read", "writer.before_commit", "writer.after_commit", "writer.after_publish"),
    ("writer.after_ack", "assign.after_commit", "recorder.after_commit"),
)
CLIENT: Final = """
import asyncio, sys
from tests.support.app import counted, jm
async def main():
    async with jm.client() as client:
        jobs = [counted.job({}, job_id=line.strip()) for line in sys.stdin]
        await asyncio.gather(*[client.submit(job) for job in jobs])
        print("all queued", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@asynccontextmanager
async def cluster_of(nats_url: str, dsn: str, name: str, runs: Path) -> AsyncIterator[Cluster]:
    async with Cluster(nats_url, dsn, name) as cluster:
        cluster.processes.env |= {RUNS_VARIABLE: str(runs), **TIMING}
        yield cluster


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("points", GROUPS, ids=" ".join)
async def test_a_coordinator_killed_exactly_there_loses_and_doubles_nothing(
    points: Sequence[str],
    nats_server: NatsServer,
    new_database: Callable[[], str],
    cluster_name: str,
    tmp_path: Path,
) -> None:
    """A cluster for each point, side by side: a restarted coordinator spends its time waiting for the lease."""
    async with asyncio.TaskGroup() as group:
        for number, point in enumerate(points):
            name, runs = f"{cluster_name}_{number}", tmp_path / f"runs{number}"
            group.create_task(killed_again_and_again(point, nats_server.url, new_database(), name, runs), name=point)


async def killed_again_and_again(point: str, nats_url: str, dsn: str, name: str, runs: Path) -> None:
    accepted: list[str] = []
    async with cluster_of(nats_url, dsn, name, runs) as cluster:
        worker = await cluster.start_worker().wait_ready()
        # Half of them fail once, and so go round by the master again.
        async with cluster.client() as client, load(client, accepted, mix(counted, fail_once)) as work:
            for kill in range(KILLS):
                work.more()
                victim = cluster.start_coordinator(env={"JM_TEST_CRASH_AT": f"{point}:{1 + kill % 3}"})
                assert await victim.wait_exit() == KILLED, victim.log_tail()
        await cluster.start_coordinator().wait_ready()
        assert await cluster.ended(accepted, timeout_s=60) == {"succeeded": len(accepted)}
        await cluster.assert_oracles(accepted)
        assert worker.running
        ran = runs_in(runs)
        assert len(ran) == len(set(ran)), f"{point}: a job ran twice although its worker lived"
        assert set(ran) <= set(accepted)


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_job_that_nats_acknowledged_survives_although_nothing_had_saved_it_yet(
    postgres_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """PubAck received, nothing persisted: no writer has read it, the client is dead, and NATS itself is killed."""
    runs, accepted = tmp_path / "runs", []
    with NatsServer() as nats:
        async with cluster_of(nats.url, database, cluster_name, runs) as cluster:
            coordinator = await cluster.start_coordinator().wait_ready()
            await cluster.start_worker().wait_ready()
            assert await coordinator.stop() == 0
            for _ in range(KILLS):
                accepted += await submit_and_die(cluster)
                await asyncio.to_thread(nats.kill)
                await asyncio.to_thread(nats.start)
            assert await cluster.sql.value("SELECT count(*) FROM job") == 0, "nothing is persisted yet"
            await cluster.start_coordinator().wait_ready()
            assert await cluster.ended(accepted, timeout_s=60) == {"succeeded": len(accepted)}
            await cluster.assert_oracles(accepted)
            assert sorted(runs_in(runs)) == sorted(accepted)


async def submit_and_die(cluster: Cluster, jobs: int = 10) -> list[str]:
    """The ids of jobs whose client was killed as soon as it had its PubAcks."""
    ids = [str(counted.job({}).id) for _ in range(jobs)]
    client = await start_client(cluster, ids)
    assert client.stdout is not None
    line = await asyncio.wait_for(client.stdout.readline(), 20)
    client.kill()
    await client.wait()
    assert line == b"all queued\n"
    return ids


async def start_client(cluster: Cluster, ids: list[str]) -> asyncio.subprocess.Process:
    env = environment(cluster.nats_url, cluster.dsn, cluster.name)
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, env=env, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert client.stdin is not None
    client.stdin.write("".join(f"{job_id}\n" for job_id in ids).encode())
    client.stdin.close()
    return client


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_client_killed_before_its_puback_may_submit_the_same_ids_again(
    nats_server: NatsServer, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """Killed at twenty different moments of its submits: whatever had arrived, the retry makes each job just once."""
    runs, accepted = tmp_path / "runs", []
    async with cluster_of(nats_server.url, database, cluster_name, runs) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            for kill in range(KILLS):
                ids = [str(counted.job({}).id) for _ in range(200)]
                victim = await start_client(cluster, ids)
                first = ids[0] if kill % 2 else ids[-1]
                await arrived_or_ended(cluster, first, victim)
                victim.kill()
                await victim.wait()
                jobs = [counted.job({}, job_id=job_id) for job_id in ids]
                receipts = await client.submit_many(jobs)
                accepted += [receipt.job_id for receipt in receipts]
        assert await cluster.ended(accepted, timeout_s=60) == {"succeeded": KILLS * 200}
        await cluster.assert_oracles(accepted)
        ran = runs_in(runs)
        assert len(ran) == len(set(ran)) == KILLS * 200


async def arrived_or_ended(cluster: Cluster, job_id: str, victim: asyncio.subprocess.Process) -> None:
    """The moment to strike: one of the jobs is recorded, so that the others are somewhere on their way."""

    async def seen() -> bool:
        row = await cluster.sql.value("SELECT 1 FROM job WHERE id = $1", job_id)
        return row is not None or victim.returncode is not None

    await wait_until(seen, what="the first job of a client")
