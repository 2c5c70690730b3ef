"""Due times: N jobs due at random instants of the same minute, submitted ahead; how late (never early) they start.

python -m benchmarks.due --json

They wait in buckets as scheduled messages, and on the master where those are full, until they are due. Slots are free:
what is late is late by the way of the jobs through the system, not by a queue.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import uvloop

from benchmarks import report
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.procstat import cpu_s

TIMEOUT_S = 120.0
POLL_S = 0.5
COUNT = "select count(*) from jobmaster.job where queued_at >= $1"
UNFINISHED = "select exists(select from jobmaster.job where status in (1, 2, 3))"
ROWS = """
select id::text, status, attempt, extract(epoch from started_at)::float8 as started_at
  from jobmaster.job where queued_at >= $1
"""


def jobs_due(
    jobs: int, *, since: datetime, window_s: float, rng: random.Random, due: dict[str, float]
) -> Iterator[Any]:
    """Jobs due at random instants of the window; ``due`` is told which when."""
    for _ in range(jobs):
        job = noop.job({}, run_at=since + timedelta(seconds=rng.uniform(0.0, window_s)))
        assert job.run_at is not None
        due[job.id or ""] = job.run_at.timestamp()
        yield job


async def one_round(
    made: Cluster, db: asyncpg.Connection, options: argparse.Namespace, rng: random.Random
) -> dict[str, Any]:
    began = await db.fetchval("select clock_timestamp()")
    since = datetime.now(UTC) + timedelta(seconds=options.ahead_s)
    due: dict[str, float] = {}
    async with made.client() as client:
        wanted = jobs_due(options.jobs, since=since, window_s=options.window_s, rng=rng, due=due)
        await client.submit_many(wanted)
    while (saved := await db.fetchval(COUNT, began)) < options.jobs:
        made.check_alive()
        if datetime.now(UTC) > since:
            found = f"{saved} of {options.jobs} jobs were recorded when the first were due"
            raise SystemExit(f"{found}: --ahead-s is too short")
        await asyncio.sleep(POLL_S)
    in_buckets = await db.fetchval(f"{COUNT} and status = 2", began)
    await asyncio.sleep(max(0.0, (since - datetime.now(UTC)).total_seconds()))
    pids = {name: process.pid for name, process in made.processes.items()}
    before = cpu_s(pids)
    await asyncio.sleep(options.window_s)
    used = {name: (cpu - before[name]) / options.window_s for name, cpu in cpu_s(pids).items()}
    until_s = time.monotonic() + TIMEOUT_S
    while await db.fetchval(UNFINISHED):
        made.check_alive()
        if time.monotonic() > until_s:
            raise SystemExit("not all jobs ran in time")
        await asyncio.sleep(POLL_S)
    rows = {row["id"]: row for row in await db.fetch(ROWS, began)}
    if rows.keys() != due.keys() or any(row["status"] != 4 or row["attempt"] != 1 for row in rows.values()):
        raise SystemExit("not every job ran once")
    late_ms = [(rows[job_id]["started_at"] - at) * 1000 for job_id, at in due.items()]
    return {
        "p50_ms": round(report.percentile(late_ms, 0.5), 2),
        "p99_ms": round(report.percentile(late_ms, 0.99), 2),
        "p999_ms": round(report.percentile(late_ms, 0.999), 2),
        "max_ms": round(max(late_ms), 2),
        "earliest_ms": round(min(late_ms), 3),
        "early": sum(1 for late in late_ms if late < 0),
        "in_buckets_ahead": in_buckets,
        "cores_used": {name: round(share, 3) for name, share in used.items()},
    }


async def run(made: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(options.seed)
    db = await asyncpg.connect(made.dsn)
    rounds = []
    try:
        await until_ready(made, db)
        for _ in range(options.rounds):
            rounds.append(await one_round(made, db, options, rng))
            report.progress(rounds[-1])
    finally:
        await db.close()
    p99_ms = report.median([found["p99_ms"] for found in rounds])
    return {
        "value": round(p99_ms, 2),
        "unit": "ms late, p99",
        "yardstick": None,
        "ratio": None,
        "p50_ms": round(report.median([found["p50_ms"] for found in rounds]), 2),
        "p99_ms": round(p99_ms, 2),
        "max_ms": max(found["max_ms"] for found in rounds),
        "earliest_ms": min(found["earliest_ms"] for found in rounds),
        "early": sum(found["early"] for found in rounds),
        "all": rounds,
        "jobs": options.jobs,
        "ahead_s": options.ahead_s,
        "window_s": options.window_s,
        "rounds": options.rounds,
        "seed": options.seed,
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--ahead-s", type=float, default=30.0, help="from the first submit to the minute's begin")
    parser.add_argument("--window-s", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = report.arguments(parser)
    with cluster() as made:
        result = uvloop.run(run(made, options))
    report.show("due", result, options, at_most={"p99_ms": 20.0, "early": 0})


if __name__ == "__main__":
    main()
