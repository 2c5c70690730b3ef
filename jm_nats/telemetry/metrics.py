"""Measurements: one function per event."""

from opentelemetry import metrics

from jm_nats.telemetry.names import (
    METRIC_DISABLED,
    METRIC_DISPATCHED,
    METRIC_DUPLICATES,
    METRIC_DURATION,
    METRIC_FINISHED,
    METRIC_PLANNED,
    METRIC_PLANNER_LAG,
    METRIC_REJECTED,
    METRIC_REMOVED,
    METRIC_RETENTION_LOOKED,
    METRIC_SAVED,
    METRIC_STALE,
    METRIC_START_DELAY,
    METRIC_UNSERVED,
    METRIC_VIOLATIONS,
)

_meter = metrics.get_meter("jobmaster")
_finished = _meter.create_counter(METRIC_FINISHED, "{attempt}", "Attempts ended, by outcome, handler, lane")
_duration = _meter.create_histogram(METRIC_DURATION, "s", "Run time of attempts")
_start_delay = _meter.create_histogram(METRIC_START_DELAY, "s", "From the due time to the start of the handler")
_saved = _meter.create_counter(METRIC_SAVED, "{job}", "Jobs committed to the master")
_rejected = _meter.create_counter(METRIC_REJECTED, "{job}", "Jobs refused by the writer")
_duplicates = _meter.create_counter(METRIC_DUPLICATES, "{job}", "Submissions of a job that was already there")
_dispatched = _meter.create_counter(METRIC_DISPATCHED, "{job}", "Jobs put into buckets")
_stale = _meter.create_counter(METRIC_STALE, "{outcome}", "Outcomes refused by the dispatch fence")
_unserved = _meter.create_gauge(METRIC_UNSERVED, "{kind}", "Lane, priority and handler with due jobs and no worker")
_removed = _meter.create_counter(METRIC_REMOVED, "{job}", "Ended jobs removed by retention")
_looked = _meter.create_gauge(METRIC_RETENTION_LOOKED, "s", "When retention last worked without an error, Unix time")
_violations = _meter.create_counter(METRIC_VIOLATIONS, "{violation}", "Invariants found broken, by name")
_planned = _meter.create_counter(METRIC_PLANNED, "{job}", "Jobs made by schedules")
_planner_lag = _meter.create_histogram(METRIC_PLANNER_LAG, "s", "How late after its time a schedule was looked at")
_disabled = _meter.create_counter(METRIC_DISABLED, "{schedule}", "Schedules disabled because they could not be planned")


def attempt_ended(handler: str, lane: str, outcome: str, *, run_s: float, start_delay_s: float) -> None:
    attributes = {"handler": handler, "lane": lane, "outcome": outcome}
    _finished.add(1, attributes)
    _duration.record(run_s, attributes)
    _start_delay.record(max(start_delay_s, 0.0), {"handler": handler, "lane": lane})


def jobs_saved(count: int, *, rejected: int = 0, duplicates: int = 0) -> None:
    _saved.add(count)
    if rejected:
        _rejected.add(rejected)
    if duplicates:
        _duplicates.add(duplicates)


def jobs_removed(count: int) -> None:
    if count:
        _removed.add(count)


def retention_looked(at_s: float) -> None:
    _looked.set(at_s)


def jobs_dispatched(count: int) -> None:
    _dispatched.add(count)


def outcomes_stale(count: int) -> None:
    if count:
        _stale.add(count)


def kinds_unserved(count: int) -> None:
    _unserved.set(count)


def invariant_violated(invariant: str, kind: str) -> None:
    _violations.add(1, {"invariant": invariant, "kind": kind})


def jobs_planned(count: int) -> None:
    if count:
        _planned.add(count)


def planner_late(seconds: float) -> None:
    _planner_lag.record(seconds)


def schedule_disabled() -> None:
    _disabled.add(1)
