"""Waiting for one job and for many, results with a type, progress as it happens; through outages."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import msgspec
import pytest

from jm_core import api, limits
from jm_core.errors import JobFailedError, NoSuchJobError, ResultTimeoutError, ResultTypeError
from jm_core.model import AttemptOutcome, JobStatus
from jm_core.wire import Progress, Started
from jm_master.embedded import PostgresServer
from jm_master.migrate import migrate
from jm_nats.client import JobClient
from jm_nats.config import NatsConfig
from tests.support.master import coordinating, finished, job, linked, new_id
from tests.support.waiting import wait_until

MISSING = "0190a000-0000-7000-8000-000000000000"


class Sum(msgspec.Struct):
    total: int


@pytest.fixture
async def bench(nats_server, database, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench, coordinating(nats_server.url, database, cluster_name):
        yield bench


@pytest.fixture
async def worker(bench):
    async with bench.worker() as worker:
        yield worker


@pytest.fixture
async def client(nats_server, cluster_name, bench):
    async with JobClient(cluster_name, NatsConfig(servers=(nats_server.url,))) as client:
        yield client


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    yield connection
    await connection.close()


async def collect(stream, seen):
    async for one in stream:
        seen.append(one)


async def runs_of(bench, worker, count):
    jobs = [job() for _ in range(count)]
    await bench.submit(*jobs)
    return await worker.runs(count)


# -- one result


async def test_a_result_is_read_as_the_type_that_was_asked_for(bench, worker, client):
    (run,) = await runs_of(bench, worker, 1)
    await worker.succeed([run], result=msgspec.Raw(b'{"total":5}'))
    assert await client.result(run.id, timeout=20) == {"total": 5}
    assert await client.result(run.id, as_type=Sum) == Sum(5)
    assert await client.handle(run.id).result(Sum, timeout=5) == Sum(5)
    with pytest.raises(ResultTypeError, match=r"is no dict\[str, str\]: Expected `str`, got `int`.*without a type"):
        await client.result(run.id, as_type=dict[str, str])


async def test_a_job_without_a_result_has_none_and_that_is_no_struct(bench, worker, client):
    (run,) = await runs_of(bench, worker, 1)
    await worker.succeed([run])
    assert await client.result(run.id, timeout=20) is None
    with pytest.raises(ResultTypeError, match="is no Sum"):
        await client.result(run.id, as_type=Sum)


@pytest.mark.parametrize("patience_s", [0, 0.3])
async def test_nothing_is_waited_for_beyond_the_patience(bench, client, patience_s):
    one = job(delay_s=3_600)
    await bench.submit_and_wait(one)
    with pytest.raises(ResultTimeoutError, match="is on_master after"):
        await client.result(one["id"], timeout=patience_s)
    with pytest.raises(NoSuchJobError):
        await client.result(MISSING, timeout=patience_s)


# -- many


async def test_many_come_as_they_end_each_once_whatever_became_of_them(bench, worker, client):
    runs = await runs_of(bench, worker, 20)
    ids = [run.id for run in runs]
    seen = []

    collecting = asyncio.create_task(collect(client.as_completed([*ids, *ids[:5]], timeout=20), seen))
    await worker.succeed(runs[:3], result=msgspec.Raw(b"1"))
    await wait_until(lambda: len(seen) == 3, what="the first three")
    assert not collecting.done()
    await worker.report(*[finished(run, AttemptOutcome.FAILED, error="no") for run in runs[3:]])
    await collecting
    assert sorted(ended.job_id for ended in seen) == sorted(ids)
    assert [ended.status for ended in seen] == ["succeeded"] * 3 + ["failed"] * 17
    assert seen[0].value(int) == 1
    with pytest.raises(JobFailedError, match="no"):
        seen[-1].value()


async def test_results_stand_in_the_order_of_the_ids(bench, worker, client):
    runs = await runs_of(bench, worker, 30)
    for number, run in reversed(list(enumerate(runs))):
        await worker.succeed([run], result=msgspec.Raw(b"%d" % number))
    assert await client.results([run.id for run in runs], timeout=20, as_type=int) == list(range(30))
    assert await client.results([]) == []


async def test_one_failed_job_ends_the_wait_for_all_at_once(bench, worker, client):
    runs = await runs_of(bench, worker, 3)
    waiting = asyncio.create_task(client.results([run.id for run in runs], timeout=20))
    await worker.report(finished(runs[1], AttemptOutcome.FAILED, error="no"))
    with pytest.raises(JobFailedError, match=runs[1].id):
        await asyncio.wait_for(waiting, 10)


async def test_what_has_not_ended_is_counted_after_what_has(bench, worker, client):
    runs = await runs_of(bench, worker, 5)
    await worker.succeed(runs[:2])
    seen = []
    with pytest.raises(ResultTimeoutError, match="3 jobs, "):
        await collect(client.as_completed([run.id for run in runs], timeout=1), seen)
    assert sorted(ended.job_id for ended in seen) == sorted(run.id for run in runs[:2])
    with pytest.raises(NoSuchJobError):
        await client.results([runs[0].id, MISSING], timeout=0.3)


async def test_more_jobs_than_one_question_takes_and_more_bytes_than_one_reply(bench, client, db):
    count = 2 * limits.RESULT_IDS_MAX + 7
    ids = [new_id() for _ in range(count)]
    await db.execute(
        "INSERT INTO job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at,"
        " finished_at, result)"
        " SELECT id, 'h', '{}', 4, 3, 'default', now(), 4, 300, now(), now(), to_jsonb(repeat('x', 9000))"
        "  FROM unnest($1::uuid[]) AS u(id)",
        ids,
    )
    assert await client.results(ids, timeout=30, as_type=str) == ["x" * 9_000] * count


@pytest.mark.parametrize(
    "request_", [{"ids": []}, {"ids": [MISSING] * 501}, {"ids": ["x"]}, {"ids": 5}, b"{", b"[" * 999]
)
async def test_a_bad_question_for_results_is_answered(bench, request_):
    reply = await bench.call(api.OP_JOB_RESULTS, request_)
    assert reply["error"]["code"] == "bad_request"


# -- outages


async def test_waiting_outlives_the_coordinator(nats_server, database, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench:
        config = NatsConfig(servers=(nats_server.url,))
        async with bench.worker() as worker, JobClient(cluster_name, config) as client:
            async with coordinating(nats_server.url, database, cluster_name):
                runs = await runs_of(bench, worker, 10)
                many = asyncio.create_task(client.results([run.id for run in runs], timeout=30, as_type=int))
                one = asyncio.create_task(client.result(runs[0].id, timeout=30))
                states = []
                news = asyncio.create_task(collect_states(client, runs[0].id, states))
                await wait_until(lambda: states, what="the first news")
            await worker.succeed(runs, result=msgspec.Raw(b"7"))
            assert not any(task.done() for task in (many, one, news)), "nobody leads: nobody can say"
            async with coordinating(nats_server.url, database, cluster_name):
                assert await many == [7] * 10
                assert await one == 7
                await news
                assert states[-1] == "succeeded"


async def test_waiting_outlives_an_outage_of_postgres(nats_server, cluster_name):
    with PostgresServer(settings={"fsync": "off"}) as postgres:
        dsn = postgres.create_database("jm_results")
        await asyncio.to_thread(lambda: asyncio.run(migrate(dsn)))
        config = NatsConfig(servers=(nats_server.url,))
        async with (
            linked(nats_server.url, cluster_name) as bench,
            coordinating(nats_server.url, dsn, cluster_name),
            bench.worker() as worker,
            JobClient(cluster_name, config) as client,
        ):
            runs = await runs_of(bench, worker, 10)
            many = asyncio.create_task(client.results([run.id for run in runs], timeout=60, as_type=int))
            one = asyncio.create_task(client.result(runs[0].id, timeout=60))
            await asyncio.to_thread(postgres.kill)
            await worker.succeed(runs, result=msgspec.Raw(b"7"))
            with pytest.raises(ResultTimeoutError):
                await client.result(runs[0].id, timeout=0.5)
            assert not many.done()
            await asyncio.to_thread(postgres.start)
            assert await many == [7] * 10
            assert await one == 7


async def collect_states(client, job_id, states):
    async for now in client.progress(job_id, timeout=30):
        states.append(now.status)


# -- progress


async def test_progress_is_seen_as_it_happens_up_to_the_end(bench, worker, client):
    (run,) = await runs_of(bench, worker, 1)
    seen = []
    watching = asyncio.create_task(watch(client, run.id, seen))
    await wait_until(lambda: seen, what="the state at the beginning")
    await worker.report(Started(run.id, run.dispatch, 1, time.time()))
    await wait_until(lambda: seen[-1][0] == "processing", what="the start")
    for fraction in (0.1, 0.5):
        await worker.report(Progress(run.id, run.dispatch, time.time(), fraction, f"at {fraction}"))
        await wait_until(lambda fraction=fraction: seen[-1][1] == fraction, what="the progress")
    await worker.succeed([run])
    await watching
    assert seen == [
        ("in_bucket", None, None),
        ("processing", None, None),
        ("processing", 0.1, "at 0.1"),
        ("processing", 0.5, "at 0.5"),
        ("succeeded", 0.5, "at 0.5"),
    ]


async def watch(client, job_id, seen):
    async for now in client.handle(job_id).progress(timeout=30):
        seen.append((now.status, now.fraction, now.note))


async def test_the_end_of_a_failed_job_says_why(bench, worker, client):
    (run,) = await runs_of(bench, worker, 1)
    await worker.report(finished(run, AttemptOutcome.FAILED, error="no such mailbox"))
    *_, last = [now async for now in client.progress(run.id, timeout=20)]
    assert (last.status, last.error, last.has_ended) == ("failed", "no such mailbox", True)


async def test_a_job_that_is_not_there_yet_is_waited_for(bench, client):
    one = job(delay_s=3_600)
    states = []

    async def look():
        async for now in client.progress(one["id"], timeout=20):
            states.append(now.status)
            return

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    await bench.submit_and_wait(one)
    await asyncio.wait_for(looking, 15)
    assert states == [JobStatus.ON_MASTER.label]
    seen = []
    with pytest.raises(NoSuchJobError):
        await collect(client.progress(MISSING, timeout=0.2), seen)
    assert seen == []
