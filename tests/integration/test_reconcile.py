"""Rows that are out although nobody holds them are dispatched again, and nothing else is."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import asyncpg
import msgspec
import pytest

from jm_core import rpc, wire
from jm_core.model import AttemptOutcome
from jm_master import reconcile, wiring
from jm_master.queries import named
from jm_master.record_store import RecordStore
from jm_nats.provision import delete_bucket, ensure_bucket
from tests.support.master import FAST, coordinating, finished, job, linked
from tests.support.rpc import answering, holding
from tests.support.waiting import wait_until

CONFIG = replace(FAST, reconcile_s=0.3)


@pytest.fixture
async def bench(nats_server, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench:
        yield bench


@pytest.fixture
async def leading(nats_server, database, cluster_name, bench, monkeypatch):
    """A coordinator that looks often and does not wait for a redelivery of 30 s."""
    monkeypatch.setattr(wiring, "BUCKET_ACK_WAIT_S", 0.0)
    async with coordinating(nats_server.url, database, cluster_name, CONFIG) as coordinator:
        yield coordinator


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    yield connection
    await connection.close()


async def lose_messages(bench, worker):
    """Somebody deletes what lies in the bucket's stream."""
    await bench.link.api(f"STREAM.PURGE.{bench.names.bucket_stream(worker.bucket)}", {})


async def row(db, job_id):
    return await db.fetchrow("SELECT * FROM job WHERE id = $1", job_id)


async def looks(requests, count):
    """Return when the worker has been asked ``count`` times."""
    await wait_until(lambda: len(requests) >= count, what=f"{count} questions")


async def test_a_message_deleted_from_the_bucket_is_dispatched_again_and_runs_once(leading, bench, db):
    async with bench.worker() as worker, answering(bench, worker, holding()):
        submitted = job()
        await bench.submit_and_wait(submitted)
        (lost,) = await worker.runs(1)  # read, acked, and forgotten: as a deleted message
        (again,) = await worker.runs(1)
        assert (lost.id, again.id, again.dispatch, again.attempt) == (submitted["id"], submitted["id"], 2, 1)
        await worker.succeed([again])
        await wait_until(lambda: db.fetchval("SELECT status = 4 FROM job"), what="the end")
        assert tuple(await db.fetchrow("SELECT attempt, excused, losses, dispatch FROM job")) == (1, 0, 0, 2)
        assert await db.fetchval("SELECT count(*) FROM attempt") == 0
        await worker.succeed([lost])  # a late word of the lost one
        assert await worker.nothing_comes(0.5)


async def test_a_purged_stream_is_noticed(leading, bench, db):
    async with bench.worker() as worker, answering(bench, worker, holding()):
        await worker._reader.close()
        await bench.submit_and_wait(job(), job())
        await wait_until(lambda: empty_outbox(db), what="an empty outbox")
        await lose_messages(bench, worker)
        await wait_until(lambda: db.fetchval("SELECT min(dispatch) >= 2 FROM job"), what="the second dispatch")


async def test_a_job_that_its_worker_holds_is_left_alone(leading, bench, db):
    async with bench.worker() as worker:
        await bench.submit(job(), job())
        held, missing = await worker.runs(2)
        async with answering(bench, worker, holding(held.id)) as requests:
            (again,) = await worker.runs(1)
            assert again.id == missing.id
            await looks(requests, 4)
            assert (await row(db, held.id))["dispatch"] == 1
            assert all(isinstance(request, rpc.Holds) and request.bucket == worker.bucket for request in requests)


async def test_a_worker_that_does_not_answer_keeps_its_jobs(leading, bench, db):
    async def refuse(_):
        return rpc.Answer(error="not now")

    async with bench.worker() as worker:
        await bench.submit(job())
        (run,) = await worker.runs(1)
        async with answering(bench, worker, refuse) as requests:
            await looks(requests, 3)
        assert (await row(db, run.id))["dispatch"] == 1


async def test_a_finished_event_that_is_stored_and_not_recorded_yet_is_not_overtaken(leading, bench, db, monkeypatch):
    """The worker reports the end and then says that it holds nothing: the record catches up first."""
    goes_on, looked = asyncio.Event(), asyncio.Event()
    record, wait_for_events = RecordStore.record_successes, reconcile.events_recorded

    async def held_up(*args):
        await goes_on.wait()
        return await record(*args)

    async def seen(*args):
        looked.set()
        await wait_for_events(*args)

    monkeypatch.setattr(RecordStore, "record_successes", held_up)
    monkeypatch.setattr(reconcile, "events_recorded", seen)
    async with bench.worker() as worker:
        await bench.submit(job())
        (run,) = await worker.runs(1)

        async def end_and_deny(_):
            await worker.succeed([run])
            return rpc.Answer()

        async with answering(bench, worker, end_and_deny):
            await asyncio.wait_for(looked.wait(), 20)
            assert await worker.nothing_comes(0.5)
            assert (await row(db, run.id))["status"] == 2
            goes_on.set()
            await wait_until(lambda: db.fetchval("SELECT status = 4 FROM job"), what="the end")
            assert (await row(db, run.id))["dispatch"] == 1


