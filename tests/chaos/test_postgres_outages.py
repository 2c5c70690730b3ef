"""Postgres restarts, dies, is away, turns read-only, loses its answers: jobs run on, each outcome is recorded once."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from jm_master.embedded import PostgresServer
from jm_master.migrate import migrate
from tests.support.app import effect
from tests.support.effects import percentile
from tests.support.pg_proxy import PostgresProxy
from tests.support.scene import SHIPPED, SHORT, Scene, Timing
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jm_nats import JobClient

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(200)]

LATE_P99_S: Final = 0.050  # P5, by the handler's own clock
DUE_JOBS: Final = 200
TERMINATE: Final = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE application_name = 'jobmaster' AND datname = current_database()"
)
# Words of the statement whose commit is answered to nobody.
COMMITS: Final = {
    "save": "INSERT INTO jobmaster.job (",
    "assign": "SET status = 2, bucket_id = $5",
    "success": "SET status = 4, attempt = 1",
    "end": "INSERT INTO jobmaster.attempt",
}


@asynccontextmanager
async def own_postgres() -> AsyncIterator[PostgresServer]:
    """One that may be stopped and killed; durable, as it will be killed."""
    server = PostgresServer()
    await asyncio.to_thread(server.start)
    try:
        await migrate(server.dsn)
        yield server
    finally:
        await asyncio.to_thread(server.close)


@pytest.mark.parametrize(
    ("away_s", "timing"),
    [
        pytest.param(0.0, SHORT, id="restarted"),
        pytest.param(5.0, SHORT, id="away 5 s"),
        pytest.param(60.0, SHIPPED, id="away 60 s", marks=pytest.mark.soak),
        pytest.param(600.0, SHIPPED, id="away 10 min", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_jobs_already_in_buckets_start_on_time_while_postgres_is_away(  # noqa: PLR0917 - fixtures
    how: str, away_s: float, timing: Timing, nats_server, cluster_name: str, tmp_path: Path
) -> None:
    """P5, BR-158: due meanwhile and on time; finished meanwhile and recorded afterwards; nothing again."""
    async with (
        own_postgres() as postgres,
        Scene(nats_server.url, postgres.dsn, cluster_name, tmp_path, timing) as scene,
    ):
        await scene.start(workers=2)
        async with scene.client() as client:
            # Well within a job's timeout of 300 s.
            longer = await scene.start_long(client, 20, seconds=min(away_s / 2 + 1, 120))
            due = await into_buckets(scene, client, first_s=2.5, spread_s=away_s + 1)
            async with scene.under_load(client):
                await asyncio.to_thread(getattr(postgres, how))
                await asyncio.sleep(away_s)  # the fault itself
                await asyncio.to_thread(postgres.start)
                await scene.time_to_run(client, timeout_s=30)
            effects = await scene.settled(timeout_s=120)
            scene.assert_running()
        on_time = [run.late_s for run in effects.runs if run.job_id in due]
        assert len(on_time) == DUE_JOBS
        assert min(on_time) >= 0, "no job starts early"
        late_s = percentile(on_time, 0.99)
        print(f"late p50 {percentile(on_time, 0.5) * 1000:.1f} ms, p99 {late_s * 1000:.1f} ms")  # noqa: T201
        assert late_s <= LATE_P99_S
        assert {run.job_id for run in effects.runs} >= set(longer)


async def into_buckets(scene: Scene, client: JobClient, *, first_s: float, spread_s: float) -> set[str]:
    """Jobs due all over the outage, once all of them lie in buckets."""
    first = time.time() + first_s
    due_s = [first + spread_s * n / DUE_JOBS for n in range(DUE_JOBS)]
    jobs = [effect.job({"due": at}, run_at=datetime.fromtimestamp(at, UTC)) for at in due_s]
    ids = [receipt.job_id for receipt in await client.submit_many(jobs, wait="recorded")]
    scene.accepted += ids

    async def in_buckets() -> bool:
        counts = await scene.sql.counts(ids)
        return counts.get("on_master", 0) == 0 and not await scene.sql.value("SELECT count(*) FROM outbox")

    await wait_until(in_buckets, what="the jobs lie in buckets")
    return set(ids)


@pytest.mark.parametrize("for_s", [10.0, pytest.param(120.0, marks=pytest.mark.soak)])
async def test_backends_terminated_every_three_seconds_fail_no_job(
    for_s: float, nats_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """BR-157: each statement is tried again on a fresh connection, and all is well within a second."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path) as scene, scene.client() as client:
        await scene.start(workers=2)
        recovered_s = []
        async with scene.under_load(client, each=20):
            until = time.monotonic() + for_s
            while time.monotonic() < until:
                assert await scene.sql.value(TERMINATE) >= 1
                recovered_s.append(await scene.time_to_run(client))
                await asyncio.sleep(3 - min(3, recovered_s[-1]))  # BR-157's own period
        await scene.settled()
        scene.assert_running()
        assert await scene.sql.value("SELECT count(*) FROM attempt") == 0, "an attempt was not a clean first success"
        print(f"recovered in {max(recovered_s):.2f} s at most")  # noqa: T201
        assert max(recovered_s) <= 1.0


