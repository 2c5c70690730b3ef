"""Lone jobs: N single submits at a steady rate, from submit to the start of the handler.

python -m benchmarks.latency --json
"""

import argparse
import asyncio
import time
from typing import Any

import asyncpg
import uvloop

from benchmarks import report, yardstick
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, until_ready

TIMEOUT_S = 120.0
STARTED = """
select id::text, extract(epoch from started_at)::float8 from jobmaster.job where id = any($1::uuid[]) and status = 4
"""


async def one_run(made: Cluster, jobs: int, per_s: float) -> list[float]:
    """Milliseconds from just before the submit call to the handler's start, per job.

    Both instants are of this machine's clock: the caller's, and the worker's ``started_at`` in Postgres (the worker
    corrects its clock by its offset to NATS, which is here the same machine's).
    """
    sent: dict[str, float] = {}
    db = await asyncpg.connect(made.dsn)
    try:
        await until_ready(made, db)
        async with made.client() as client:
            for _ in range(jobs):
                job = noop.job({"to": "x@example.com", "n": 1})
                sent[job.id or ""] = time.time()
                await client.submit(job)
                await asyncio.sleep(1 / per_s)
        starts = await started(db, list(sent))
    finally:
        await db.close()
    return [(starts[job_id] - at) * 1000 for job_id, at in sent.items()]


async def started(db: asyncpg.Connection, ids: list[str]) -> dict[str, float]:
    """When each job's handler started, seconds since the epoch; waits until all have."""
    deadline = time.monotonic() + TIMEOUT_S
    query = STARTED
    while time.monotonic() < deadline:
        rows = await db.fetch(query, ids)
        if len(rows) == len(ids):
            return {row[0]: row[1] for row in rows}
        await asyncio.sleep(0.2)
    raise SystemExit("not all jobs ran in time")


async def run(made: Cluster, jobs: int, per_s: float, rounds: int) -> dict[str, Any]:
    bare: list[dict[str, Any]] = []
    p50s: list[float] = []
    p99s: list[float] = []
    for _ in range(rounds):
        measured = await asyncio.to_thread(yardstick.measure, made, jobs=2_000)
        if measured is not None:
            bare.append(measured)
        delays = await one_run(made, jobs, per_s)
        p50s.append(report.percentile(delays, 0.5))
        p99s.append(report.percentile(delays, 0.99))
    p50, p99 = report.median(p50s), report.median(p99s)
    bare50 = report.median([m["start_p50_ms"] for m in bare]) if bare else None
    bare99 = report.median([m["start_p99_ms"] for m in bare]) if bare else None
    return {
        "value": round(p50, 2),
        "unit": "ms",
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "yardstick": {"p50_ms": bare50, "p99_ms": bare99},
        "ratio": report.ratio(p50, bare50),
        "ratio_p50": report.ratio(p50, bare50),
        "ratio_p99": report.ratio(p99, bare99),
        "jobs": jobs,
        "per_s": per_s,
        "rounds": rounds,
        "all_p50_ms": [round(v, 2) for v in p50s],
        "all_p99_ms": [round(v, 2) for v in p99s],
        "all_yardstick": [[m["start_p50_ms"], m["start_p99_ms"]] for m in bare],
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--per-s", type=float, default=100.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = report.arguments(parser)
    with cluster() as made:
        result = uvloop.run(run(made, options.jobs, options.per_s, options.rounds))
    report.show("latency", result, options, at_most={"ratio_p50": 1.5, "ratio_p99": 2.0})


if __name__ == "__main__":
    main()
