"""A million jobs due at one instant: how fast they are drained, and how long urgent jobs wait meanwhile.

python -m benchmarks.instant --json

They are submitted ahead and wait on the master, but for the few that fit into the buckets. ``ratio`` is the rate from
their due time to the last recorded outcome, by the lifecycle rate of jobs that are due at once, measured before and
after on the same cluster. From the due time on, high-priority jobs come one by one; from submit to start they may take
``URGENT_P99_MS``.
"""

import argparse
import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import uvloop

from benchmarks import report
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.rates import clock, lifecycle_per_s
from jm_nats import JobClient, Priority

# A buyer's click behind a night's newsletter: within a second it is not felt as an outage. All else is full meanwhile:
# the writer's and recorder's batches, the worker's report queue, Postgres.
URGENT_P99_MS = 1_000.0
POLL_S = 0.1
SETTLE_S = 3.0  # between the last commit of the saving and the instant
TIMEOUT_S = 1_800.0
SAVED = "select count(*) from jobmaster.job where run_at = $1"
LEFT = """
select exists(select from jobmaster.job where status = 1 and lane = 'default' and priority = 3 and handler = 'noop')
    or exists(select from jobmaster.job where status in (2, 3) and priority = 3)
"""
ENDED_ONCE = """
select count(*) from jobmaster.job where run_at = $1 and status = 4 and attempt = 1 and started_at >= $1
"""
URGENT = """
select id::text, extract(epoch from started_at)::float8 from jobmaster.job where id = any($1::uuid[]) and status = 4
"""


async def save_ahead(made: Cluster, db: asyncpg.Connection, jobs: int, due: datetime) -> float:
    """Jobs per second until all are recorded; fails when that is not before they are due."""
    began_s = time.perf_counter()
    async with made.client() as client:
        rows = ({"to": "x@example.com", "n": 1} for _ in range(jobs))
        async for _ in client.submit_stream(noop.jobs(rows, run_at=due)):
            pass
        while (await client.link.js.stream_info(client.names.pending_stream)).state.messages:
            made.check_alive()
            await asyncio.sleep(POLL_S)
    per_s = jobs / (time.perf_counter() - began_s)
    saved = await db.fetchval(SAVED, due)
    left_s = (due - datetime.now(UTC)).total_seconds()
    if saved != jobs or left_s < 0:
        found = f"{saved} of {jobs} jobs were recorded {left_s:.1f} s before the instant"
        raise SystemExit(f"{found}: --ahead-s is too short")
    return per_s


async def urgent(client: JobClient, per_s: float, sent: dict[str, float], over: asyncio.Event) -> None:
    """High-priority jobs at a steady rate until it is over."""
    began_s = time.monotonic()
    while not over.is_set():
        await asyncio.sleep(max(0.0, began_s + len(sent) / per_s - time.monotonic()))
        job = noop.job({"n": len(sent)}, priority=Priority.HIGH)
        sent[job.id or ""] = time.time()
        await client.submit(job)


async def drain(made: Cluster, db: asyncpg.Connection, due: datetime, per_s: float) -> tuple[float, dict[str, float]]:
    """Seconds from the instant to the last recorded outcome, and when each of the urgent jobs was submitted."""
    sent: dict[str, float] = {}
    over = asyncio.Event()
    deadline_s = time.monotonic() + TIMEOUT_S
    async with made.client() as client:
        await asyncio.sleep((due - datetime.now(UTC)).total_seconds())
        began_s = time.perf_counter()
        flow = asyncio.create_task(urgent(client, per_s, sent, over))
        while await db.fetchval(LEFT):
            made.check_alive()
            if time.monotonic() > deadline_s or flow.done():
                raise SystemExit("the jobs were not drained in time, or the urgent ones could not be submitted")
            await asyncio.sleep(POLL_S)
        elapsed_s = time.perf_counter() - began_s
        over.set()
        await flow
    return elapsed_s, sent


async def waits_ms(db: asyncpg.Connection, sent: dict[str, float]) -> list[float]:
    """From just before the submit of each urgent job to its start."""
    deadline_s = time.monotonic() + 60.0
    while len(rows := await db.fetch(URGENT, list(sent))) < len(sent):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{len(rows)} of {len(sent)} urgent jobs ran")
        await asyncio.sleep(POLL_S)
    return [(at - sent[job_id]) * 1000 for job_id, at in rows]


async def one_round(made: Cluster, db: asyncpg.Connection, options: argparse.Namespace, per_s: float) -> dict[str, Any]:
    ahead_s = options.ahead_s or options.jobs / per_s * 1.5 + 2 * SETTLE_S
    due = (await clock(db) + timedelta(seconds=ahead_s)).replace(microsecond=0)
    saved_per_s = await save_ahead(made, db, options.jobs, due)
    report.progress(f"{options.jobs} saved, {saved_per_s:.0f}/s")
    elapsed_s, sent = await drain(made, db, due, options.per_s)
    ended = await db.fetchval(ENDED_ONCE, due)
    if ended != options.jobs:
        raise SystemExit(f"{ended} of {options.jobs} jobs ran once, and not early")
    waited = await waits_ms(db, sent)
    return {
        "saved_per_s": round(saved_per_s),
        "drained_per_s": round(options.jobs / elapsed_s),
        "urgent": len(waited),
        "urgent_p50_ms": round(report.percentile(waited, 0.5), 1),
        "urgent_p99_ms": round(report.percentile(waited, 0.99), 1),
        "urgent_max_ms": round(max(waited), 1),
    }


async def run(made: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    db = await asyncpg.connect(made.dsn)
    rounds: list[dict[str, Any]] = []
    try:
        await until_ready(made, db)
        await lifecycle_per_s(made, db, options.lifecycle_jobs // 10)  # warm
        lifecycle = [await lifecycle_per_s(made, db, options.lifecycle_jobs)]
        for _ in range(options.rounds):
            rounds.append(await one_round(made, db, options, report.median(lifecycle)))
            report.progress(rounds[-1])
            lifecycle.append(await lifecycle_per_s(made, db, options.lifecycle_jobs))
    finally:
        await db.close()
    drained = report.median([found["drained_per_s"] for found in rounds])
    return {
        "value": round(drained),
        "unit": "jobs/s",
        "lifecycle_per_s": round(report.median(lifecycle)),
        "yardstick": None,
        "ratio": report.ratio(drained, report.median(lifecycle)),
        "urgent_p99_ms": round(report.median([found["urgent_p99_ms"] for found in rounds]), 1),
        "all": rounds,
        "all_lifecycle": [round(value) for value in lifecycle],
        "jobs": options.jobs,
        "urgent_per_s": options.per_s,
        "rounds": options.rounds,
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--lifecycle-jobs", type=int, default=100_000)
    parser.add_argument("--per-s", type=float, default=20.0, help="urgent jobs, while the others are drained")
    parser.add_argument("--ahead-s", type=float, default=0.0, help="0: by the lifecycle rate")
    parser.add_argument("--rounds", type=int, default=1)
    options = report.arguments(parser)
    with cluster() as made:
        result = uvloop.run(run(made, options))
    report.show("instant", result, options, at_least={"ratio": 0.8}, at_most={"urgent_p99_ms": URGENT_P99_MS})


if __name__ == "__main__":
    main()