@pytest.mark.parametrize("commit", COMMITS)
async def test_a_commit_that_nobody_heard_of_counts_once(  # noqa: PLR0917 - fixtures
    commit: str, nats_server, postgres_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """BR-050: the transaction is done, its answer is lost, the connection is gone; three times under load."""
    async with (
        PostgresProxy(postgres_server.port) as proxy,
        Scene(nats_server.url, database, cluster_name, tmp_path) as scene,
    ):
        scene.processes.env["JM_POSTGRES_DSN"] = proxy.dsn(scene.processes.env["JM_POSTGRES_DSN"])
        await scene.start(workers=2)
        async with scene.client() as client, scene.under_load(client):
            for losses in range(1, 4):
                proxy.drop_next_commit_answer(COMMITS[commit])
                # They fail once: that is an end with an attempt of its own, and the assigner has to move them.
                await submit_round_by_the_master(scene, client)
                await wait_until(lambda n=losses: len(proxy.dropped) == n, what=f"{commit}: answer {losses} is lost")
        effects = await scene.settled()
        scene.assert_running()
        # What only the outbox knows of must not wait until the outbox is looked through (every 15 s).
        assert max(effects.delays_s()) <= 5


async def submit_round_by_the_master(scene: Scene, client: JobClient) -> None:
    jobs = [effect.job({"fail": True}, max_attempts=3) for _ in range(5)]
    scene.accepted += [receipt.job_id for receipt in await client.submit_many(jobs)]


async def test_a_primary_that_turns_read_only_is_an_outage(
    nats_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """BR-161: after a failover the pool still talks to the old primary."""
    name = database.rpartition("/")[2]
    async with Scene(nats_server.url, database, cluster_name, tmp_path) as scene, scene.client() as client:
        await scene.start(workers=2)
        async with scene.under_load(client):
            await scene.time_to_run(client)
            await scene.sql.value(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            await scene.sql.value(TERMINATE)
            coordinator = scene.processes.all[0]
            await coordinator.wait_for_log("postgres away")
            await asyncio.sleep(2)  # the fault itself
            await reset_read_only(database, name)
            await coordinator.wait_for_log("postgres back", timeout_s=30)
            assert await scene.time_to_run(client) <= 5
        await scene.settled()
        scene.assert_running()


async def reset_read_only(dsn: str, name: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SET default_transaction_read_only = off")
        await connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        # Sessions keep what they started with, as those to an old primary would.
        await connection.execute(TERMINATE)
    finally:
        with suppress(OSError):
            await connection.close()


async def test_postgres_and_two_workers_killed_together_leave_nothing_behind(
    nats_server, cluster_name: str, tmp_path: Path
) -> None:
    """BR-040: abrupt stops and a database restart; no row moves on and on without a new attempt."""
    async with own_postgres() as postgres, Scene(nats_server.url, postgres.dsn, cluster_name, tmp_path) as scene:
        await scene.start(workers=2)
        async with scene.client() as client:
            await scene.start_long(client, 20, seconds=3)
            async with scene.under_load(client) as work:
                work.more()
                await scene.time_to_run(client)
                workers = scene.processes.all[1:]
                await asyncio.to_thread(postgres.kill)
                for worker in workers:
                    worker.kill()
                await asyncio.to_thread(postgres.start)
                for _ in workers:
                    await scene.start_worker().wait_ready()
            await scene.settled(repeats=True, lost=True)
        churned = "SELECT count(*) FROM job WHERE dispatch > attempt + 5"
        assert await scene.sql.value(churned) == 0
        assert not [run for run, _ in scene.effects().overlaps() if run.end_s is not None]
