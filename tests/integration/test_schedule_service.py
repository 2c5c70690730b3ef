"""Schedules over the API: added, changed, stopped, resumed, deleted, with what is planned already."""

from __future__ import annotations

import json
import uuid
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import uuid_utils

from jm_core import api_schedules as api
from jm_core import wire
from jm_core.api import OP_JOB_LIST
from jm_core.api_control import OP_OF, ControlRequest
from jm_core.api_schedules import ScheduleSpec
from jm_core.control import Action
from jm_core.ids import Term
from jm_core.retry import DEFAULT_BACKOFF
from jm_core.wire import HandlerDefaults
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.schedule_store import ScheduleStore, ScheduleWrite
from jm_master.terms import LostTermError
from jm_nats.kv import CasKv
from tests.support.master import coordinating, job, linked, new_id
from tests.support.sql import Sql
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jm_nats.embedded import NatsServer
    from tests.support.master import Bench

DEFAULTS = HandlerDefaults("reports", "high", 7, 12.0, DEFAULT_BACKOFF)


class Scene:
    def __init__(self, bench: Bench, sql: Sql) -> None:
        self.bench = bench
        self.sql = sql

    async def ask(self, operation: str, **request: Any) -> Any:
        reply = await self.bench.call(operation, request)
        assert "error" not in reply, reply
        return reply["data"]

    async def refused(self, operation: str, **request: Any) -> tuple[str, str]:
        error = (await self.bench.call(operation, request))["error"]
        return error["code"], error["message"]

    async def add(self, name: str = "report", **fields: Any) -> Any:
        return await self.ask(api.OP_SCHEDULE_ADD, spec=spec(name, **fields), by="anna")

    async def jobs(self, name: str = "report", status: int | None = None) -> list[Any]:
        query = "SELECT *, id::text AS job_id FROM job WHERE schedule = $1 AND ($2::int IS NULL OR status = $2)"
        return await self.sql.rows(f"{query} ORDER BY occurrence, id", name, status)

    async def planned(self, count: int, name: str = "report") -> list[Any]:
        """Once so many of its jobs wait."""

        async def there() -> bool:
            return len(await self.jobs(name, status=1)) == count

        await wait_until(there, 15, what=f"{count} jobs of {name} are planned")
        return await self.jobs(name, status=1)


