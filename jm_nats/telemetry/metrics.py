"""Measurements: one function per event. Whose it is comes from the task that calls (``enter_group``)."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from jm_core.health import Invariant
from jm_nats.telemetry import names
from jm_nats.telemetry.active import Active
from jm_nats.telemetry.instruments import Gauges, Group, as_group, bounded, counter, current_group, forget, histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jm_nats.telemetry.instruments import Attributes, Kept, Sampled

SYSTEM: Final = (names.SYSTEM, "jobmaster")
SUBMIT: Final = (SYSTEM, (names.OPERATION, "submit"))
RECEIVE: Final = (SYSTEM, (names.OPERATION, "receive"))
PROCESS: Final = (SYSTEM, (names.OPERATION, "process"))
STALL_KINDS: Final = ("loop", "handler_blocks", "heartbeat_withheld", "pull", "no_progress")


def route(lane: str, priority: str) -> Attributes:
    return (names.LANE, bounded(names.LANE, lane)), (names.PRIORITY, priority)


# -- the client's


class Submits:
    """Of one client, which may live for a single submit: nothing of it is kept. Called per message, not per job."""

    def __init__(self, cluster: str) -> None:
        self._group = Group(cluster, "")
        self._durations: dict[Attributes, Sampled] = {}

    def ended(self, jobs: int, took_s: float, error: BaseException | None = None) -> None:
        attributes: Attributes = SUBMIT
        if error is not None:
            attributes = (*SUBMIT, (names.ERROR_TYPE, bounded(names.ERROR_TYPE, type(error).__qualname__)))
        with as_group(self._group):  # a client in a handler serves its own cluster
            counter(names.SENT).add(jobs, attributes)
            duration = self._durations.get(attributes)
            if duration is None:
                duration = self._durations[attributes] = histogram(names.SUBMIT_DURATION).sampled(attributes)
        duration.record(took_s)


# -- the worker's


_runs: Final[dict[tuple[object, ...], Kept]] = {}
_starts: Final[dict[tuple[object, ...], tuple[Kept, Kept]]] = {}


class RouteMeasures:
    """Of the attempts of one bucket. What is measured outlives it: another of its route goes on with it."""

    __slots__ = ("_group", "_route", "_runs", "_starts")

    def __init__(self, lane: str, priority: str) -> None:
        self._group = current_group()
        self._route = (lane, priority)
        self._starts: tuple[Kept, Kept] | None = None
        self._runs: dict[tuple[str, str, str], Kept] = {}
        if Active.metering:
            counter(names.QUARANTINED).add(0, route(lane, priority))

    def started(self, late_s: float, *, was_due_at_once: bool) -> None:
        """Args: was_due_at_once: and this is its first start, so that its due time is when it was submitted."""
        lateness, latency = self._starts or self._make_starts()
        lateness.values.append(late_s)
        if was_due_at_once:
            latency.values.append(late_s)

    def ended(self, handler: str, outcome: str, error_type: str, run_s: float) -> None:
        """Once a job: what it needs is looked up, not made."""
        if error_type:
            error_type = bounded(names.ERROR_TYPE, error_type)
        key = (handler, outcome, error_type)
        kept = self._runs.get(key) or self._make_runs(key)
        kept.values.append(run_s)

    def _make_starts(self) -> tuple[Kept, Kept]:
        key = (self._group, *self._route)
        if key not in _starts:
            attributes = route(*self._route)
            with as_group(self._group):
                late, latency = histogram(names.START_LATENESS), histogram(names.START_LATENCY)
                _starts[key] = late.kept(attributes), latency.kept(attributes)
        self._starts = _starts[key]
        return self._starts

    def _make_runs(self, key: tuple[str, str, str]) -> Kept:
        full = (self._group, *self._route, *key)
        if full not in _runs:
            handler, outcome, error_type = key
            attributes = (
                (names.HANDLER, bounded(names.HANDLER, handler)),
                *route(*self._route),
                (names.OUTCOME, outcome),
            )
            if error_type:
                attributes = (*attributes, (names.ERROR_TYPE, error_type))
            with as_group(self._group):
                kept = _runs[full] = histogram(names.PROCESS_DURATION).kept((*PROCESS, *attributes))
                counter(names.ATTEMPTS).count_all_of(kept, attributes)
        self._runs[key] = _runs[full]
        return _runs[full]


def group_ended(group: Group) -> None:
    """Record what is left of it and keep nothing more: workers with ever new names may come and go in a process."""
    forget(group)
    known: dict[tuple[object, ...], Any]
    for known in (_runs, _starts):
        for key in [key for key in known if key[0] == group]:
            del known[key]


def jobs_taken(count: int, lane: str, priority: str) -> None:
    """Per message."""
    if Active.metering:
        counter(names.CONSUMED).add(count, RECEIVE + route(lane, priority))


def job_quarantined(lane: str, priority: str) -> None:
    counter(names.QUARANTINED).add(1, route(lane, priority))


def heartbeat_acknowledged(late_s: float) -> None:
    histogram(names.HEARTBEAT_LATENESS).record(late_s)


def bucket_drained(since_lost_s: float) -> None:
    histogram(names.ADOPTION_DURATION).record(since_lost_s)


# -- of both


def loop_lagged(seconds: float) -> None:
    histogram(names.LOOP_LAG).record(seconds)


def stalled(kind: str) -> None:
    counter(names.STALLS).add(1, ((names.STALL, kind),))


def invariant_violated(invariant: str) -> None:
    counter(names.VIOLATIONS).add(1, ((names.INVARIANT, invariant),))


def show_zeros(role: str) -> None:
    """What alerts ask for is there before it happens first: an increase from nothing is none that Prometheus sees."""
    for kind in STALL_KINDS:
        counter(names.STALLS).add(0, ((names.STALL, kind),))
    for invariant in Invariant:
        counter(names.VIOLATIONS).add(0, ((names.INVARIANT, invariant.value),))
    if role == "coordinator":
        for spec in (names.LEADERSHIP_CHANGES, names.BUCKETS_LOST, names.STALE, names.REJECTED, names.DISABLED):
            counter(spec).add(0)


# -- the leader's

_leading: Final[ContextVar[Gauges | None]] = ContextVar("jobmaster_leading", default=None)
_duty: Final[ContextVar[str]] = ContextVar("jobmaster_duty", default="")


def enter_term(gauges: Gauges, term: int, duties: Iterable[str]) -> None:
    """What this task and those it starts say as the leader is said by ``gauges``, and gone with it.

    Every duty counts from now on: one that never succeeds in this term must grow old, too.
    """
    _leading.set(gauges)
    counter(names.LEADERSHIP_CHANGES).add(1)
    gauges.say(names.LEADERSHIP_TERM, term)
    gauges.say_all(names.DUTY_SUCCEEDED, {((names.DUTY, duty),): time.time() for duty in duties})


def enter_duty(name: str) -> None:
    _duty.set(name)


def duty_passed(duty: str = "") -> None:
    """A pass of the duty that calls has succeeded."""
    gauges = _leading.get()
    if gauges is not None and Active.metering:
        gauges.say(names.DUTY_SUCCEEDED, time.time(), ((names.DUTY, duty or _duty.get()),))


def kinds_unserved(count: int) -> None:
    gauges = _leading.get()
    if gauges is not None:
        gauges.say(names.UNSERVED, count)


def batch_committed(stage: str, items: int, oldest_s: float) -> None:
    """Args: oldest_s: when the oldest message of the batch was stored in NATS, Unix time."""
    if Active.metering:
        attributes = ((names.STAGE, stage),)
        histogram(names.BATCH_SIZE).record(items, attributes)
        histogram(names.WRITER_LAG).record(time.time() - oldest_s, attributes)


def assign_passed(elapsed_s: float) -> None:
    if Active.metering:
        histogram(names.ASSIGN_DURATION).record(elapsed_s)


def jobs_saved(count: int, *, rejected: int = 0, duplicates: int = 0) -> None:
    counter(names.SAVED).add(count)
    if rejected:
        counter(names.REJECTED).add(rejected)
    if duplicates:
        counter(names.DUPLICATES).add(duplicates)


def jobs_dispatched(count: int) -> None:
    counter(names.DISPATCHED).add(count)


def outcomes_stale(count: int) -> None:
    if count:
        counter(names.STALE).add(count)


def bucket_lost() -> None:
    counter(names.BUCKETS_LOST).add(1)


def jobs_removed(count: int) -> None:
    if count:
        counter(names.REMOVED).add(count)


def jobs_planned(count: int) -> None:
    if count:
        counter(names.PLANNED).add(count)


def planner_late(seconds: float) -> None:
    histogram(names.PLANNER_LAG).record(seconds)


def schedule_disabled() -> None:
    counter(names.DISABLED).add(1)


def instants_skipped(schedule: str, reason: str, count: int) -> None:
    if Active.metering:
        name = bounded(names.SCHEDULE, schedule)
        counter(names.SKIPPED).add(count, ((names.SCHEDULE, name), (names.REASON, reason)))