async def test_a_started_job_that_is_not_held_goes_back_with_an_excused_attempt(leading, bench, db):
    async with bench.worker() as worker:
        await bench.submit(job(max_attempts=1))
        (run,) = await worker.runs(1)
        await worker.report(wire.Started(run.id, 1, 1, time.time() - 1))
        await wait_until(lambda: db.fetchval("SELECT status = 3 FROM job"), what="the start")
        async with answering(bench, worker, holding()):
            (again,) = await worker.runs(1)
        assert (again.dispatch, again.attempt, again.max_attempts) == (2, 2, 2)
        attempt = await db.fetchrow("SELECT * FROM attempt")
        assert (attempt["outcome"], attempt["worker_id"]) == (AttemptOutcome.INTERRUPTED, worker.name)
        assert attempt["error"] == "its worker does not hold it any more"
        await worker.report(finished(run, AttemptOutcome.FAILED, error="zombie"))
        await worker.succeed([again])
        await wait_until(lambda: db.fetchval("SELECT status = 4 FROM job"), what="the end")


async def test_nothing_is_decided_while_the_bucket_has_undelivered_messages(leading, bench, db, monkeypatch):
    seen = []
    look = reconcile.Wired.look

    async def noted(self, bucket):
        seen.append(await look(self, bucket))
        return seen[-1]

    monkeypatch.setattr(reconcile.Wired, "look", noted)
    async with bench.worker() as worker:
        await bench.submit(job())
        (run,) = await worker.runs(1)
        await worker._reader.close()
        await bench.submit_and_wait(job())
        async with answering(bench, worker, holding(run.id)) as requests:
            await wait_until(lambda: any(one.pending for one in seen), what="an undelivered message")
            asked = len(requests)
            seen.clear()
            await wait_until(lambda: len(seen) >= 3, what="three more looks")
            assert len(requests) == asked
        assert (await row(db, run.id))["dispatch"] == 1


async def test_a_hint_is_followed_at_once_also_for_jobs_that_are_due_later(
    bench, db, nats_server, database, cluster_name
):
    slow = replace(FAST, reconcile_s=600.0)
    async with coordinating(nats_server.url, database, cluster_name, slow), bench.worker() as worker:
        await bench.submit_and_wait(job(), job(delay_s=120.0))
        await worker.runs(1)
        await wait_until(lambda: empty_outbox(db), what="an empty outbox")
        await delete_bucket(bench.link, bench.names, worker.bucket)
        await ensure_bucket(bench.link, bench.names, worker.bucket)
        async with answering(bench, worker, holding()):
            await bench.link.nc.publish(bench.names.wake, msgspec.json.encode({"reconcile": worker.bucket}))
            await wait_until(lambda: db.fetchval("SELECT min(dispatch) = 2 FROM job"), what="the second dispatch")
        assert await db.fetchval("SELECT max(dispatch) FROM job") == 2


async def test_a_look_at_a_full_bucket_is_cheap(leading, db):
    """The plan that is taken: one range of the bucket's index, however many rows lie elsewhere."""
    await db.execute(
        "INSERT INTO job (id, handler, args, status, priority, lane, bucket_id, run_at, max_attempts, timeout_s,"
        " queued_at) SELECT gen_random_uuid(), 'h', '{}', 2, 3, 'default', 'b-' || n % 5, now() - interval '1 hour',"
        " 4, 300, now() FROM generate_series(1, 50000) AS n"
    )
    await db.execute("ANALYZE job")
    plan = await explained(db, "load_out", "b-1", 30.0, 500)
    assert "job_in_bucket" in plan
    assert "Seq Scan" not in plan


async def explained(db, name, *args):
    await db.execute("SET enable_seqscan = off")
    rows = await db.fetch(f"EXPLAIN (ANALYZE) {named('reconcile')[name]}", *args)
    return "\n".join(line[0] for line in rows)


async def empty_outbox(db) -> bool:
    return await db.fetchval("SELECT count(*) FROM outbox") == 0
