"""What a schedule must fulfil before it is accepted, however it comes: client, command line, code, SQL."""

import difflib
import math
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from jm_core import limits
from jm_core.api_schedules import ScheduleEdit, ScheduleSpec
from jm_core.errors import InvalidNameError, InvalidScheduleError
from jm_core.ids import HANDLER_PATTERN, is_handler_name
from jm_core.intake import ClusterDefaults, NewJob, Origin, check_fields, resolve
from jm_core.payload import cut_text
from jm_core.planning import Rules, just_before, upcoming
from jm_core.recurrence import Recurrence, check_fires, parse_recurrence
from jm_core.wire import EMPTY_ARGS, HandlerDefaults, Submission

MISFIRE_WINDOW_S_MIN: Final = 60.0  # shorter than a change of leaders would lose runs (BR-075)
MISFIRE_LIMIT_MAX: Final = 1_000
MAX_RUNS_MAX: Final = 1_000_000_000
SECONDS_MAX: Final = limits.DELAY_S_MAX
RECORDED_BYTES_MAX: Final = 1_000  # of one field of a change, in the record of it
GAPS_LOOKED_AT: Final = 20  # of the plan, for the shortest interval
ZONE_UNKNOWN: Final = "UTC"  # in place of the cluster's zone, which only its coordinators know
ZONE_DOUBT: Final = timedelta(days=1)  # more than the same wall time is apart in any two zones
CLOCK_DOUBT: Final = timedelta(days=366)  # so far ahead of the master's clock, the only one that counts, may another be
_SINCE_ANY: Final = Origin("schedule", 0, 0)
_EDITABLE: Final = [name for name in ScheduleSpec.__struct_fields__ if name != "name"]
RECURRENCE_FIELDS: Final = ("kind", "expr", "zone", "starts_at")


def recurrence_of(spec: ScheduleSpec, created_at: datetime, cluster_zone: str) -> Recurrence:
    """The expression, read. An interval counts from the start, or from the second in which the schedule was made.

    Raises:
        InvalidScheduleError.
    """
    anchor = spec.starts_at or created_at.replace(microsecond=0)
    return read_expression(spec.kind, spec.expr, spec.zone or cluster_zone, anchor)


@lru_cache(maxsize=16_384)
def read_expression(kind: str, expr: str, zone: str, anchor: datetime) -> Recurrence:
    """``parse_recurrence``, remembered: the planner reads the same expressions again and again."""
    return parse_recurrence(kind, expr, zone, anchor=anchor)


def rules_of(spec: ScheduleSpec) -> Rules:
    return Rules(
        misfire=spec.misfire,
        misfire_limit=spec.misfire_limit,
        misfire_window_s=spec.misfire_window_s,
        overlap=spec.overlap,
        has_unique_key=spec.unique_key is not None,
        starts_at=spec.starts_at,
        ends_at=spec.ends_at,
        max_runs=spec.max_runs,
    )


def job_of(
    spec: ScheduleSpec, handlers: Mapping[str, HandlerDefaults], cluster: ClusterDefaults, args: Raw | None = None
) -> NewJob:
    """What every job of the schedule has, with the handler's defaults, then the cluster's, filled in.

    Raises:
        InvalidJobError, InvalidNameError: as a submission with the same fields would.
    """
    given = spec.args if args is None else args
    submission = Submission(
        handler=spec.handler,
        args=EMPTY_ARGS if given is None else given,
        lane=spec.lane,
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        timeout_s=spec.timeout_s,
        unique_key=spec.unique_key,
        metadata=spec.metadata,
    )
    check_fields(submission)
    return resolve(submission, 0, _SINCE_ANY, handlers, cluster)


