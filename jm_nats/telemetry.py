"""Every span and metric name, one function per event. The API only: who runs the process chooses SDK and exporters.

Without an SDK all of this is skipped after one check, because a no-op span still costs microseconds, and a job costs
only a few dozen.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from jm_core.wire import Run, Submission

SPAN_SUBMIT: Final = "jobmaster.submit"
SPAN_PROCESS: Final = "jobmaster.process"
METRIC_FINISHED: Final = "jobmaster.attempts"
METRIC_DURATION: Final = "jobmaster.attempt.duration"
METRIC_START_DELAY: Final = "jobmaster.start.delay"
METRIC_SAVED: Final = "jobmaster.jobs.saved"
METRIC_REJECTED: Final = "jobmaster.jobs.rejected"
METRIC_DUPLICATES: Final = "jobmaster.jobs.duplicates"
METRIC_DISPATCHED: Final = "jobmaster.jobs.dispatched"
METRIC_STALE: Final = "jobmaster.outcomes.stale"
METRIC_UNSERVED: Final = "jobmaster.kinds.unserved"
METRIC_REMOVED: Final = "jobmaster.retention.removed"
METRIC_RETENTION_LOOKED: Final = "jobmaster.retention.looked"
METRIC_VIOLATIONS: Final = "jobmaster.invariant.violations"
METRIC_PLANNED: Final = "jobmaster.schedules.planned"
METRIC_PLANNER_LAG: Final = "jobmaster.schedules.lag"
METRIC_DISABLED: Final = "jobmaster.schedules.disabled"

_tracer = trace.get_tracer("jobmaster")
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


class Active:
    """Whether an SDK was installed, looked at now and then: asking the API for every job costs more than the job."""

    tracing = False
    metering = False


def refresh() -> None:
    """Look again. The API's own proxy providers record nothing, so only an SDK's counts."""
    provider = trace.get_tracer_provider()
    Active.tracing = not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    Active.metering = type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.sdk")


def trace_submission(job: Submission) -> None:
    """A producer span for ``job``, carried in its ``trace`` unless the caller set one."""
    if not Active.tracing:
        return
    attributes = {"messaging.system": "jobmaster", "jobmaster.job.id": job.id or "", "jobmaster.handler": job.handler}
    with _tracer.start_as_current_span(SPAN_SUBMIT, kind=SpanKind.PRODUCER, attributes=attributes):
        if job.trace is None:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            job.trace = carrier.get("traceparent")


def trace_submissions(jobs: Sequence[Submission]) -> None:
    """One producer span for a message of ``jobs``, carried by each of them."""
    if not Active.tracing:
        return
    attributes: dict[str, str | int] = {
        "messaging.system": "jobmaster",
        "messaging.batch.message_count": len(jobs),
    }
    with _tracer.start_as_current_span(SPAN_SUBMIT, kind=SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        for job in jobs:
            if job.trace is None:
                job.trace = carrier.get("traceparent")


@contextmanager
def processing(run: Run, *, lane: str, priority: str, bucket: str) -> Iterator[Any]:
    """A consumer span around one attempt, child of and linked to the submission's span."""
    parent = propagate.extract({"traceparent": run.trace}) if run.trace else None
    context = trace.get_current_span(parent).get_span_context() if parent else None
    attributes: dict[str, str | int] = {
        "messaging.system": "jobmaster",
        "jobmaster.job.id": run.id,
        "jobmaster.handler": run.handler,
        "jobmaster.attempt": run.attempt,
        "jobmaster.lane": lane,
        "jobmaster.priority": priority,
        "jobmaster.bucket": bucket,
    }
    links = [Link(context)] if context and context.is_valid else []
    with _tracer.start_as_current_span(
        SPAN_PROCESS, context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
    ) as span:
        yield span


def mark_failed(span: Any, error: str) -> None:
    span.set_status(Status(StatusCode.ERROR, error[:200]))


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
