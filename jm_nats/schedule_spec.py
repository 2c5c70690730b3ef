"""A schedule's definition from the plain values that client, command line and decorator take: the one place for all."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from jm_core import wire
from jm_core.api_schedules import ScheduleEdit, ScheduleSpec
from jm_core.errors import InvalidJobError, InvalidScheduleError
from jm_core.model import Priority
from jm_core.payload import check_args, check_no_lost_floats
from jm_core.recurrence import KINDS

FIELDS: Final = frozenset(ScheduleSpec.__struct_fields__)
_NAMES: Final = {"timeout": "timeout_s", "jitter": "jitter_s", "misfire_window": "misfire_window_s"}
SpecT = TypeVar("SpecT", ScheduleSpec, ScheduleEdit)


def schedule_spec(name: str, handler: str, args: Any = None, **fields: Any) -> ScheduleSpec:
    """A definition from plain values; see ``ScheduleClient.add``.

    Raises:
        InvalidScheduleError: no expression or several, a field that there is not, a value of the wrong type.
        InvalidJobError: args are no JSON.
    """
    given = with_expression(fields, needed=True)
    check_names(given, FIELDS)
    rest = {field: value for field, value in given.items() if value is not None}
    raw_args = checked_args({} if args is None else args)
    return read({**rest, "name": name, "handler": handler, "args": raw_args}, ScheduleSpec)


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


def with_expression(fields: dict[str, Any], *, needed: bool) -> dict[str, Any]:
    """``cron="…"`` and its like as ``kind`` and ``expr``; spans of time in seconds, under the definition's names.

    Raises:
        InvalidScheduleError.
    """
    kinds = [kind for kind in KINDS if fields.get(kind) is not None]
    if len(kinds) > 1 or (needed and not kinds):
        problem = f"{' and '.join(kinds)} are given" if kinds else "no expression is given"
        raise InvalidScheduleError("expression", problem, expected=KINDS, remedy="give exactly one of them")
    rest = {_NAMES.get(name, name): _plain(name, value) for name, value in fields.items() if name not in KINDS}
    return rest | {"kind": kinds[0], "expr": _expression(kinds[0], fields[kinds[0]])} if kinds else rest


def check_names(given: dict[str, Any], known: frozenset[str]) -> None:
    """Raises InvalidScheduleError: one of them is no field."""
    unknown = set(given) - known
    if unknown:
        raise InvalidScheduleError(min(unknown), "no such field", expected=tuple(sorted(known)), remedy="correct it")


def read(given: dict[str, Any], kind: type[SpecT]) -> SpecT:
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


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime) and value.tzinfo is None:
        remedy = "write it as 2030-01-01T09:00:00+01:00"
        raise InvalidScheduleError(name, f"{value.isoformat()} has no offset", remedy=remedy)
    if isinstance(value, Mapping):
        return dict(value)
    return value.label if isinstance(value, Priority) else value


def _expression(kind: str, given: Any) -> str:
    """An interval may be a number of seconds or a ``timedelta``."""
    if isinstance(given, str):
        return given
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if kind != "every" or isinstance(given, bool) or not isinstance(given, int | float):
        also = ", seconds or a timedelta" if kind == "every" else ""
        problem = f"{given!r:.60} is of type {type(given).__name__}, not an expression"
        raise InvalidScheduleError(kind, problem, remedy=f"give a string{also}")
    return f"{given:.6f}".rstrip("0").rstrip(".")
