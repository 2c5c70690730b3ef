"""Recurring jobs from the client's side, ``client.schedules``. Needs NATS only; the leading coordinator answers.

What can be told without a server, it refuses without one: ``checked_spec`` reads the expression, the zone, the
arguments and the numbers before anything is sent.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
import uuid_utils
from msgspec import Raw, Struct

from jm_core import api, api_schedules, wire
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
    InvalidJobError,
    InvalidScheduleError,
    JmError,
    NoSuchScheduleError,
    ScheduleConflictError,
    ScheduleRefusedError,
)
from jm_core.model import Priority
from jm_core.payload import check_args, check_no_lost_floats
from jm_core.recurrence import KINDS, load_zone, parse_recurrence
from jm_core.schedule_rules import check_schedule_name, check_spec
from jm_nats.actor import default_actor
from jm_nats.api_client import ApiClient
from jm_nats.schedules import expression_text

UNKNOWN_ZONE: Final = "UTC"  # in place of the cluster's zone, which only its coordinators know
PAGE: Final = 200
CALL_TIMEOUT_S: Final = 10.0  # the coordinator gives up after 8, and says so
_FIELDS: Final = frozenset(ScheduleSpec.__struct_fields__)
_EDIT_FIELDS: Final = frozenset(ScheduleEdit.__struct_fields__) - {"name", "by", "reason", "args"}
_NAMES: Final = {"timeout": "timeout_s", "jitter": "jitter_s", "misfire_window": "misfire_window_s"}
SpecT = TypeVar("SpecT", ScheduleSpec, ScheduleEdit)
ReplyT = TypeVar("ReplyT")


class ScheduleClient:
    """``by`` is who acts (else ``default_actor``), ``reason`` why: both for the record.

    Every method may raise NoCoordinatorError: nobody answered, or Postgres is away. A call that changes something may
    then have been carried out; each of them can be repeated (``run_now`` with its ``request_id``).
    """

    def __init__(self, client: ApiClient) -> None:
        self._api = client

    async def add(
        self, name: str, handler: str, args: Any = None, *, paused: bool = False, by: str | None = None, **fields: Any
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
        return await self._ask(api_schedules.OP_SCHEDULE_ADD, ScheduleAdd(spec, _by(by), paused), ScheduleView)

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
        self, name: str, *, args: Any = None, by: str | None = None, request_id: str | None = None
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
        request = RunNow(name, _by(by), encoded, request_id or str(uuid_utils.uuid7()))
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


def schedule_spec(name: str, handler: str, args: Any = None, **fields: Any) -> ScheduleSpec:
    """A definition from plain values; see ``ScheduleClient.add``.

    Raises:
        InvalidScheduleError: no expression or several, a field that there is not; InvalidJobError: args are no JSON.
    """
    given = _with_expression(fields, needed=True)
    _check_names(given, _FIELDS)
    rest = {field: value for field, value in given.items() if value is not None}
    raw_args = checked_args({} if args is None else args)
    return _read({**rest, "name": name, "handler": handler, "args": raw_args}, ScheduleSpec)


def schedule_edit(
    name: str, args: Any = None, *, by: str | None = None, reason: str = "", **changes: Any
) -> ScheduleEdit:
    """A change from plain values; see ``ScheduleClient.edit``. What can be told without the rest is checked.

    Raises:
        InvalidScheduleError, InvalidNameError, InvalidJobError.
    """
    check_schedule_name(name)
    given = _with_expression(changes, needed=False)
    _check_names(given, _EDIT_FIELDS)
    if args is not None:
        given["args"] = checked_args(args)
    request = _read({**given, "name": name, "by": _by(by), "reason": reason}, ScheduleEdit)
    if isinstance(request.kind, str) and isinstance(request.expr, str):
        parse_recurrence(request.kind, request.expr, request.zone or UNKNOWN_ZONE)
    elif request.zone:
        load_zone(request.zone)
    return request


def checked_args(args: Any) -> Raw:
    """Arguments as JSON, once they are known to be what a job takes.

    Raises:
        InvalidJobError.
    """
    try:
        raw = wire.encode(args)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidJobError("args", f"not JSON: {error}", remedy="give what JSON can hold") from None
    check_no_lost_floats(args, raw, "args")
    check_args(raw)
    return Raw(raw)


def checked_spec(spec: ScheduleSpec, *, now: datetime | None = None) -> ScheduleSpec:
    """``spec``, once everything is checked that needs no server.

    Raises:
        InvalidScheduleError, InvalidJobError, InvalidNameError.
    """
    check_spec(spec, now=now or datetime.now(UTC), cluster_zone=UNKNOWN_ZONE, handlers={}, known=None)
    return spec


def _with_expression(fields: dict[str, Any], *, needed: bool) -> dict[str, Any]:
    """``cron="…"`` and its like as ``kind`` and ``expr``; spans of time in seconds, under the definition's names."""
    kinds = [kind for kind in KINDS if fields.get(kind) is not None]
    if len(kinds) > 1 or (needed and not kinds):
        problem = f"{' and '.join(kinds)} are given" if kinds else "no expression is given"
        raise InvalidScheduleError("expression", problem, expected=KINDS, remedy="give exactly one of them")
    rest = {_NAMES.get(name, name): _plain(value) for name, value in fields.items() if name not in KINDS}
    return rest | {"kind": kinds[0], "expr": expression_text(fields[kinds[0]])} if kinds else rest


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.label if isinstance(value, Priority) else value


def _read(given: dict[str, Any], kind: type[SpecT]) -> SpecT:
    """Plain values as a struct: what may be a string, a number, an instant with an offset.

    Raises:
        InvalidScheduleError: naming the field.
    """
    try:
        return msgspec.json.decode(wire.encode(given), type=kind)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        problem, _, path = str(error).partition(" - at `$")
        field = path.strip(".`") or "definition"
        raise InvalidScheduleError(field, problem, remedy="see docs/schedules.md for what it may be") from None


def _check_names(given: dict[str, Any], known: frozenset[str]) -> None:
    unknown = set(given) - known
    if unknown:
        raise InvalidScheduleError(min(unknown), "no such field", expected=tuple(sorted(known)), remedy="correct it")


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
