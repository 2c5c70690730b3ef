"""Spans: one function per event."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from jm_core.wire import Run, Submission
from jm_nats.telemetry.active import Active
from jm_nats.telemetry.names import SPAN_PROCESS, SPAN_SUBMIT

_tracer = trace.get_tracer("jobmaster")


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