def spec(name: str = "report", **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": "cron", "expr": "* * * * *", "handler": "report", **fields}


@pytest.fixture
async def scene(nats_server: NatsServer, database: str, cluster_name: str) -> AsyncIterator[Scene]:
    async with scene_of(nats_server, database, cluster_name) as scene:
        yield scene


@asynccontextmanager
async def scene_of(nats_server: NatsServer, database: str, cluster_name: str) -> AsyncIterator[Scene]:
    async with linked(nats_server.url, cluster_name) as bench:
        kv = CasKv(bench.link, bench.names.cluster_kv)
        await kv.put("handler.report", wire.encode(DEFAULTS))
        async with coordinating(nats_server.url, database, cluster_name), Sql(database) as sql:
            yield Scene(bench, sql)


async def test_a_schedule_is_added_shown_and_planned_with_its_handlers_defaults(scene: Scene) -> None:
    added = await scene.add(args={"day": 1}, metadata={"team": "x"})
    assert (added["state"], added["origin"], added["zone"]) == ("active", "dynamic", "UTC")
    assert (added["created_by"], len(added["upcoming"])) == ("anna", 5)
    assert added["next_at"] == added["upcoming"][0]
    jobs = await scene.planned(15)
    assert {(job["lane"], job["priority"], job["max_attempts"], job["timeout_s"]) for job in jobs} == {
        ("reports", 4, 7, 12.0)
    }
    shown = await scene.ask(api.OP_SCHEDULE_GET, name="report")
    assert shown["spec"]["args"] == {"day": 1}
    assert shown["runs"] == 15
    assert datetime.fromisoformat(shown["planned_to"]) == jobs[-1]["occurrence"]
    listed = await scene.ask(api.OP_SCHEDULE_LIST, name_prefix="rep")
    assert [one["spec"]["name"] for one in listed["schedules"]] == ["report"]


async def test_adding_the_same_again_is_no_error_and_another_one_of_its_name_is(scene: Scene) -> None:
    start = "2030-01-01T09:00:00+01:00"
    first = await scene.add(args={"n": 1.0, "a": [1]}, starts_at=start)
    assert (await scene.add(args={"a": [1], "n": 1.0}, starts_at=start))["created_at"] == first["created_at"]
    code, message = await scene.refused(api.OP_SCHEDULE_ADD, spec=spec(expr="0 * * * *"))
    assert code == "conflict"
    assert "is another one" in message


async def test_pause_takes_back_what_is_planned_and_resume_goes_on_without_a_burst(scene: Scene) -> None:
    await scene.add()
    planned = await scene.planned(15)
    paused = await scene.ask(api.OP_SCHEDULE_PAUSE, name="report", by="bob", reason="quarter end")
    assert (paused["state"], paused["paused_by"], paused["cancelled_planned"]) == ("paused", "bob", 15)
    assert (paused.get("runs", 0), paused.get("upcoming", [])) == (0, [])
    cancelled = await scene.jobs(status=6)
    assert {job["error"] for job in cancelled} == {"cancelled by bob: schedule 'report' paused: quarter end"}
    # A weekend later.
    await scene.sql.rows("UPDATE schedule SET since_at = since_at - interval '3 days'")
    resumed = await scene.ask(api.OP_SCHEDULE_RESUME, name="report", by="bob")
    assert resumed["state"] == "active"
    again = await scene.planned(15)
    assert not {job["job_id"] for job in again} & {job["job_id"] for job in planned}
    assert again[0]["occurrence"] > datetime.now(UTC) - timedelta(seconds=60)
    (skip,) = (await scene.ask(api.OP_SCHEDULE_SKIPS, name="report"))["skips"]
    assert skip["reason"] == "paused"
    assert skip["count"] in (4320, 4321)


async def test_what_an_operator_requeues_of_a_paused_schedule_is_the_operators(scene: Scene) -> None:
    await scene.add()
    (first, *_) = await scene.planned(15)
    await scene.ask(api.OP_SCHEDULE_PAUSE, name="report")
    requeue = {"action_id": new_id(), "by": "ops", "ids": [first["job_id"]]}
    assert (await scene.ask(OP_OF[Action.REQUEUE], **requeue))["jobs"][0]["changed"]
    paused = await scene.ask(api.OP_SCHEDULE_GET, name="report")
    assert (paused.get("runs", 0), paused["unfinished"]) == (0, 1)
    await scene.ask(api.OP_SCHEDULE_RESUME, name="report")

    async def planned_again() -> bool:
        return int(await scene.sql.value("SELECT runs FROM schedule")) == 15

    await wait_until(planned_again, 15, what="it is planned again")
    again = await scene.ask(api.OP_SCHEDULE_PAUSE, name="report")
    assert (again.get("runs", 0), again["cancelled_planned"], again["unfinished"]) == (0, 15, 1)
    assert [job["job_id"] for job in await scene.jobs(status=1)] == [first["job_id"]]


async def test_pausing_twice_and_resuming_twice_are_no_errors(scene: Scene) -> None:
    await scene.add()
    for _ in range(2):
        assert (await scene.ask(api.OP_SCHEDULE_PAUSE, name="report"))["state"] == "paused"
    for _ in range(2):
        assert (await scene.ask(api.OP_SCHEDULE_RESUME, name="report"))["state"] == "active"


async def test_an_edit_replans_with_the_new_definition_and_no_instant_twice(scene: Scene) -> None:
    await scene.add(args={"v": 1})
    old = await scene.planned(15)
    edited = await scene.ask(api.OP_SCHEDULE_EDIT, name="report", by="eve", args={"v": 2}, revision=1)
    assert (edited["revision"], edited["updated_by"], edited["cancelled_planned"]) == (2, "eve", 15)
    new = await scene.planned(15)
    assert {job["args"] for job in new} == {'{"v": 2}'}
    assert [job["occurrence"] for job in new[:14]] == [job["occurrence"] for job in old[:14]]
    code, message = await scene.refused(api.OP_SCHEDULE_EDIT, name="report", expr="0 * * * *", revision=1)
    assert (code, "revision 2" in message) == ("conflict", True)
    await scene.ask(api.OP_SCHEDULE_EDIT, name="report", expr="*/5 * * * *", zone=None)
    sparse = await scene.planned(3)
    assert [job["occurrence"].minute % 5 for job in sparse] == [0, 0, 0]


def in_two_minutes() -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=2)


