from __future__ import annotations

import json
import time

import asyncpg
import msgspec
import pytest
from msgspec import Raw

from jm_core import wire
from jm_core.model import AttemptOutcome, ReturnReason
from jm_core.wire import EventBatch, Returned
from tests.support.master import coordinating, finished, job, linked, new_id
from tests.support.waiting import wait_until

SUCCEEDED, FAILED, CANCELLED, QUARANTINED = 4, 5, 6, 7


@pytest.fixture
async def bench(nats_server, database, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench, coordinating(nats_server.url, database, cluster_name):
        yield bench


@pytest.fixture
async def worker(bench):
    async with bench.worker("noop") as worker:
        yield worker


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    yield connection
    await connection.close()


async def row_of(db, run, status):
    """The job's row, once it is in ``status``."""

    async def reached():
        row = await db.fetchrow("SELECT * FROM job WHERE id = $1", run.id)
        return row if row["status"] == status else None

    return await wait_until(reached, what=f"status {status}", shown=lambda: run)


async def attempts_of(db, run):
    return await db.fetch("SELECT * FROM attempt WHERE job_id = $1 ORDER BY dispatch", run.id)


async def start_one(bench, worker, **fields):
    await bench.submit(job(**fields))
    (run,) = await worker.runs(1)
    return run


async def test_a_clean_first_success_is_one_update_and_no_attempt(bench, worker, db):
    run = await start_one(bench, worker)
    await worker.succeed([run], result=Raw(b'{"n": 12345678901234567890}'))
    row = await row_of(db, run, SUCCEEDED)
    assert (row["attempt"], row["worker_id"], row["bucket_id"], row["error"]) == (1, worker.name, worker.bucket, None)
    assert row["result"] == '{"n": 12345678901234567890}'
    assert row["started_at"] < row["finished_at"]
    assert await attempts_of(db, run) == []


async def test_only_what_was_interrupted_says_that_it_has_run_since_it_was_due(bench, worker, db):
    """For the measurement of how late it starts: a retry has a due time of its own."""
    run = await start_one(bench, worker)
    seen = [run.has_run]
    due = run.run_at
    for outcome in ("unstarted", "interrupted", "failed", "interrupted"):
        if outcome == "failed":
            await worker.report(finished(run, AttemptOutcome.FAILED, error="x", retry_in_s=0.0))
        else:
            has_started = outcome == "interrupted"
            reason = ReturnReason.INTERRUPTED if has_started else ReturnReason.DRAINED
            started_at = time.time() if has_started else None
            await worker.report(Returned(run.id, run.dispatch, reason, time.time(), run.attempt, started_at))
        (run,) = await worker.runs(1)
        seen.append(run.has_run)
    assert seen == [False, False, True, False, True]
    assert run.run_at > due, "of the retry"


async def test_a_failure_with_attempts_left_runs_again_after_its_backoff(bench, worker, db):
    run = await start_one(bench, worker)
    await worker.report(finished(run, AttemptOutcome.FAILED, error="boom", retry_in_s=1.8))
    (again,) = await worker.runs(1)
    assert (again.id, again.dispatch, again.attempt, again.max_attempts) == (run.id, 2, 2, 4)
    assert 0.0 < again.run_at - time.time() < 1.8
    await worker.succeed([again])
    row = await row_of(db, run, SUCCEEDED)
    assert (row["attempt"], row["error"]) == (2, None)
    first, second = await attempts_of(db, run)
    assert (first["outcome"], first["error"], first["retry_in_s"]) == ("failed", "boom", pytest.approx(1.8))
    assert (second["outcome"], second["attempt"]) == ("succeeded", 2)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (AttemptOutcome.FAILED, FAILED),
        (AttemptOutcome.TIMED_OUT, FAILED),
        (AttemptOutcome.CANCELLED, CANCELLED),
    ],
)
async def test_a_final_end_is_final(bench, worker, db, outcome, status):
    run = await start_one(bench, worker)
    await worker.report(finished(run, outcome, error="why"))
    row = await row_of(db, run, status)
    assert (row["error"], row["attempt"], row["finished_at"] is None) == ("why", 1, False)
    (attempt,) = await attempts_of(db, run)
    assert (attempt["outcome"], attempt["bucket_id"]) == (outcome.value, worker.bucket)
    await worker.succeed([run])
    await quiet(bench)
    assert (await row_of(db, run, status))["error"] == "why"


