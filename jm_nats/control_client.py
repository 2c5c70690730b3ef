"""The operator's side of the client: cancel, requeue and change jobs, and what is on record about it.

Needs NATS only; the leading coordinator does it. Each action has an id, made here and sent with every try, so that a
call whose answer was lost can be made again.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import uuid_utils
from msgspec import Raw

from jm_core import api_control, wire
from jm_core.api import JobRef
from jm_core.api_control import (
    ActionView,
    AuditList,
    AuditQuery,
    AuditRef,
    Change,
    ControlReply,
    ControlRequest,
    History,
    JobFilter,
    JobVerdict,
)
from jm_core.control import IDS_MAX, Action
from jm_core.control_checks import checked
from jm_core.errors import ActionRefusedError, InvalidJobError, NoSuchJobError, ResultTimeoutError
from jm_core.ids import parse_job_id
from jm_core.model import Priority
from jm_core.payload import check_no_lost_floats
from jm_nats.actor import default_actor

if TYPE_CHECKING:
    from jm_nats.api_client import ApiClient

RECORDED_WITHIN_S: Final = 10.0  # how long a job that was just queued is waited for
LOOK_S: Final = 0.2
ENDED_POLL_S: Final = 5.0
UNKNOWN: Final = "unknown"
TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled", "quarantined"})
START_TIMEOUT_S: Final = 32.0  # the leader gives up on a filter after 30, and says so


class Control:
    """What a ``JobClient`` can do to jobs. ``by`` is who acts (see ``default_actor``), ``reason`` why: for the record.

    Every method raises InvalidJobError and InvalidNameError for what cannot be asked (nothing was sent), and
    NoCoordinatorError when nobody answers or Postgres is away: it may or may not have been done.
    """

    @property
    def api(self) -> "ApiClient":
        raise NotImplementedError

    # One job.

    async def cancel(
        self,
        job_id: str,
        *,
        reason: str = "",
        by: str | None = None,
        force: bool = False,
        wait: float | timedelta | None = None,
    ) -> JobVerdict:
        """Cancel a job in whatever state it is. What has not started is cancelled at once; what runs is asked to end,
        and ends cancelled whatever its handler makes of it.

        Args:
            force: a running one is cancelled in the record at once, be its worker dead, deaf, or busy.
            wait: seconds to wait until a running one has really ended.

        Returns:
            The verdict; ``changed`` is False for a job that was asked to end before, or has ended cancelled.

        Raises:
            NoSuchJobError: not on the master; a job that was just queued is waited for, up to 10 seconds.
            ActionRefusedError: it had ended otherwise: too late.
            ResultTimeoutError: it had not ended within ``wait``.
        """
        verdict = await self._one(Action.CANCEL, job_id, Change(force=force), by=by, reason=reason)
        if not verdict.changed and verdict.status not in ("cancelled", "processing"):
            raise ActionRefusedError(f"job {verdict.id} is not cancelled: {verdict.note}")
        if wait is not None and verdict.status not in TERMINAL:
            verdict.status = await self.ended(verdict.id, wait)
        return verdict

    async def requeue(
        self,
        job_id: str,
        *,
        args: Any = None,
        run_at: datetime | None = None,
        priority: Priority | str | None = None,
        lane: str | None = None,
        max_attempts: int | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> JobVerdict:
        """Run a job again that has ended, with all its attempts anew; with other arguments, later, elsewhere if wanted.

        Raises:
            NoSuchJobError.
            ActionRefusedError: it has not ended, or its unique key is another job's by now.
        """
        change = Change(run_at, _label(priority), lane, _raw(args), max_attempts)
        return await self._changed(Action.REQUEUE, job_id, change, by=by, reason=reason)

    async def run_now(self, job_id: str, *, reason: str = "", by: str | None = None) -> JobVerdict:
        """Make a waiting job due now, also one in retry backoff.

        Raises:
            NoSuchJobError.
            ActionRefusedError: it runs, or has ended.
        """
        return await self._changed(Action.RUN_NOW, job_id, Change(), by=by, reason=reason)

    async def reschedule(self, job_id: str, run_at: datetime, *, reason: str = "", by: str | None = None) -> JobVerdict:
        """Make a waiting job due at another time. Raises as ``run_now``."""
        return await self._changed(Action.RESCHEDULE, job_id, Change(run_at), by=by, reason=reason)

    async def change_priority(
        self,
        job_id: str,
        priority: Priority | str | None = None,
        *,
        lane: str | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> JobVerdict:
        """Move a waiting job to another priority, lane, or both. Raises as ``run_now``."""
        return await self._changed(Action.PRIORITY, job_id, Change(None, _label(priority), lane), by=by, reason=reason)

    # Many.

    async def control(
        self,
        action: Action,
        ids: Iterable[str],
        change: Change | None = None,
        *,
        by: str | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> AsyncIterator[ControlReply]:
        """``action`` on jobs by their ids, as many as there are; a reply for each part of up to 500, one action in all.
        A job that is not there, or that cannot be changed, is among the verdicts; it does not raise.
        """
        action_id, wanted = new_action_id(), list(ids)
        for start in range(0, len(wanted), IDS_MAX):
            part = wanted[start : start + IDS_MAX]
            request = ControlRequest(
                action_id, by or default_actor(), reason, part, dry_run=dry_run, change=change or Change()
            )
            yield await self._call(action, request)

    async def control_where(
        self,
        action: Action,
        wanted: JobFilter | None,
        change: Change | None = None,
        *,
        by: str | None = None,
        reason: str = "",
        expect: int | None = None,
    ) -> ActionView:
        """Start ``action`` on all jobs that match (None: on every job that it applies to). The leader does it in
        batches, also if we go; ask ``action`` how far it is.

        Args:
            expect: how many must match, as ``count_where`` has said; otherwise nothing is done.

        Raises:
            ActionRefusedError: other than ``expect`` match, or more than a million.
        """
        request = ControlRequest(
            new_action_id(), by or default_actor(), reason, filter=wanted, everything=wanted is None, expect=expect,
            change=change or Change(),
        )  # fmt: skip
        reply = await self._call(action, request)
        assert reply.action is not None
        return reply.action

    async def count_where(
        self, action: Action, wanted: JobFilter | None, change: Change | None = None
    ) -> dict[str, int]:
        """How many jobs ``control_where`` would be about, by state: its dry run."""
        request = ControlRequest(
            new_action_id(), default_actor(), filter=wanted, everything=wanted is None, dry_run=True,
            change=change or Change(),
        )  # fmt: skip
        return (await self._call(action, request)).by_status

    # The record.

    async def action(self, action_id: str) -> ActionView:
        """Raises: NoSuchJobError: no such action is on record."""
        return await self.api.call(api_control.OP_AUDIT_GET, AuditRef(parse_job_id(action_id)), ActionView)

    async def actions(self, query: AuditQuery | None = None) -> AuditList:
        return await self.api.call(api_control.OP_AUDIT_LIST, query or AuditQuery(), AuditList)

    async def history(self, job_id: str) -> History:
        """Everything on record about one job, in the order in which it happened. Raises: NoSuchJobError."""
        return await self.api.call(api_control.OP_JOB_HISTORY, JobRef(parse_job_id(job_id)), History)

    # Helpers.

    async def _changed(self, action: Action, job_id: str, change: Change, *, by: str | None, reason: str) -> JobVerdict:
        verdict = await self._one(action, job_id, change, by=by, reason=reason)
        if not verdict.changed:
            raise ActionRefusedError(f"job {verdict.id}: {action.value} refused: {verdict.note}")
        return verdict

    async def _one(self, action: Action, job_id: str, change: Change, *, by: str | None, reason: str) -> JobVerdict:
        """A job that was only queued may be on its way to the master."""
        request = ControlRequest(new_action_id(), by or default_actor(), reason, [job_id], change=change)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + RECORDED_WITHIN_S
        while True:
            (verdict,) = (await self._call(action, request)).jobs
            if verdict.status != UNKNOWN:
                return verdict
            if loop.time() >= deadline_s:
                raise NoSuchJobError(
                    f"job {verdict.id} is {verdict.note or 'not on the master'}, after {RECORDED_WITHIN_S:g} s; "
                    "check the id, or ask again once it is recorded"
                )
            await asyncio.sleep(LOOK_S)

    async def _call(self, action: Action, request: ControlRequest) -> ControlReply:
        request = checked(action, request)
        name = api_control.OP_OF[action]
        if request.ids:
            return await self.api.call(name, request, ControlReply)
        return await self.api.call(name, request, ControlReply, timeout_s=START_TIMEOUT_S)

    async def ended(self, job_id: str, wait: float | timedelta) -> str:
        """The state in which a job has ended, once it has.

        Raises:
            ResultTimeoutError: it has not within ``wait``; of one that was asked to end.
        """
        patience_s = wait.total_seconds() if isinstance(wait, timedelta) else wait
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + patience_s
        while True:
            left_s = deadline_s - loop.time()
            reply = await self.api.result(job_id, max(0.05, min(left_s, ENDED_POLL_S)))
            if reply is not None and reply.status in TERMINAL:
                return reply.status
            if left_s <= 0:
                raise ResultTimeoutError(
                    f"job {job_id} was asked to end {patience_s:g} s ago and still runs; "
                    "its handler takes no notice: wait, or cancel it with force"
                )


def new_action_id() -> str:
    return str(uuid_utils.uuid7())


def _label(priority: Priority | str | None) -> str | None:
    return priority.label if isinstance(priority, Priority) else priority


def _raw(args: Any) -> Raw | None:
    if args is None or isinstance(args, Raw):
        return args
    try:
        raw = wire.encode(args)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidJobError("args", f"not JSON: {error}", remedy="give what JSON can hold") from None
    check_no_lost_floats(args, raw, "args")
    return Raw(raw)