async def add_twelve(scene: Scene, start: datetime | None = None) -> list[Any]:
    """Jobs of the minutes from two minutes on: however slow the test is, none falls due, and none comes in reach."""
    start = start or in_two_minutes()
    end = start + timedelta(minutes=11)
    await scene.add(kind="every", expr="60s", starts_at=start.isoformat(), ends_at=end.isoformat())
    return await scene.planned(12)


async def cancel(scene: Scene, *job_ids: str) -> None:
    request = ControlRequest(str(uuid_utils.uuid7()), "olga", "customer left", ids=list(job_ids))
    verdicts = (await scene.bench.call(OP_OF[Action.CANCEL], msgspec.to_builtins(request)))["data"]
    assert [verdict["changed"] for verdict in verdicts["jobs"]] == [True] * len(job_ids)


async def counts_add_up(scene: Scene) -> tuple[int, int]:
    """``runs`` is the jobs that were planned and count, ``skipped`` the recorded skips."""
    row = await scene.sql.row("SELECT runs, skipped FROM schedule")
    skips = await scene.sql.value("SELECT coalesce(sum(count), 0)::int FROM schedule_skip")
    instants = await scene.sql.value("SELECT count(DISTINCT occurrence) FROM job WHERE status <> 6")
    assert (row["runs"], row["skipped"]) == (instants, skips)
    return row["runs"], row["skipped"]


async def test_a_planned_job_that_an_operator_cancelled_comes_back_with_no_change_of_its_schedule(scene: Scene) -> None:
    """The operator's cancel wins over every later plan; what a change takes back is planned again."""
    old = await add_twelve(scene)
    mine = old[2]
    await cancel(scene, mine["job_id"])
    changes: list[tuple[str, dict[str, Any]]] = [
        (api.OP_SCHEDULE_EDIT, {"args": {"v": 2}}),
        (api.OP_SCHEDULE_EDIT, {"args": {"v": 3}}),
        (api.OP_SCHEDULE_PAUSE, {}),
        (api.OP_SCHEDULE_RESUME, {}),
    ]
    for operation, fields in changes:
        await scene.ask(operation, name="report", **fields)
        if operation != api.OP_SCHEDULE_PAUSE:
            again = await scene.planned(11)
            assert mine["occurrence"] not in {job["occurrence"] for job in again}
            assert [job["occurrence"] for job in again[:4]] == [old[n]["occurrence"] for n in (0, 1, 3, 4)]
            assert await counts_add_up(scene) == (11, 1)
    (skip,) = (await scene.ask(api.OP_SCHEDULE_SKIPS, name="report", reason="cancelled"))["skips"]
    assert (skip["detail"], datetime.fromisoformat(skip["first_at"])) == (mine["job_id"], mine["occurrence"])


async def test_a_cancelled_occurrence_that_was_requeued_is_planned_with_the_others_again(scene: Scene) -> None:
    mine = (await add_twelve(scene))[2]
    await cancel(scene, mine["job_id"])
    await scene.ask(api.OP_SCHEDULE_EDIT, name="report", args={"v": 2})
    await scene.planned(11)
    request = ControlRequest(str(uuid_utils.uuid7()), "olga", ids=[mine["job_id"]])
    await scene.bench.call(OP_OF[Action.REQUEUE], msgspec.to_builtins(request))
    await scene.planned(12)
    await scene.ask(api.OP_SCHEDULE_EDIT, name="report", args={"v": 3})
    assert mine["occurrence"] in {job["occurrence"] for job in await scene.planned(12)}
    assert await counts_add_up(scene) == (12, 0)


