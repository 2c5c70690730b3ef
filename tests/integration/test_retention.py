"""Retention against a real Postgres: what goes, what never goes, and whoever does it."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import asyncpg
import pytest

from jm_core import api, retention
from jm_core.api_retention import OP_RETENTION_RUN
from jm_core.ids import Term
from jm_core.model import JobStatus
from jm_core.retention import parse_retention
from jm_master.api_errors import RefusedError
from jm_master.config import CoordinatorConfig, PostgresConfig
from jm_master.database import Database
from jm_master.pg_errors import StoreUnavailableError
from jm_master.retention import Retainer
from jm_master.retention_service import RetentionService
from jm_master.retention_store import RetentionStore
from jm_master.terms import LostTermError
from tests.support.master import LEASE_S, coordinating, job, linked, new_id
from tests.support.waiting import wait_until

UNFINISHED = [status for status in JobStatus if 0 < status < 4]
ENDED = [status for status in JobStatus if status.is_terminal]
TERM = Term(1)


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    await connection.execute("UPDATE leader SET term = 1")
    yield connection
    await connection.close()


@pytest.fixture
async def store_of(database):
    async with Database(PostgresConfig(dsn=database)) as opened:
        yield lambda text, term=TERM: RetentionStore(opened, term, parse_retention(text))


async def put(db, status, *, ended="40 days", count=1, key=None, until=None):
    """Rows of a state, everything about them ``ended`` ago; their ids."""
    ids = [new_id() for _ in range(count)]
    await db.execute(
        "INSERT INTO job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at,"
        " recorded_at, started_at, finished_at, bucket_id, unique_key, unique_until)"
        " SELECT id, 'h', '{}', $2::int, 3, 'default', now() - $3::interval, 4, 300, now() - $3::interval,"
        " now() - $3::interval, now() - $3::interval, CASE WHEN $2::int > 3 THEN now() - $3::interval END,"
        " CASE WHEN $2::int IN (2, 3) THEN 'b' END, $4, now() + $5::interval"
        "  FROM unnest($1::uuid[]) AS u(id)",
        ids,
        int(status),
        interval(ended),
        key,
        until and interval(until),
    )
    return ids


def interval(text):
    amount, unit = text.split()
    return timedelta(**{unit: float(amount)})


async def left(db):
    return {str(row["id"]) for row in await db.fetch("SELECT id FROM job")}


async def swept(store, chunks=None):
    """Every chunk, until it is done; how many jobs have gone."""
    removed = 0
    for chunk in range(chunks or -(-await store.table_blocks() // retention.CHUNK_BLOCKS)):
        while True:
            step = await store.remove_jobs(chunk)
            removed += step.removed
            if step.is_done:
                break
    return removed


# -- what goes and what stays


@pytest.mark.parametrize("keep", ["30d", "60s"])
async def test_what_has_not_ended_never_goes_however_old_it_is(db, store_of, keep):
    waiting = [job_id for status in UNFINISHED for job_id in await put(db, status, ended="3650 days", count=5)]
    for status in ENDED:
        await put(db, status, ended="3650 days", count=5)
    assert await swept(store_of(keep)) == 5 * len(ENDED)
    assert await left(db) == set(waiting)


@pytest.mark.parametrize("kind", ENDED, ids=[status.label for status in ENDED])
async def test_each_kind_has_its_own_retention(db, store_of, kind):
    ids = {status: await put(db, status, count=3) for status in ENDED}
    assert await swept(store_of(f"never {kind.label}=39d")) == 3
    assert await left(db) == {job_id for status, some in ids.items() if status is not kind for job_id in some}
    assert await swept(store_of(f"39d {kind.label}=41d")) == 3 * (len(ENDED) - 1) - 3 + 3
    assert await swept(store_of("never")) == 0


async def test_the_age_counts_from_the_end(db, store_of):
    (old,) = await put(db, JobStatus.SUCCEEDED)
    await db.execute("UPDATE job SET finished_at = now() - interval '29 days'")
    assert await swept(store_of("30d")) == 0
    await db.execute("UPDATE job SET finished_at = now() - interval '31 days'")
    assert await swept(store_of("30d")) == 1
    assert await left(db) == set() != {old}


async def test_rows_with_times_that_make_no_sense_are_no_trouble(db, store_of):
    """BR-072: an end that was never noted counts from when the job was recorded."""
    await put(db, JobStatus.FAILED, count=2)
    await db.execute("UPDATE job SET finished_at = NULL")
    (strange,) = await put(db, JobStatus.FAILED)
    await db.execute("UPDATE job SET finished_at = 'infinity' WHERE id = $1", strange)
    (ancient,) = await put(db, JobStatus.FAILED)
    await db.execute("UPDATE job SET finished_at = '-infinity', queued_at = '0001-01-01' WHERE id = $1", ancient)
    store = store_of("30d")
    assert await swept(store) == 3
    assert await left(db) == {strange}
    assert (await store.remove_jobs(0)).first_due_in_s is None or (await store.remove_jobs(0)).first_due_in_s > 1e9


@pytest.mark.parametrize(
    "make", [lambda: str(uuid.uuid4()), lambda: str(uuid.UUID(int=0)), new_id], ids=["v4", "nil", "v7"]
)
async def test_ids_of_any_kind_are_found(db, store_of, make):
    await put(db, JobStatus.SUCCEEDED)
    await db.execute("UPDATE job SET id = $1", make())
    assert await swept(store_of("30d")) == 1


async def test_what_holds_a_unique_key_stays_until_its_window_has_passed(db, store_of):
    await put(db, JobStatus.SUCCEEDED, key="k", until="1 hours")
    store = store_of("30d")
    assert await swept(store) == 0
    step = await store.remove_jobs(0)
    assert step.first_due_in_s == pytest.approx(3_600, abs=5)
    await db.execute("UPDATE job SET unique_until = now() - interval '1 s'")
    assert await swept(store) == 1


async def test_attempts_and_actions_go_with_their_job_and_others_stay(db, store_of):
    old = await put(db, JobStatus.FAILED, count=10)
    young = await put(db, JobStatus.FAILED, ended="1 days", count=10)
    for job_id in old + young:
        await db.execute(
            "INSERT INTO attempt (job_id, attempt, dispatch, outcome)"
            " SELECT $1, n, n, 'failed' FROM generate_series(1, 4) AS n",
            job_id,
        )
        await db.execute(
            "INSERT INTO job_action (job_id, action_id, changed, note) VALUES ($1, gen_random_uuid(), true, '')", job_id
        )
    assert await swept(store_of("30d")) == 10
    for table, count in (("attempt", 40), ("job_action", 10)):
        rows = await db.fetch(f"SELECT job_id::text FROM {table}")
        assert {row["job_id"] for row in rows} == set(young)
        assert len(rows) == count


# -- steps


async def test_a_step_is_bounded_and_says_what_is_left(db, store_of, monkeypatch):
    monkeypatch.setattr("jm_master.retention_store.STEP_JOBS_MAX", 10)
    await put(db, JobStatus.SUCCEEDED, count=25)
    await put(db, JobStatus.SUCCEEDED, ended="29 days", count=5)
    store = store_of("30d")
    steps = [await store.remove_jobs(0) for _ in range(3)]
    assert [step.removed for step in steps] == [10, 10, 5]
    assert [step.is_done for step in steps] == [False, False, True]
    assert steps[2].first_due_in_s == pytest.approx(86_400, abs=60)


async def test_a_step_reads_its_pages_only(db, store_of):
    await put(db, JobStatus.SUCCEEDED, count=20_000)
    store = store_of("30d")
    blocks = await store.table_blocks()
    assert blocks > 2 * retention.CHUNK_BLOCKS
    first = await store.remove_jobs(0)
    assert 0 < first.removed <= retention.STEP_JOBS_MAX
    sql = store._sql["count_jobs"].replace("$1", "'(0,0)'").replace("$2", "'(64,0)'").replace("$3", "'{1,1,1,1}'")
    plan = [row[0] for row in await db.fetch(f"EXPLAIN {sql}")]
    assert any("Tid Range Scan" in line for line in plan), plan


async def test_the_plan_of_a_step_looks_at_nothing_but_its_pages_and_the_keys(db, store_of):
    await put(db, JobStatus.SUCCEEDED, count=5_000)
    sql = store_of("30d")._sql["remove_jobs"]
    for place, value in (
        ("$6", "'{a,b,c,d}'"),
        ("$5", "10"),
        ("$4", "'{1,1,1,1}'"),
        ("$3", "'(64,0)'"),
        ("$2", "'(0,0)'"),
        ("$1", "1"),
    ):
        sql = sql.replace(place, value)
    await db.execute("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
    plan = [row[0].strip() for row in await db.fetch(f"EXPLAIN {sql}")]
    scans = [line for line in plan if "Scan on job" in line or "Scan using" in line]
    assert sum("Tid Range Scan on job" in line for line in scans) == 2, plan
    assert not any("Seq Scan on" in line and "leader" not in line for line in plan), plan


async def test_another_term_removes_nothing(db, store_of):
    await put(db, JobStatus.SUCCEEDED, count=3)
    store = store_of("30d", Term(2))
    for writing in (store.remove_jobs(0), store.remove_side("rejected", 0.0), store.save_sweep(0, ends_pass=True)):
        with pytest.raises(LostTermError):
            await writing
    assert len(await left(db)) == 3


async def test_what_is_requeued_in_that_moment_stays_and_what_is_locked_is_left_for_later(db, database, store_of):
    (contested,) = await put(db, JobStatus.FAILED)
    others = await put(db, JobStatus.FAILED, count=5)
    operator = await asyncpg.connect(database)
    transaction = operator.transaction()
    await transaction.start()
    await operator.execute("UPDATE jobmaster.job SET status = 1, finished_at = NULL WHERE id = $1", contested)
    store = store_of("30d")
    step = await store.remove_jobs(0)
    assert (step.removed, step.is_done, step.first_due_in_s) == (len(others), True, 0.0)
    await transaction.commit()
    await operator.close()
    assert await swept(store) == 0
    assert await left(db) == {contested}


async def test_two_at_once_remove_each_row_once(db, store_of):
    await put(db, JobStatus.SUCCEEDED, count=3_000)
    first, second = store_of("30d"), store_of("30d")
    removed = await asyncio.gather(swept(first, 20), swept(second, 20))
    assert sum(removed) == 3_000
    (kind,) = [kind for kind in await first.kinds() if kind.removed]
    assert (kind.kind, kind.removed) == ("succeeded", 3_000)


FILLED = {
    "rejected": """
        INSERT INTO rejected (source, rejected_at, raw, raw_bytes, reason)
        SELECT n::text, now() - n * interval '1 hour', '', 0, '' FROM generate_series(1200, 1, -1) AS n""",
    "buckets": """
        INSERT INTO bucket (bucket_id, worker_id, lane, priority, epoch, reason, deleted_at)
        SELECT n::text, 'w', 'l', 3, 1, '', now() - n * interval '1 hour' FROM generate_series(1, 1200) AS n""",
    "skips": """
        INSERT INTO schedule_skip (schedule_id, schedule, reason, detail, first_at, last_at, count)
        SELECT gen_random_uuid(), 's', 'misfire', '', '2000-01-01Z', now() - n * interval '1 hour', n
          FROM generate_series(1, 1200) AS n""",
    "actions": """
        INSERT INTO operator_action (action_id, actor, action, reason, scope, parameters, matched, finished_at)
        SELECT gen_random_uuid(), 'a', 'cancel', '', '{}', '{}', 0,
               CASE WHEN n < 1200 THEN now() - n * interval '1 hour' END FROM generate_series(1, 1200) AS n""",
}


@pytest.mark.parametrize("kind", FILLED)
async def test_other_tables_are_kept_short_too(db, store_of, kind):
    await db.execute(FILLED[kind])
    store = store_of(f"never {kind}=600h")
    table = {"buckets": "bucket", "skips": "schedule_skip", "actions": "operator_action"}.get(kind, kind)
    would = (await store.count_side())[kind]
    retainer = Retainer(store, parse_retention(f"never {kind}=600h"))
    await retainer.step_once()
    remaining = await db.fetchval(f"SELECT count(*) FROM {table}")
    assert (would, remaining) == ((601, 599) if kind != "actions" else (600, 600)), "an open action stays"
    assert {one.kind: one.removed for one in (await retainer.view()).kinds}[kind] == would


# -- the duty


async def passed(retainer):
    """Steps without their rests until a pass is over; how many it took."""
    before = (await retainer.view()).passes
    for steps in range(1, 10_000):
        await retainer.step_once()
        if (await retainer.view()).passes > before:
            return steps
    raise AssertionError("it never ends")


async def test_a_pass_removes_all_that_may_go_and_is_noted(db, store_of):
    await put(db, JobStatus.SUCCEEDED, count=12_000)
    young = await put(db, JobStatus.SUCCEEDED, ended="1 days", count=50)
    retainer = Retainer(store_of("30d"), parse_retention("30d"))
    assert await passed(retainer) > 12
    assert await left(db) == set(young)
    view = await retainer.view()
    assert (view.passes, view.problem) == (1, None)
    assert view.passed_at is not None
    assert {kind.kind: kind.removed for kind in view.kinds if kind.removed} == {"succeeded": 12_000}
    assert await retainer.step_once() > 1, "nothing is due"
    await db.execute("UPDATE job SET finished_at = finished_at - interval '30 days'")
    retainer.begin_pass()
    await passed(retainer)
    assert await left(db) == set()


async def test_only_one_agent_s_leader_removes_and_the_next_begins_when_that_one_is_gone(db, store_of, monkeypatch):
    monkeypatch.setattr("jm_master.retention.STAND_BY_S", 0.01)
    await put(db, JobStatus.SUCCEEDED, count=5)
    other, asked = "east", 0

    def elsewhere():
        nonlocal asked
        asked += 1
        return other

    retainer = Retainer(store_of("30d"), parse_retention("30d"), elsewhere=elsewhere)
    running = asyncio.create_task(retainer.run())
    await wait_until(lambda: asked > 20, what="some looks")
    assert await db.fetchval("SELECT count(*) FROM job") == 5
    assert (await retainer.view()).agent == "east"
    with pytest.raises(RefusedError, match="'east' sees to retention"):
        await RetentionService(retainer).operations()[OP_RETENTION_RUN](b"{}")
    other = None
    await wait_until(lambda: db.fetchval("SELECT count(*) = 0 FROM job"), what="the jobs to go")
    running.cancel()


async def test_the_next_leader_goes_on_where_this_one_stopped(db, store_of, monkeypatch):
    monkeypatch.setattr("jm_master.retention.SAVE_S", 0.0)
    await put(db, JobStatus.SUCCEEDED, count=12_000)
    first = Retainer(store_of("never failed=1d"), parse_retention("never failed=1d"))
    for _ in range(3):
        await first.step_once()
    assert await db.fetchval("SELECT chunk FROM retention_sweep") == 3
    second = Retainer(store_of("30d"), parse_retention("30d"))
    await second.step_once()
    assert (await second.view()).chunk in (3, 4)
    await passed(second)
    assert await left(db) == set()


async def test_what_goes_wrong_is_said_and_tried_again_and_ends_nothing(db, store_of, monkeypatch):
    monkeypatch.setattr("jm_master.retention.TROUBLE_S", 0.01)
    store = store_of("30d")
    retainer = Retainer(store, parse_retention("30d"))
    await put(db, JobStatus.SUCCEEDED, count=3)
    real, failures = store.remove_jobs, [StoreUnavailableError("db", "gone"), ZeroDivisionError("a bug")]

    async def failing(chunk):
        if failures:
            seen.append((await retainer.view()).problem)
            raise failures.pop(0)
        seen.append((await retainer.view()).problem)
        return await real(chunk)

    seen = []
    monkeypatch.setattr(store, "remove_jobs", failing)
    running = asyncio.create_task(retainer.run())
    await wait_until(lambda: db.fetchval("SELECT count(*) = 0 FROM job"), what="the jobs to go")
    running.cancel()
    assert seen[0] is None
    assert "gone" in seen[1]
    assert "ZeroDivisionError: a bug" in seen[2]


async def test_a_dry_run_counts_what_a_pass_would_remove_and_removes_nothing(db, store_of, monkeypatch):
    monkeypatch.setattr("jm_master.retention.COUNT_S", 0.0)
    for status in ENDED:
        await put(db, status, count=3_000)
        await put(db, status, ended="1 days", count=30)
    retainer = Retainer(store_of("30d failed=never"), parse_retention("30d failed=never"))
    counts, chunk, questions = {}, 0, 0
    monkeypatch.setattr("jm_master.retention.COUNT_S", 0.002)
    while chunk is not None:
        part = await retainer.count(chunk)
        for kind, rows in part.counts.items():
            counts[kind] = counts.get(kind, 0) + rows
        chunk, questions = part.next_chunk, questions + 1
    assert {kind: rows for kind, rows in counts.items() if rows} == {
        "succeeded": 3_000,
        "cancelled": 3_000,
        "quarantined": 3_000,
    }
    assert questions > 1
    assert len(await left(db)) == 4 * 3_030


# -- the whole


async def test_ended_jobs_go_while_new_ones_come_and_none_of_those_is_touched(nats_server, database, db, cluster_name):
    config = CoordinatorConfig(lease_s=LEASE_S, poll_s=0.1, retention="1h")
    old = await put(db, JobStatus.SUCCEEDED, count=5_000)
    waiting = await put(db, JobStatus.ON_MASTER, count=50)
    async with (
        linked(nats_server.url, cluster_name) as bench,
        coordinating(nats_server.url, database, cluster_name, config),
    ):
        jobs = [job("elsewhere") for _ in range(200)]
        await bench.submit_and_wait(*jobs)
        gone = "SELECT count(*) = 0 FROM job WHERE id = ANY($1::uuid[])"
        await wait_until(lambda: db.fetchval(gone, old), what="the old jobs to go")
        assert await left(db) == {*waiting, *[one["id"] for one in jobs]}
        view = (await bench.call("retention-get", {}))["data"]
        assert {kind["kind"]: kind.get("removed", 0) for kind in view["kinds"]}["succeeded"] == 5_000
        assert (await bench.call(api.OP_JOB_COUNT, {}))["data"]["by_status"] == {"on_master": 250}
