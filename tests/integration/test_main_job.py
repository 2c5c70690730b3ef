"""The main job, end to end: submit, NATS, Postgres, worker, Postgres. Real servers, real processes."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from jm_core import limits
from jm_core.errors import JobFailedError, ResultTimeoutError
from jm_master.embedded import PostgresServer
from jm_master.migrate import migrate
from tests.support.app import (
    RUNS_VARIABLE,
    always_fails,
    asks_for_no_retry,
    asks_for_retry,
    counted,
    echo,
    fail_once,
    noop,
    process_sleeper,
    runs_in,
    sleeper,
    thread_sleeper,
)
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jm_nats.embedded import NatsServer

JOBS_WITHOUT_MASTER: Final = 10_000
SHORT_TIMEOUT_S: Final = 0.3


@asynccontextmanager
async def running(nats_url: str, dsn: str, name: str, runs: Path | None = None) -> AsyncIterator[Cluster]:
    async with Cluster(nats_url, dsn, name) as cluster:
        if runs is not None:
            cluster.processes.env[RUNS_VARIABLE] = str(runs)
        await cluster.start()
        yield cluster


async def test_a_job_is_queued_recorded_run_and_its_result_comes_back_over_nats(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with running(nats_server.url, database, cluster_name) as cluster, cluster.client() as client:
        queued = await echo.submit(client, value={"n": 9007199254740993})
        recorded = await echo.submit(client, value=[1, "ü"], wait="recorded")
        assert (queued.status, recorded.status) == ("queued", "recorded")
        assert await client.result(queued.job_id, timeout=20) == {"n": 9007199254740993}
        assert await client.result(recorded.job_id, timeout=20) == [1, "ü"]
        view = await client.job(queued.job_id)
        assert (view.status, view.attempt, view.dispatch) == ("succeeded", 1, 1)
        assert bytes(view.args or b"") == b'{"value": {"n": 9007199254740993}}'
        await cluster.assert_oracles([queued.job_id, recorded.job_id])


async def test_a_result_that_is_not_there_yet_times_out_and_the_job_goes_on(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with running(nats_server.url, database, cluster_name) as cluster, cluster.client() as client:
        receipt = await sleeper.submit(client, seconds=0.6)
        with pytest.raises(ResultTimeoutError):
            await client.result(receipt.job_id, timeout=0.1)
        assert await client.result(receipt.job_id, timeout=20) is None
        await cluster.assert_oracles([receipt.job_id])


async def test_concurrent_submits_are_packed_and_answered_one_by_one(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with running(nats_server.url, database, cluster_name) as cluster, cluster.client() as client:
        before = (await client.link.js.stream_info(client.names.pending_stream)).state.last_seq
        receipts = await asyncio.gather(*[echo.submit(client, value=n, wait="recorded") for n in range(1_000)])
        messages = (await client.link.js.stream_info(client.names.pending_stream)).state.last_seq - before
        assert {receipt.status for receipt in receipts} == {"recorded"}
        assert len({receipt.job_id for receipt in receipts}) == 1_000
        assert messages <= 20
        results = await asyncio.gather(*[client.result(receipt.job_id, timeout=20) for receipt in receipts])
        assert results == list(range(1_000))
        await cluster.assert_oracles([receipt.job_id for receipt in receipts])


@pytest.mark.timeout(180)
async def test_with_postgres_stopped_jobs_are_accepted_and_none_starts_before_it_is_recorded(
    nats_server: NatsServer, cluster_name: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with PostgresServer(settings={"fsync": "off"}) as postgres:
        await migrate(postgres.dsn)
        async with running(nats_server.url, postgres.dsn, cluster_name, runs) as cluster:
            await asyncio.to_thread(postgres.stop)
            async with cluster.client() as client:
                receipts = await client.submit_many(counted.jobs({} for _ in range(JOBS_WITHOUT_MASTER)))
                assert {receipt.status for receipt in receipts} == {"queued"}
                stream = (await client.link.js.stream_info(client.names.pending_stream)).state
            # Everything lies in NATS, the writer has taken what it can and waits; nobody was told to start anything.
            assert stream.messages == JOBS_WITHOUT_MASTER // limits.PACK_JOBS
            assert runs_in(runs) == []
            await asyncio.to_thread(postgres.start)
            ids = [receipt.job_id for receipt in receipts]
            assert await cluster.ended(ids, timeout_s=90) == {"succeeded": JOBS_WITHOUT_MASTER}
            assert sorted(runs_in(runs)) == sorted(ids)
            early = "SELECT count(*) FROM job WHERE started_at < recorded_at"
            assert await cluster.sql.value(early) == 0
            await cluster.assert_oracles(ids)


async def test_failures_are_retried_until_they_succeed_or_the_attempts_are_used_up(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with running(nats_server.url, database, cluster_name) as cluster, cluster.client() as client:
        once = await fail_once.submit(client)
        never = await always_fails.submit(client)
        asked = await asks_for_retry.submit(client)
        refused = await asks_for_no_retry.submit(client)
        assert await client.result(once.job_id, timeout=20) == 2
        assert await client.result(asked.job_id, timeout=20) == 3
        with pytest.raises(JobFailedError, match="it always fails"):
            await client.result(never.job_id, timeout=20)
        with pytest.raises(JobFailedError, match="never again"):
            await client.result(refused.job_id, timeout=20)
        assert await cluster.sql.outcomes(once.job_id) == ["failed", "succeeded"]
        assert await cluster.sql.outcomes(never.job_id) == ["failed", "failed"]
        assert await cluster.sql.outcomes(asked.job_id) == ["failed", "failed", "succeeded"]
        assert await cluster.sql.outcomes(refused.job_id) == ["failed"]
        row = await cluster.sql.job(once.job_id)
        assert (row["attempt"], row["dispatch"]) == (2, 2)
        history = (await client.api.attempts(never.job_id)).attempts
        assert [(a.attempt, a.outcome) for a in history] == [(1, "failed"), (2, "failed")]
        assert history[0].retry_in_s == pytest.approx(0.05)
        await cluster.assert_oracles([receipt.job_id for receipt in (once, never, asked, refused)])


async def test_timeouts_are_enforced_and_reported_as_what_they_are(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    """An async handler is cancelled, a process killed; a thread cannot be stopped, and the record says so."""
    async with running(nats_server.url, database, cluster_name) as cluster, cluster.client() as client:
        options = {"timeout": SHORT_TIMEOUT_S, "max_attempts": 1}
        said = {
            sleeper: "timed out after 0.3 s",
            thread_sleeper: "a thread cannot be stopped",
            process_sleeper: "its process was killed",
        }
        receipts = {h: await h.submit(client, seconds=3, **options) for h in said}
        for handler, words in said.items():
            with pytest.raises(JobFailedError, match=words):
                await client.result(receipts[handler].job_id, timeout=20)
            assert await cluster.sql.outcomes(receipts[handler].job_id) == ["timed_out"]
        await cluster.assert_oracles([receipt.job_id for receipt in receipts.values()])


async def test_jobs_due_at_random_instants_never_start_early(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    rng = random.Random(7)
    async with running(nats_server.url, database, cluster_name) as cluster, cluster.client() as client:
        now = datetime.now(UTC)
        jobs = [noop.job({}, run_at=now + timedelta(seconds=rng.uniform(0, 6))) for _ in range(300)]
        receipts = await client.submit_many(jobs)
        assert await cluster.ended([r.job_id for r in receipts], timeout_s=30) == {"succeeded": 300}
        assert await cluster.sql.value("SELECT count(*) FROM job WHERE started_at < run_at") == 0
        await cluster.assert_oracles([receipt.job_id for receipt in receipts])


async def test_a_clean_first_success_costs_one_insert_and_one_update(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    jobs = 500
    async with running(nats_server.url, database, cluster_name) as cluster, cluster.client() as client:
        receipts = await client.submit_many(echo.jobs({"value": n} for n in range(jobs)))
        await cluster.ended([receipt.job_id for receipt in receipts])
        query = "SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = 'job'"

        async def counted_by_postgres() -> tuple[int, int, int] | None:
            row = await cluster.sql.row(query)
            return tuple(row) if row["n_tup_ins"] >= jobs and row["n_tup_upd"] >= jobs else None

        assert await wait_until(counted_by_postgres, what="Postgres' own counters") == (jobs, jobs, 0)
        assert await cluster.sql.value("SELECT count(*) FROM attempt") == 0


async def test_a_worker_that_is_told_to_stop_hands_back_what_it_holds_and_another_runs_it(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with Cluster(nats_server.url, database, cluster_name) as cluster:
        await cluster.start_coordinator().wait_ready()
        first = await cluster.start_worker("--slots", "2", "--drain-timeout", "0").wait_ready()
        async with cluster.client() as client:
            receipts = await client.submit_many(sleeper.jobs({"seconds": 1} for _ in range(2)))
            receipts += await client.submit_many(sleeper.jobs({"seconds": 0} for _ in range(50)))
            await cluster.wait_for_counts(processing=2)
            assert await first.stop() == 0
            await cluster.start_worker().wait_ready()
            ids = [receipt.job_id for receipt in receipts]
            assert await cluster.ended(ids) == {"succeeded": 52}
        assert await cluster.sql.outcomes(ids[0]) == ["interrupted", "succeeded"]
        assert await cluster.sql.value("SELECT max(attempt - excused) FROM job") == 1
        await cluster.assert_oracles(ids)
