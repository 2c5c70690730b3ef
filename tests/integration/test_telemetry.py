"""Traces cross NATS and Postgres with the job, and every metric has its one name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jm_nats import telemetry
from tests.support.processes import Cluster, environment
from tests.support.scripts import said_by

if TYPE_CHECKING:
    from jm_nats.embedded import NatsServer

# The providers are global to a process, so the process is the script's own.
SCRIPT: Final = """
import asyncio, json
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))

from jm_nats.worker import Worker
from tests.support.app import echo, fail_once, jm

async def main():
    stop, worker = asyncio.Event(), Worker(jm)
    serving = asyncio.create_task(worker.run(stop))
    await worker.ready.wait()
    async with jm.client() as client:
        with trace.get_tracer("test").start_as_current_span("caller"):
            lone = await echo.submit(client, value=1)
        many = await client.submit_many(echo.jobs({"value": n} for n in range(3)))
        again = await fail_once.submit(client)
        for receipt in [lone, *many, again]:
            await client.result(receipt.job_id, timeout=20)
    stop.set()
    await serving
    spans = [{"name": s.name, "trace": s.context.trace_id, "id": s.context.span_id, "kind": s.kind.name,
              "parent": s.parent.span_id if s.parent else None, "links": [l.context.span_id for l in s.links],
              "status": s.status.status_code.name, **s.attributes} for s in exporter.get_finished_spans()]
    names = [m.name for r in reader.get_metrics_data().resource_metrics for c in r.scope_metrics for m in c.metrics]
    print(json.dumps({"lone": lone.job_id, "many": [r.job_id for r in many], "again": again.job_id,
                      "spans": spans, "metrics": names}))

asyncio.run(main())
"""


async def test_every_attempt_is_linked_to_the_submit_that_asked_for_it(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with Cluster(nats_server.url, database, cluster_name) as cluster:
        await cluster.start_coordinator().wait_ready()
        said = await run_script(cluster)
    submits = {span["id"]: span for span in said["spans"] if span["kind"] == "PRODUCER"}
    runs = [span for span in said["spans"] if span["kind"] == "CONSUMER"]
    assert len(submits) == 3
    assert {span["kind"] for span in submits.values()} == {"PRODUCER"}
    assert len(runs) == 6  # one, three, and one that failed and ran again
    for run in runs:
        submit = submits[run["parent"]]
        assert (run["kind"], run["trace"], run["links"]) == ("CONSUMER", submit["trace"], [submit["id"]])
    attempts = sorted((r["jobmaster.attempt"], r["status"]) for r in runs if r["messaging.message.id"] == said["again"])
    assert attempts == [(1, "ERROR"), (2, "UNSET")]
    (lone,) = [run for run in runs if run["messaging.message.id"] == said["lone"]]
    (caller,) = [span for span in said["spans"] if span["name"] == "caller"]
    assert lone["trace"] == caller["trace"]
    assert lone["messaging.destination.partition.id"].startswith("default-medium-")
    assert {telemetry.names.ATTEMPTS.name, telemetry.names.START_LATENESS.name} <= set(said["metrics"])


async def run_script(cluster: Cluster) -> dict[str, list[dict[str, object]]]:
    env = environment(cluster.nats_url, cluster.dsn, cluster.name)
    return await said_by("-c", SCRIPT, env=env)