def check_spec(
    spec: ScheduleSpec,
    *,
    now: datetime,
    cluster_zone: str,
    handlers: Mapping[str, HandlerDefaults],
    known: Collection[str] | None = None,
) -> Recurrence:
    """Refuse what could never work.

    Args:
        now: of its creation.
        handlers: the handlers' defaults.
        known: names of all handlers there are; None: not asked (a declaration beside its handler).

    Returns:
        The expression, read.

    Raises:
        InvalidScheduleError, InvalidJobError, InvalidNameError: naming field, problem, limit and remedy.
    """
    recurrence = _check_shape(spec, now, cluster_zone, handlers, known)
    if spec.ends_at is not None and spec.ends_at <= now:
        raise _invalid("ends_at", f"{spec.ends_at} has passed, so it would never fire", "set a later end, or none")
    since = now if spec.starts_at is None or spec.starts_at <= now else just_before(spec.starts_at)
    check_fires(recurrence, since)
    instants = upcoming(recurrence, since, GAPS_LOOKED_AT, until=spec.ends_at)
    if not instants:
        raise _invalid(
            "ends_at",
            f"the first instant after {since.isoformat()} is beyond its end {spec.ends_at}, so it would never fire",
            "set a later end, or none",
        )
    _check_jitter(spec.jitter_s, instants)
    return recurrence


def check_from_afar(spec: ScheduleSpec, *, now: datetime) -> None:
    """What can be told without the cluster's zone and the master's clock: refuses only what a coordinator would, too.

    Args:
        now: by any clock that is not years ahead.

    Raises:
        as ``check_spec``.
    """
    since = now - CLOCK_DOUBT
    recurrence = _check_shape(spec, since, ZONE_UNKNOWN, {}, None)
    if spec.starts_at is not None:
        since = max(since, spec.starts_at - ZONE_DOUBT)
    check_fires(recurrence, since)
    if spec.ends_at is not None and not upcoming(recurrence, since, 1, until=spec.ends_at + ZONE_DOUBT):
        raise _invalid(
            "ends_at", f"nothing is due before {spec.ends_at}, so it would never fire", "set a later end, or none"
        )
    if spec.kind == "every":  # the same in every zone, at any time
        _check_jitter(spec.jitter_s, upcoming(recurrence, since, 2))


def check_declaration(spec: ScheduleSpec, *, now: datetime, zone: str, defaults: HandlerDefaults | None) -> None:
    """``check_spec`` for a declaration in code, which stays right when its end has passed: a worker must still start.

    Raises:
        as ``check_spec``.
    """
    recurrence = _check_shape(spec, now, zone, {spec.handler: defaults} if defaults else {}, None)
    _check_jitter(spec.jitter_s, upcoming(recurrence, now, GAPS_LOOKED_AT))


def _check_shape(
    spec: ScheduleSpec,
    now: datetime,
    cluster_zone: str,
    handlers: Mapping[str, HandlerDefaults],
    known: Collection[str] | None,
) -> Recurrence:
    """What does not depend on the time."""
    check_schedule_name(spec.name)
    check_numbers(spec)
    _check_window(spec)
    recurrence = recurrence_of(spec, now, cluster_zone)
    _check_handler(spec.handler, known)
    job_of(spec, handlers, ClusterDefaults())
    return recurrence


def check_schedule_name(name: str) -> None:
    """Raises InvalidNameError."""
    if not is_handler_name(name):
        raise InvalidNameError("schedule", name, HANDLER_PATTERN)


def edited(spec: ScheduleSpec, edit: ScheduleEdit) -> ScheduleSpec:
    """``spec`` with what ``edit`` mentions."""
    changes: dict[str, Any] = {
        name: value for name in _EDITABLE if name != "args" and (value := getattr(edit, name)) is not UNSET
    }
    if edit.args is not None:
        changes["args"] = edit.args
    return msgspec.structs.replace(spec, **changes)


def same_spec(one: ScheduleSpec, other: ScheduleSpec) -> bool:
    """Whether they mean the same; arguments are compared as JSON values, for Postgres writes them its own way."""
    return _meaning(one) == _meaning(other)


def _meaning(spec: ScheduleSpec) -> dict[str, Any]:
    fields = msgspec.structs.asdict(spec)
    return {**fields, "args": {} if spec.args is None else msgspec.json.decode(spec.args) or {}}


