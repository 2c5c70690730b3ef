"""A coordinator and a worker in a process with OpenTelemetry's SDK, and all that makes them measure something.

``python -m tests.support.metered <nats url> <dsn> <cluster>`` prints what was collected, as JSON: while they run, and
after the coordinator has stopped. A process of its own, because the SDK's provider is global to a process.
"""

# ruff: noqa: E402 - the provider first, as the command line does it
import asyncio
import json
import sys
import time
from contextlib import suppress

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))

import asyncpg

from jm_core.model import AttemptOutcome
from jm_master import queue_look
from jm_master.config import CoordinatorConfig
from jm_nats.errors import JmError
from jm_nats.worker import Worker, WorkerConfig
from tests.support import app
from tests.support.master import Bench, coordinating, finished, job, linked
from tests.support.waiting import wait_until

LEASE_S = 5.0  # more than a handler blocks the loop that the coordinator turns on, too
OLD = (
    "INSERT INTO jobmaster.job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at,"
    " recorded_at, finished_at) SELECT gen_random_uuid(), 'noop', '{}', 4, 3, 'default', t, 4, 300, t, t, t"
    "   FROM (SELECT now() - interval '40 days' AS t) AS old, generate_series(1, 5)"
)
BROKEN = "INSERT INTO jobmaster.schedule (name, kind, expr, handler) VALUES ('broken', 'cron', '61 * * * *', 'noop')"


@app.jm.handler("blocks")
async def blocks():
    time.sleep(2.8)  # noqa: ASYNC251 - a turn of the watch, the second it may be late, and a heartbeat that looks


def collected():
    data = reader.get_metrics_data()
    found = {}
    for scope in (scope for resource in data.resource_metrics for scope in resource.scope_metrics) if data else ():
        for metric in scope.metrics:
            found[metric.name] = {
                "unit": metric.unit,
                "description": metric.description,
                "points": [point_of(point) for point in metric.data.data_points],
            }
    return found


def point_of(point):
    attributes = dict(point.attributes)
    if hasattr(point, "bucket_counts"):
        bounds = list(point.explicit_bounds)
        return {"attributes": attributes, "count": point.count, "sum": point.sum, "max": point.max, "bounds": bounds}
    return {"attributes": attributes, "value": point.value}


def total(name, **attributes):
    wanted = {f"jobmaster.{key}": value for key, value in attributes.items()}
    points = collected().get(name, {"points": []})["points"]
    return sum(p.get("value", p.get("count")) for p in points if wanted.items() <= p["attributes"].items())


async def seen(name, least=1, **attributes):
    await wait_until(lambda: total(name, **attributes) >= least, 30, what=f"{name} {attributes} reaches {least}")


async def jobs_of_every_kind(bench: Bench, client):
    for _ in range(3):
        await client.result((await app.echo.submit(client, value=1)).job_id, timeout=20)
    await client.result((await app.fail_once.submit(client)).job_id, timeout=20)
    for handler in (app.always_fails, app.asks_for_no_retry):
        await ended(client, await handler.submit(client))
    await ended(client, await app.process_raises.submit(client, kind="needs_arguments"))
    await ended(client, await app.sleeper.submit(client, seconds=60, timeout=0.2, max_attempts=1))
    await bench.submit_and_wait(job("greet", args={"unknown": 1}, lane="mail", priority="high"))  # quarantined
    twice = job("noop")
    await bench.submit_and_wait(twice)
    await bench.submit_and_wait(twice)  # a duplicate
    await bench.submit_and_wait(raw=b"no job")  # rejected
    await ended(client, await blocks.submit(client))


async def ended(client, receipt):
    with suppress(JmError):
        await client.result(receipt.job_id, timeout=30)


async def what_goes_wrong(bench: Bench):
    """A worker that dies with a job of its own, and comes back to report it."""
    async with bench.worker("elsewhere", lane="away") as fake:
        await bench.submit(job("elsewhere", lane="away"))
        (run,) = await fake.runs(1)
        await fake.succeed([run])
        await fake.report(finished(run, AttemptOutcome.FAILED))  # stale: it has succeeded
        await seen("jobmaster.outcomes.stale")
        await fake.die()
        await seen("jobmaster.buckets.lost")
        await seen("jobmaster.adoption.duration")


async def schedules(client, db):
    await client.schedules.add("overlaps", "sleeper", {"seconds": 3}, every=1, overlap="skip")
    await db.execute(BROKEN)
    await seen("jobmaster.schedules.skipped", reason="overlap", schedule="overlaps")
    await seen("jobmaster.schedules.disabled")
    await client.schedules.pause("overlaps")
    await asyncio.sleep(1.5)  # an instant passes
    await client.schedules.resume("overlaps")
    await seen("jobmaster.schedules.skipped", reason="paused", schedule="overlaps")
    await client.schedules.delete("overlaps")
    await wait_until(lambda: not total("jobmaster.slots.running"), 30, what="its last job has ended")


async def everything(nats_url, dsn, cluster):
    """Returns what is shown while all of it runs."""
    db = await asyncpg.connect(dsn)
    try:
        async with linked(nats_url, cluster, lease_s=LEASE_S) as bench, app.jm.client() as client:
            await bench.submit(job("nobody_knows_it", lane="unserved"))  # waits on the master for good
            await jobs_of_every_kind(bench, client)
            await what_goes_wrong(bench)
            await schedules(client, db)
            running = await app.sleeper.submit(client, seconds=60)
            await seen("jobmaster.slots.running")
            await seen("jobmaster.jobs.saved", 14)
            await seen("jobmaster.start.latency", 11)  # a second later
            await seen("jobmaster.queue.depth", state="processing")
            await seen("jobmaster.queue.oldest_due_age", lane="unserved")
            await seen("jobmaster.retention.removed", 5)
            await seen("jobmaster.loop.lag", 3)
            shown = collected()
            await client.cancel(running.job_id)
            return shown
    finally:
        await db.close()


async def main(nats_url, dsn, cluster):
    queue_look.LOOK_S = 0.3
    db = await asyncpg.connect(dsn)
    await db.execute(OLD)
    await db.close()
    config = CoordinatorConfig(lease_s=LEASE_S, poll_s=0.1, outbox_age_s=0.5)
    stop = asyncio.Event()
    worker = Worker(app.jm, WorkerConfig(worker_id="metered", lease_s=LEASE_S, heartbeat_s=0.5, drain_timeout_s=1))
    async with coordinating(nats_url, dsn, cluster, config):
        serving = asyncio.create_task(worker.run(stop))
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        shown = await everything(nats_url, dsn, cluster)
    led_no_more = collected()
    stop.set()
    await serving
    json.dump({"shown": shown, "coordinator_stopped": led_no_more, "all_stopped": collected()}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
