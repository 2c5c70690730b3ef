"""Recurring jobs from the client's side, ``client.schedules``. Needs NATS only; the leading coordinator answers.

What can be told without a server, it refuses without one: ``checked_spec`` reads the expression, the zone, the
arguments and the numbers before anything is sent.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import uuid_utils
from msgspec import Struct

from jm_core import api, api_schedules
from jm_core.api_schedules import (
    RunNow,
    ScheduleAction,
    ScheduleAdd,
    ScheduleEdit,
    ScheduleList,
    ScheduleQuery,
    ScheduleRef,
    ScheduleSpec,
    ScheduleView,
    SkipList,
    SkipQuery,
)
from jm_core.errors import (
    JmError,
    NoSuchScheduleError,
    ScheduleConflictError,
    ScheduleRefusedError,
)
from jm_core.recurrence import load_zone, parse_recurrence
from jm_core.schedule_rules import ZONE_UNKNOWN, check_from_afar, check_schedule_name
from jm_nats.actor import default_actor
from jm_nats.api_client import ApiClient
from jm_nats.schedule_spec import check_names, checked_args, read, schedule_spec, with_expression

PAGE: Final = 200
CALL_TIMEOUT_S: Final = 10.0  # the coordinator gives up after 8, and says so
_EDIT_FIELDS: Final = frozenset(ScheduleEdit.__struct_fields__) - {"name", "by", "reason", "args"}
ReplyT = TypeVar("ReplyT")


class ScheduleClient:
    """``by`` is who acts (else ``default_actor``), ``reason`` why: both for the record.

    Every method may raise NoCoordinatorError: nobody answered, or Postgres is away. A call that changes something may
    then have been carried out; each of them can be repeated (``run_now`` with its ``request_id``).
    """

    def __init__(self, client: ApiClient) -> None:
        self._api = client

    async def add(
        self,
        name: str,
        handler: str,
        args: Any = None,
        *,
        paused: bool = False,
        by: str | None = None,
        reason: str = "",
        **fields: Any,
    ) -> ScheduleView:
        """Make a schedule. Adding the very same again changes nothing, and is no error.

        Args:
            fields: as of the decorator ``@jm.schedule``. One of ``cron``, ``every``, ``rrule``, ``plain``; and zone,
                lane, priority, max_attempts, timeout, metadata, unique_key, misfire, misfire_limit, misfire_window,
                overlap, jitter, starts_at, ends_at, max_runs. Spans are seconds or a ``timedelta``.

        Raises:
            InvalidScheduleError, InvalidJobError, InvalidNameError: refused here, nothing was sent.
            ScheduleRefusedError: refused by the coordinator, which knows the handlers.
            ScheduleConflictError: another schedule has the name.
        """
        spec = checked_spec(schedule_spec(name, handler, args, **fields))
        return await self._ask(api_schedules.OP_SCHEDULE_ADD, ScheduleAdd(spec, _by(by), paused, reason), ScheduleView)

    async def get(self, name: str, *, upcoming: int = 5) -> ScheduleView:
        """A schedule with its next times.

        Raises:
            NoSuchScheduleError.
        """
        check_schedule_name(name)
        return await self._ask(api_schedules.OP_SCHEDULE_GET, ScheduleRef(name, upcoming), ScheduleView)

    async def page(self, query: ScheduleQuery) -> ScheduleList:
        """One page, by name."""
        return await self._ask(api_schedules.OP_SCHEDULE_LIST, query, ScheduleList)

    async def all(self, **filters: Any) -> AsyncIterator[ScheduleView]:
        """Every schedule that matches, by name, page after page.

        Args:
            filters: state (a list), origin, handler, name_prefix.
        """
        after_name = None
        while True:
            found = await self.page(ScheduleQuery(**filters, after_name=after_name, limit=PAGE))
            for schedule in found.schedules:
                yield schedule
            if not found.more or not found.schedules:
                return
            after_name = found.schedules[-1].spec.name

    async def edit(
        self, name: str, *, args: Any = None, by: str | None = None, reason: str = "", **changes: Any
    ) -> ScheduleView:
        """Change what is named; None sets a field back to its default. What is planned already follows the change.

        Args:
            changes: as in ``add``; and ``revision``: only if it is still this one; ``drop_queued``.

        Raises:
            NoSuchScheduleError, ScheduleRefusedError, InvalidScheduleError.
            ScheduleConflictError: it is declared in code, or of another revision by now.
        """
        return await self.send_edit(schedule_edit(name, args, by=by, reason=reason, **changes))

    async def send_edit(self, request: ScheduleEdit) -> ScheduleView:
        """``edit`` with what ``schedule_edit`` has checked."""
        return await self._ask(api_schedules.OP_SCHEDULE_EDIT, request, ScheduleView)

    async def pause(self, name: str, *, reason: str = "", by: str | None = None) -> ScheduleView:
        """Plan no more, and take back what is planned and has not started. Raises: NoSuchScheduleError."""
        return await self._act(api_schedules.OP_SCHEDULE_PAUSE, name, reason, by)

    async def resume(self, name: str, *, reason: str = "", by: str | None = None) -> ScheduleView:
        """Go on with the next time after now: no burst.

        Raises:
            NoSuchScheduleError, ScheduleConflictError.
        """
        return await self._act(api_schedules.OP_SCHEDULE_RESUME, name, reason, by)

    async def delete(self, name: str, *, reason: str = "", by: str | None = None) -> ScheduleView:
        """Take it away with what is planned and has not started.

        Returns:
            What it was.

        Raises:
            NoSuchScheduleError.
            ScheduleConflictError: code still declares it.
        """
        return await self._act(api_schedules.OP_SCHEDULE_DELETE, name, reason, by)

    async def run_now(
        self, name: str, *, args: Any = None, by: str | None = None, reason: str = "", request_id: str | None = None
    ) -> str:
        """One job at once, whatever the schedule's state and policies.

        Args:
            args: instead of the schedule's own.
            request_id: a UUID; a repeat with the same one makes no second job.

        Returns:
            The job's id.

        Raises:
            NoSuchScheduleError, ScheduleRefusedError.
            ScheduleConflictError: an unfinished job has its unique key.
        """
        check_schedule_name(name)
        encoded = None if args is None else checked_args(args)
        request = RunNow(name, _by(by), encoded, request_id or str(uuid_utils.uuid7()), reason)
        reply = await self._ask(api_schedules.OP_SCHEDULE_RUN_NOW, request, api_schedules.RunNowReply)
        return reply.job_id

    async def skips(
        self, name: str | None = None, *, reason: str | None = None, before_id: int | None = None, limit: int = 50
    ) -> SkipList:
        """What did not become a job and why, the newest first; of one schedule or of all."""
        return await self._ask(api_schedules.OP_SCHEDULE_SKIPS, SkipQuery(name, reason, before_id, limit), SkipList)

    async def _act(self, operation: str, name: str, reason: str, by: str | None) -> ScheduleView:
        check_schedule_name(name)
        return await self._ask(operation, ScheduleAction(name, _by(by), reason), ScheduleView)

    async def _ask(self, operation: str, request: Struct, reply_type: type[ReplyT]) -> ReplyT:
        return await self._api.call(operation, request, reply_type, errors=_translated, timeout_s=CALL_TIMEOUT_S)


def schedule_edit(
    name: str, args: Any = None, *, by: str | None = None, reason: str = "", **changes: Any
) -> ScheduleEdit:
    """A change from plain values; see ``ScheduleClient.edit``. What can be told without the rest is checked.

    Raises:
        InvalidScheduleError, InvalidNameError, InvalidJobError.
    """
    check_schedule_name(name)
    given = with_expression(changes, needed=False)
    check_names(given, _EDIT_FIELDS)
    if args is not None:
        given["args"] = checked_args(args)
    request = read({**given, "name": name, "by": _by(by), "reason": reason}, ScheduleEdit)
    if isinstance(request.kind, str) and isinstance(request.expr, str):
        parse_recurrence(request.kind, request.expr, request.zone or ZONE_UNKNOWN)
    elif request.zone:
        load_zone(request.zone)
    return request


def checked_spec(spec: ScheduleSpec, *, now: datetime | None = None) -> ScheduleSpec:
    """``spec``, once everything is checked that needs no server: neither the cluster's zone nor the right time.

    Raises:
        InvalidScheduleError, InvalidJobError, InvalidNameError.
    """
    check_from_afar(spec, now=now or datetime.now(UTC))
    return spec


def _by(by: str | None) -> str:
    return by or default_actor()


def _translated(error: api.ApiError) -> JmError | None:
    match error.code:
        case "not_found":
            return NoSuchScheduleError(error.message)
        case "conflict":
            return ScheduleConflictError(error.message)
        case "bad_request":
            return ScheduleRefusedError(error.message)
    return None
