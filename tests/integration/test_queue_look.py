"""What the leader's look at its queues says, and that it never reads what is not due."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import asyncpg
import pytest

from jm_master import queue_look
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.queries import named
from jm_master.queue_look import QueueLook
from jm_master.registry_view import RegistryView
from jm_nats import telemetry
from jm_nats.errors import AgentUnavailableError
from jm_nats.subjects import Names
from jm_nats.telemetry import Gauges, Group, names

GROUP = Group("c", "coordinator")
PUT = (
    "INSERT INTO jobmaster.job (id, handler, args, status, priority, lane, bucket_id, run_at, max_attempts, timeout_s,"
    " queued_at) SELECT gen_random_uuid(), $2, '{}', $3::int, $4::int, $5, CASE WHEN $3::int > 1 THEN $6 || 'b' END,"
    " now() - $7::float8 * interval '1 second', 4, 300, now() FROM generate_series(1, $1::int)"
)


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def put(db, count, handler="h", *, status=1, priority=3, lane="default", agent="", due_s=60.0):
    await db.execute(PUT, count, handler, status, priority, lane, agent, due_s)


class Link:
    """NATS, as far as it is asked; None: it is away."""

    def __init__(self, messages):
        self.messages = messages

    async def api(self, subject):
        if self.messages is None:
            raise AgentUnavailableError("nats://x", "no answer", remedy="wait")
        return {"state": {"messages": self.messages[subject.rsplit("_", 1)[1]]}}


async def looked(database, gauges, link, agent="main"):
    async with Database(PostgresConfig(dsn=database), agent=agent) as opened:
        await QueueLook(link, Names("c"), opened, RegistryView(), gauges).look_once()


def said(gauges, spec):
    values = gauges.values_of(spec)
    return {tuple(text for key, text in key_ if key != names.CLUSTER): value for key_, value in values.items()}


async def test_what_waits_is_counted_by_route_and_state(database, db):
    await put(db, 3, "a", due_s=100)
    await put(db, 2, "b", due_s=50)
    await put(db, 7, "a", due_s=-3600)
    await put(db, 4, lane="mail", priority=5, status=2, due_s=200)
    await put(db, 5, lane="mail", priority=5, status=2, due_s=-200)
    await put(db, 1, lane="mail", priority=5, status=3, due_s=900)
    await put(db, 9, status=4)
    await put(db, 1, lane="late", due_s=-5)
    await db.execute(
        "INSERT INTO jobmaster.outbox (outbox_id, bucket_id, job_ids) SELECT gen_random_uuid(), 'b', '{}'"
        " FROM generate_series(1, 6)"
    )
    gauges = Gauges(GROUP)
    await looked(database, gauges, Link({"PENDING": 8, "EVENTS": 9}))
    assert said(gauges, names.QUEUE_DEPTH) == {
        ("default", "medium", "due"): 5,
        ("mail", "critical", "in_bucket"): 9,
        ("mail", "critical", "processing"): 1,
    }
    age = said(gauges, names.OLDEST_DUE_AGE)
    assert {route: round(s, -1) for route, s in age.items()} == {("default", "medium"): 100, ("mail", "critical"): 200}
    assert said(gauges, names.OUTBOX_SIZE) == {(): 6}
    assert (said(gauges, names.PENDING), said(gauges, names.EVENTS_PENDING)) == ({(): 8}, {(): 9})


async def test_a_depth_is_counted_so_far_and_no_further(database, db, monkeypatch):
    monkeypatch.setattr(queue_look, "names", SimpleNamespace(**vars(names) | {"DEPTH_MAX": 10}))
    monkeypatch.setattr(queue_look, "ALL_KINDS_MAX", 12)
    for handler in ("a", "b"):
        await put(db, 50, handler)
    await put(db, 50, status=2)
    gauges = Gauges(GROUP)
    await looked(database, gauges, Link({"PENDING": 0, "EVENTS": 0}))
    depth = said(gauges, names.QUEUE_DEPTH)
    assert depth == {("default", "medium", "due"): 12, ("default", "medium", "in_bucket"): 10}


async def test_buckets_of_another_agent_are_its_leaders(database, db):
    await put(db, 2, status=2)
    await put(db, 3, status=2, agent="east/")
    gauges = Gauges(GROUP)
    await looked(database, gauges, Link({"PENDING": 0, "EVENTS": 0}), agent="east")
    assert said(gauges, names.QUEUE_DEPTH) == {("default", "medium", "in_bucket"): 3}


async def test_what_cannot_be_seen_any_more_is_not_shown_as_it_was(database, db, monkeypatch):
    await put(db, 3)
    gauges = Gauges(GROUP)
    await looked(database, gauges, Link({"PENDING": 8, "EVENTS": 9}))
    assert said(gauges, names.PENDING) == {(): 8}
    await looked(database, gauges, Link(None))
    assert said(gauges, names.PENDING) == said(gauges, names.EVENTS_PENDING) == {}
    assert said(gauges, names.QUEUE_DEPTH)
    monkeypatch.setattr(queue_look, "PATIENCE_S", 0.0)
    await looked(database, gauges, Link(None))
    assert (
        said(gauges, names.QUEUE_DEPTH) == said(gauges, names.OLDEST_DUE_AGE) == said(gauges, names.OUTBOX_SIZE) == {}
    )


async def test_who_has_nothing_to_do_has_done_it(database, monkeypatch):
    passed = []
    monkeypatch.setattr(telemetry, "duty_passed", passed.append)
    await looked(database, Gauges(GROUP), Link({"PENDING": 0, "EVENTS": 3}))
    assert passed == ["writer", "queue look"]


async def test_a_look_that_sees_not_everything_has_not_passed_and_shows_the_rest(database, db, monkeypatch, caplog):
    passed = []
    monkeypatch.setattr(telemetry, "duty_passed", passed.append)
    monkeypatch.setattr(queue_look, "PATIENCE_S", 0.5)
    await put(db, 3)
    await put(db, 2, status=2)
    gauges = Gauges(GROUP)
    async with Database(PostgresConfig(dsn=database)) as opened, locked(database, "outbox"):
        await QueueLook(Link({"PENDING": 1, "EVENTS": 3}), Names("c"), opened, RegistryView(), gauges).look_once()
    assert sum(said(gauges, names.QUEUE_DEPTH).values()) == 5
    assert said(gauges, names.OLDEST_DUE_AGE)
    assert said(gauges, names.OUTBOX_SIZE) == {}
    assert passed == []
    assert "outbox_size" in [getattr(record, "query", "") for record in caplog.records]
    await looked(database, gauges, Link(None))
    assert passed == []
    assert said(gauges, names.OUTBOX_SIZE) == {(): 0}


@asynccontextmanager
async def locked(database, table):
    """As a migration or somebody's ALTER TABLE does it."""
    other = await asyncpg.connect(database)
    try:
        async with other.transaction():
            await other.execute(f"LOCK TABLE jobmaster.{table} IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await other.close()


async def test_half_of_what_makes_up_an_age_shows_none():
    row = {"lane": "mail", "priority": 3, "status": 2, "jobs": 2, "age_s": 9.0}
    served = {("mail", 3)}
    assert queue_look.queues([row], [row], served)[1]
    depth, age = queue_look.queues(None, [row], served)
    assert (sorted(key[2][1] for key in depth), age) == (["in_bucket", "processing"], {})
    depth, age = queue_look.queues([row], None, served)
    assert (sorted(key[2][1] for key in depth), age) == (["due"], {})


async def test_what_ran_for_hours_and_was_interrupted_waits_since_it_is_back(database, db):
    for status, agent in ((1, ""), (2, "")):
        await put(db, 1, status=status, agent=agent, due_s=10_800, lane="long")
        await put(db, 1, status=status, agent=agent, due_s=40, lane="other")
    await db.execute("UPDATE jobmaster.job SET started_at = run_at + interval '1 second' WHERE lane = 'long'")
    await db.execute(
        "INSERT INTO jobmaster.attempt (job_id, attempt, dispatch, outcome, finished_at)"
        " SELECT id, 1, 1, 'interrupted', now() - interval '20 seconds' FROM jobmaster.job WHERE lane = 'long'"
    )
    gauges = Gauges(GROUP)
    await looked(database, gauges, Link({"PENDING": 0, "EVENTS": 0}))
    age = {lane: round(s, -1) for (lane, _), s in said(gauges, names.OLDEST_DUE_AGE).items()}
    assert age == {"long": 20, "other": 40}
    # A retry's due time is a new one, and holds.
    await db.execute("UPDATE jobmaster.job SET run_at = now() - interval '10 seconds' WHERE lane = 'long'")
    await looked(database, gauges, Link({"PENDING": 0, "EVENTS": 0}))
    assert round(said(gauges, names.OLDEST_DUE_AGE)["long", "medium"], -1) == 10


def test_lanes_are_named_by_what_there_is_now():
    def row(lane, age_s):
        return {"lane": lane, "priority": 3, "jobs": 1, "age_s": age_s}

    gone = [row(f"gone{n}", 1.0) for n in range(2 * names.VALUES_MAX)]
    first, _ = queue_look.queues(gone, [], set())
    assert len(first) == names.VALUES_MAX + 1
    now = [row(f"short{n:03}", float(n)) for n in range(2 * names.VALUES_MAX)]
    depth, age = queue_look.queues(now, [], {("mine", 3)})
    lanes = {route[0][1] for route in age}
    assert lanes == {"mine", names.OTHER} | {f"short{n:03}" for n in range(names.VALUES_MAX + 1, 2 * names.VALUES_MAX)}
    assert sum(depth.values()) == 2 * names.VALUES_MAX


async def test_what_is_not_due_is_never_read_however_much_it_is(database, db):
    for lane in ("a", "b"):
        await put(db, 20_000, lane=lane, due_s=-86_400)
        await put(db, 30, lane=lane)
    await put(db, 50, status=2)
    await put(db, 20_000, status=4)
    await db.execute("ANALYZE jobmaster.job")
    sql = named("look")
    due = await rows_read(db, sql["queue_due"], 100_000, 200_000)
    assert 120 <= due <= 130, "the due ones, once for their number and once for their age, and a step from kind to kind"
    assert await rows_read(db, sql["queue_out"], 100_000, "''") == 50


async def rows_read(db, sql, *arguments):
    for number, argument in enumerate(arguments, 1):
        sql = sql.replace(f"${number}", str(argument))
    (plan,) = json.loads(await db.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}"))
    return sum(rows_of(plan["Plan"]))


def rows_of(node):
    if node.get("Relation Name") == "job":
        yield (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    for child in node.get("Plans", ()):
        yield from rows_of(child)
