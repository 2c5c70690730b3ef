"""The operations of the API that change jobs, and those that show what was changed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from jm_core import api_control
from jm_core.api import JobRef
from jm_core.api_control import AuditQuery, AuditRef, ControlReply, ControlRequest, History, HistoryEntry
from jm_core.control import AUDITED, Action
from jm_core.control_checks import checked
from jm_core.errors import InvalidJobError
from jm_core.ids import parse_job_id
from jm_core.model import STATUS_BY_LABEL
from jm_master.api_errors import RefusedError, decoded, within
from jm_master.control_store import Order

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncpg
    from msgspec import Struct

    from jm_core.api import AttemptView, JobView
    from jm_core.api_control import ActionView
    from jm_master.control import Control
    from jm_master.job_store import JobStore

AT_ONCE: Final = 2  # of the pool's connections: operators must not hold up the writer
NAMED_WITHIN: Final = (6.0, "Postgres, or the worker that has the job,")
PICKED_WITHIN: Final = (30.0, "Postgres")  # a filter may have to look at every job there is


class ControlService:
    """``archived`` says why nothing may be changed, or None where it may; a dry run is answered all the same."""

    def __init__(self, control: Control, jobs: JobStore, *, archived: Callable[[], str | None]) -> None:
        self._control = control
        self._archived = archived
        self._jobs = jobs
        self._turns = anyio.Semaphore(AT_ONCE)

    def operations(self) -> dict[str, Callable[[bytes], Awaitable[Struct]]]:
        """By name, as ``Service`` answers them."""
        changing: dict[str, Callable[[bytes], Awaitable[Struct]]] = {
            name: partial(self._change, action) for action, name in api_control.OP_OF.items()
        }
        return changing | {
            api_control.OP_JOB_HISTORY: self._history,
            api_control.OP_AUDIT_LIST: self._audit,
            api_control.OP_AUDIT_GET: self._audit_one,
        }

    async def _change(self, action: Action, data: bytes) -> Struct:
        request = checked(action, decoded(data, ControlRequest))
        if not request.dry_run and (why := self._archived()) is not None:
            raise RefusedError("archived", why)
        order = Order(request.action_id, action, request.by, request.reason, request.change)
        with within(*(NAMED_WITHIN if request.ids else PICKED_WITHIN)):
            async with self._turns:
                if request.dry_run:
                    return await self._dry_run(action, request)
                if request.ids:
                    return await self._control.apply(order, request.ids)
                return await self._start(request, order)

    async def _dry_run(self, action: Action, request: ControlRequest) -> ControlReply:
        store = self._control.store
        if request.ids:
            return ControlReply(jobs=await store.would_do(action, request.ids))
        return ControlReply(by_status=await store.count(action, request.filter))

    async def _start(self, request: ControlRequest, order: Order) -> ControlReply:
        started = await self._control.start(request, order)
        found = await self._control.store.action(order.action_id)
        if not started.started:
            self._check_repeated(request, order, started.matched, found)
        return ControlReply(action=found)

    @staticmethod
    def _check_repeated(request: ControlRequest, order: Order, matched: int, found: ActionView | None) -> None:
        """The same action twice is the same action; anything else was refused."""
        if found is not None:
            if (found.actor, found.action) != (order.by, order.action.value):
                raise RefusedError("bad_request", f"action {order.action_id} is another one; make a new id")
            return
        if request.expect is not None and matched != request.expect:
            said = f"{matched} jobs match, {request.expect} were expected"
            raise RefusedError("refused", f"{said}; nothing was changed: look again (--dry-run)")
        raise RefusedError("refused", f"more than {matched - 1} jobs match; nothing was changed: narrow the filter")

    async def _audit(self, data: bytes) -> Struct:
        query = decoded(data, AuditQuery)
        if query.action is not None and query.action not in AUDITED:
            raise InvalidJobError("action", f"{query.action[:40]!r} is unknown", remedy=f"use {', '.join(AUDITED)}")
        query.before = query.before and parse_job_id(query.before)
        return await self._control.store.actions(query)

    async def _audit_one(self, data: bytes) -> Struct:
        request = decoded(data, AuditRef)
        found = await self._control.store.action(parse_job_id(request.action_id))
        if found is None:
            raise RefusedError("not_found", f"no operator action {request.action_id} is on record")
        return found

    async def _history(self, data: bytes) -> Struct:
        job_id = parse_job_id(decoded(data, JobRef).id)
        async with self._turns:
            view = await self._jobs.get(job_id)
            if view is None:
                raise RefusedError("not_found", f"no job {job_id} on the master")
            attempts = (await self._jobs.attempts(job_id)).attempts
            actions = await self._control.store.actions_of_job(job_id)
        return history_of(view, attempts, actions)


def history_of(view: JobView, attempts: list[AttemptView], actions: list[asyncpg.Record]) -> History:
    """Everything on record about one job, in the order in which it happened."""
    assert view.queued_at is not None
    assert view.recorded_at is not None
    entries = [
        HistoryEntry(view.queued_at, "queued"),
        HistoryEntry(view.recorded_at, "recorded", f"{view.handler}, lane {view.lane}, priority {view.priority}"),
        *[entry for attempt in attempts for entry in _attempt(attempt)],
        *[_action(row) for row in actions],
        *_cancel(view, actions),
        *_state(view, attempts),
    ]
    return History(view.id, view.status, sorted(entries, key=lambda entry: entry.at))


def _attempt(attempt: AttemptView) -> list[HistoryEntry]:
    name, by = f"attempt {attempt.attempt}", attempt.worker or ""
    ended = [(attempt.error or "").partition("\n")[0]]
    if attempt.retry_in_s is not None:
        ended.append(f"again in {attempt.retry_in_s:g} s")
    entries = [] if attempt.started_at is None else [HistoryEntry(attempt.started_at, f"{name} started", by=by)]
    if attempt.finished_at is not None:
        text = "; ".join(filter(None, ended))
        entries.append(HistoryEntry(attempt.finished_at, f"{name} {attempt.outcome}", text, by))
    return entries


def _action(row: asyncpg.Record) -> HistoryEntry:
    what = row["action"] if row["changed"] else f"{row['action']} refused"
    change = "" if row["parameters"] == "{}" else row["parameters"]
    detail = "; ".join(filter(None, (row["reason"], change, row["note"])))
    return HistoryEntry(row["at"], what, detail, row["actor"], row["action_id"])


def _cancel(view: JobView, actions: list[asyncpg.Record]) -> list[HistoryEntry]:
    """Of a cancel that was no operator's action of its own: a schedule that was deleted, a job that was replaced."""
    if view.cancel_requested_at is None or any(row["changed"] and row["action"] == Action.CANCEL for row in actions):
        return []
    return [HistoryEntry(view.cancel_requested_at, "cancel", view.cancel_reason or "", view.cancelled_by or "")]


def _state(view: JobView, attempts: list[AttemptView]) -> list[HistoryEntry]:
    """What the row itself says, where ``attempt`` has no entry of it: a run that is under way, or a clean success."""
    by, entries = view.worker or "", list[HistoryEntry]()
    if view.started_at is not None and all(attempt.dispatch != view.dispatch for attempt in attempts):
        entries.append(HistoryEntry(view.started_at, f"attempt {view.attempt} started", by=by))
    if view.finished_at is not None and STATUS_BY_LABEL[view.status].is_terminal:
        entries.append(HistoryEntry(view.finished_at, view.status, (view.error or "").partition("\n")[0]))
    return entries


__all__ = ["ControlService", "history_of"]
