"""Postgres goes away, comes back read-only, drops the answer to a COMMIT, meets itself in a deadlock."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import pytest

from jm_master.config import PostgresConfig
from jm_master.coordinator import Coordinator
from jm_master.database import Database
from jm_master.embedded import PostgresServer
from jm_master.migrate import migrate
from jm_master.pg_errors import RowRefusedError, StoreContentionError, StoreUnavailableError
from jm_master.record_store import RecordStore
from jm_master.save_store import SaveStore
from jm_nats.config import NatsConfig
from tests.support.master import FAST, coordinating, job, linked
from tests.support.waiting import wait_until


@pytest.fixture
async def bench(nats_server, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench:
        yield bench


@pytest.fixture
def postgres():
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server


async def count(dsn, status):
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval("SELECT count(*) FROM jobmaster.job WHERE status = $1", status)
    finally:
        await connection.close()


async def test_jobs_run_and_outcomes_wait_while_postgres_is_away(bench, nats_server, postgres, cluster_name, caplog):
    caplog.set_level(logging.INFO, logger="jm_master")
    async with coordinating(nats_server.url, postgres.dsn, cluster_name), bench.worker() as worker:
        await bench.submit(*[job() for _ in range(50)])
        runs = await worker.runs(50)
        await asyncio.to_thread(postgres.stop)
        await worker.succeed(runs)
        await bench.submit(*[job() for _ in range(50)])
        await asyncio.sleep(2)
        await asyncio.to_thread(postgres.start)
        more = await worker.runs(50, timeout_s=10)
        await worker.succeed(more)
        await wait_until(lambda: done(postgres.dsn, 100), what="all outcomes")
    away = [record for record in caplog.records if record.message in {"postgres away", "postgres back"}]
    assert 2 <= len(away) <= 8, [record.message for record in away]


async def done(dsn, jobs) -> bool:
    return await count(dsn, 4) == jobs


async def test_terminated_backends_cost_nothing(bench, nats_server, database, cluster_name):
    async with coordinating(nats_server.url, database, cluster_name), bench.worker() as worker:
        killer = asyncio.create_task(kill_backends(database))
        ended = 0
        for _ in range(20):
            await bench.submit(*[job() for _ in range(50)])
            runs = await worker.runs(50)
            ended += len(runs)
            await worker.succeed(runs)
        await wait_until(lambda: done(database, ended), what="all outcomes")
        killer.cancel()
        await asyncio.wait({killer})
        assert ended == 1000


async def kill_backends(dsn):
    connection = await asyncpg.connect(dsn)
    try:
        while True:
            await asyncio.sleep(0.1)
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'jobmaster' AND datname = current_database()"
            )
    finally:
        await connection.close()


@pytest.mark.parametrize(("store", "method"), [(SaveStore, "save"), (RecordStore, "record_successes")])
async def test_a_commit_whose_answer_was_lost_is_repeated_and_counts_once(  # noqa: PLR0917 - fixtures
    bench, nats_server, database, cluster_name, monkeypatch, store, method
):
    real = getattr(store, method)
    losses = 3

    async def loses_the_answer(self, *args):
        nonlocal losses
        answer = await real(self, *args)
        if losses:
            losses -= 1
            raise StoreUnavailableError("here", "the answer is lost")
        return answer

    monkeypatch.setattr(store, method, loses_the_answer)
    async with coordinating(nats_server.url, database, cluster_name), bench.worker() as worker:
        receipts = await bench.submit_and_wait(*[job() for _ in range(30)])
        assert {receipt.status for receipt in receipts} == {"recorded"}
        runs = await worker.runs(30, timeout_s=5)
        assert {run.dispatch for run in runs} == {1}
        await worker.succeed(runs)
        await wait_until(lambda: done(database, 30), what="all outcomes")
        assert await worker.nothing_comes(0.3)
        assert losses == 0


async def test_a_read_only_primary_is_an_outage_not_an_error(bench, nats_server, database, cluster_name):
    connection = await asyncpg.connect(database)
    name = await connection.fetchval("SELECT current_database()")
    async with coordinating(nats_server.url, database, cluster_name):
        await bench.submit_and_wait(job())
        await connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'jobmaster' AND datname = current_database()"
        )
        waiting = asyncio.create_task(bench.submit_and_wait(job()))
        await asyncio.sleep(1)
        assert not waiting.done()
        await connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        assert [receipt.status for receipt in await waiting] == ["recorded"]
    await connection.close()


@pytest.fixture
async def opened(database):
    async with Database(PostgresConfig(dsn=database, connections_max=2)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT 1/0", RowRefusedError),
        ("SELECT '\\u0000'::jsonb", RowRefusedError),
        ("DO $$ BEGIN RAISE deadlock_detected; END $$", StoreContentionError),
        ("DO $$ BEGIN RAISE serialization_failure; END $$", StoreContentionError),
        ("DO $$ BEGIN RAISE read_only_sql_transaction; END $$", StoreUnavailableError),
        ("DO $$ BEGIN RAISE disk_full; END $$", StoreUnavailableError),
        ("DO $$ BEGIN RAISE too_many_connections; END $$", StoreUnavailableError),
        ("SELECT pg_terminate_backend(pg_backend_pid())", StoreUnavailableError),
    ],
)
async def test_each_fault_has_its_kind(opened, sql, error):
    with pytest.raises(error):
        await opened.fetch(sql)
    assert await opened.fetchval("SELECT 1") == 1


async def test_a_parameter_that_cannot_be_sent_is_a_refused_row(opened):
    with pytest.raises(RowRefusedError):
        await opened.fetch("SELECT $1::int", 2**40)
    with pytest.raises(RowRefusedError):
        await opened.fetch("SELECT $1::text", "\ud800")


async def test_a_bug_stays_a_bug(opened):
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await opened.fetch("SELECT no_such_function()")


async def test_no_more_connections_are_opened_than_allowed(database):
    async with Database(PostgresConfig(dsn=database, connections_max=3)) as opened:
        await asyncio.gather(*[opened.fetch("SELECT pg_sleep(0.01)") for _ in range(50)])
        used = await opened.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND application_name = 'jobmaster'"
        )
        assert used <= 2


async def test_everything_works_without_session_state_as_behind_a_bouncer(bench, nats_server, database, cluster_name):
    coordinator = Coordinator(
        NatsConfig(servers=(nats_server.url,)), PostgresConfig(dsn=database, bouncer=True), cluster_name, FAST
    )
    stop = asyncio.Event()
    running = asyncio.create_task(coordinator.run(stop))
    async with bench.worker() as worker:
        await bench.submit(*[job() for _ in range(20)])
        await worker.succeed(await worker.runs(20))
        await wait_until(lambda: done(database, 20), what="all outcomes")
    stop.set()
    await running


async def test_a_second_migration_run_changes_nothing_under_load(bench, nats_server, database, cluster_name):
    async with coordinating(nats_server.url, database, cluster_name):
        await bench.submit_and_wait(job())
        assert await migrate(database) == []
