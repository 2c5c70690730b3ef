"""One job a message, as clients without a library of ours send it, from the first publish to the last recorded outcome.

python -m benchmarks.foreign --json

The sender is nats.py alone: plain JSON of one job on the cluster's submit subject, ``publish_async`` with 4,000
messages in flight, just as the yardstick sends with ``--per-message 1``.
"""

import argparse
import asyncio
import time
from typing import Any

import asyncpg
import msgspec
import nats
import uuid_utils
import uvloop

from benchmarks import report, yardstick
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.lifecycle import POLL_S, TIMEOUT_S, until_recorded

IN_FLIGHT_MAX = 4_000
PENDING_BYTES_MAX = 64 << 20
UNFINISHED = "select exists(select from jobmaster.job where status in (1, 2, 3))"
SUCCEEDED = "select count(*) from jobmaster.job where status = 4"


def message() -> bytes:
    return msgspec.json.encode(
        {"id": str(uuid_utils.uuid7()), "handler": "noop", "args": {"to": "x@example.com", "n": 1}}
    )


async def send(made: Cluster, subject: str, jobs: int) -> None:
    """Return when NATS has stored every one of them."""
    connection = await nats.connect(made.nats.url, pending_size=PENDING_BYTES_MAX)
    stream = connection.jetstream(publish_async_max_pending=IN_FLIGHT_MAX)
    acks = [await stream.publish_async(subject, message()) for _ in range(jobs)]
    await asyncio.gather(*acks)
    await connection.close()


async def one_run(made: Cluster, jobs: int) -> tuple[float, float]:
    """Jobs per second: submitted, and submitted to recorded outcome."""
    db = await asyncpg.connect(made.dsn)
    try:
        await until_ready(made, db)
        before = await db.fetchval("select count(*) from jobmaster.job")
        async with made.client() as client:
            started = time.perf_counter()
            await send(made, client.names.submit, jobs)
            queued = time.perf_counter()
            await until_committed(made, db, before + jobs)
            ended = time.perf_counter()
            await until_recorded(made, client, db, before + jobs)  # NATS takes its time over as many acks
        after = await db.fetchval("select count(*) from jobmaster.job")
        assert after == before + jobs, f"{after - before} jobs of {jobs}"
    finally:
        await db.close()
    return jobs / (queued - started), jobs / (ended - started)


async def until_committed(made: Cluster, db: asyncpg.Connection, total: int) -> None:
    """Until Postgres has the outcomes, which is where the yardstick stops its watch, too."""
    deadline = time.monotonic() + TIMEOUT_S
    while await db.fetchval(UNFINISHED) or await db.fetchval(SUCCEEDED) < total:
        made.check_alive()
        if time.monotonic() > deadline:
            raise SystemExit("not all jobs were recorded in time")
        await asyncio.sleep(POLL_S)


async def run(made: Cluster, jobs: int, rounds: int) -> dict[str, Any]:
    """A and B in turn, medians of the rounds."""
    bare: list[dict[str, Any]] = []
    ours: list[tuple[float, float]] = []
    for _ in range(rounds):
        measured = await asyncio.to_thread(yardstick.measure, made, jobs=jobs, per_message=1)
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
        "queued_per_s": round(report.median([queued for queued, _ in ours])),
        "jobs": jobs,
        "rounds": rounds,
        "all": [round(lifecycle) for _, lifecycle in ours],
        "all_yardstick": [m["lifecycle_per_s"] for m in bare],
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = report.arguments(parser)
    with cluster() as made:
        result = uvloop.run(run(made, options.jobs, options.rounds))
    report.show("foreign", result, options, at_least={"ratio": 0.85})


if __name__ == "__main__":
    main()
