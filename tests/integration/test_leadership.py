from __future__ import annotations

import asyncio
import time

import asyncpg
import pytest

from jm_core.ids import Term
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.embedded import PostgresServer
from jm_master.leadership import KEY, Leadership, take_term
from jm_master.record_store import RecordStore
from jm_master.save_store import SaveBatch, SaveStore, TermLost
from jm_nats.kv import CasKv
from tests.support.master import FAST, LEASE_S, coordinating, job, linked
from tests.support.waiting import wait_until


@pytest.fixture
async def bench(nats_server, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench:
        yield bench


@pytest.fixture
async def database_of_ours(database):
    async with Database(PostgresConfig(dsn=database)) as opened:
        yield opened


def candidate(bench, holder, lease_s=LEASE_S):
    kv = CasKv(bench.link, bench.names.cluster_kv)
    return Leadership(kv, holder, lease_s=lease_s, renew_s=lease_s / 5, margin_s=lease_s / 5)


async def test_of_three_candidates_one_wins(bench):
    candidates = [candidate(bench, f"c{n}") for n in range(3)]
    wins = [asyncio.create_task(one.win()) for one in candidates]
    done, waiting = await asyncio.wait(wins, timeout=0.5)
    assert len(done) == 1
    for task in waiting:
        task.cancel()


async def test_a_leader_that_stays_silent_is_replaced_after_its_lease_and_not_before(bench):
    await candidate(bench, "silent").win()
    started = time.monotonic()
    await candidate(bench, "next").win()
    assert LEASE_S <= time.monotonic() - started < LEASE_S + 1.0


async def test_a_leader_that_renews_keeps_the_lead(bench):
    leader, lost = candidate(bench, "leader"), asyncio.Event()
    await leader.win()
    keeping = asyncio.create_task(leader.keep(lost.set))
    standby = asyncio.create_task(candidate(bench, "standby").win())
    await asyncio.sleep(2.5 * LEASE_S)
    assert not standby.done()
    assert not lost.is_set()
    standby.cancel()
    keeping.cancel()


async def test_a_leader_that_could_not_resign_takes_up_its_own_key_at_once_and_nobody_else_s(bench):
    """NATS was away for longer than the lease, and nobody led meanwhile: why wait for another lease?"""
    leader = candidate(bench, "leader", lease_s=10)
    await leader.win()
    async with asyncio.timeout(2):
        await leader.win()
    other = candidate(bench, "leader", lease_s=0.2)  # of the same name, and still somebody else
    await other.win()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await leader.win()


async def test_a_leader_that_resigns_is_replaced_at_once(bench):
    leader = candidate(bench, "leader", lease_s=10)
    await leader.win()
    started = time.monotonic()
    standby = asyncio.create_task(candidate(bench, "standby", lease_s=10).win())
    await leader.resign()
    await standby
    assert time.monotonic() - started < 2.5


async def test_a_leader_whose_key_was_taken_finds_out(bench):
    leader, lost = candidate(bench, "leader"), asyncio.Event()
    await leader.win()
    kv = CasKv(bench.link, bench.names.cluster_kv)
    await kv.put(KEY, b'{"holder":"thief"}')
    await asyncio.wait_for(leader.keep(lost.set), 5)
    assert lost.is_set()
    await leader.resign()
    assert (await kv.get(KEY)).value == b'{"holder":"thief"}'


async def test_a_stale_leader_cannot_write(database_of_ours):
    old = await take_term(database_of_ours, "old")
    new = await take_term(database_of_ours, "new")
    assert new == old + 1
    batch = SaveBatch([], [], [], [], ["00000000-0000-0000-0000-000000000000"])
    assert isinstance(await SaveStore(database_of_ours, old).save(batch), TermLost)
    assert isinstance(await RecordStore(database_of_ours, old).record_successes([], [], []), TermLost)
    assert not isinstance(await SaveStore(database_of_ours, new).save(batch), TermLost)


async def test_a_new_term_waits_for_the_statement_that_the_old_leader_is_just_committing(database, database_of_ours):
    connection = await asyncpg.connect(database)
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetch("SELECT FROM jobmaster.leader FOR SHARE")
    taking = asyncio.create_task(take_term(database_of_ours, "next"))
    await asyncio.sleep(0.3)
    assert not taking.done()
    await transaction.commit()
    assert await taking == Term(1)
    await connection.close()


async def test_of_two_coordinators_one_leads_and_the_other_follows_a_graceful_stop(
    bench, nats_server, database, cluster_name
):
    first = coordinating(nats_server.url, database, cluster_name)
    await first.__aenter__()
    async with coordinating(nats_server.url, database, cluster_name, leads=False) as second:
        assert not second.leading.is_set()
        assert [r.status for r in await bench.submit_and_wait(job())] == ["recorded"]
        await first.__aexit__(None, None, None)
        started = time.monotonic()
        assert [r.status for r in await bench.submit_and_wait(job())] == ["recorded"]
        assert time.monotonic() - started < LEASE_S
        assert second.leading.is_set()


async def test_a_leader_that_lost_its_term_steps_down_and_starts_over(bench, nats_server, database, cluster_name):
    async with coordinating(nats_server.url, database, cluster_name, FAST):
        connection = await asyncpg.connect(database)
        await connection.execute("UPDATE jobmaster.leader SET term = term + 10")
        assert [r.status for r in await bench.submit_and_wait(job())] == ["recorded"]
        assert await connection.fetchval("SELECT term FROM jobmaster.leader") >= 12
        await connection.close()


async def test_a_coordinator_waits_for_a_postgres_that_is_away(bench, nats_server, cluster_name):
    with PostgresServer(settings={"fsync": "off"}) as postgres:
        dsn = postgres.dsn
        await asyncio.to_thread(postgres.stop)
        entering = asyncio.create_task(enter(coordinating(nats_server.url, dsn, cluster_name)))
        await bench.submit(job())
        await asyncio.sleep(1)
        await asyncio.to_thread(postgres.start)
        running = await entering
        connection = await asyncpg.connect(dsn)
        await wait_until(lambda: connection.fetchval("SELECT count(*) FROM jobmaster.job"), what="the job")
        await connection.close()
        await running.__aexit__(None, None, None)


async def enter(context):
    await context.__aenter__()
    return context


async def test_a_postgres_that_has_forgotten_our_term_is_given_a_later_one_and_it_is_said(database_of_ours):
    """Restored from a copy, or a standby that was promoted too early: a leader of the old term may still be there."""
    older = []
    first = await take_term(database_of_ours, "we")
    restored = await take_term(database_of_ours, "we", after=first + 40, on_older=older.append)
    assert restored == first + 41
    assert older == [first]
    assert await take_term(database_of_ours, "we", after=restored, on_older=older.append) == restored + 1
    assert older == [first]
