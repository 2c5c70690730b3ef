"""From submit to the start of the handler: lone jobs at 100/s, and under loads that are shares of the lifecycle rate.

python -m benchmarks.latency --json

At 100/s, in turn with the yardstick's own measure of the same: single submits, awaited. Under load, by
``benchmarks.openloop`` in a process of its own: bursts every 5 ms that wait for nobody, counted from the instant at
which each should have been submitted. The rate that they are shares of is measured first, in the same run.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import asyncpg
import uvloop

from benchmarks import lifecycle, report, yardstick
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, until_ready

TIMEOUT_S = 120.0
POLL_S = 0.2
STARTED = """
select id::text, extract(epoch from started_at)::float8 from jobmaster.job where id = any($1::uuid[]) and status = 4
"""
# Of the jobs of one load, which carry their instant: how many succeeded, at the first attempt, how long it took, and
# which leg of it took how long (99 of 100 jobs; the legs of one job add up to its time, their percentiles do not).
UNDER_LOAD = """
with job as (
    select status, attempt, extract(epoch from started_at) * 1e3 - n / 1e3 as ms,
           extract(epoch from queued_at) * 1e3 - n / 1e3 as stored,
           extract(epoch from recorded_at - queued_at) * 1e3 as transaction,
           extract(epoch from started_at - recorded_at) * 1e3 as start
      from (select *, (args->>'n')::bigint as n from jobmaster.job) as j where n between $1 and $2
)
select count(*) as jobs, count(*) filter (where status = 4 and attempt = 1) as once,
       percentile_disc(array[0.5, 0.9, 0.99, 0.999, 1.0]) within group (order by ms)::float8[] as ms,
       array[percentile_disc(0.99) within group (order by stored),
             percentile_disc(0.99) within group (order by transaction),
             percentile_disc(0.99) within group (order by start)]::float8[] as legs
  from job
"""
LEGS = ("stored", "transaction", "start")
LOADS = {"half": 0.5, "most": 0.8}


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
        await asyncio.sleep(POLL_S)
    raise SystemExit("not all jobs ran in time")


async def under_load(made: Cluster, per_s: float, for_s: float) -> dict[str, Any]:
    """Percentiles of one load, in milliseconds."""
    load = await asyncio.to_thread(generate, made, per_s, for_s)
    db = await asyncpg.connect(made.dsn)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while await db.fetchval("select exists(select from jobmaster.job where status in (1, 2, 3))"):
            made.check_alive()
            if time.monotonic() > deadline:
                raise SystemExit("not all jobs ran in time")
            await asyncio.sleep(POLL_S)
        found = await db.fetchrow(UNDER_LOAD, load["first_us"], load["last_us"])
    finally:
        await db.close()
    assert found["jobs"] == found["once"] == load["jobs"], f"{dict(found)} of {load}"
    names = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")
    times = {name: round(value, 2) for name, value in zip(names, found["ms"], strict=True)}
    legs = {name: round(value, 2) for name, value in zip(LEGS, found["legs"], strict=True)}
    return {
        "per_s": round(per_s),
        **times,
        "p99_of_legs_ms": legs,
        **{key: load[key] for key in ("jobs", "late_p99_ms", "behind_ms")},
    }


def generate(made: Cluster, per_s: float, for_s: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.openloop", "--per-s", str(per_s), "--for-s", str(for_s)]
    done = subprocess.run(command, env=made.environment(), stdout=subprocess.PIPE, check=True, text=True)
    load: dict[str, Any] = json.loads(done.stdout)
    return load


async def lone(made: Cluster, jobs: int, per_s: float, rounds: int) -> dict[str, Any]:
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
    }


async def loaded(made: Cluster, jobs: int, for_s: float, rounds: int) -> dict[str, Any]:
    """The lifecycle rate, then each share of it, in turn."""
    rates = [(await lifecycle.one_run(made, jobs))[1] for _ in range(rounds)]
    rate = report.median(rates)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in LOADS}
    for _ in range(rounds):
        for name, share in LOADS.items():
            runs[name].append(await under_load(made, share * rate, for_s))
    return {
        **{f"p99_{name}_ms": report.median([found["p99_ms"] for found in runs[name]]) for name in LOADS},
        **{f"p50_{name}_ms": report.median([found["p50_ms"] for found in runs[name]]) for name in LOADS},
        "lifecycle_per_s": round(rate),
        "all_lifecycle_per_s": [round(value) for value in rates],
        "for_s": for_s,
        "all_loads": runs,
    }


async def run(made: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    result = await lone(made, options.jobs, options.per_s, options.rounds)
    if options.for_s:
        result |= await loaded(made, options.lifecycle_jobs, options.for_s, options.rounds)
    return {**result, **await report.stamp(made)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--per-s", type=float, default=100.0)
    parser.add_argument("--for-s", type=float, default=15.0, help="each load's length; 0: none, only --per-s")
    parser.add_argument("--lifecycle-jobs", type=int, default=100_000, help="to measure what the loads are shares of")
    parser.add_argument("--rounds", type=int, default=3)
    options = report.arguments(parser)
    with cluster() as made:
        result = uvloop.run(run(made, options))
    at_most = {"ratio_p50": 1.1, "ratio_p99": 1.3}
    if options.for_s:
        at_most |= {"p99_half_ms": 15.0, "p99_most_ms": 50.0}
    report.show("latency", result, options, at_most=at_most)


if __name__ == "__main__":
    main()
