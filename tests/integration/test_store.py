"""The statements themselves, without NATS."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace

import asyncpg
import pytest

from jm_core import wire
from jm_core.ends import End
from jm_core.ids import JobId, Lane, Term
from jm_core.intake import NewJob
from jm_core.model import AttemptOutcome, JobStatus, Priority
from jm_core.placement import Share
from jm_core.save_plan import group_jobs, parts_of
from jm_master import save_store
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.dispatch_store import LONG_AGO_S, DispatchStore
from jm_master.pg_errors import RowRefusedError
from jm_master.record_store import Recorded, RecordStore
from jm_master.save_store import Refusal, SaveBatch, Saved, SaveStore, TermLost, outgoing_of
from tests.support.master import new_id

TERM = Term(0)
QUEUED_AT = 1_900_000_000.123456


@pytest.fixture
async def database_of_ours(database):
    async with Database(PostgresConfig(dsn=database)) as opened:
        yield opened


@pytest.fixture
def saves(database_of_ours):
    return SaveStore(database_of_ours, TERM)


@pytest.fixture
def records(database_of_ours):
    return RecordStore(database_of_ours, TERM)


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    yield connection
    await connection.close()


def new_job(handler="h", **fields):
    given = {"args": b'{"n": 1}', "run_at": None} | fields
    args, run_at = given.pop("args"), given.pop("run_at")
    return NewJob(JobId(new_id()), handler, args, run_at, Lane("default"), Priority.HIGH, 4, 300.0, **given)


def batch_of(*jobs, into=None, count=None, **fields):
    groups = group_jobs([jobs], now_s=time.time(), threshold_s=600)
    shares = [Share(into, count or len(jobs))] if into else []
    parts = [part for group in groups for part in parts_of(group, shares, len(group.jobs))]
    return SaveBatch(parts, [QUEUED_AT], outgoing_of(parts), fields.get("refusals", []), fields.get("sent", []))


async def counts(db):
    """(jobs, outgoing messages, rejections)."""
    return tuple([await db.fetchval(f"SELECT count(*) FROM {table}") for table in ("job", "outbox", "rejected")])


async def test_jobs_and_their_messages_are_written_together(saves, db):
    jobs = [new_job() for _ in range(5)]
    batch = batch_of(*jobs, into="b1", count=3)
    assert await saves.save(batch) == Saved(None)
    rows = await db.fetch("SELECT status, dispatch, bucket_id FROM job ORDER BY id")
    assert [tuple(row) for row in rows] == [(2, 1, "b1")] * 3 + [(1, 0, None)] * 2
    (message,) = await db.fetch("SELECT * FROM outbox")
    assert str(message["outbox_id"]) == batch.outgoing[0].outbox_id
    assert ([str(i) for i in message["job_ids"]], message["dispatches"]) == ([job.id for job in jobs[:3]], None)


@pytest.mark.parametrize("into", ["b1", None], ids=["into a bucket", "stays"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"run_at": datetime.fromtimestamp(QUEUED_AT + 30.25, UTC)},
        {"metadata": {"tenant": "ä"}, "trace": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"},
        {"metadata": {}},
        {"args": b'{"text": "\\u00e4", "big": 12345678901234567890}'},
    ],
    ids=["plain", "later", "extras", "no metadata", "args"],
)
async def test_a_lone_job_is_written_like_one_of_many(saves, db, fields, into):
    lone, first, second = new_job(**fields), new_job(**fields), new_job(**fields)
    assert await saves.save(batch_of(lone, into=into)) == Saved(None)
    assert await saves.save(batch_of(first, second, into=into)) == Saved(None)
    own = "id = $1"
    query = f"SELECT to_jsonb(job) - 'id' - 'recorded_at' FROM job WHERE {own}"
    assert await db.fetchval(query, lone.id) == await db.fetchval(query, first.id)
    messages = await db.fetch(
        "SELECT bucket_id, deliver_at, job_ids, dispatches FROM outbox ORDER BY cardinality(job_ids)"
    )
    assert [[str(i) for i in m["job_ids"]] for m in messages] == ([[lone.id], [first.id, second.id]] if into else [])
    assert len({(m["bucket_id"], m["deliver_at"], m["dispatches"]) for m in messages}) == (1 if into else 0)


async def test_empty_metadata_beside_others_is_none(saves, db):
    jobs = [new_job(metadata={}), new_job(metadata={"tenant": "a"})]
    assert await saves.save(batch_of(*jobs)) == Saved(None)
    found = {str(row["id"]): row["metadata"] for row in await db.fetch("SELECT id, metadata FROM job")}
    assert found == {jobs[0].id: None, jobs[1].id: '{"tenant": "a"}'}


async def test_a_lone_job_that_is_there_or_comes_without_the_term_is_not_written(saves, database_of_ours, db):
    job = new_job()
    assert await SaveStore(database_of_ours, Term(1)).save(batch_of(job, into="b1")) == TermLost()
    assert await counts(db) == (0, 0, 0)
    batch = batch_of(job, into="b1")
    assert await saves.save(batch) == Saved(None)
    assert await saves.save(batch) == Saved(frozenset())
    assert await counts(db) == (1, 1, 0)


async def test_repeating_a_batch_changes_nothing(saves, db):
    batch = batch_of(*[new_job() for _ in range(3)], into="b1", refusals=[Refusal("s/1/0", b"x", "why")])
    assert await saves.save(batch) == Saved(None)
    assert await saves.save(batch) == Saved(frozenset())
    counts = await db.fetchrow(
        "SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM outbox), (SELECT count(*) FROM rejected)"
    )
    assert tuple(counts) == (3, 1, 1)


async def test_only_what_is_new_is_inserted(saves):
    old, new = new_job(), new_job()
    await saves.save(batch_of(old))
    assert await saves.save(batch_of(old, new)) == Saved(frozenset({new.id}))
    clash = (await saves.find_clashes([old.id], [None]))[old.id]
    assert clash.existing_id == old.id
    assert clash.same_queued_at == pytest.approx(QUEUED_AT, abs=1e-6)


@pytest.fixture
def kinds(database_of_ours, saves, monkeypatch):
    """Which of the three statements each save used."""
    used, fetchrow = [], database_of_ours.fetchrow
    names = {saves._save_new: "new", saves._save_lone: "lone", saves._save: "any"}

    async def noting(sql, *args):
        used.append(names[sql])
        return await fetchrow(sql, *args)

    monkeypatch.setattr(database_of_ours, "fetchrow", noting)
    return used


async def test_after_a_row_that_was_there_every_batch_is_inserted_with_care_for_a_while(saves, kinds, monkeypatch, db):
    old = new_job()
    assert await saves.save(batch_of(old)) == Saved(None)
    assert kinds == ["lone"]
    new = new_job()
    assert await saves.save(batch_of(new, old, into="b1")) == Saved(frozenset({new.id}))
    assert await saves.save(batch_of(new_job())) == Saved(None)
    assert kinds == ["lone", "new", "any", "any"]
    assert await counts(db) == (3, 1, 0)
    now_s = time.monotonic()
    monkeypatch.setattr(save_store, "time", SimpleNamespace(monotonic=lambda: now_s + save_store.CAREFUL_S))
    assert await saves.save(batch_of(new_job(), new_job())) == Saved(None)
    assert kinds[4:] == ["new"]


async def test_jobs_with_keys_are_always_inserted_with_care(saves, kinds):
    assert await saves.save(batch_of(new_job(unique_key="k"), new_job())) == Saved(None)
    assert await saves.save(batch_of(new_job(unique_key="l"))) == Saved(None)
    assert kinds == ["any", "any"]


async def test_a_taken_key_is_found_with_its_holder(saves):
    holder, late = new_job(unique_key="k"), new_job(unique_key="k")
    assert await saves.save(batch_of(holder, late)) == Saved(frozenset({holder.id}))
    clash = (await saves.find_clashes([late.id], ["k"]))[late.id]
    assert (clash.existing_id, clash.same_queued_at, clash.status) == (holder.id, None, JobStatus.ON_MASTER)


async def test_sent_messages_are_forgotten_with_the_next_batch(saves, db):
    first = batch_of(new_job(), into="b1")
    await saves.save(first)
    await saves.save(batch_of(new_job(), sent=[first.outgoing[0].outbox_id]))
    assert await db.fetchval("SELECT count(*) FROM outbox") == 0


async def test_without_the_term_nothing_at_all_is_written(database_of_ours, saves, db):
    sent = batch_of(new_job(), into="b1")
    await saves.save(sent)
    batch = batch_of(new_job(), into="b1", refusals=[Refusal("s", b"x", "w")], sent=[sent.outgoing[0].outbox_id])
    assert await SaveStore(database_of_ours, Term(1)).save(batch) == TermLost()
    counts = await db.fetchrow(
        "SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM outbox), (SELECT count(*) FROM rejected)"
    )
    assert tuple(counts) == (1, 1, 0)


async def test_a_refused_row_writes_nothing(saves, db):
    with pytest.raises(RowRefusedError):
        await saves.save(batch_of(new_job(), new_job(args=b'{"a": "\\u0000"}')))
    assert await db.fetchval("SELECT count(*) FROM job") == 0


async def given(saves, count=3):
    jobs = [new_job() for _ in range(count)]
    await saves.save(batch_of(*jobs, into="b1"))
    return jobs


def success(job, dispatch=1):
    return wire.Finished(job.id, dispatch, 1, AttemptOutcome.SUCCEEDED, QUEUED_AT + 1, QUEUED_AT + 2)


async def test_successes_pass_the_fence_once(saves, records, db):
    jobs = await given(saves)
    events = [success(job) for job in jobs]
    assert await records.record_successes(events, [0, 0, 1], ["w0", "w1"]) == Recorded(3)
    assert await records.record_successes(events, [0, 0, 1], ["w0", "w1"]) == Recorded(0, frozenset())
    rows = await db.fetch("SELECT worker_id, status, attempt FROM job ORDER BY id")
    assert [tuple(row) for row in rows] == [("w0", 4, 1), ("w0", 4, 1), ("w1", 4, 1)]


async def test_the_wrong_dispatch_is_refused_and_the_others_named(saves, records):
    jobs = await given(saves)
    events = [success(jobs[0]), success(jobs[1], dispatch=2), success(jobs[2], dispatch=0)]
    assert await records.record_successes(events, [0] * 3, ["w"]) == Recorded(1, frozenset({jobs[0].id}))


async def test_an_end_that_the_fence_refuses_leaves_no_attempt(saves, records, db):
    (job,) = await given(saves, 1)
    end = End(job.id, 2, 1, JobStatus.FAILED, "failed", 1.0, 2.0)
    assert await records.record_ends([end], [0], ["w"], ["b1"]) == Recorded(0, frozenset())
    assert await db.fetchval("SELECT count(*) FROM attempt") == 0


async def test_ends_of_all_kinds_go_in_one_statement(saves, records, db):
    jobs = await given(saves, 4)
    ends = [
        End(jobs[0].id, 1, 1, JobStatus.FAILED, "failed", 1.0, 2.0, error="e"),
        End(jobs[1].id, 1, 1, JobStatus.ON_MASTER, "timed_out", 1.0, 2.0, error="t", retry_in_s=60.0),
        End(jobs[2].id, 1, 0, JobStatus.ON_MASTER),
        End(jobs[3].id, 1, 0, JobStatus.QUARANTINED, finished_at=3.0, error="q"),
    ]
    assert await records.record_ends(ends, [0] * 4, ["w"], ["b1"]) == Recorded(4)
    rows = await db.fetch(
        "SELECT status, attempt, error, bucket_id, finished_at IS NULL, run_at < now() + interval '2 min'"
        " FROM job ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [
        (5, 1, "e", "b1", False, False),
        (1, 1, "t", None, True, True),
        (1, 0, None, None, True, False),
        (7, 0, "q", "b1", False, False),
    ]
    assert await db.fetchval("SELECT count(*) FROM attempt") == 2


async def test_the_common_statements_find_their_rows_by_the_primary_key(saves, records, database_of_ours):
    """With a plan made for an empty table they would read all of it for ever (see database._PLANNER)."""
    await given(saves, 10)
    sql = records._sql["record_successes"]
    async with database_of_ours.connection() as connection:
        statement = await connection.prepare(sql)
        plan = str(await statement.explain(TERM, ["w"], f"{{{new_id()}}}", "{1}", "{1.0}", "{1.0}", "{1}", [], 1))
    assert "job_pkey" in plan
    assert "Seq Scan on job" not in plan


async def test_moving_jobs_finds_them_by_the_primary_key_though_none_waited_when_postgres_last_looked(
    saves, records, database_of_ours, db
):
    """Believing that nothing waits it read the whole backlog for every job it moved: minutes for a burst of 100,000."""
    jobs = await given(saves, 60)
    await records.record_successes([success(job) for job in jobs], [0] * len(jobs), ["w"])
    await db.execute("ANALYZE job")
    sql = DispatchStore(database_of_ours, TERM)._sql["assign"]
    async with database_of_ours.connection() as connection:
        statement = await connection.prepare(sql)
        plan = str(await statement.explain(TERM, "default", 4, ["h"], "b1", 1000, LONG_AGO_S, 1.5, 1.5))
    assert "job_pkey" in plan
