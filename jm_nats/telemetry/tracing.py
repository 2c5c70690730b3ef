"""Spans: one of a submission, one of each attempt, both by the messaging conventions of OpenTelemetry.

The trace travels inside the job (its ``trace`` field, recorded with it), so it is there before anything can start, and
a retry, a requeue or another worker finds it again. A job without one (a schedule's) has none to carry: each of its
attempts begins a trace, and the job's id is what they have in common. What a handler is called is the destination, the
bucket the partition of it: few names, and those that a person looks for. Nothing else makes a span: a poll that brings
nothing, a batch that Postgres stores for many traces at once are measured, not traced.

No text of an error and no argument is put on a span: who may look at traces may not look at payloads.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from jm_core.traceparent import usable_traceparent
from jm_core.wire import Run, Submission
from jm_nats.telemetry.active import Active

SYSTEM: Final = "jobmaster"
OPERATION_SUBMIT: Final = "submit"
OPERATION_PROCESS: Final = "process"
LINKS_MAX: Final = 100  # an SDK drops those beyond 128

_tracer = trace.get_tracer("jobmaster")
# Of what OTEL_PROPAGATORS may name, only this one's header is what a job carries.
_w3c: Final = TraceContextTextMapPropagator()


@contextmanager
def submitting(jobs: Sequence[Submission]) -> Iterator[None]:
    """A producer span around sending ``jobs`` in one message; each that has no ``trace`` yet carries it.

    One job that came with a trace of its own keeps that, and the span joins it; where there is a current span, which it
    belongs to, or several jobs, it is linked to theirs.
    """
    if not Active.tracing:
        yield
        return
    alone = jobs[0] if len(jobs) == 1 else None
    parent = _extracted(alone.trace) if alone is not None and not _has_span() else None
    handlers = {job.handler for job in jobs}
    attributes: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": OPERATION_SUBMIT,
        "messaging.operation.type": "send",
    }
    if alone is None:
        attributes["messaging.batch.message_count"] = len(jobs)
    else:
        attributes["messaging.message.id"] = alone.id or ""
    if len(handlers) == 1:
        attributes["messaging.destination.name"] = attributes["jobmaster.handler"] = jobs[0].handler
    name = f"{OPERATION_SUBMIT} {jobs[0].handler}" if len(handlers) == 1 else OPERATION_SUBMIT
    links = _links_to(jobs) if parent is None else []
    with _span(name, parent, SpanKind.PRODUCER, attributes, links):
        carried = current_traceparent()
        for job in jobs:
            if job.trace is None:
                job.trace = carried
        yield


def _links_to(jobs: Sequence[Submission]) -> list[Link]:
    """Each trace that jobs came with, once."""
    own = dict.fromkeys(job.trace for job in jobs if job.trace is not None)
    contexts = [_extracted(traceparent) for traceparent in islice(own, LINKS_MAX)]
    return [Link(trace.get_current_span(context).get_span_context()) for context in contexts if context is not None]


@contextmanager
def processing(
    run: Run, *, lane: str, priority: str, bucket: str, worker: str = "", cluster: str = ""
) -> Iterator[Span]:
    """A consumer span around one attempt, child of the submission's span and linked to it. Current in the handler."""
    parent = _extracted(run.trace)
    submission = trace.get_current_span(parent).get_span_context() if parent is not None else None
    attributes: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": OPERATION_PROCESS,
        "messaging.operation.type": "process",
        "messaging.destination.name": run.handler,
        "messaging.destination.partition.id": bucket,
        "messaging.message.id": run.id,
        "jobmaster.handler": run.handler,
        "jobmaster.attempt": run.attempt,
        "jobmaster.lane": lane,
        "jobmaster.priority": priority,
    }
    if worker:
        attributes |= {"jobmaster.worker": worker, "jobmaster.cluster": cluster}
    links = [Link(submission)] if submission is not None and submission.is_valid else []
    # Without a submission's span it is the root: whatever is current here is another job's, or nobody's.
    parent = otel_context.Context() if parent is None else parent
    with _span(f"{OPERATION_PROCESS} {run.handler}", parent, SpanKind.CONSUMER, attributes, links) as span:
        yield span


def attempt_outcome(span: Span, outcome: str, error_type: str) -> None:
    """How it ended; of a failure, only its kind: the text may hold what it was called with.

    Args:
        error_type: empty unless it failed.
    """
    span.set_attribute("jobmaster.outcome", outcome)
    if error_type:
        span.set_attribute("error.type", error_type)
        span.set_status(Status(StatusCode.ERROR, error_type))


def current_traceparent() -> str | None:
    """Of the current span, also one that is not sampled: whoever goes on with it must know that."""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def continued(traceparent: str | None) -> Iterator[None]:
    """In a child process: spans made inside become children of the attempt's, if there is an SDK to make them."""
    context = _extracted(traceparent)
    if context is None:
        yield
        return
    token = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(token)


@contextmanager
def _span(
    name: str,
    parent: otel_context.Context | None,
    kind: SpanKind,
    attributes: Mapping[str, AttributeValue],
    links: Sequence[Link] = (),
) -> Iterator[Span]:
    """Exceptions are noted by their type: the SDK's own way would keep text and traceback."""
    with _tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            kind_of = type(error).__name__
            span.set_attribute("error.type", kind_of)
            span.set_status(Status(StatusCode.ERROR, kind_of))
            raise


def _extracted(traceparent: Any) -> otel_context.Context | None:
    """The context it names, with nothing else in it; None if it is none."""
    usable = usable_traceparent(traceparent)
    return None if usable is None else _w3c.extract({"traceparent": usable}, otel_context.Context())


def _has_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid
