"""A NATS store that is not the one that the jobs were recorded with: nobody leads until a person has said so (P6)."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from dataclasses import replace

import asyncpg
import pytest

from jm_cli.exits import ExitCode, exit_code_of
from jm_core import wire
from jm_core.model import AttemptOutcome
from jm_master.agent_store import KEY, AgentStore, AgentStoreChangedError
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.leadership import take_term
from jm_master.terms import LostTermError
from jm_nats.embedded import NatsServer
from jm_nats.kv import CasKv
from tests.support.cli import jm
from tests.support.master import FAST, coordinating, finished, job, linked
from tests.support.waiting import wait_until

ACCEPTING = replace(FAST, accept_agent_loss=True)


@pytest.fixture
def nats(tmp_path):
    with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    yield connection
    await connection.close()


@pytest.fixture
async def bench(nats_server, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench:
        yield bench


@pytest.fixture
async def opened(database):
    async with Database(PostgresConfig(dsn=database)) as opened:
        yield opened


def store_of(bench, opened, *, accept=False):
    return AgentStore(bench.link, bench.names, opened, accept_loss=accept)


def lose_store(nats, *, keep_as=None):
    """Stop, take the store away, start at the same port."""
    nats.stop()
    folder = nats.directory / "jetstream"
    if keep_as is None:
        shutil.rmtree(folder)
    else:
        shutil.move(folder, keep_as)
    nats.start()


def put_back_store(nats, kept):
    nats.stop()
    shutil.rmtree(nats.directory / "jetstream")
    shutil.move(kept, nats.directory / "jetstream")
    nats.start()


async def refused(nats, database, cluster, config=FAST):
    with pytest.raises(BaseExceptionGroup) as caught:
        async with coordinating(nats.url, database, cluster, config):
            pass
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


# -- the fingerprint itself


async def test_at_first_use_both_get_one_fingerprint_whoever_comes_first(bench, db, opened):
    await asyncio.gather(*[store_of(bench, opened).check() for _ in range(5)])
    entry = await CasKv(bench.link, bench.names.cluster_kv).get(KEY)
    assert await db.fetch("SELECT key, value FROM setting") == [("agent", entry.value.decode())]


async def test_a_fresh_postgres_takes_what_nats_has(bench, db, opened):
    await CasKv(bench.link, bench.names.cluster_kv).create(KEY, b"made-before")
    await store_of(bench, opened).check()
    assert await db.fetchval("SELECT value FROM setting") == "made-before"


@pytest.mark.parametrize("found", [None, b"another"])
async def test_another_store_is_refused_with_what_which_and_remedy(bench, db, opened, found):
    await db.execute("INSERT INTO setting (key, value) VALUES ('agent', 'ours')")
    if found:
        await CasKv(bench.link, bench.names.cluster_kv).create(KEY, found)
    with pytest.raises(AgentStoreChangedError) as caught:
        await store_of(bench, opened).check()
    text = str(caught.value)
    assert all(part in text for part in (bench.link.server, opened.where, "JM_NATS_URL", "--accept-agent-loss"))
    assert ("no fingerprint" if found is None else "another") in text
    assert exit_code_of(caught.value) == ExitCode.NATS
    entry = await CasKv(bench.link, bench.names.cluster_kv).get(KEY)
    assert (entry and entry.value) == found


async def test_a_stale_leader_takes_nothing_over(bench, db, opened):
    await db.execute("INSERT INTO setting (key, value) VALUES ('agent', 'ours')")
    stale = await take_term(opened, "stale")
    await take_term(opened, "next")
    with pytest.raises(LostTermError):
        await store_of(bench, opened, accept=True).settle(stale)
    assert await db.fetchval("SELECT value FROM setting") == "ours"


# -- the whole of it


async def test_a_deleted_store_costs_no_recorded_job_once_it_is_accepted(nats, database, cluster_name, db):
    async with (
        linked(nats.url, cluster_name) as bench,
        coordinating(nats.url, database, cluster_name),
        bench.worker() as worker,
    ):
        submitted = [job() for _ in range(200)] + [job(lane="nobody-yet") for _ in range(100)]
        await bench.submit_and_wait(*submitted)
        started, done, *_ = await worker.runs(200)
        await worker.report(wire.Started(started.id, 1, 1, time.time()), finished(done, AttemptOutcome.SUCCEEDED))
        await wait_until(lambda: db.fetchval("SELECT count(*) = 2 FROM job WHERE status > 2"), what="both events")
    await asyncio.to_thread(lose_store, nats)

    error = await refused(nats, database, cluster_name)
    assert (error.found, error.jobs, error.in_buckets) == (None, 299, 199)
    assert await db.fetchval("SELECT count(*) FROM job WHERE status IN (2, 3)") == 199

    async with (
        linked(nats.url, cluster_name) as bench,
        coordinating(nats.url, database, cluster_name, ACCEPTING),
        bench.worker() as worker,
        bench.worker(lane="nobody-yet") as other,
    ):
        runs = await worker.runs(199)
        await worker.report(finished(started, AttemptOutcome.FAILED, error="a late word of before"))
        await worker.succeed(runs)
        await other.succeed(await other.runs(100))
        await wait_until(lambda: db.fetchval("SELECT count(*) = 300 FROM job WHERE status = 4"), what="all of them")
        again = {run.id: run for run in runs}[started.id]
        assert (again.dispatch, again.attempt, again.max_attempts) == (2, 2, 5)
        assert {str(row["id"]) for row in await db.fetch("SELECT id FROM job")} == {one["id"] for one in submitted}
        assert await db.fetchval("SELECT count(*) FROM outbox") == 0
        attempts = await db.fetch("SELECT job_id::text, outcome, error FROM attempt WHERE outcome = 'interrupted'")
        assert attempts == [(started.id, "interrupted", "the NATS store that it was dispatched to was lost")]

    async with coordinating(nats.url, database, cluster_name):
        pass  # from now on this is the right one


async def test_a_store_that_is_lost_under_a_leader_ends_its_lead_until_it_is_back(
    nats, database, cluster_name, db, caplog
):
    kept = nats.directory.parent / "kept"
    caplog.set_level(logging.CRITICAL, "jm_master.coordinator")
    told = []
    async with coordinating(nats.url, database, cluster_name) as coordinator:
        coordinator.on_violation = told.append
        async with linked(nats.url, cluster_name) as bench:
            await bench.submit_and_wait(job())
        await asyncio.to_thread(lose_store, nats, keep_as=kept)
        await wait_until(lambda: coordinator.violation, timeout_s=30, what="the violation")
        async with linked(nats.url, cluster_name) as bench:
            await bench.submit(job())
            seen = coordinator.violation
            await wait_until(lambda: coordinator.violation is not seen, what="another look")
            assert await db.fetchval("SELECT count(*) FROM job") == 1  # it did not lead
        assert len(caplog.records) == 1
        await asyncio.to_thread(put_back_store, nats, kept)
        await wait_until(lambda: coordinator.violation is None, timeout_s=30, what="its end")
        async with linked(nats.url, cluster_name) as bench:
            await bench.submit_and_wait(job())
        assert await db.fetchval("SELECT count(*) FROM job") == 2
    assert [type(one) for one in told] == [AgentStoreChangedError, type(None)]


async def test_the_command_ends_with_one_line_and_a_code(bench, db, database, tmp_path):
    await db.execute("INSERT INTO setting (key, value) VALUES ('agent', 'ours')")
    settings = {"JM_NATS_URL": bench.link.server, "JM_POSTGRES_DSN": database, "JM_CLUSTER": bench.names.cluster}
    ended = await asyncio.to_thread(jm, "coordinator", cwd=tmp_path, **settings)
    assert ended.returncode == ExitCode.NATS
    last_line = ended.stderr.splitlines()[-1]
    assert last_line.startswith("error: NATS at ")
    assert "--accept-agent-loss" in last_line
