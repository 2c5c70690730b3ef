"""Due times: N jobs due at random instants of the next seconds; how late (never early) their handlers start.

python -m benchmarks.due --json
"""

import argparse
import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import uvloop

from benchmarks import report
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.latency import started


async def run(made: Cluster, jobs: int, window_s: float, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    db = await asyncpg.connect(made.dsn)
    due: dict[str, float] = {}
    try:
        await until_ready(made, db)
        async with made.client() as client:
            wanted = []
            now = datetime.now(UTC)
            for _ in range(jobs):
                job = noop.job({}, run_at=now + timedelta(seconds=rng.uniform(0.5, window_s)))
                assert job.run_at is not None
                due[job.id or ""] = job.run_at.timestamp()
                wanted.append(job)
            await client.submit_many(wanted)
            await asyncio.sleep(window_s)
            starts = await started(db, list(due))
    finally:
        await db.close()
    late_ms = [(starts[job_id] - at) * 1000 for job_id, at in due.items()]
    return {
        "value": round(report.percentile(late_ms, 0.99), 2),
        "unit": "ms late, p99",
        "yardstick": None,
        "ratio": None,
        "p50_ms": round(report.percentile(late_ms, 0.5), 2),
        "p99_ms": round(report.percentile(late_ms, 0.99), 2),
        "max_ms": round(max(late_ms), 2),
        "earliest_ms": round(min(late_ms), 3),
        "early": sum(1 for late in late_ms if late < 0),
        "jobs": jobs,
        "window_s": window_s,
        "seed": seed,
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--window-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = report.arguments(parser)
    with cluster() as made:
        result = uvloop.run(run(made, options.jobs, options.window_s, options.seed))
    report.show("due", result, options, at_most={"p99_ms": 25.0, "early": 0})


if __name__ == "__main__":
    main()
