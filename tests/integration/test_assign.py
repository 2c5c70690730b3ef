from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from jm_core import limits, wire
from jm_core.model import ReturnReason
from tests.support.master import coordinating, job, linked, new_id
from tests.support.waiting import wait_until


@pytest.fixture
async def bench(nats_server, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench:
        yield bench


@pytest.fixture
async def leader(nats_server, database, cluster_name, bench):
    async with coordinating(nats_server.url, database, cluster_name) as coordinator:
        yield coordinator


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    yield connection
    await connection.close()


async def put_on_master(db, handler="noop", count=1, *, due=timedelta(0), priority=3, **fields):
    """Rows as a writer without a bucket leaves them; each later than the one before."""
    now = datetime.now(UTC) + due
    ids = [new_id() for _ in range(count)]
    await db.executemany(
        "INSERT INTO job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at,"
        " attempt, excused) VALUES ($1, $2, $3, 1, $4, 'default', $5, 4, 300, $5, $6, $7)",
        [
            (
                i,
                handler,
                fields.get("args", "{}"),
                priority,
                now + timedelta(milliseconds=n),
                *fields.get("starts", (0, 0)),
            )
            for n, i in enumerate(ids)
        ],
    )
    return ids


async def test_waiting_jobs_move_when_a_worker_comes(leader, bench, db):
    ids = await put_on_master(db, count=30, args='{"n": 9007199254740993}', starts=(2, 1))
    async with bench.worker() as worker:
        runs = await worker.runs(30)
        assert [run.id for run in runs] == ids  # oldest first
        assert {(run.dispatch, run.attempt, run.max_attempts, run.timeout_s) for run in runs} == {(1, 3, 5, 300.0)}
        assert bytes(runs[0].args) == b'{"n": 9007199254740993}'
        assert runs[0].run_at == pytest.approx(time.time(), abs=20)
        await wait_until(lambda: empty_outbox(db), what="an empty outbox")


async def test_no_more_jobs_move_than_the_worker_has_credit_for(leader, bench, db):
    await put_on_master(db, count=1_500)
    async with bench.worker(slots=10) as worker:
        allowed = 10 + int(limits.RATE_PRIOR_PER_S * limits.CREDIT_HORIZON_S)
        runs = await worker.runs(allowed)
        assert await worker.nothing_comes(0.5)
        assert await db.fetchval("SELECT count(*) FROM job WHERE status = 1") == 1_500 - allowed
        await worker.succeed(runs)
        await worker.runs(1_500 - allowed)


async def test_a_backlog_of_several_passes_moves_oldest_first_and_each_job_once(leader, bench, db):
    count = 2 * limits.ASSIGN_BATCH_MAX + 500
    ids = await put_on_master(db, count=count, due=-timedelta(hours=1))
    async with bench.worker(slots=10) as worker:
        came = await worker.runs(10 + int(limits.RATE_PRIOR_PER_S * limits.CREDIT_HORIZON_S))
        await worker.succeed(came)  # all of them at once: it is quick, and may be given thousands
        rest = await worker.runs(count - len(came))
        await worker.succeed(rest)
        came += rest
        assert [run.id for run in came] == ids
        assert {run.dispatch for run in came} == {1}
        await wait_until(lambda: db.fetchval("SELECT count(*) = 0 FROM job WHERE status < 4"), what="all outcomes")
        await wait_until(lambda: empty_outbox(db), what="an empty outbox")


async def test_a_job_goes_only_to_a_worker_that_knows_its_handler(leader, bench, db):
    async with bench.worker("a") as knows_a, bench.worker("b") as knows_b:
        ids_a, ids_b = await put_on_master(db, "a", 20), await put_on_master(db, "b", 20)
        assert {run.id for run in await knows_a.runs(20)} == set(ids_a)
        assert {run.id for run in await knows_b.runs(20)} == set(ids_b)


async def test_a_handler_that_nobody_knows_goes_to_somebody_who_will_say_so(leader, bench, db):
    async with bench.worker("a") as worker:
        (only,) = await put_on_master(db, "nobody-knows")
        (run,) = await worker.runs(1)
        assert run.id == only


async def test_a_backlog_of_one_handler_does_not_hide_another_s_jobs(leader, bench, db):
    async with bench.worker("b") as knows_b, bench.worker("a", slots=1) as knows_a:
        await put_on_master(db, "a", 3_000, due=-timedelta(hours=1))
        await knows_a.runs(1 + int(limits.RATE_PRIOR_PER_S * limits.CREDIT_HORIZON_S))  # all its credit
        (mine,) = await put_on_master(db, "b")
        (run,) = await knows_b.runs(1, timeout_s=3)
        assert run.id == mine


async def test_jobs_are_shared_between_workers(leader, bench, db):
    async with bench.worker() as one, bench.worker() as other:
        await wait_until(lambda: len(leader.registry.view.route("default", 3)) == 2, what="both buckets")
        await put_on_master(db, count=100)
        runs = await one.runs(50) + await other.runs(50)
        assert len({run.id for run in runs}) == 100


async def test_what_is_due_within_the_threshold_moves_early_and_arrives_a_little_early(leader, bench, db):
    async with bench.worker() as worker:
        await put_on_master(db, due=timedelta(seconds=3))
        await put_on_master(db, due=timedelta(minutes=30))
        await wait_until(lambda: db.fetchval("SELECT count(*) = 1 FROM job WHERE status = 2"), what="the early move")
        (run,) = await worker.runs(1)
        assert 0 < run.run_at - time.time() < 2.5


async def test_a_flood_for_later_leaves_the_credit_for_now(leader, bench, db):
    async with bench.worker() as worker:
        await put_on_master(db, count=limits.CREDIT_MAX, due=timedelta(minutes=5))
        await wait_until(lambda: db.fetchval("SELECT count(*) >= 5000 FROM job WHERE status = 2"), what="the flood")
        await bench.submit(job())
        await worker.runs(1, timeout_s=3)


async def test_a_returned_job_moves_again_with_a_new_dispatch(leader, bench, db):
    async with bench.worker() as worker:
        await bench.submit(job())
        (run,) = await worker.runs(1)
        await worker.report(wire.Returned(run.id, run.dispatch, ReturnReason.REBALANCED, time.time()))
        (again,) = await worker.runs(1)
        assert (again.id, again.dispatch, again.attempt) == (run.id, run.dispatch + 1, 1)


async def test_a_message_left_by_an_earlier_leader_is_sent_and_one_that_is_over_is_not(
    bench, db, nats_server, database, cluster_name
):
    async with bench.worker() as worker:
        live, over, gone = [(await put_on_master(db))[0] for _ in range(3)]
        await db.execute("UPDATE job SET status = 2, dispatch = 3, bucket_id = $1", worker.bucket)
        await db.execute("UPDATE job SET status = 4, finished_at = now() WHERE id = $1", over)
        await db.execute("UPDATE job SET bucket_id = 'another' WHERE id = $1", gone)
        await db.execute(
            "INSERT INTO outbox (outbox_id, bucket_id, job_ids, dispatches) VALUES"
            " (gen_random_uuid(), $1, $2, '{3, 3, 3}'), (gen_random_uuid(), $1, $3, '{2}')",
            worker.bucket,
            [live, over, gone],
            [live],
        )
        async with coordinating(nats_server.url, database, cluster_name):
            (run,) = await worker.runs(1)
            assert (run.id, run.dispatch) == (live, 3)
            await wait_until(lambda: empty_outbox(db), what="an empty outbox")
            assert await worker.nothing_comes(0.3)


async def empty_outbox(db) -> bool:
    return await db.fetchval("SELECT count(*) FROM outbox") == 0