def changes_between(before: ScheduleSpec, after: ScheduleSpec) -> dict[str, Any]:
    """What differs, for the record: by field ``{"from": …, "to": …}``. What is long is cut, and then a text."""
    was, now = _meaning(before), _meaning(after)
    return {name: {"from": _short(was[name]), "to": _short(now[name])} for name in was if was[name] != now[name]}


def _short(value: Any) -> Any:
    plain = msgspec.to_builtins(value)
    text = msgspec.json.encode(plain).decode()
    return plain if len(text) <= RECORDED_BYTES_MAX else cut_text(text, RECORDED_BYTES_MAX)


def same_recurrence(one: ScheduleSpec, other: ScheduleSpec) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in RECURRENCE_FIELDS)


def _check_handler(handler: str, known: Collection[str] | None) -> None:
    if known is None or handler in known or not is_handler_name(handler):
        return  # what is no name is refused with the pattern, by the checks of a job
    near = difflib.get_close_matches(handler, known, n=3)
    remedy = f"did you mean {' or '.join(near)}?" if near else "start a worker that declares it first"
    raise _invalid("handler", f"no worker has ever declared {handler!r}", remedy)


def check_numbers(spec: ScheduleSpec) -> None:
    """Spans and counts. Written so that NaN, which compares with nothing, is refused too.

    Raises:
        InvalidScheduleError.
    """
    if not 0 <= spec.jitter_s <= SECONDS_MAX:
        raise _invalid("jitter_s", f"{spec.jitter_s} is outside 0 to {SECONDS_MAX:.0f}", "give seconds")
    if not 1 <= spec.misfire_limit <= MISFIRE_LIMIT_MAX:
        raise _invalid(
            "misfire_limit", f"{spec.misfire_limit} is outside 1 to {MISFIRE_LIMIT_MAX}", "use misfire skip for none"
        )
    window_s = spec.misfire_window_s
    if window_s is not None and not MISFIRE_WINDOW_S_MIN <= window_s <= SECONDS_MAX:
        raise _invalid(
            "misfire_window_s",
            f"{window_s} is outside {MISFIRE_WINDOW_S_MIN:.0f} to {SECONDS_MAX:.0f}; a shorter one would lose runs "
            "whenever the coordinator changes",
            "use misfire skip to run nothing late",
        )
    if spec.max_runs is not None and not 1 <= spec.max_runs <= MAX_RUNS_MAX:
        raise _invalid("max_runs", f"{spec.max_runs} is outside 1 to {MAX_RUNS_MAX}", "leave it out for no limit")


def _check_window(spec: ScheduleSpec) -> None:
    for name, instant in (("starts_at", spec.starts_at), ("ends_at", spec.ends_at)):
        if instant is None:
            continue
        if instant.tzinfo is None:
            raise _invalid(name, f"{instant.isoformat()} has no offset", "write it as 2030-01-01T09:00:00+01:00")
        if not limits.RUN_AT_YEAR_MIN <= instant.year <= limits.RUN_AT_YEAR_MAX:
            bounds = f"{limits.RUN_AT_YEAR_MIN} to {limits.RUN_AT_YEAR_MAX}"
            raise _invalid(name, f"year {instant.year} is outside {bounds}", "leave it out for none")
    if spec.starts_at is not None and spec.ends_at is not None and spec.starts_at > spec.ends_at:
        raise _invalid("ends_at", f"{spec.ends_at} is before the start {spec.starts_at}", "swap them")


def _check_jitter(jitter_s: float, instants: list[datetime]) -> None:
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    shortest_s = min(gaps, default=timedelta.max).total_seconds()
    if jitter_s and jitter_s >= shortest_s:
        raise _invalid(
            "jitter_s",
            f"{jitter_s:g} s is as long as the interval ({shortest_s:g} s), so runs would overtake each other",
            f"use at most {math.nextafter(shortest_s / 2, 0):.0f}",
        )


def _invalid(field: str, problem: str, remedy: str) -> InvalidScheduleError:
    return InvalidScheduleError(field, problem, remedy=remedy)