async def test_what_was_cancelled_of_a_deleted_schedule_is_no_matter_of_a_new_one_of_its_name(scene: Scene) -> None:
    start = in_two_minutes()
    mine = (await add_twelve(scene, start))[2]
    await cancel(scene, mine["job_id"])
    await scene.ask(api.OP_SCHEDULE_DELETE, name="report")
    await scene.sql.rows("DELETE FROM schedule_skip")
    await add_twelve(scene, start)
    await scene.ask(api.OP_SCHEDULE_EDIT, name="report", args={"v": 2})
    assert mine["occurrence"] in {job["occurrence"] for job in await scene.planned(12)}
    assert await counts_add_up(scene) == (12, 0)


async def test_an_edit_does_not_plan_again_what_has_started_before_its_instant(scene: Scene) -> None:
    """A worker whose clock is ahead began it."""
    await scene.add()
    first = (await scene.planned(15))[0]
    await scene.sql.rows("UPDATE job SET status = 3, attempt = 1 WHERE id = $1", first["id"])
    await scene.ask(api.OP_SCHEDULE_EDIT, name="report", args={"v": 2})
    new = await scene.planned(14)
    assert first["occurrence"] not in [job["occurrence"] for job in new]


async def test_delete_takes_the_planned_ones_back_and_a_new_one_of_the_name_gets_ids_of_its_own(scene: Scene) -> None:
    await scene.add()
    old = await scene.planned(15)
    deleted = await scene.ask(api.OP_SCHEDULE_DELETE, name="report", by="bob")
    assert deleted["cancelled_planned"] == 15
    assert {job["error"] for job in await scene.jobs()} == {"cancelled by bob: schedule 'report' deleted"}
    assert (await scene.refused(api.OP_SCHEDULE_GET, name="report"))[0] == "not_found"
    await scene.add()
    new = await scene.planned(15)
    assert not {job["job_id"] for job in new} & {job["job_id"] for job in old}


async def test_jobs_in_a_bucket_are_taken_back_too_and_running_ones_go_on(scene: Scene) -> None:
    async with scene.bench.worker("report", lane="default"):
        await scene.add(lane="default", priority="medium", expr="* * * * * *", max_runs=900)

        async def in_bucket() -> bool:
            return len(await scene.jobs(status=2)) > 100

        await wait_until(in_bucket, 20, what="jobs are in a bucket")
        running = (await scene.jobs(status=2))[0]
        await scene.sql.rows("UPDATE job SET status = 3, attempt = 1 WHERE id = $1", running["id"])
        await scene.ask(api.OP_SCHEDULE_DELETE, name="report")
        left = await scene.sql.rows("SELECT id FROM job WHERE status < 4")
        assert [row["id"] for row in left] == [running["id"]]


async def test_run_now_makes_one_job_outside_the_plan(scene: Scene) -> None:
    await scene.add(args={"day": 1}, metadata={"team": "x"}, expr="0 0 1 1 *")
    request_id = str(uuid.uuid4())
    made = await scene.ask(api.OP_SCHEDULE_RUN_NOW, name="report", by="bob", request_id=request_id)
    again = await scene.ask(api.OP_SCHEDULE_RUN_NOW, name="report", by="bob", request_id=request_id)
    other = await scene.ask(api.OP_SCHEDULE_RUN_NOW, name="report", by="bob", args={"day": 2})
    assert made == again == {"job_id": request_id}
    jobs = {job["job_id"]: job for job in await scene.jobs()}
    assert len(jobs) == 2
    job = jobs[request_id]
    assert (job["args"], job["occurrence"], job["lane"]) == ('{"day": 1}', None, "reports")
    assert job["metadata"] == '{"team": "x", "run_now_by": "bob"}'
    assert jobs[other["job_id"]]["args"] == '{"day": 2}'
    shown = await scene.ask(api.OP_SCHEDULE_GET, name="report")
    assert (shown["unfinished"], shown.get("runs", 0)) == (2, 0)


async def test_run_now_says_which_job_has_the_unique_key(scene: Scene) -> None:
    await scene.add(unique_key="k", expr="0 0 1 1 *")
    made = await scene.ask(api.OP_SCHEDULE_RUN_NOW, name="report")
    code, message = await scene.refused(api.OP_SCHEDULE_RUN_NOW, name="report")
    assert code == "conflict"
    assert made["job_id"] in message


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("zone", {"zone": "Europe/Berln"}, "Europe/Berlin"),
    ("expression", {"expr": "61 * * * *"}, "61"),
    ("kind", {"kind": "corn"}, "cron"),
    ("handler", {"handler": "repotr"}, "did you mean report"),
    ("handler name", {"handler": "a b"}, "must match"),
    ("name", {"name": "a b"}, "must match"),
    ("args too large", {"args": {"x": "x" * 140_000}}, "the limit is 131072"),
    ("args no object", {"args": [1]}, "JSON object"),
    ("priority", {"priority": "urgent"}, "very_low"),
    ("lane", {"lane": "a.b"}, "lane"),
    ("attempts", {"max_attempts": 0}, "max_attempts"),
    ("timeout", {"timeout_s": -1}, "timeout_s"),
    ("jitter", {"jitter_s": 60}, "as long as the interval (60 s)"),
    ("negative jitter", {"jitter_s": -1}, "jitter_s"),
    ("end before start", {"starts_at": "2031-01-01T00:00:00Z", "ends_at": "2030-01-01T00:00:00Z"}, "before the start"),
    ("end passed", {"ends_at": "2020-01-01T00:00:00Z"}, "has passed"),
    ("no offset", {"starts_at": "2031-01-01T00:00:00"}, "starts_at"),
    ("never fires", {"expr": "0 0 30 2 *"}, "never"),
    ("ends before it fires", {"expr": "0 0 1 1 *", "ends_at": "soon"}, "would never fire"),
    ("window", {"misfire_window_s": 1}, "60"),
    ("limit", {"misfire_limit": 0}, "misfire_limit"),
    ("runs", {"max_runs": 0}, "max_runs"),
    ("policy", {"overlap": "maybe"}, "overlap"),
    ("metadata", {"metadata": {"a": "b" * 9_000}}, "8192"),
]


@pytest.mark.parametrize(("fields", "word"), [b[1:] for b in BAD], ids=[b[0].replace(" ", "_") for b in BAD])
async def test_a_bad_schedule_is_refused_with_field_and_remedy_and_nothing_is_written(
    scene: Scene, fields: dict[str, Any], word: str
) -> None:
    if fields.get("ends_at") == "soon":
        now = datetime.now(UTC)
        fields = fields | {"ends_at": (now + timedelta(minutes=5)).isoformat()}
    code, message = await scene.refused(api.OP_SCHEDULE_ADD, spec=spec(**fields))
    assert code == "bad_request", message
    assert word in message
    assert await scene.sql.value("SELECT count(*) FROM schedule") == 0
    await scene.add(expr="0 0 1 1 *")
    edit = {key: value for key, value in fields.items() if key != "name"}
    if edit:
        code, message = await scene.refused(api.OP_SCHEDULE_EDIT, name="report", **({"expr": "* * * * *"} | edit))
        assert code == "bad_request", message
        assert await scene.sql.value("SELECT revision FROM schedule") == 1


@pytest.mark.parametrize(
    "operation",
    [
        api.OP_SCHEDULE_GET,
        api.OP_SCHEDULE_EDIT,
        api.OP_SCHEDULE_PAUSE,
        api.OP_SCHEDULE_RESUME,
        api.OP_SCHEDULE_RUN_NOW,
        api.OP_SCHEDULE_DELETE,
    ],
)
async def test_a_name_that_is_not_there_is_said_to_be_unknown(scene: Scene, operation: str) -> None:
    code, message = await scene.refused(operation, name="nope")
    assert code == "not_found"
    assert "'nope'" in message


