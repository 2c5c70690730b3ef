"""What the leader's look at its queues says, and that it never reads what is not due."""

from __future__ import annotations

import json
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
    assert passed == ["writer"]


async def test_what_is_not_due_is_never_read_however_much_it_is(database, db):
    for lane in ("a", "b"):
        await put(db, 20_000, lane=lane, due_s=-86_400)
        await put(db, 30, lane=lane)
    await put(db, 50, status=2)
    await put(db, 20_000, status=4)
    await db.execute("ANALYZE jobmaster.job")
    sql = named("look")
    due = await rows_read(db, sql["queue_due"], 100_000, 200_000)
    assert 60 <= due <= 70, "the due ones, and one step from kind to kind"
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
