"""Submitting in bulk: ``submit_many`` of N jobs until every receipt is there.

python -m benchmarks.enqueue --json
"""

import argparse
import asyncio
import time
from typing import Any

import uvloop

from benchmarks import report, yardstick
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, provision


async def one_run(made: Cluster, jobs: int) -> float:
    async with made.client() as client:
        started = time.perf_counter()
        receipts = await client.submit_many(noop.jobs({"to": "x@example.com", "n": 1} for _ in range(jobs)))
        elapsed = time.perf_counter() - started
        assert len(receipts) == jobs
        await client.link.js.purge_stream(client.names.pending_stream)
    return jobs / elapsed


async def run(made: Cluster, jobs: int, rounds: int) -> dict[str, Any]:
    await provision(made)
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        measured = await asyncio.to_thread(yardstick.measure, made, jobs=jobs)
        if measured is not None:
            bare.append(measured["enqueue_per_s"])
        ours.append(await one_run(made, jobs))
    limit = report.median(bare) if bare else None
    value = report.median(ours)
    return {
        "value": round(value),
        "unit": "jobs/s",
        "yardstick": limit,
        "ratio": report.ratio(value, limit),
        "jobs": jobs,
        "rounds": rounds,
        "all": [round(v) for v in ours],
        "all_yardstick": bare,
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = report.arguments(parser)
    with cluster(coordinator=False, workers=0) as made:
        result = uvloop.run(run(made, options.jobs, options.rounds))
    report.show("enqueue", result, options, at_least={"ratio": 0.7})


if __name__ == "__main__":
    main()
