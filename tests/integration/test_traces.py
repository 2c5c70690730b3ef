"""One trace from whoever asked for a job to whoever ran it, across processes and languages (BR-198, BR-200).

The processes are real, the spans are what arrives at a collector.
"""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from jm_nats import submission
from jm_nats.subjects import Names
from tests.support import node
from tests.support.cli import jm
from tests.support.otlp import Collector
from tests.support.processes import Cluster, environment
from tests.support.scripts import said_by
from tests.support.text_client import TextClient
from tests.support.waiting import wait_until

APP = "tests.support.traced_app:jm"

# A program with OpenTelemetry's SDK, as a user's service is; what it prints are the ids of its jobs.
PYTHON = """
import asyncio, json, sys
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(sys.argv[1] + "/v1/traces")))
trace.set_tracer_provider(provider)
from tests.support.traced_app import fails_at_first, in_process, in_task, in_thread, jm

async def main():
    parent = propagate.extract({"traceparent": sys.argv[2]})
    async with jm.client() as client:
        with trace.get_tracer("shop").start_as_current_span("checkout", context=parent):
            lone = [await h.submit(client) for h in (in_task, in_thread, in_process)]
            again = await fails_at_first.submit(client, secret="4111-1111")
            many = await client.submit_many(in_task.jobs([{}, {}, {}]))
        print(json.dumps([[r.job_id for r in part] for part in (lone, [again], many)]))

asyncio.run(main())
provider.shutdown()
"""

JAVASCRIPT = """
import { connect } from "@nats-io/transport-node";
const nc = await connect({ servers: process.env.JM_NATS_URL });
const job = { id: process.env.JOB, handler: "in_task", trace: process.env.TRACEPARENT };
await nc.request(`jm.${process.env.JM_CLUSTER}.submit`, JSON.stringify(job), { timeout: 10000 });
await nc.close();
"""


@pytest.fixture
async def cluster(nats_server, database, cluster_name):
    async with Cluster(nats_server.url, database, cluster_name) as made:
        yield made


@pytest.fixture
def collector():
    with Collector() as made:
        yield made


@pytest.fixture
def node_folder(request, tmp_path_factory):
    return node.installed(request.config, tmp_path_factory)


def a_trace(flags="01"):
    """A trace id, and the traceparent of somebody's span in it."""
    trace_id = uuid.uuid4().hex
    return trace_id, f"00-{trace_id}-{uuid.uuid4().hex[:16]}-{flags}"


async def started(cluster, collector, *, workers=1):
    flags = ("--otlp-endpoint", collector.url)
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
    processes = [cluster.start_coordinator(*flags, env=quick)]
    processes += [cluster.start_worker(*flags, app=APP, env=quick) for _ in range(workers)]
    for process in processes:
        await process.wait_ready()


async def python_client(cluster, collector, traceparent):
    env = environment(cluster.nats_url, cluster.dsn, cluster.name)
    return await said_by("-c", PYTHON, collector.url, traceparent, env=env)


async def submitted_in_text(cluster, **job):
    async with TextClient(cluster.nats_url) as raw:
        await raw.log_in()
        (receipt,) = await raw.recorded(Names(cluster.name).submit, {"handler": "in_task", **job})
    return receipt["id"]


def by_job(spans):
    found = {}
    for span in spans:
        found.setdefault(span.attributes["messaging.message.id"], []).append(span)
    return found


