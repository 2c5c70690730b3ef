"""A submission's span: whose trace it is in, and whose it is linked to."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jm_nats import submission, telemetry
from jm_nats.telemetry import tracing

OWN = [f"00-{n:032x}-{n:016x}-01" for n in range(1, 300)]


@pytest.fixture
def spans(monkeypatch):
    """What is ended; the provider is nobody else's."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    monkeypatch.setattr(telemetry.Active, "tracing", True)
    yield exporter.get_finished_spans
    provider.shutdown()


def submitted(jobs, *, inside):
    if inside:
        with tracing._tracer.start_as_current_span("caller"), telemetry.submitting(jobs):
            pass
    else:
        with telemetry.submitting(jobs):
            pass


def linked_to(span):
    return [f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-01" for link in span.links]


def test_a_job_with_a_trace_of_its_own_is_linked_from_the_callers_span(spans):
    job = submission("h", trace=OWN[0])
    submitted([job], inside=True)
    submit, caller = spans()
    assert submit.parent.span_id == caller.context.span_id
    assert linked_to(submit) == [OWN[0]]
    assert job.trace == OWN[0]


def test_without_a_caller_the_span_joins_the_jobs_trace(spans):
    submitted([submission("h", trace=OWN[0])], inside=False)
    (submit,) = spans()
    assert (submit.parent.span_id, linked_to(submit)) == (1, [])


@pytest.mark.parametrize("inside", [True, False])
def test_of_several_jobs_each_trace_is_linked_once(spans, inside):
    jobs = [submission("h", trace=own) for own in (OWN[0], None, OWN[1], OWN[0])]
    submitted(jobs, inside=inside)
    assert linked_to(spans()[0]) == OWN[:2]
    assert jobs[1].trace is not None


def test_more_links_than_an_sdk_keeps_are_not_made(spans):
    submitted([submission("h", trace=own) for own in OWN], inside=True)
    assert linked_to(spans()[0]) == OWN[: tracing.LINKS_MAX]


def test_who_carries_nothing_is_linked_to_nothing(spans):
    submitted([submission("h")], inside=True)
    assert linked_to(spans()[0]) == []