async def test_an_outcome_of_an_earlier_dispatch_is_ignored(bench, worker, db):
    run = await start_one(bench, worker)
    await worker.report(wire.Returned(run.id, run.dispatch, ReturnReason.DRAINED, time.time()))
    (again,) = await worker.runs(1)
    assert (again.dispatch, again.attempt) == (2, 1)
    await worker.report(finished(run, AttemptOutcome.FAILED, error="stale"))
    await worker.succeed([again])
    row = await row_of(db, run, SUCCEEDED)
    assert (row["attempt"], row["excused"], row["losses"]) == (1, 0, 0)
    assert await attempts_of(db, run) == []


async def test_an_interrupted_start_costs_no_attempt(bench, worker, db):
    run = await start_one(bench, worker, max_attempts=1)
    now_s = time.time()
    await worker.report(
        wire.Started(run.id, 1, 1, now_s), wire.Returned(run.id, 1, ReturnReason.INTERRUPTED, now_s, 1, now_s - 1)
    )
    (again,) = await worker.runs(1)
    assert (again.attempt, again.max_attempts) == (2, 2)
    row = await row_of(db, run, 2)
    assert (row["attempt"], row["excused"]) == (1, 1)
    (attempt,) = await attempts_of(db, run)
    assert attempt["outcome"] == "interrupted"


async def test_started_and_progress_show_until_the_end(bench, worker, db):
    run = await start_one(bench, worker)
    await worker.report(wire.Started(run.id, 1, 1, time.time()))
    assert (await row_of(db, run, 3))["worker_id"] == worker.name
    await worker.report(
        wire.Progress(run.id, 1, time.time(), 0.25, "a"), wire.Progress(run.id, 1, time.time(), 0.5, "half")
    )

    async def half():
        row = await db.fetchrow("SELECT progress, progress_note FROM job")
        return tuple(row) == (0.5, "half")

    await wait_until(half, what="the progress")
    await worker.succeed([run])
    await row_of(db, run, SUCCEEDED)


async def test_a_quarantined_job_says_why_and_has_no_attempt(bench, worker, db):
    run = await start_one(bench, worker)
    await worker.report(wire.Quarantined(run.id, 1, time.time(), "no handler 'noop' here"))
    row = await row_of(db, run, QUARANTINED)
    assert (row["error"], row["attempt"]) == ("no handler 'noop' here", 0)
    assert await attempts_of(db, run) == []


async def test_a_lost_start_counts_and_the_last_one_fails(bench, worker, db):
    run = await start_one(bench, worker, max_attempts=1)
    now_s = time.time()
    await worker.report(wire.Returned(run.id, 1, ReturnReason.LOST, now_s, 1, now_s - 5))
    row = await row_of(db, run, FAILED)
    assert (row["error"], row["losses"]) == ("worker lost", 1)
    (attempt,) = await attempts_of(db, run)
    assert attempt["outcome"] == "worker_lost"


async def test_a_job_that_waited_in_five_workers_that_died_is_none_the_worse_for_it(bench, worker, db):
    """The first time it may have been what killed its worker; from then on its start would have been announced."""
    run = await start_one(bench, worker)
    for dispatch in range(1, 6):
        await worker.report(wire.Returned(run.id, dispatch, ReturnReason.LOST, time.time()))
        (again,) = await worker.runs(1)
        assert (again.dispatch, again.losses, again.attempt) == (dispatch + 1, 1, 1)
    await worker.succeed([again])
    row = await row_of(db, run, SUCCEEDED)
    assert (row["losses"], row["attempt"]) == (1, 1)


@pytest.mark.parametrize("result", [b'{"a": "x\\u0000y"}', b'"\xff"', b"[1e999999]"])
async def test_a_result_that_postgres_cannot_hold_fails_that_job_alone(bench, worker, db, result):
    jobs = [job() for _ in range(20)]
    await bench.submit(*jobs)
    runs = await worker.runs(20)
    await worker.report_raw(by_hand(worker, [result if n == 7 else b"null" for n in range(20)], runs))
    row = await row_of(db, runs[7], FAILED)
    assert "cannot be stored" in row["error"]
    await wait_until(lambda: db.fetchval("SELECT count(*) = 19 FROM job WHERE status = 4"), what="the others")


def by_hand(worker, results, runs) -> bytes:
    """A report as no worker of ours would send it."""
    report = msgspec.json.encode(
        EventBatch(
            worker.bucket,
            1,
            worker.name,
            [finished(run, AttemptOutcome.SUCCEEDED, result=Raw(b'"HERE"')) for run in runs],
        )
    )
    for result in results:
        report = report.replace(b'"HERE"', result, 1)
    return report


async def test_events_of_a_newer_worker_spoil_nothing(bench, worker, db):
    run = await start_one(bench, worker)
    batch = json.loads(
        wire.encode(EventBatch(worker.bucket, 1, worker.name, [finished(run, AttemptOutcome.SUCCEEDED)]))
    )
    batch["events"].insert(0, ["z", run.id, 1, "news"])
    batch["events"][1] += ["a field", "and another"]
    await worker.report_raw(json.dumps(batch).encode())
    await row_of(db, run, SUCCEEDED)
    raw = await wait_until(lambda: db.fetchval("SELECT raw FROM rejected"), what="the event that was refused")
    assert json.loads(raw)[0] == "z"


async def test_what_is_no_report_at_all_is_kept_and_does_not_come_again(bench, worker, db):
    await worker.report_raw(b"{")
    await wait_until(lambda: db.fetchval("SELECT count(*) FROM rejected"), what="the broken report")
    await quiet(bench)


async def test_an_error_text_with_a_nul_is_stored_with_the_nul_shown(bench, worker, db):
    run = await start_one(bench, worker)
    await worker.report(finished(run, AttemptOutcome.FAILED, error="a\0b"))
    row = await row_of(db, run, FAILED)
    assert row["error"] == "a\\u0000b"


async def test_an_event_for_no_job_at_all_is_kept_aside_and_spoils_nothing(bench, worker, db):
    run = await start_one(bench, worker)
    wrong = finished(run, AttemptOutcome.SUCCEEDED)
    wrong.id = "no uuid"
    out_of_range = wire.Started(run.id, 2**40, 1, time.time())
    await worker.report(wrong, out_of_range, finished(run, AttemptOutcome.SUCCEEDED))
    await row_of(db, run, SUCCEEDED)
    await wait_until(lambda: db.fetchval("SELECT count(*) = 2 FROM rejected"), what="the two that were refused")


async def quiet(bench) -> None:
    """Return when the recorder has nothing left to do."""

    async def empty():
        info = await bench.link.api(f"STREAM.INFO.{bench.names.events_stream}")
        return not info["state"]["messages"]

    await wait_until(empty, what="an empty events stream")


@pytest.mark.parametrize(
    "event",
    ['["r","not-a-uuid",1,"lost",0]', f'["r","ID",{2**63},"lost",0]', '["r","not-a-uuid",1,"abandoned",0]'],
)
async def test_a_return_that_makes_no_sense_is_kept_aside_and_stops_nobody(bench, worker, db, event):
    run = await start_one(bench, worker)
    good = msgspec.json.encode(wire.Returned(run.id, run.dispatch, ReturnReason.LOST, time.time())).decode()
    event = event.replace("ID", new_id())
    batch = f'{{"bucket":"{worker.bucket}","epoch":1,"worker":"{worker.name}","events":[{event},{good}]}}'
    await worker.report_raw(batch.encode())
    (again,) = await worker.runs(1)
    assert again.dispatch == run.dispatch + 1
    assert await wait_until(lambda: db.fetchval("SELECT reason FROM rejected"), what="the refused event")
