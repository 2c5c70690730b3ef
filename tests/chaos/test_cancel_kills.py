"""Cancels around the death of the worker, and of the leader that was told: a cancelled job never starts again.

The ordinary run does a few kills; ``pytest -m soak`` does a hundred.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from jm_core.control import Action
from jm_core.model import JobStatus as S
from jm_master.embedded import PostgresServer
from jm_master.migrate import migrate
from jm_nats.api_client import MasterUnavailableError, NoCoordinatorError
from tests.support.control_app import NOTES_VARIABLE, notes, waits
from tests.support.processes import COORDINATOR_READY, Cluster
from tests.support.scene import SHORT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from jm_nats import JobClient
    from tests.support.processes import JmProcess

APP: Final = "tests.support.control_app:jm"
JOBS: Final = 4
AROUND_S: Final = 0.05


def cluster_of(nats_server, database, cluster_name, tmp_path: Path) -> Cluster:
    return Cluster(nats_server.url, database, cluster_name, **SHORT.env(), **{NOTES_VARIABLE: str(tmp_path / "notes")})


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_cancelled_job_never_starts_again_when_its_worker_is_killed(
    nats_server, database, cluster_name, tmp_path
) -> None:
    async with cluster_of(nats_server, database, cluster_name, tmp_path) as cluster:
        await killed_around_cancels(cluster, tmp_path / "notes", trials=4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_cancelled_job_never_starts_again_in_a_hundred_kills(
    nats_server, database, cluster_name, tmp_path
) -> None:
    async with cluster_of(nats_server, database, cluster_name, tmp_path) as cluster:
        await killed_around_cancels(cluster, tmp_path / "notes", trials=100)


async def killed_around_cancels(cluster: Cluster, noted: Path, *, trials: int) -> None:
    await cluster.start_coordinator().wait_ready()
    workers = [cluster.start_worker(app=APP) for _ in range(2)]
    for worker in workers:
        await worker.wait_ready()
    started: dict[str, int] = {}
    async with cluster.client() as client:
        for _ in range(trials):
            ids = await running(cluster, client)
            victim = workers.pop(random.randrange(2))
            offset_s = random.uniform(-AROUND_S, AROUND_S)
            _, answered = await asyncio.gather(later(victim.kill, -offset_s), cancelled(client, ids, offset_s))
            assert answered == JOBS
            started |= {job_id: notes(noted, "started").count(job_id) for job_id in ids}
            workers.append(await cluster.start_worker(app=APP).wait_ready())
        assert await cluster.ended(started, 60) == {"cancelled": trials * JOBS}
        # What would start again would do so by now: later jobs have gone all the way.
        marker = await waits.submit(client, seconds=0.0)
        await client.result(marker.job_id, timeout=30)
        assert {job_id: notes(noted, "started").count(job_id) for job_id in started} == started
        await cluster.assert_oracles([*started, marker.job_id])


async def running(cluster: Cluster, client: JobClient) -> list[str]:
    ids = [receipt.job_id for receipt in await client.submit_many([waits.job({"seconds": 600.0}) for _ in range(JOBS)])]

    async def all_run() -> bool:
        return (await cluster.sql.counts(ids)) == {"processing": JOBS}

    await wait_until(all_run, 60, what="all of them to run")
    return ids


async def later(do, after_s: float) -> None:
    await asyncio.sleep(max(0.0, after_s))
    do()


async def cancelled(client: JobClient, ids: list[str], after_s: float) -> int:
    """How many the API said that it cancels."""
    await asyncio.sleep(max(0.0, after_s))
    replies = [reply async for reply in client.control(Action.CANCEL, ids, by="ops", reason="r")]
    return sum(verdict.changed for reply in replies for verdict in reply.jobs)


@pytest.mark.chaos
@pytest.mark.timeout(120)
async def test_br197_a_force_cancel_of_what_a_dead_worker_ran_is_done_at_once(
    nats_server, database, cluster_name, tmp_path
) -> None:
    settings = {"JM_LEASE_S": "10", "JM_HEARTBEAT_S": "2"}
    async with Cluster(nats_server.url, database, cluster_name, **settings) as cluster, cluster.client() as client:
        await cluster.start_coordinator().wait_ready()
        worker = await cluster.start_worker(app=APP).wait_ready()
        ids = await running(cluster, client)
        worker.kill()
        begun_s = time.monotonic()
        verdicts = [await client.cancel(job_id, by="ops", reason="its worker is dead", force=True) for job_id in ids]
        assert time.monotonic() - begun_s < 5.0, "well before the lease is over"
        assert {verdict.status for verdict in verdicts} == {"cancelled"}
        assert await cluster.sql.counts(ids) == {"cancelled": JOBS}
        assert {action.actor for action in (await client.actions()).actions} == {"ops"}


@pytest.mark.chaos
@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", ["cancel.after_commit", "control.after_commit"])
async def test_a_cancel_that_was_committed_is_told_by_the_next_leader(
    nats_server, database, cluster_name, tmp_path, point
) -> None:
    """The leader dies before it has told anybody; the worker lives, and runs the job."""
    async with cluster_of(nats_server, database, cluster_name, tmp_path) as cluster, cluster.client() as client:
        leader = await crashing_leader(cluster, point)
        await cluster.start_worker(app=APP).wait_ready()
        ids = await running(cluster, client)
        with pytest.raises(NoCoordinatorError):
            await client.cancel(ids[0], by="ops")
        await leader.wait_exit()
        await cluster.start_coordinator().wait_ready()
        await wait_until(lambda: is_cancelled(cluster, ids[0]), 30, what="the first to be cancelled")
        verdict = await client.cancel(ids[0], by="ops")  # asked again, as one would
        assert (verdict.status, verdict.changed) == ("cancelled", False)
        assert notes(tmp_path / "notes", "started").count(ids[0]) == 1
        (action, *_) = (await client.actions()).actions[::-1]
        assert (action.changed, action.actor) == (1, "ops")
        for job_id in ids[1:]:
            await client.cancel(job_id, wait=20)


async def crashing_leader(cluster: Cluster, point: str) -> JmProcess:
    env = {"JM_TEST_CRASH_AT": point}
    return await cluster.processes.start("coordinator", "coordinator", ready=COORDINATOR_READY, env=env).wait_ready()


async def is_cancelled(cluster: Cluster, job_id: str) -> bool:
    return (await cluster.sql.job(job_id))["status"] == S.CANCELLED


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_a_cancel_while_postgres_is_away_says_so_and_does_nothing_by_halves(
    nats_server, cluster_name, tmp_path
) -> None:
    postgres = PostgresServer()
    await asyncio.to_thread(postgres.start)
    try:
        await migrate(postgres.dsn)
        async with cluster_of(nats_server, postgres.dsn, cluster_name, tmp_path) as cluster, cluster.client() as client:
            await cluster.start_coordinator().wait_ready()
            await cluster.start_worker(app=APP).wait_ready()
            ids = await running(cluster, client)
            await asyncio.to_thread(postgres.stop)
            with pytest.raises(MasterUnavailableError, match="cannot ask Postgres"):
                await client.cancel(ids[0], by="ops")
            await asyncio.to_thread(postgres.start)
            row = await wait_until(lambda: row_of(cluster, ids[0]), 30, what="Postgres to be back")
            assert (row["status"], row["cancel_requested_at"]) == (S.PROCESSING, None)
            await wait_until(lambda: answers(client, ids[0]), 30, what="the coordinator to be back")
            verdict = await client.cancel(ids[0], by="ops", wait=30)
            assert (verdict.changed, verdict.status) == (True, "cancelled")
            assert (await cluster.sql.job(ids[1]))["status"] == S.PROCESSING
    finally:
        await asyncio.to_thread(postgres.close)


async def row_of(cluster: Cluster, job_id: str):
    try:
        return await cluster.sql.job(job_id)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return None


async def answers(client: JobClient, job_id: str) -> bool:
    try:
        return (await client.job(job_id)).id == job_id
    except NoCoordinatorError:
        return False
