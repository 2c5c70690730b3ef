"""Memory while a large backlog is drained: N jobs are recorded first, then a worker comes and runs them all.

python -m benchmarks.backlog --json
"""

import argparse
import asyncio
import time
from typing import Any

import asyncpg
import uvloop

from benchmarks import report
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, provision
from benchmarks.procstat import rss_mb

SAMPLE_S = 0.5
TIMEOUT_S = 1_800.0
WARM_SHARE = 0.2  # of the samples: before that, caches fill


async def run(made: Cluster, jobs: int) -> dict[str, Any]:
    db = await asyncpg.connect(made.dsn)
    try:
        await provision(made)
        async with made.client() as client:
            async for _ in client.submit_stream(noop.jobs({"to": "x@example.com", "n": 1} for _ in range(jobs))):
                pass
        await until(db, made, "select count(*) from jobmaster.job", jobs)
        saved_mb = rss_mb(made.processes["coordinator"].pid)
        made.start_worker()
        started = time.perf_counter()
        samples = await drain(db, made, jobs)
        elapsed = time.perf_counter() - started
    finally:
        await db.close()
    peaks = {name: round(max(values), 1) for name, values in samples.items()}
    return {
        "value": max(peaks.values()),
        "unit": "MB resident, the larger of worker and coordinator at its peak",
        "yardstick": None,
        "ratio": None,
        "peak_mb": peaks,
        **{f"slope_{name}_mb": slope(values) for name, values in samples.items()},
        "coordinator_after_saving_mb": round(saved_mb, 1),
        "drained_per_s": round(jobs / elapsed),
        "jobs": jobs,
        **await report.stamp(made),
    }


async def until(db: asyncpg.Connection, made: Cluster, query: str, wanted: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while await db.fetchval(query) < wanted:
        made.check_alive()
        if time.monotonic() > deadline:
            raise SystemExit(f"{query}: not {wanted} in time")
        await asyncio.sleep(SAMPLE_S)


async def drain(db: asyncpg.Connection, made: Cluster, jobs: int) -> dict[str, list[float]]:
    """Resident memory of both processes, sampled until the last outcome is recorded."""
    samples: dict[str, list[float]] = {name: [] for name in made.processes}
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        made.check_alive()
        for name, process in made.processes.items():
            samples[name].append(rss_mb(process.pid))
        if not await db.fetchval("select exists(select from jobmaster.job where status in (1, 2, 3))"):
            done = await db.fetchval("select count(*) from jobmaster.job where status = 4")
            if done >= jobs:
                return samples
        await asyncio.sleep(SAMPLE_S)
    raise SystemExit("the backlog was not drained in time")


def slope(values: list[float]) -> float:
    """Median of the last fifth less the median of the fifth after warming up: about nothing when memory is flat."""
    warm = values[int(len(values) * WARM_SHARE) :]
    fifth = max(len(warm) // 5, 1)
    return round(report.median(warm[-fifth:]) - report.median(warm[:fifth]), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = report.arguments(parser)
    with cluster(workers=0) as made:
        result = uvloop.run(run(made, options.jobs))
    report.show(
        "backlog", result, options, at_most={"value": 150.0, "slope_worker_mb": 10.0, "slope_coordinator_mb": 10.0}
    )


if __name__ == "__main__":
    main()