async def test_a_page_that_does_not_fit_one_message_is_cut_and_says_so(scene: Scene) -> None:
    await scene.sql.rows(
        "INSERT INTO schedule (name, kind, expr, handler, state, error) "
        "SELECT 's' || n, 'cron', '* * * * *', 'report', 'paused', repeat('x', 4000) "
        "FROM generate_series(100, 599) AS n"
    )
    page = await scene.ask(api.OP_SCHEDULE_LIST, limit=500)
    assert page["more"]
    names = [one["spec"]["name"] for one in page["schedules"]]
    assert 0 < len(names) < 500
    rest = await scene.ask(api.OP_SCHEDULE_LIST, limit=1, after_name=names[-1])
    assert rest["schedules"][0]["spec"]["name"] == f"s{100 + len(names)}"


async def test_the_jobs_of_a_schedule_are_listed_with_their_instants(scene: Scene) -> None:
    await scene.add()
    planned = await scene.planned(15)
    await scene.bench.submit_and_wait(job("report"))
    listed = (await scene.ask(OP_JOB_LIST, schedule="report"))["jobs"]
    assert [one["id"] for one in listed] == sorted((one["job_id"] for one in planned), reverse=True)
    assert {one["schedule"] for one in listed} == {"report"}
    assert datetime.fromisoformat(listed[0]["occurrence"]) == planned[-1]["occurrence"]


async def test_a_done_schedule_that_is_edited_makes_up_for_nothing(scene: Scene) -> None:
    await scene.add(max_runs=2)
    await scene.planned(2)
    assert (await scene.ask(api.OP_SCHEDULE_GET, name="report"))["state"] == "done"
    code, message = await scene.refused(api.OP_SCHEDULE_RESUME, name="report")
    assert (code, "max_runs" in message) == ("conflict", True)
    await scene.sql.rows("UPDATE job SET status = 4, occurrence = occurrence - interval '9 days'")
    await scene.sql.rows("UPDATE schedule SET next_at = now() - interval '9 days', last_at = now() - interval '9 days'")
    await scene.ask(api.OP_SCHEDULE_EDIT, name="report", max_runs=5)  # a quick planner has made it done again by now
    again = await scene.planned(3)
    assert again[0]["occurrence"] > datetime.now(UTC) - timedelta(seconds=5)
    assert (await scene.ask(api.OP_SCHEDULE_SKIPS, name="report"))["skips"] == []


async def test_a_disabled_schedule_is_mended_by_an_edit_and_what_it_missed_is_recorded(scene: Scene) -> None:
    await scene.sql.rows(
        "INSERT INTO schedule (name, kind, expr, handler, since_at) "
        "VALUES ('report', 'cron', 'oops', 'report', now() - interval '1 hour')"
    )

    async def disabled() -> bool:
        return (await scene.ask(api.OP_SCHEDULE_GET, name="report"))["state"] == "disabled"

    await wait_until(disabled, 15, what="it is disabled")
    mended = await scene.ask(api.OP_SCHEDULE_EDIT, name="report", expr="* * * * *")
    assert (mended["state"], "error" in mended) == ("active", False)
    await scene.planned(15)


async def test_a_queued_instant_is_dropped_by_a_pause_and_by_order(scene: Scene) -> None:
    async def queued() -> bool:
        return bool(await scene.sql.value("SELECT queued_at IS NOT NULL FROM schedule"))

    await scene.add(kind="every", expr="1s", overlap="queue_one")
    for drop in ({"operation": api.OP_SCHEDULE_EDIT, "drop_queued": True}, {"operation": api.OP_SCHEDULE_PAUSE}):
        await wait_until(queued, 15, what="an instant is queued")
        before = await scene.sql.value("SELECT queued_at FROM schedule")
        await scene.ask(name="report", **drop)
        assert await scene.sql.value("SELECT queued_at FROM schedule") != before
        assert await scene.sql.value("SELECT count(*) FROM schedule_skip WHERE detail = $1", before.isoformat()) == 1
    assert await scene.sql.value("SELECT skipped = (SELECT sum(count) FROM schedule_skip) FROM schedule")


async def recorded(scene: Scene) -> list[tuple[str, str, str, Any]]:
    rows = await scene.sql.rows("SELECT * FROM operator_action WHERE action LIKE 'schedule-%' ORDER BY at, action_id")
    return [(row["action"], row["actor"], row["reason"], json.loads(row["parameters"])) for row in rows]


