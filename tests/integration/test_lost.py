from __future__ import annotations

import time

import asyncpg
import msgspec
import pytest

from jm_core import wire
from jm_core.model import AttemptOutcome, BucketStatus, ReturnReason
from jm_master.watch import Watch
from jm_nats.errors import NoSuchStreamError
from jm_nats.kv import CasKv
from jm_nats.provision import ensure_bucket
from tests.support.master import LEASE_S, coordinating, finished, job, linked
from tests.support.waiting import wait_until


@pytest.fixture
async def bench(nats_server, database, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench, coordinating(nats_server.url, database, cluster_name):
        yield bench


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    yield connection
    await connection.close()


async def buried(db, worker):
    return await wait_until(
        lambda: db.fetchrow("SELECT * FROM bucket WHERE bucket_id = $1", worker.bucket), what="the tombstone"
    )


async def test_what_a_dead_worker_held_runs_elsewhere(bench, db):
    async with bench.worker() as dies, bench.worker(lane="spare") as _:
        await bench.submit(*[job() for _ in range(3)])
        started, waiting, done = await dies.runs(3)
        now_s = time.time()
        await dies.report(wire.Started(started.id, 1, 1, now_s - 1), finished(done, AttemptOutcome.SUCCEEDED))
        died_s = time.monotonic()
        await dies.die()
        async with bench.worker() as lives:
            runs = {run.id: run for run in await lives.runs(2)}
            # A fake worker adopts nothing: after a lease the coordinator does without.
            assert time.monotonic() - died_s < 2 * LEASE_S + 2
            again = runs[waiting.id]
            assert (again.dispatch, again.attempt, again.losses) == (2, 1, 1)
            assert (runs[started.id].dispatch, runs[started.id].attempt, runs[started.id].losses) == (2, 2, 1)
            tombstone = await buried(db, dies)
            assert (tombstone["reason"], tombstone["jobs_returned"], tombstone["epoch"]) == ("lost", 2, 2)
            rows = {str(row["id"]): row for row in await db.fetch("SELECT * FROM job")}
            assert rows[done.id]["status"] == 4
            assert rows[waiting.id]["losses"] == 1
            assert rows[started.id]["attempt"] == 1
            attempt = await db.fetchrow("SELECT * FROM attempt")
            assert (str(attempt["job_id"]), attempt["outcome"]) == (started.id, "worker_lost")
            assert attempt["retry_in_s"] == 0, "the first loss is made up for at once"
            # The zombie's late word changes nothing.
            await dies.report(finished(waiting, AttemptOutcome.FAILED, error="zombie"))
            await lives.succeed([again])
            await wait_until(
                lambda: db.fetchval("SELECT status = 4 FROM job WHERE id = $1", waiting.id), what="the end"
            )
        assert await CasKv(bench.link, bench.names.buckets_kv).get(dies.bucket) is None


async def test_a_drained_bucket_is_removed_and_what_came_late_goes_back_at_no_cost(bench, db):
    async with bench.worker() as drains:
        await bench.submit(job(), job())
        returned, late = await drains.runs(2)
        await drains.move(BucketStatus.COMPLETING)
        await drains.report(wire.Returned(returned.id, 1, ReturnReason.DRAINED, time.time()))
        await drains.move(BucketStatus.READY_TO_DRAIN)
        tombstone = await buried(db, drains)
        assert (tombstone["reason"], tombstone["jobs_returned"]) == ("drained", 1)
        rows = await db.fetch("SELECT status, losses, attempt, bucket_id FROM job")
        assert [tuple(row) for row in rows] == [(1, 0, 0, None)] * 2
        async with bench.worker() as lives:
            runs = await lives.runs(2)
            assert {run.id for run in runs} == {returned.id, late.id}


async def test_rows_of_a_bucket_that_nobody_has_ever_seen_are_taken_back(bench, db):
    async with bench.worker() as worker:
        await bench.submit(job())
        (run,) = await worker.runs(1)
        await db.execute("UPDATE job SET bucket_id = 'never-seen'")
        (again,) = await worker.runs(1, timeout_s=20)
        assert (again.id, again.dispatch) == (run.id, 2)


async def test_a_restarted_worker_of_the_same_name_does_not_keep_its_predecessor_s_bucket(bench, db):
    async with bench.worker() as dies:
        await bench.submit(job())
        await dies.runs(1)
        await dies.die()
        await CasKv(bench.link, bench.names.workers_kv).put(
            dies.name, wire.encode(wire.WorkerRecord(dies.name, "another", "host", 2, time.time(), 1, [], []))
        )
        assert (await buried(db, dies))["reason"] == "lost"


async def test_a_bucket_that_was_taken_is_carried_out_although_its_worker_lives_again(bench, db):
    """As after a leader that died, or lost NATS, right behind the compare-and-set."""
    async with bench.worker() as revives:
        await bench.submit(job())
        (run,) = await revives.runs(1)
        await revives.move(BucketStatus.LOST)
        assert (await buried(db, revives))["reason"] == "lost"
        async with bench.worker() as lives:
            (again,) = await lives.runs(1)
            assert (again.id, again.dispatch) == (run.id, 2)


def judges(watch, times):
    judged = []
    for t in times:
        watch.looked(now_s=t)
        if watch.may_judge(now_s=t):
            judged.append(t)
    return judged


def test_nobody_is_lost_before_a_lease_of_unbroken_observation():
    assert judges(Watch(10.0), range(14)) == [10, 11, 12, 13]


def test_after_blind_time_the_observation_begins_anew():
    watch = Watch(10.0)
    judges(watch, range(12))
    watch.blind()
    assert judges(watch, range(12, 25)) == [22, 23, 24]


def test_a_coordinator_that_was_frozen_itself_does_not_trust_what_it_missed():
    watch = Watch(10.0)
    judges(watch, range(12))
    assert judges(watch, range(60, 72)) == [70, 71]


PAUSED = wire.encode(wire.WorkerRecord("x", "i", "h", 1, 0.0, 1, [], [])).replace(b'"serving"', b'"paused"')


@pytest.mark.parametrize("value", [b"garbage", PAUSED], ids=["garbage", "a state of a newer version"])
async def test_a_heartbeat_that_cannot_be_read_stops_nobody(bench, db, value):
    """As of a newer version, beside a worker whose can."""
    async with bench.worker() as newer, bench.worker() as other:
        await CasKv(bench.link, bench.names.workers_kv).put(newer.name, value)
        await newer.die()
        for _ in range(3):
            await bench.submit(job())
            (run,) = await other.runs(1)
            await other.succeed([run])
        await wait_until(lambda: db.fetchval("SELECT count(*) = 3 FROM job WHERE status = 4"), what="the ends")


@pytest.mark.parametrize(
    "changes",
    [{"status": "pondering"}, {"epoch": 2**62}, {"priority": -7}, {"bucket": "evil.name"}, {"worker": "no such >"}],
    ids=str,
)
async def test_a_bucket_s_record_that_makes_no_sense_stops_nobody(bench, db, changes):
    record = {"bucket": "odd", "worker": "gone", "incarnation": "g", "lane": "x", "priority": 3, "epoch": 1}
    record |= {"status": "lost", "was_lost": True} | changes
    key = "odd" if record["bucket"] == "odd" else "evil.name"
    await CasKv(bench.link, bench.names.buckets_kv).put(key, msgspec.json.encode(record))
    async with bench.worker() as dies, bench.worker() as lives:
        await bench.submit(job(), job(), job(), job())
        await wait_until(lambda: db.fetchval("SELECT count(*) = 4 FROM job WHERE status = 2"), what="all are out")
        await dies.die()
        await buried(db, dies)
        runs = await lives.runs(4)
        await lives.succeed(runs)
        await wait_until(lambda: db.fetchval("SELECT count(*) = 4 FROM job WHERE status = 4"), what="the ends")


async def test_a_stream_that_no_bucket_owns_is_deleted(bench):
    """Of a worker that died between making it and listing the bucket."""
    await ensure_bucket(bench.link, bench.names, "never-listed")

    async def gone() -> bool:
        try:
            await bench.link.api(f"STREAM.INFO.{bench.names.bucket_stream('never-listed')}")
        except NoSuchStreamError:
            return True
        return False

    await wait_until(gone, what="the stream is deleted")
