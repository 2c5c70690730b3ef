"""Schedules become jobs: a coordinator, its planner and real Postgres."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from jm_core.api_schedules import OP_SCHEDULE_EDIT, OP_SCHEDULE_GET
from jm_core.api_schedules import OP_SCHEDULE_PAUSE as OP_PAUSE
from jm_core.api_schedules import OP_SCHEDULE_RESUME as OP_RESUME
from jm_core.ids import Term
from jm_core.retry import DEFAULT_BACKOFF
from jm_core.wire import HandlerDefaults
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.plan_store import Committed, PlanStore
from jm_master.planner import Planner
from jm_master.registry_view import Elsewhere, RegistryView
from jm_master.save_store import TermLost
from jm_master.wake import Wake
from tests.support.master import coordinating, job, linked
from tests.support.sql import Sql
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jm_nats.embedded import NatsServer
    from tests.support.master import Bench


@asynccontextmanager
async def planning(nats: NatsServer, dsn: str, cluster: str) -> AsyncIterator[tuple[Bench, Sql]]:
    async with coordinating(nats.url, dsn, cluster), linked(nats.url, cluster) as bench, Sql(dsn) as sql:
        yield bench, sql


async def insert(sql: Sql, name: str, **columns: Any) -> None:
    """As somebody with plain SQL would."""
    values = {"name": name, "kind": "cron", "expr": "* * * * *", "handler": "noop", **columns}
    places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    await sql.rows(f"INSERT INTO schedule ({', '.join(values)}) VALUES ({places})", *values.values())


def twelve_minutes() -> dict[str, Any]:
    """Columns of a schedule that has twelve jobs, from two minutes on: all within reach, whenever it is looked at."""
    start = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=3)
    return {"starts_at": start, "ends_at": start + timedelta(minutes=11)}


async def jobs_of(sql: Sql, name: str) -> list[Any]:
    return await sql.rows("SELECT *, id::text AS job_id FROM job WHERE schedule = $1 ORDER BY occurrence", name)


async def test_a_row_of_plain_sql_is_planned_to_the_horizon(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with planning(nats_server, database, cluster_name) as (_, sql):
        await insert(sql, "minutely", args='{"a": 1}', metadata='{"team": "x"}', lane="slow", priority=4)
        await wait_until(lambda: jobs_of(sql, "minutely"), 15, what="it is planned")
        jobs = await jobs_of(sql, "minutely")
        plan = await sql.row("SELECT since_at, next_at, clock_timestamp() AS now FROM schedule")
        assert [job["occurrence"] for job in jobs] == minutes_between(plan["since_at"], plan["next_at"])
        assert plan["now"] + timedelta(minutes=13) < jobs[-1]["occurrence"] <= plan["now"] + timedelta(minutes=15)
        assert {(job["handler"], job["args"], job["lane"], job["priority"]) for job in jobs} == {
            ("noop", '{"a": 1}', "slow", 4)
        }
        assert {job["metadata"] for job in jobs} == {'{"team": "x"}'}
        assert [job["run_at"] for job in jobs] == [job["occurrence"] for job in jobs]
        assert [job["job_id"] for job in jobs] == sorted(job["job_id"] for job in jobs)


def minutes_between(since: datetime, before: datetime) -> list[datetime]:
    """The full minutes after ``since`` and before ``before``."""
    first = since.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return [first + timedelta(minutes=n) for n in range(int((before - first).total_seconds() // 60))]


async def state_of(sql: Sql, name: str) -> str:
    return str(await sql.value("SELECT state FROM schedule WHERE name = $1", name))


async def becomes(sql: Sql, name: str, state: str) -> None:
    async def so() -> bool:
        return await state_of(sql, name) == state

    await wait_until(so, 15, what=f"{name} is {state}")


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("expression", {"expr": "never ever"}, "cron"),
    ("kind", {"kind": "corn"}, "corn"),
    ("zone", {"zone": "Mars/Base"}, "Mars/Base"),
    ("handler", {"handler": "a b"}, "must match"),
    ("metadata", {"metadata": '{"a": 1}'}, "str"),
    ("lane", {"lane": "a.b"}, "lane"),
    ("large args", {"args": json.dumps({"x": "x" * 140_000})}, "131072"),
]
UNINSERTABLE: list[dict[str, Any]] = [
    {"args": "[1]"},
    {"metadata": "1"},
    {"max_attempts": 0},
    {"timeout_s": -1.0},
    {"timeout_s": float("nan")},
    {"jitter_s": float("nan")},
    {"jitter_s": 1e300},
    {"misfire_window_s": 1.0},
    {"misfire_limit": 0},
    {"max_runs": 0},
    {"overlap": "maybe"},
    {"misfire": "maybe"},
    {"state": "maybe"},
]


@pytest.mark.parametrize("columns", UNINSERTABLE, ids=lambda columns: "_".join(map(str, *columns.items())))
async def test_plain_sql_cannot_insert_what_could_not_be_planned(database: str, columns: dict[str, Any]) -> None:
    async with Sql(database) as sql:
        with pytest.raises(asyncpg.CheckViolationError, match=next(iter(columns))):
            await insert(sql, "broken", **columns)


@pytest.mark.parametrize(("columns", "word"), [b[1:] for b in BROKEN], ids=[b[0].replace(" ", "_") for b in BROKEN])
async def test_a_schedule_that_cannot_be_planned_is_disabled_alone_and_says_why(
    nats_server: NatsServer, database: str, cluster_name: str, columns: dict[str, Any], word: str
) -> None:
    """BR-096: the other 49 go on."""
    async with planning(nats_server, database, cluster_name) as (bench, sql):
        await sql.rows(
            "INSERT INTO schedule (name, kind, expr, handler) "
            "SELECT 'good' || n, 'cron', '* * * * *', 'noop' FROM generate_series(1, 49) AS n"
        )
        await insert(sql, "broken", **columns)
        await becomes(sql, "broken", "disabled")
        error = await sql.value("SELECT error FROM schedule WHERE name = 'broken'")
        assert word.lower() in error.lower()

        async def others() -> bool:
            return bool(await sql.value("SELECT count(DISTINCT schedule) FROM job WHERE schedule LIKE 'good%'") == 49)

        await wait_until(others, 15, what="the others are planned")
        shown = (await bench.call(OP_SCHEDULE_GET, {"name": "broken"}))["data"]
        assert shown["state"] == "disabled"
        assert shown["error"] == error


async def test_a_null_and_a_far_past_row_are_planned_as_any_other(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    """BR-072."""
    async with planning(nats_server, database, cluster_name) as (_, sql):
        past = datetime(1999, 1, 1, tzinfo=UTC)
        await insert(sql, "nulls", next_at=None, plan_at=None, last_at=None, misfire_window_s=None)
        await insert(sql, "past", next_at=past, since_at=past, created_at=past, starts_at=past, plan_at=past)
        await wait_until(lambda: jobs_of(sql, "nulls"), 15, what="the first is planned")
        await wait_until(lambda: jobs_of(sql, "past"), 15, what="the second is planned")
        late = [job for job in await jobs_of(sql, "past") if job["occurrence"] <= datetime.now(UTC)]
        assert len(late) <= 2, "one makes up for all that was missed; a minute may have passed since"
        skip = await sql.row("SELECT * FROM schedule_skip WHERE schedule = 'past'")
        assert skip["more"]


async def test_a_tick_whose_unique_key_is_held_is_recorded_as_a_duplicate_of_that_job(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    """BR-187: twenty submissions of the key around the tick; never two unfinished, and the tick is not just missing."""
    async with planning(nats_server, database, cluster_name) as (bench, sql):
        await insert(sql, "ticks", expr="* * * * * *", unique_key="report")
        await wait_until(lambda: jobs_of(sql, "ticks"), 15, what="the first tick is a job")
        first = (await jobs_of(sql, "ticks"))[0]
        receipts = await bench.submit_and_wait(*[job(unique_key="report") for _ in range(20)])
        assert {(r.status, r.existing_id) for r in receipts} == {("duplicate", first["job_id"])}

        async def three_skipped() -> bool:
            rows = await sql.rows("SELECT * FROM schedule_skip WHERE schedule = 'ticks'")
            return sum(row["count"] for row in rows) >= 3

        await wait_until(three_skipped, 15, what="ticks are skipped")
        skip = await sql.row("SELECT * FROM schedule_skip WHERE schedule = 'ticks'")
        assert (skip["reason"], skip["detail"]) == ("duplicate", first["job_id"])
        row = await sql.row("SELECT * FROM schedule WHERE name = 'ticks'")
        assert (row["runs"], row["skipped"]) == (1, skip["count"])
        assert await sql.value("SELECT count(*) FROM job WHERE status < 4 AND unique_key = 'report'") == 1


async def test_a_tick_whose_key_an_ended_job_holds_within_its_window_is_skipped(database: str) -> None:
    """Of a job that was submitted with `unique_for`; when the window has passed, ticks become jobs again."""
    async with planner_of(database, "c") as (planner, _), Sql(database) as sql:
        holder = await sql.value(
            "INSERT INTO job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at, "
            "finished_at, unique_key, unique_until) VALUES (gen_random_uuid(), 'noop', '{}', 4, 3, 'l', now(), 1, 1, "
            "now(), now(), 'report', now() + interval '1 hour') RETURNING id::text"
        )
        late = {"expr": "* * * * * *", "unique_key": "report", "plan_at": None}
        await insert(sql, "ticks", **late, next_at=datetime.now(UTC) - timedelta(seconds=3))
        await planner.plan_once()
        skip = await sql.row("SELECT reason, detail FROM schedule_skip")
        assert (skip["reason"], skip["detail"], await jobs_of(sql, "ticks")) == ("duplicate", holder, [])
        await sql.rows("UPDATE job SET unique_until = now() - interval '1 second'")
        await insert(sql, "later", **late, next_at=datetime.now(UTC) - timedelta(seconds=3))
        await planner.plan_once()
        assert len(await sql.rows("SELECT id FROM job WHERE unique_key = 'report' AND status = 1")) == 1


async def test_a_failed_run_stands_in_nobodys_way(nats_server: NatsServer, database: str, cluster_name: str) -> None:
    """BR-100: each instant has an id of its own."""
    async with planning(nats_server, database, cluster_name) as (_, sql):
        await insert(sql, "ticks", expr="* * * * * *", overlap="skip")

        async def failed_and_came_again() -> bool:
            await sql.rows("UPDATE job SET status = 5, finished_at = now() WHERE status = 1")
            return len(await jobs_of(sql, "ticks")) >= 3

        await wait_until(failed_and_came_again, 20, what="three ticks became jobs")
        ids = {row["job_id"] for row in await jobs_of(sql, "ticks")}
        assert len(ids) == len(await jobs_of(sql, "ticks"))


async def test_the_queued_instant_becomes_a_job_when_its_predecessor_ends(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with planning(nats_server, database, cluster_name) as (bench, sql):
        await insert(sql, "ticks", expr="* * * * * *", overlap="queue_one")

        async def two_skipped() -> bool:
            return bool(await sql.value("SELECT skipped FROM schedule") >= 2)

        await wait_until(two_skipped, 15, what="later ticks are skipped")
        queued = await sql.value("SELECT queued_at FROM schedule")
        assert len(await jobs_of(sql, "ticks")) == 1
        shown = (await bench.call(OP_SCHEDULE_GET, {"name": "ticks"}))["data"]
        assert datetime.fromisoformat(shown["queued_instant"]) == queued
        await sql.rows("UPDATE job SET status = 4, finished_at = now()")

        async def released() -> bool:
            return len(await jobs_of(sql, "ticks")) == 2

        await wait_until(released, 5, what="the queued instant is a job")
        assert (await jobs_of(sql, "ticks"))[1]["occurrence"] == queued
        await bench.call(OP_SCHEDULE_EDIT, {"name": "ticks", "drop_queued": True, "expr": "0 0 1 1 *"})
        assert await sql.value("SELECT queued_at FROM schedule") is None


async def test_down_for_ten_minutes_with_each_policy(nats_server: NatsServer, database: str, cluster_name: str) -> None:
    """BR-076 against the real planner: 0, 1, 5 runs; 10, 9, 5 recorded as skipped."""
    async with Sql(database) as sql:
        now = await sql.value("SELECT now()")
        first = now.replace(second=0, microsecond=0) - timedelta(minutes=9)
        for policy in ("skip", "run_once", "run_all"):
            await insert(sql, policy, misfire=policy, misfire_limit=5, next_at=first, since_at=first)
        async with planning(nats_server, database, cluster_name):
            for policy in ("skip", "run_once", "run_all"):
                await wait_until(lambda policy=policy: jobs_of(sql, policy), 15, what=f"{policy} is planned")
        found = {}
        for policy in ("skip", "run_once", "run_all"):
            due = [job for job in await jobs_of(sql, policy) if job["occurrence"] <= first + timedelta(minutes=9)]
            skip = await sql.row("SELECT * FROM schedule_skip WHERE schedule = $1", policy)
            found[policy] = (len(due), skip["count"], skip["reason"])
        assert found == {"skip": (0, 10, "misfire"), "run_once": (1, 9, "misfire"), "run_all": (5, 5, "misfire")}


@asynccontextmanager
async def planner_of(dsn: str, cluster: str, term: int = 7) -> AsyncIterator[tuple[Planner, PlanStore]]:
    """A planner without a coordinator around it."""
    async with Database(PostgresConfig(dsn=dsn)) as database, Sql(dsn) as sql:
        await sql.rows("UPDATE leader SET term = $1", term)
        store = PlanStore(database, Term(term))
        wake = Wake()
        view = RegistryView()
        planner = Planner(
            database,
            store,
            view,
            assign=wake,
            wake=Wake(),
            term=Term(term),
            cluster=cluster,
            zone="UTC",
            threshold_s=600,
            poll_s=1,
        )
        yield planner, store


async def test_a_plan_that_is_committed_twice_makes_nothing_twice(database: str) -> None:
    """The answer of a COMMIT may be lost, and two may believe that they lead."""
    async with planner_of(database, "c") as (planner, store), Sql(database) as sql:
        await insert(sql, "minutely", **twelve_minutes())
        batch = await planner._decide_all(await store.load_due(10))
        first, second = await store.commit(batch), await store.commit(batch)
        assert isinstance(first, Committed)
        assert isinstance(second, Committed)
        assert (len(first.applied), len(first.made)) == (1, 12)
        assert (second.applied, second.made) == ([], frozenset())
        assert await sql.value("SELECT runs FROM schedule") == len(await jobs_of(sql, "minutely")) == 12
        await sql.rows("UPDATE leader SET term = 8")
        assert isinstance(await store.commit(batch), TermLost)


async def test_a_handler_of_another_agent_has_its_defaults(database: str) -> None:
    async with planner_of(database, "c") as (planner, _), Sql(database) as sql:
        planner._view.set_elsewhere(
            Elsewhere(handlers={"noop": HandlerDefaults("far", "medium", 9, 60.0, DEFAULT_BACKOFF)})
        )
        await insert(sql, "minutely")
        await planner.plan_once()
        assert {(job["lane"], job["max_attempts"]) for job in await jobs_of(sql, "minutely")} == {("far", 9)}


async def test_a_plan_that_was_made_before_a_change_is_refused(database: str) -> None:
    async with planner_of(database, "c") as (planner, store), Sql(database) as sql:
        for change in ("generation = generation + 1", "plan_no = plan_no + 1", "state = 'paused'"):
            await insert(sql, "minutely")
            batch = await planner._decide_all(await store.load_due(10))
            await sql.rows(f"UPDATE schedule SET {change}")
            answer = await store.commit(batch)
            assert isinstance(answer, Committed)
            assert answer.applied == [], change
            await sql.rows("DELETE FROM schedule")
        assert await sql.value("SELECT count(*) FROM job") == 0


async def test_the_machines_own_clock_decides_nothing(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BR-068: nine days ahead, and nothing is due before its time by Postgres' clock."""
    ahead = time.time() + 9 * 86_400
    monkeypatch.setattr(time, "time", lambda: ahead)
    async with planner_of(database, "c") as (planner, _), Sql(database) as sql:
        await insert(sql, "minutely", **twelve_minutes())
        await insert(sql, "tenth", expr="0 0 10 * *")
        await planner.plan_once()
        bounds = await sql.row("SELECT max(occurrence) < now() + interval '16 minutes' AS near FROM job")
        assert bounds["near"]
        assert len(await jobs_of(sql, "minutely")) == 12