async def test_every_way_to_submit_ends_in_one_trace(cluster, collector, node_folder, tmp_path):
    trace_id, traceparent = a_trace()
    await started(cluster, collector, workers=2)

    lone, (again,), many = await python_client(cluster, collector, traceparent)
    variables = {"JM_NATS_URL": cluster.nats_url, "JM_CLUSTER": cluster.name, "TRACEPARENT": traceparent}
    by_node, by_text = str(uuid.uuid4()), str(uuid.uuid4())
    await asyncio.to_thread(node.run, node_folder, JAVASCRIPT, JOB=by_node, **variables)
    await submitted_in_text(cluster, id=by_text, trace=traceparent)
    done = await asyncio.to_thread(jm, "submit", "in_task", "--json", cwd=tmp_path, **variables)
    by_jm = json.loads(done.stdout)["job_id"]
    lines = tmp_path / "jobs.ndjson"
    lines.write_text('{"handler": "in_task"}\n')
    done = await asyncio.to_thread(jm, "submit", "--file", str(lines), cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr

    ids = [*lone, again, *many, by_node, by_text, by_jm]
    assert await cluster.ended(ids) == {"succeeded": len(ids)}
    runs = by_job(await collector.wait_for_spans(len(ids) + 2, "process "))  # a retry, and the one from the file
    assert {span.trace_id for span in collector.spans} == {trace_id}
    assert set(ids) < set(runs)

    caller = traceparent.split("-")[2]
    for job_id in (by_node, by_text, by_jm):  # nobody there makes spans: the run is the caller's own child
        (run,) = runs[job_id]
        assert (run.parent_id, run.links) == (caller, (caller,))

    submits = {span.span_id: span for span in collector.named("submit ")}
    assert len(submits) == 5
    (checkout,) = collector.named("checkout")
    assert {span.parent_id for span in submits.values()} == {checkout.span_id}
    for job_id in [*lone, again, *many]:
        for run in runs[job_id]:
            submit = submits[run.parent_id]
            assert run.links == (submit.span_id,)
            assert (submit.kind, run.kind) == ("PRODUCER", "CONSUMER")
    assert len({runs[job_id][0].parent_id for job_id in many}) == 1
    assert submits[runs[many[0]][0].parent_id].attributes["messaging.batch.message_count"] == 3

    first, second = sorted(runs[again], key=lambda span: span.attributes["jobmaster.attempt"])
    assert (first.status, first.message, first.attributes["error.type"]) == ("ERROR", "ValueError", "ValueError")
    assert (first.attributes["jobmaster.outcome"], first.events) == ("failed", 0)
    assert (second.status, second.attributes["jobmaster.outcome"]) == ("UNSET", "succeeded")

    # What a handler makes is a child of the attempt, wherever it runs.
    inner = {span.parent_id for span in collector.named("charge card")}
    assert {runs[job_id][0].span_id for job_id in [lone[0], *many, by_node]} <= inner
    async with cluster.client() as client:
        for job_id in lone:
            told = await client.result(job_id, timeout=10)
            assert (told["trace_id"], told["span_id"]) == (trace_id, runs[job_id][0].span_id)


async def test_a_span_says_by_the_conventions_what_ran_where(cluster, collector):
    await started(cluster, collector)
    job_id = await submitted_in_text(cluster, priority="high", trace=a_trace()[1])
    (run,) = await collector.wait_for_spans(1, "process ")
    bucket = run.attributes.pop("messaging.destination.partition.id")
    worker = run.attributes.pop("jobmaster.worker")
    assert bucket.startswith("default-high-")
    assert worker == run.resource["service.instance.id"]
    assert run.attributes == {
        "messaging.system": "jobmaster",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "in_task",
        "messaging.message.id": job_id,
        "jobmaster.handler": "in_task",
        "jobmaster.attempt": 1,
        "jobmaster.lane": "default",
        "jobmaster.priority": "high",
        "jobmaster.cluster": cluster.name,
        "jobmaster.outcome": "succeeded",
    }


async def test_a_requeue_goes_on_in_the_trace_and_what_has_none_begins_one(cluster, collector):
    trace_id, traceparent = a_trace()
    await started(cluster, collector)
    job_id = await submitted_in_text(cluster, trace=traceparent)
    await cluster.ended([job_id])
    async with cluster.client() as client:
        await client.requeue(job_id)
        runs = await collector.wait_for_spans(2, "process ")
        assert {(run.trace_id, run.links) for run in runs} == {(trace_id, (traceparent.split("-")[2],))}
        await client.schedules.add("tick", "in_task", every="1h")
        await client.schedules.run_now("tick")
    planned = (await collector.wait_for_spans(3, "process "))[2]
    assert planned.trace_id != trace_id
    assert (planned.parent_id, planned.links) == ("", ())


async def test_without_a_trace_to_carry_each_attempt_begins_one_and_the_job_id_finds_them(cluster, collector):
    """As docs/tracing.md says."""
    await started(cluster, collector)
    job_id = await submitted_in_text(cluster, handler="fails_at_first", args={"secret": "x"})
    assert await cluster.ended([job_id]) == {"succeeded": 1}
    runs = by_job(await collector.wait_for_spans(2, "process "))[job_id]
    assert len({run.trace_id for run in runs}) == 2
    assert {run.parent_id for run in runs} == {""}


async def test_what_is_not_sampled_or_no_trace_at_all_is_run_and_not_recorded_as_one(cluster, collector):
    await started(cluster, collector)
    unsampled_id, unsampled = a_trace(flags="00")
    ids = [await submitted_in_text(cluster, trace=unsampled)]
    ids += [await submitted_in_text(cluster, trace=wrong) for wrong in ("x", 5, {"a": []}, unsampled.upper(), "\0")]
    ids += [await submitted_in_text(cluster, handler="in_process", trace=unsampled)]
    assert await cluster.ended(ids) == {"succeeded": 7}
    spans = await collector.wait_for_spans(5, "process ")
    async with cluster.client() as client:  # known to the handler all the same: it may call others
        assert (await client.result(ids[0], timeout=10))["trace_id"] == unsampled_id
        assert (await client.result(ids[-1], timeout=10))["trace_id"] == unsampled_id
        receipt = await client.submit(submission("in_task"))
        await client.result(receipt.job_id, timeout=10)
    spans = await collector.wait_for_spans(6, "process ")
    assert unsampled_id not in {span.trace_id for span in spans}
    assert ids[0] not in by_job(spans)
    assert len({span.trace_id for span in spans}) == 6


async def test_waiting_for_work_makes_no_span(cluster, collector):
    await started(cluster, collector, workers=2)
    await cluster.start_worker("--otlp-endpoint", collector.url, app=APP).wait_ready()
    # Pulls of several seconds each have come back empty by the time that one job has run and its span is here.
    job_id = await submitted_in_text(cluster, delay_s=3)
    await cluster.ended([job_id])
    await collector.wait_for_spans(1)
    await wait_until(lambda: collector.requests, what="an export")
    assert [span.name for span in collector.spans if not span.name.startswith("charge")] == ["process in_task"]