async def test_the_record_says_what_was_changed_from_what_to_what_and_why(scene: Scene) -> None:
    far = {"expr": "0 0 1 1 *", "by": "eve"}
    await scene.ask(api.OP_SCHEDULE_ADD, spec=spec(expr="0 0 1 1 *", args={"v": 1}), by="anna", reason="asked for")
    await scene.ask(api.OP_SCHEDULE_EDIT, name="report", args={"v": "x" * 5_000}, jitter_s=5, reason="slow", **far)
    await scene.ask(api.OP_SCHEDULE_RUN_NOW, name="report", by="bob", reason="now please")
    (add, edit, run) = await recorded(scene)
    assert add == ("schedule-add", "anna", "asked for", {})
    assert edit[:3] == ("schedule-edit", "eve", "slow")
    assert edit[3]["changed"].keys() == {"args", "jitter_s"}
    assert edit[3]["changed"]["jitter_s"] == {"from": 0.0, "to": 5.0}
    assert edit[3]["changed"]["args"]["from"] == {"v": 1}
    assert len(edit[3]["changed"]["args"]["to"]) <= 1_000
    assert run[:3] == ("schedule-run-now", "bob", "now please")


async def test_what_changes_nothing_leaves_no_record(scene: Scene) -> None:
    request_id = str(uuid.uuid4())
    for _ in range(2):
        await scene.add(expr="0 0 1 1 *")
        await scene.ask(api.OP_SCHEDULE_EDIT, name="report", expr="0 0 1 1 *", drop_queued=True)
        await scene.ask(api.OP_SCHEDULE_RUN_NOW, name="report", request_id=request_id)
    for operation in (api.OP_SCHEDULE_PAUSE, api.OP_SCHEDULE_RESUME):
        for _ in range(2):
            await scene.ask(operation, name="report")
    assert [action for action, *_ in await recorded(scene)] == [
        "schedule-add",
        "schedule-run-now",
        "schedule-pause",
        "schedule-resume",
    ]


async def test_each_change_is_handed_to_the_record_in_its_transaction_and_an_error_there_undoes_it(
    database: str,
) -> None:
    writes: list[tuple[str, str, str, int]] = []
    told: list[str] = []

    async def record(connection: Any, write: ScheduleWrite) -> None:
        assert connection.is_in_transaction()
        writes.append((write.action, write.name, write.by, write.cancelled))
        if write.reason == "fail":
            raise RuntimeError("no record, no change")

    class Canceller:
        async def cancel(self, connection: Any, ids: Any, *, by: str, why: str) -> Callable[[], None]:
            assert connection.is_in_transaction()
            assert (by, why) == ("bob", "schedule 'report' paused")
            return lambda: told.extend(ids)

    async with Database(PostgresConfig(dsn=database)) as db, Sql(database) as sql:
        store = ScheduleStore(db, Term(0), withdrawer=Canceller(), audit=record)
        wanted = ScheduleSpec(name="report", kind="cron", expr="* * * * *", handler="report")
        assert await store.add(wanted, by="anna")
        assert not await store.add(wanted, by="anna")
        await sql.rows(
            "INSERT INTO job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at, "
            "schedule, occurrence) VALUES (gen_random_uuid(), 'report', '{}', 1, 3, 'default', now(), 1, 1, now(), "
            "'report', now())"
        )
        with pytest.raises(RuntimeError, match="no record"):
            await pause(store, reason="fail")
        assert (await sql.value("SELECT state FROM schedule"), told) == ("active", [])
        await pause(store)
        assert await sql.value("SELECT state FROM schedule") == "paused"
        assert [str(await sql.value("SELECT id FROM job"))] == told
        assert writes == [("add", "report", "anna", 0), ("pause", "report", "bob", 1), ("pause", "report", "bob", 1)]
        with pytest.raises(LostTermError):
            await ScheduleStore(db, Term(9), withdrawer=Canceller()).add(wanted, by="")


async def pause(store: ScheduleStore, reason: str = "") -> None:
    async with store.hold("report", ScheduleWrite("pause", "report", "bob", reason)) as held:
        assert held is not None
        await held.pause(by="bob", reason="")
