"""Schedules appear, change and go with the code of real workers, through deploys, rollbacks and pauses."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Raw

from jm_core import api_schedules as api
from jm_core import rpc, wire
from jm_core.api_schedules import ScheduleSpec
from jm_core.ids import Term
from jm_core.static_schedules import Patience
from jm_core.wire import WorkerRecord
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.declaration_store import DeclarationStore
from jm_master.declarations import Declarations
from jm_master.registry_view import Elsewhere, RegistryView
from jm_master.schedule_store import ScheduleStore
from jm_master.watch import Watch
from jm_nats import JobMaster
from jm_nats.config import NatsConfig
from jm_nats.worker import Worker
from jm_nats.worker.config import WorkerConfig
from tests.support.master import FAST, LEASE_S, coordinating, linked
from tests.support.sql import Sql
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jm_nats.embedded import NatsServer

IDLE_S, INACTIVE_S = 3.0, 6.0
CONFIG = changed(FAST, schedule_idle_s=IDLE_S, schedule_inactive_s=INACTIVE_S)


class Deployment:
    """A coordinator, and workers that are started and stopped by the test."""

    def __init__(self, url: str, cluster: str, bench: Any, sql: Sql) -> None:
        self.url = url
        self.cluster = cluster
        self.bench = bench
        self.sql = sql

    @asynccontextmanager
    async def worker(self, **declarations: str) -> AsyncIterator[None]:
        """Of an application that declares these, by name: cron expressions."""
        app = JobMaster(self.cluster, nats=NatsConfig(servers=(self.url,)))

        async def report() -> None: ...

        handler = app.handler("report")(report)
        for name, expr in declarations.items():
            app.schedule(cron=expr, name=name)(handler)
        worker, stop = Worker(app, WorkerConfig(lease_s=LEASE_S, heartbeat_s=LEASE_S / 5, slots=2)), asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        try:
            await asyncio.wait_for(worker.ready.wait(), 20)
            yield
        finally:
            stop.set()
            await asyncio.wait_for(running, 20)

    async def get(self, name: str) -> Any:
        reply = await self.bench.call(api.OP_SCHEDULE_GET, {"name": name})
        return reply.get("data")

    async def becomes(self, name: str, timeout_s: float = 20, **wanted: Any) -> Any:
        """Once its view shows all of ``wanted``; the view."""

        async def so() -> bool:
            view = await self.get(name)
            return view is not None and all(_field(view, key) == value for key, value in wanted.items())

        await wait_until(so, timeout_s, what=f"{name} is {wanted}")
        return await self.get(name)

    async def act(self, operation: str, name: str) -> Any:
        return await self.bench.call(operation, {"name": name, "by": "bob"})


def _field(view: Any, key: str) -> Any:
    return view["spec"].get(key) if key in ("expr", "zone") else view.get(key)


@pytest.fixture
async def deployment(nats_server: NatsServer, database: str, cluster_name: str) -> AsyncIterator[Deployment]:
    async with (
        linked(nats_server.url, cluster_name) as bench,
        coordinating(nats_server.url, database, cluster_name, CONFIG),
        Sql(database) as sql,
    ):
        yield Deployment(nats_server.url, cluster_name, bench, sql)


async def test_a_schedule_appears_with_its_code_is_idle_without_and_comes_back(deployment: Deployment) -> None:
    async with deployment.worker(nightly="0 3 * * *", minutely="* * * * *"):
        view = await deployment.becomes("nightly", state="active", origin="static", expr="0 3 * * *")
        assert (view["created_by"], view["spec"]["handler"]) == ("code", "report")
        await deployment.becomes("minutely", runs=15)
    await deployment.becomes("nightly", state="idle")
    await deployment.becomes("minutely", state="inactive")
    planned = await deployment.sql.rows("SELECT status, error FROM job WHERE schedule = 'minutely' AND status < 4")
    assert planned == [], "what was planned is taken back"
    errors = await deployment.sql.rows("SELECT DISTINCT error FROM job WHERE schedule = 'minutely' AND status = 6")
    assert "no worker declares it any more" in errors[0]["error"]
    async with deployment.worker(minutely="* * * * *"):
        view = await deployment.becomes("minutely", state="active")
        assert (await deployment.becomes("nightly", state="inactive"))["seen_at"]


async def test_in_a_rolling_deploy_the_new_code_wins_and_an_old_worker_that_restarts_changes_nothing(
    deployment: Deployment,
) -> None:
    async with deployment.worker(report="0 1 * * *"):
        await deployment.becomes("report", expr="0 1 * * *")
        async with deployment.worker(report="0 2 * * *"):
            await deployment.becomes("report", expr="0 2 * * *")
            for _ in range(2):
                async with deployment.worker(report="0 1 * * *"):
                    await deployment.becomes("report", expr="0 2 * * *")
            revision = (await deployment.get("report"))["revision"]
            assert revision == 2, "one change, and none back"
        # Between two new workers there may be none for a moment.
        async with deployment.worker(report="0 2 * * *"):
            view = await deployment.becomes("report", expr="0 2 * * *")
            assert view["revision"] == 2
        # A rollback: nobody has the newer code any more.
        await deployment.becomes("report", expr="0 1 * * *", state="active")


async def test_an_operators_pause_outlives_a_redeploy_with_a_change(deployment: Deployment) -> None:
    async with deployment.worker(report="* * * * *"):
        await deployment.becomes("report", state="active")
        await deployment.act(api.OP_SCHEDULE_PAUSE, "report")
    async with deployment.worker(report="*/2 * * * *"):
        view = await deployment.becomes("report", expr="*/2 * * * *")
        assert (view["state"], view["paused_by"]) == ("paused", "bob")
        await deployment.act(api.OP_SCHEDULE_RESUME, "report")
        await deployment.becomes("report", state="active")


async def test_what_is_declared_in_code_is_edited_and_deleted_there(deployment: Deployment) -> None:
    async with deployment.worker(report="* * * * *"):
        await deployment.becomes("report", state="active")
        edit = await deployment.bench.call(api.OP_SCHEDULE_EDIT, {"name": "report", "expr": "0 * * * *"})
        delete = await deployment.act(api.OP_SCHEDULE_DELETE, "report")
        for reply in (edit, delete):
            assert reply["error"]["code"] == "conflict"
            assert "declared in code" in reply["error"]["message"]
        other = await deployment.bench.call(
            api.OP_SCHEDULE_ADD, {"spec": {"name": "report", "kind": "cron", "expr": "0 0 * * *", "handler": "report"}}
        )
        assert "declared in code" in other["error"]["message"]
    await deployment.becomes("report", state="inactive")
    assert (await deployment.act(api.OP_SCHEDULE_DELETE, "report"))["data"]["state"] == "inactive"
    assert await deployment.get("report") is None


async def test_a_dynamic_schedule_keeps_its_name_and_says_that_code_declares_it_too(deployment: Deployment) -> None:
    await deployment.sql.rows(
        "INSERT INTO schedule (name, kind, expr, handler) VALUES ('report', 'cron', '0 5 * * *', 'report')"
    )
    async with deployment.worker(report="0 1 * * *"):

        async def noted() -> bool:
            return "note" in await deployment.get("report")

        await wait_until(noted, 20, what="the conflict is shown")
        view = await deployment.get("report")
        assert (view["origin"], view["spec"]["expr"]) == ("dynamic", "0 5 * * *")
        assert "came first" in view["note"]
        await deployment.act(api.OP_SCHEDULE_DELETE, "report")
        await deployment.becomes("report", origin="static", expr="0 1 * * *")


async def test_the_next_leader_goes_on_where_the_last_one_stopped(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    """Absence is not counted while nobody could see who is there."""
    async with linked(nats_server.url, cluster_name) as bench, Sql(database) as sql:
        deployment = Deployment(nats_server.url, cluster_name, bench, sql)
        async with coordinating(nats_server.url, database, cluster_name, CONFIG), deployment.worker(report="0 1 * * *"):
            await deployment.becomes("report", state="active")
        long_ago = f"last_seen_at = now() - interval '{INACTIVE_S * 10} seconds'"
        await sql.rows(f"UPDATE schedule_version SET {long_ago}")
        async with coordinating(nats_server.url, database, cluster_name, CONFIG):
            assert (await deployment.get("report"))["state"] == "active"
            await deployment.becomes("report", state="idle")
            await deployment.becomes("report", state="inactive")
        async with coordinating(nats_server.url, database, cluster_name, CONFIG):
            async with deployment.worker(other="0 1 * * *"):
                await deployment.becomes("other", state="active")
            assert (await deployment.get("report"))["state"] == "inactive"


async def test_a_declaration_that_makes_no_sense_costs_no_other(database: str) -> None:
    """As a worker of another make, or version, might announce it."""
    odd = [
        ScheduleSpec(name="nul", kind="cron", expr="\0", handler="report"),
        ScheduleSpec(name="nul\0", kind="cron", expr="* * * * *", handler="report"),
        ScheduleSpec(name="no expression", kind="cron", expr="oops", handler="report"),
        ScheduleSpec(name="list", kind="cron", expr="* * * * *", handler="report", args=Raw(b"[1]")),
        ScheduleSpec(name="far", kind="every", expr="1s", handler="report", jitter_s=1e300),
        ScheduleSpec(name="good", kind="cron", expr="* * * * *", handler="report"),
    ]

    class Rpc:
        async def ask(self, worker: str, request: rpc.Declared) -> rpc.Answer:
            assert worker == "w"
            return rpc.Answer(schedules=odd[request.start : request.start + 2], more=request.start + 2 < len(odd))

    class Nobody:
        async def cancel(self, *_: object, **__: object) -> None:
            raise AssertionError("nothing was planned")

    view = RegistryView()
    record = WorkerRecord("w", "1", "host", 1, 0.0, 1, ["default"], ["report"], schedules="digest")
    view.set_worker("w", wire.encode(record))
    async with Database(PostgresConfig(dsn=database)) as db, Sql(database) as sql:
        declarations = Declarations(
            db,
            DeclarationStore(db, Term(0)),
            ScheduleStore(db, Term(0), withdrawer=Nobody()),
            view,
            Rpc(),
            watch=Watch(LEASE_S),
            patience=Patience(IDLE_S, INACTIVE_S),
            zone="UTC",
        )
        await declarations.look_once(now_s=0.0)
        assert [row["name"] for row in await sql.rows("SELECT name FROM schedule")] == ["good"]
        errors = {row["name"]: row["error"] for row in await sql.rows("SELECT name, error FROM schedule_version")}
        assert errors.pop("good") is None
        assert set(errors) == {"no expression", "list", "far"}
        assert all(errors.values())


async def test_nothing_goes_inactive_while_another_agent_cannot_say_what_its_workers_declare(database: str) -> None:
    spec = ScheduleSpec(name="there", kind="cron", expr="* * * * *", handler="report")

    class Rpc:
        async def ask(self, *_: object) -> rpc.Answer:
            return rpc.Answer(schedules=[spec])

    class Nobody:
        async def cancel(self, *_: object, **__: object) -> None:
            raise AssertionError("nothing was planned")

    class Watching:
        def may_judge(self, *, now_s: float) -> bool:
            return now_s > 0

    view = RegistryView()
    record = WorkerRecord("w", "1", "host", 1, 0.0, 1, ["default"], ["report"], schedules="digest")
    view.set_worker("w", wire.encode(record))
    async with Database(PostgresConfig(dsn=database)) as db, Sql(database) as sql:
        declarations = Declarations(
            db,
            DeclarationStore(db, Term(0)),
            ScheduleStore(db, Term(0), withdrawer=Nobody()),
            view,
            Rpc(),
            watch=Watching(),
            patience=Patience(IDLE_S, INACTIVE_S),
            zone="UTC",
        )
        at_s = declarations._watched_since_s
        await declarations.look_once(now_s=at_s)
        view.set_worker("w", None)
        await sql.rows("UPDATE schedule_version SET last_seen_at = now() - interval '1 day'")
        view.set_elsewhere(Elsewhere(away=frozenset({"east"})))
        await declarations.look_once(now_s=at_s + 1_000)
        assert await sql.value("SELECT state FROM schedule") == "active"
        view.set_elsewhere(Elsewhere())
        await declarations.look_once(now_s=at_s + 1_001)
        assert await sql.value("SELECT state FROM schedule") == "active", "we look on for as long as ever"
        for later_s in (2_000, 2_001):
            await declarations.look_once(now_s=at_s + later_s)
        assert await sql.value("SELECT state FROM schedule") == "inactive"
