"""The schedule operations of the API; what each does is said in ``jm_core.api_schedules``."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import msgspec
import uuid_utils
from msgspec import Struct

from jm_core import api_schedules as api
from jm_core import limits
from jm_core.api_schedules import Origin, ScheduleState, ScheduleView
from jm_core.errors import InvalidScheduleError, JmError
from jm_core.ids import NEW_ID_REMEDY, parse_job_id
from jm_core.intake import ClusterDefaults
from jm_core.payload import check_args, cut_text
from jm_core.planning import upcoming
from jm_core.schedule_rules import check_spec, edited, job_of, recurrence_of, same_recurrence, same_spec
from jm_master.api_errors import RefusedError, decoded
from jm_master.pg_errors import StoreContentionError
from jm_master.schedule_rows import shown_spec_of, spec_of
from jm_master.schedule_store import ScheduleWrite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import asyncpg

    from jm_core.api_schedules import ScheduleSpec
    from jm_core.intake import NewJob
    from jm_core.wire import HandlerDefaults
    from jm_master.registry_view import RegistryView
    from jm_master.schedule_store import Held, ScheduleStore
    from jm_master.wake import Wake

RequestT = TypeVar("RequestT")

PAGE_MAX: Final = 500
UPCOMING_MAX: Final = 100
UPCOMING_IN_LISTS: Final = 1
BY_CHARS_MAX: Final = 200
REASON_CHARS_MAX: Final = 300
TIMEOUT_S: Final = 8.0
AT_ONCE_MAX: Final = 2  # of the pool's connections
CONTENTIONS_MAX: Final = 3
RUN_NOW_BY: Final = "run_now_by"
PLANNED_STATES: Final = (ScheduleState.ACTIVE, ScheduleState.IDLE)


class ScheduleService:
    """One term's.

    Args:
        zone: of schedules that name none.
        inactive_s: what no code has declared for so long may be deleted.
        assign: woken when a job is due at once.
    """

    def __init__(self, store: ScheduleStore, view: RegistryView, *, zone: str, inactive_s: float, assign: Wake) -> None:
        self._store = store
        self._view = view
        self._zone = zone
        self._inactive_s = inactive_s
        self._assign = assign
        self._turns = anyio.Semaphore(AT_ONCE_MAX)

    def operations(self) -> dict[str, Callable[[bytes], Awaitable[Struct]]]:
        """For ``Service``. Each raises what it should answer with."""
        own: dict[str, Callable[[bytes], Awaitable[Struct]]] = {
            api.OP_SCHEDULE_ADD: self._add,
            api.OP_SCHEDULE_LIST: self._list,
            api.OP_SCHEDULE_GET: self._get,
            api.OP_SCHEDULE_EDIT: self._edit,
            api.OP_SCHEDULE_PAUSE: self._pause,
            api.OP_SCHEDULE_RESUME: self._resume,
            api.OP_SCHEDULE_RUN_NOW: self._run_now,
            api.OP_SCHEDULE_DELETE: self._delete,
            api.OP_SCHEDULE_SKIPS: self._skips,
        }
        return {name: self._in_turn(work) for name, work in own.items()}

    def _in_turn(self, work: Callable[[bytes], Awaitable[Struct]]) -> Callable[[bytes], Awaitable[Struct]]:
        async def answer(data: bytes) -> Struct:
            with anyio.fail_after(TIMEOUT_S):
                async with self._turns:
                    for _ in range(CONTENTIONS_MAX):
                        with suppress(StoreContentionError):  # rolled back: others were at the same jobs
                            return await work(data)
                    return await work(data)

        return answer

    # Reads.

    async def _get(self, data: bytes) -> Struct:
        request = decoded(data, api.ScheduleRef)
        return await self._view_of(request.name, min(max(request.upcoming, 0), UPCOMING_MAX))

    async def _list(self, data: bytes) -> Struct:
        query = decoded(data, api.ScheduleQuery)
        _check_known("state", query.state, api.ScheduleState)
        _check_known("origin", [query.origin] if query.origin else [], api.Origin)
        limit = min(max(query.limit, 1), PAGE_MAX)
        rows = await self._store.find(query, limit + 1)
        views = [self._shown(row, UPCOMING_IN_LISTS) for row in rows[:limit]]
        return api.ScheduleList(views, more=len(rows) > limit)

    async def _skips(self, data: bytes) -> Struct:
        query = decoded(data, api.SkipQuery)
        _check_known("reason", [query.reason] if query.reason else [], api.SkipReason)
        limit = min(max(query.limit, 1), PAGE_MAX)
        rows = await self._store.skips(query, limit + 1)
        fields = api.SkipView.__struct_fields__
        views = [api.SkipView(**{name: row[name] for name in fields}) for row in rows[:limit]]
        return api.SkipList(views, more=len(rows) > limit)

    # Changes.

    async def _add(self, data: bytes) -> Struct:
        request = decoded(data, api.ScheduleAdd)
        spec, by, reason = request.spec, _by(request.by), _reason(request.reason)
        self._check(spec, await self._store.now())
        state = ScheduleState.PAUSED if request.paused else ScheduleState.ACTIVE
        if not await self._store.add(spec, by=by, reason=reason, state=state):
            await self._check_same(spec)
        return await self._view_of(spec.name)

    async def _check_same(self, spec: ScheduleSpec) -> None:
        """A repeated request finds its own work done."""
        row = await self._store.get(spec.name)
        if row is None:
            raise RefusedError("conflict", f"schedule {spec.name!r} was deleted at the same moment; try again")
        if row["origin"] == Origin.STATIC.value:
            raise RefusedError("conflict", f"schedule {spec.name!r} is declared in code; choose another name")
        if not same_spec(spec_of(row), spec):
            raise RefusedError(
                "conflict", f"there is a schedule {spec.name!r} already, and it is another one; edit or delete it"
            )

    async def _edit(self, data: bytes) -> Struct:
        edit = decoded(data, api.ScheduleEdit)
        by, reason = _by(edit.by), _reason(edit.reason)
        async with self._store.hold(edit.name, ScheduleWrite("edit", edit.name, by, reason)) as found:
            held = _existing(found, edit.name)
            if edit.revision is not None and edit.revision != held.row["revision"]:
                now_at = held.row["revision"]
                problem = f"schedule {edit.name!r} has revision {now_at} by now, not {edit.revision}"
                raise RefusedError("conflict", f"{problem}; look at it and try again")
            before = spec_of(held.row)
            after = edited(before, edit)
            if not same_spec(before, after):
                if held.row["origin"] == Origin.STATIC.value:
                    raise RefusedError(
                        "conflict", f"schedule {edit.name!r} is declared in code; change the declaration, or pause it"
                    )
                self._check(after, held.now)
                same = same_recurrence(before, after)
                await held.change(after, by=by, reason=reason, same_recurrence=same)
            if edit.drop_queued:
                await held.drop_queued(api.SkipReason.OVERLAP)
        return await self._view_of(edit.name, cancelled=held.cancelled)

    async def _pause(self, data: bytes) -> Struct:
        request = decoded(data, api.ScheduleAction)
        by, reason = _by(request.by), _reason(request.reason)
        async with self._store.hold(request.name, ScheduleWrite("pause", request.name, by, reason)) as found:
            held = _existing(found, request.name)
            if held.state is not ScheduleState.PAUSED:
                await held.pause(by=by, reason=reason)
        return await self._view_of(request.name, cancelled=held.cancelled)

    async def _resume(self, data: bytes) -> Struct:
        request = decoded(data, api.ScheduleAction)
        by, reason = _by(request.by), _reason(request.reason)
        async with self._store.hold(request.name, ScheduleWrite("resume", request.name, by, reason)) as found:
            held = _existing(found, request.name)
            if held.state is ScheduleState.DONE:
                raise RefusedError(
                    "conflict", f"schedule {request.name!r} is done: its end or max_runs is reached; edit those"
                )
            if held.state is ScheduleState.INACTIVE:
                raise RefusedError(
                    "conflict", f"no worker declares schedule {request.name!r} any more; it comes back with its code"
                )
            if held.state not in PLANNED_STATES:
                await held.resume(by=by)
        return await self._view_of(request.name)

    async def _delete(self, data: bytes) -> Struct:
        request = decoded(data, api.ScheduleAction)
        by, reason = _by(request.by), _reason(request.reason)
        last = await self._view_of(request.name)
        async with self._store.hold(request.name, ScheduleWrite("delete", request.name, by, reason)) as found:
            held = _existing(found, request.name)
            if held.row["origin"] == Origin.STATIC.value and not self._is_out_of_code(held):
                raise RefusedError(
                    "conflict",
                    f"schedule {request.name!r} is declared in code and would come back; take the declaration out, "
                    "or pause it",
                )
            await held.delete(by=by, reason=reason)
        last.cancelled_planned = held.cancelled
        return last

    async def _run_now(self, data: bytes) -> Struct:
        request = decoded(data, api.RunNow)
        by = _by(request.by)
        job_id = (
            str(uuid_utils.uuid7())
            if request.request_id is None
            else parse_job_id(request.request_id, remedy=NEW_ID_REMEDY)
        )
        write = ScheduleWrite("run-now", request.name, by, _reason(request.reason), job_id=job_id)
        async with self._store.hold(request.name, write) as found:
            held = _existing(found, request.name)
            job = self._job(spec_of(held.row), request, job_id)
            if not await held.run_now(job, _metadata(job, by)):
                same_of, holder = await held.find_in_the_way(job)
                if same_of != request.name:
                    problem = f"job {holder} has the unique key {job.unique_key!r}" if holder else "its id is taken"
                    raise RefusedError("conflict", f"no job was made of schedule {request.name!r}: {problem}")
        self._assign.set()
        return api.RunNowReply(job_id)

    def _is_out_of_code(self, held: Held) -> bool:
        """A paused one stays paused when its code goes."""
        unseen_s: float | None = held.row["unseen_s"]
        return held.state is ScheduleState.INACTIVE or unseen_s is None or unseen_s > self._inactive_s

    def _job(self, spec: ScheduleSpec, request: api.RunNow, job_id: str) -> NewJob:
        if request.args is not None:
            check_args(bytes(request.args))
        job = job_of(spec, self._view.all_handlers, ClusterDefaults(), request.args)
        job.id = parse_job_id(job_id)
        return job

    def _check(self, spec: ScheduleSpec, now: Any) -> None:
        handlers: Mapping[str, HandlerDefaults] = self._view.all_handlers
        check_spec(spec, now=now, cluster_zone=self._zone, handlers=handlers, known=handlers.keys())

    # Views.

    async def _view_of(self, name: str, upcoming_count: int = 5, *, cancelled: int = 0) -> ScheduleView:
        row = await self._store.get(name)
        if row is None:
            raise _unknown(name)
        view = self._shown(row, upcoming_count)
        view.cancelled_planned = cancelled
        return view

    def _shown(self, row: asyncpg.Record, upcoming_count: int) -> ScheduleView:
        spec = shown_spec_of(row)
        state = ScheduleState(row["state"])
        view = ScheduleView(
            spec=spec,
            state=state,
            origin=Origin(row["origin"]),
            zone=spec.zone or self._zone,
            revision=row["revision"],
            last_at=row["ran_at"],
            planned_to=row["last_at"],
            runs=row["runs"],
            skipped=row["skipped"],
            skipped_more=row["skipped_more"],
            unfinished=row["unfinished"],
            queued_instant=row["queued_at"],
            error=row["error"],
            paused_by=row["paused_by"],
            note=row["note"],
            created_at=row["created_at"],
            created_by=row["created_by"],
            updated_at=row["updated_at"],
            updated_by=row["updated_by"],
            seen_at=row["seen_at"],
        )
        try:
            self._look_ahead(view, row, max(upcoming_count, 1))
        except (JmError, ValueError, OverflowError) as error:  # plain SQL wrote it; the planner says so too
            view.error = view.error or str(error)
        view.upcoming = view.upcoming[:upcoming_count]
        return view

    def _look_ahead(self, view: ScheduleView, row: asyncpg.Record, count: int) -> None:
        spec, now = view.spec, row["now"]
        recurrence = recurrence_of(spec, row["created_at"], self._zone)
        view.description, view.zone = recurrence.describe(), recurrence.zone
        until = spec.ends_at
        if view.state is ScheduleState.DONE:
            until = view.planned_to or now - timedelta(seconds=1)
        elif view.state not in PLANNED_STATES:
            return
        if spec.max_runs is not None:
            count = min(count, max(spec.max_runs - view.runs, 0) + row["ahead"])
        since = now if spec.starts_at is None else max(now, spec.starts_at - timedelta(microseconds=1))
        view.upcoming = upcoming(recurrence, since, count, until=until)
        view.next_at = view.upcoming[0] if view.upcoming else None


def _existing(held: Held | None, name: str) -> Held:
    if held is None:
        raise _unknown(name)
    return held


def _unknown(name: str) -> RefusedError:
    return RefusedError("not_found", f"no schedule {name[:120]!r}; `jm schedule list` shows what there is")


def _metadata(job: NewJob, by: str) -> str:
    """The schedule's own, and who asked; cut where that would not fit beside it."""
    return msgspec.json.encode({**(job.metadata or {}), RUN_NOW_BY: by}).decode()


def _by(text: str) -> str:
    return cut_text(text, BY_CHARS_MAX)


def _reason(text: str) -> str:
    return cut_text(text, REASON_CHARS_MAX)


def _check_known(field: str, given: list[str], known: Any) -> None:
    labels = [member.value for member in known]
    for label in given:
        if label not in labels:
            raise InvalidScheduleError(field, f"{label[:40]!r} is unknown", remedy=f"use one of {', '.join(labels)}")


assert BY_CHARS_MAX < limits.METADATA_BYTES_MAX
