"""Submit to recorded outcome: N no-op jobs, from the first submit until Postgres has committed the last outcome.

python -m benchmarks.lifecycle --json
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

POLL_S = 0.02  # how much later than it happened the end is seen, at most
TIMEOUT_S = 600.0


async def one_run(made: Cluster, jobs: int) -> tuple[float, float]:
    """Jobs per second: submitted, and submitted to recorded outcome."""
    db = await asyncpg.connect(made.dsn)
    try:
        await until_ready(made, db)
        before = await db.fetchval("select count(*) from jobmaster.job")
        async with made.client() as client:
            rows = ({"to": "x@example.com", "n": 1} for _ in range(jobs))
            started = time.perf_counter()
            receipts = await client.submit_many(noop.jobs(rows))
            queued = time.perf_counter()
            assert len(receipts) == jobs
            ended = await until_recorded(made, client, db, before + jobs)
    finally:
        await db.close()
    return jobs / (queued - started), jobs / (ended - started)


async def until_recorded(made: Cluster, client: Any, db: asyncpg.Connection, total: int) -> float:
    """Poll cheaply: the streams first, and only when they are empty the table.

    Returns:
        When (``perf_counter``) nothing was seen to be left to do. That all jobs are there is counted after that: to
        count them is the check's work, and takes the longer the more rounds have filled the table.
    """
    deadline = time.monotonic() + TIMEOUT_S
    streams = (client.names.pending_stream, client.names.events_stream)
    while time.monotonic() < deadline:
        if all([not (await client.link.js.stream_info(name)).state.messages for name in streams]):
            unfinished = await db.fetchval("select exists(select from jobmaster.job where status in (1, 2, 3))")
            emptied = time.perf_counter()
            if not unfinished and await db.fetchval("select count(*) from jobmaster.job where status = 4") >= total:
                return emptied
        made.check_alive()
        await asyncio.sleep(POLL_S)
    raise SystemExit("not all jobs were recorded in time")


async def check_replicas(made: Cluster) -> None:
    """Streams and KVs, and those of the worker's buckets."""
    db = await asyncpg.connect(made.dsn)
    await until_ready(made, db)
    await db.close()
    async with made.client() as client:
        for info in await client.link.js.streams_info():
            assert info.config.num_replicas == made.replicas, f"{info.config.name} is not replicated"


async def run(made: Cluster, jobs: int, rounds: int) -> dict[str, Any]:
    """A and B in turn, medians of the rounds."""
    if made.replicas > 1:
        await check_replicas(made)
    bare: list[dict[str, Any]] = []
    ours: list[tuple[float, float]] = []
    for _ in range(rounds):
        measured = await asyncio.to_thread(yardstick.measure, made, jobs=jobs)
        if measured is not None:
            bare.append(measured)
        ours.append(await one_run(made, jobs))
    limit = report.median([m["lifecycle_per_s"] for m in bare]) if bare else None
    value = report.median([lifecycle for _, lifecycle in ours])
    return {
        "value": round(value),
        "unit": "jobs/s",
        "yardstick": limit,
        "ratio": report.ratio(value, limit),
        "jobs": jobs,
        "rounds": rounds,
        "nats_nodes": len(made.nats_urls),
        "replicas": made.replicas,
        "all": [round(lifecycle) for _, lifecycle in ours],
        "all_yardstick": [m["lifecycle_per_s"] for m in bare],
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--nats-nodes", type=int, default=1, help="NATS servers; with 3 all streams have 3 replicas")
    options = report.arguments(parser)
    with cluster(workers=options.workers, nats_nodes=options.nats_nodes) as made:
        result = uvloop.run(run(made, options.jobs, options.rounds))
    title, bound = ("lifecycle", 0.85) if options.nats_nodes == 1 else ("lifecycle-nodes", 0.8)
    report.show(title, result, options, at_least={"ratio": bound})


if __name__ == "__main__":
    main()