async def test_what_postgres_refuses_is_found_and_disabled_alone(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something that passes every check of ours and cannot be stored."""
    async with planner_of(database, "c") as (planner, _), Sql(database) as sql:
        for n in range(9):
            await insert(sql, f"s{n}", **twelve_minutes())
        await sql.rows("ALTER TABLE job ADD CHECK (schedule <> 's4')")
        await planner.plan_once()
        states = {row["name"]: row["state"] for row in await sql.rows("SELECT name, state FROM schedule")}
        assert states == {f"s{n}": "disabled" if n == 4 else "done" for n in range(9)}
        assert await sql.value("SELECT count(*) FROM job") == 8 * 12
        assert "violates" in await sql.value("SELECT error FROM schedule WHERE name = 's4'")


async def test_an_infinite_time_of_plain_sql_stops_nobody(database: str) -> None:
    async with planner_of(database, "c") as (planner, store), Sql(database) as sql:
        await insert(sql, "minutely")
        assert (await store.next_look()).in_s == 0
        await sql.rows("UPDATE schedule SET plan_at = 'infinity'")
        assert (await store.next_look()).in_s is None
        await sql.rows("UPDATE schedule SET plan_at = NULL, next_at = 'infinity'")
        await planner.plan_once()
        assert await state_of(sql, "minutely") in ("disabled", "done")


async def test_pause_and_resume_race_the_planner_and_no_instant_is_doubled(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with planning(nats_server, database, cluster_name) as (bench, sql):
        for n in range(20):
            await insert(sql, f"s{n}", kind="every", expr="1s")
        for _ in range(5):
            replies = await asyncio.gather(
                *[bench.call(operation, {"name": f"s{n}"}) for n in range(20) for operation in (OP_PAUSE, OP_RESUME)]
            )
            assert not [reply for reply in replies if "error" in reply]
        twice = "SELECT schedule, occurrence FROM job WHERE status <> 6 GROUP BY 1, 2 HAVING count(*) > 1"
        assert await sql.rows(twice) == []
        for n in range(20):
            await bench.call(OP_PAUSE, {"name": f"s{n}"})
        assert await sql.value("SELECT count(*) FROM job WHERE status < 4") == 0
        wrong = (
            "SELECT * FROM schedule AS s WHERE runs <> (SELECT count(*) FROM job WHERE schedule = name AND status <> 6)"
        )
        assert await sql.rows(wrong) == []


async def test_jitter_delays_the_job_and_not_its_instant(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with planning(nats_server, database, cluster_name) as (_, sql):
        await insert(sql, "spread", jitter_s=30)
        await wait_until(lambda: jobs_of(sql, "spread"), 15, what="it is planned")
        late_s = [(job["run_at"] - job["occurrence"]).total_seconds() for job in await jobs_of(sql, "spread")]
        assert all(0 <= late < 30 for late in late_s)
        assert len(set(late_s)) == len(late_s)


async def test_of_several_coordinators_one_plans_and_the_others_are_silent(
    nats_server: NatsServer, database: str, cluster_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """BR-188: two hundred minutely schedules, each instant once; nobody contends for them."""
    async with Sql(database) as sql, AsyncExitStack() as stack:
        await sql.rows(
            "INSERT INTO schedule (name, kind, expr, handler, starts_at, ends_at) "
            "SELECT 's' || n, 'cron', '* * * * *', 'noop', $1, $2 FROM generate_series(1, 200) AS n",
            *twelve_minutes().values(),
        )
        for leads in (True, False, False, False):
            await stack.enter_async_context(coordinating(nats_server.url, database, cluster_name, leads=leads))

        async def all_planned() -> bool:
            return bool(await sql.value("SELECT count(*) FROM schedule WHERE state = 'done'") == 200)

        await wait_until(all_planned, 20, what="all are planned")
        found = await sql.row("SELECT count(*) AS jobs, count(DISTINCT (schedule, occurrence)) AS instants FROM job")
        assert found["jobs"] == found["instants"] == 200 * 12
        assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
