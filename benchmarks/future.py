"""Ten million future jobs waiting on the master: what they cost those that run now.

python -m benchmarks.future --json

Two clusters on the same two servers, each with a database of its own: in one of them the future jobs are filled in by
SQL and vacuumed as autovacuum would. The lifecycle is measured on both in turn. Then jobs come due on the full one, and
its coordinator tells by its metrics how long each pass of the assigner took.
"""

import argparse
import asyncio
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import asyncpg
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import report
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.rates import lifecycle_per_s

TICK_P99_S = 0.05
FILL_ROWS = 500_000  # of one statement
SETTLE_S = 10.0  # from the insert of what comes due to the first of it
FAR_S = 30 * 86_400
TIMEOUT_S = 120.0
# $1 to $2: what waits. Due in an hour to a month, in no order; ids of version 7 in the order of time.
FILL = """
insert into jobmaster.job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at)
select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - 100000000 + n), 12, '0') || '7'
        || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
       'noop', '{"to": "x@example.com", "n": 1}', 1, 3, 'default',
       now() + (3600 + (hashint8(n) & 2147483647) % $3::bigint) * interval '1 second', 4, 300, now()
  from generate_series($1::bigint, $2::bigint - 1) as n
"""
# $1 jobs, due at even distances within the seconds from $2 to $3 from now.
COMING = """
insert into jobmaster.job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at)
select gen_random_uuid(), 'noop', '{"n": -1}', 1, 3, 'default',
       now() + ($2::float8 + ($3::float8 - $2) * n / $1) * interval '1 second', 4, 300, now()
  from generate_series(0, $1::bigint - 1) as n
returning id
"""
LATE_MS = """
select extract(epoch from started_at - run_at)::float8 * 1000 from jobmaster.job
 where id = any($1::uuid[]) and status = 4 and attempt = 1
"""


async def fill(db: asyncpg.Connection, rows: int) -> float:
    """Seconds it took."""
    began_s = time.perf_counter()
    for first in range(0, rows, FILL_ROWS):
        await db.execute(FILL, first, min(first + FILL_ROWS, rows), FAR_S)
        report.progress(f"{min(first + FILL_ROWS, rows)} future jobs after {time.perf_counter() - began_s:.0f} s")
    await db.execute("vacuum analyze jobmaster.job")
    await db.execute("checkpoint")
    report.progress(f"vacuumed after {time.perf_counter() - began_s:.0f} s")
    return time.perf_counter() - began_s


class Ticks:
    """The coordinator's histogram of its assigner's passes."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    async def counts(self) -> dict[float, float]:
        """Passes by upper bound, cumulative."""
        text = await asyncio.to_thread(_read, self._url)
        counts: dict[float, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "jobmaster_assign_duration_seconds_bucket":
                    counts[float(sample.labels["le"])] = sample.value
        return counts


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own coordinator's
        return str(answer.read(), "utf-8")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bound_of(before: dict[float, float], after: dict[float, float], share: float) -> tuple[float, int]:
    """Upper bound of the bucket in which that share of the passes between the two looks ends; how many they were."""
    passes = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    total = passes[float("inf")]
    if not total:
        raise SystemExit("the assigner made no pass")
    return next(bound for bound, count in passes.items() if count >= share * total), int(total)


async def ticking(made: Cluster, db: asyncpg.Connection, per_s: float, for_s: float) -> dict[str, Any]:
    """Passes of the assigner, while jobs come due."""
    await asyncio.to_thread(made.stop, "coordinator")
    port = free_port()
    made.start_coordinator("--prometheus-port", str(port))
    await until_ready(made, db)
    ticks = Ticks(port)
    ids = [row[0] for row in await db.fetch(COMING, int(per_s * for_s), SETTLE_S, SETTLE_S + for_s)]
    await asyncio.sleep(SETTLE_S)
    before = await ticks.counts()
    await asyncio.sleep(for_s)
    after = await ticks.counts()
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(late := [row[0] for row in await db.fetch(LATE_MS, ids)]) < len(ids):
        made.check_alive()
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{len(late)} of {len(ids)} jobs that came due ran once")
        await asyncio.sleep(0.5)
    bound_s, passes = bound_of(before, after, 0.99)
    return {
        "tick_p99_ms": bound_s * 1000,
        "ticks": passes,
        "tick_p50_ms": bound_of(before, after, 0.5)[0] * 1000,
        "due_p99_late_ms": round(report.percentile(late, 0.99), 2),
        "due_earliest_ms": round(min(late), 3),
        "due_early": sum(1 for value in late if value < 0),
    }


async def run(empty: Cluster, full: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"empty": [], "full": []}
    db_empty = await asyncpg.connect(empty.dsn, command_timeout=1_800)
    db_full = await asyncpg.connect(full.dsn, command_timeout=1_800)
    try:
        fill_s = await fill(db_full, options.waiting)
        for made, db in ((empty, db_empty), (full, db_full)):
            made.start_coordinator()
            made.start_worker()
            await until_ready(made, db)
            await lifecycle_per_s(made, db, options.jobs // 10)  # warm
        for _ in range(options.rounds):
            for name, made, db in (("empty", empty, db_empty), ("full", full, db_full)):
                rates[name].append(await lifecycle_per_s(made, db, options.jobs))
                report.progress(f"{name}: {rates[name][-1]:.0f} jobs/s")
        ticks = await ticking(full, db_full, options.due_per_s, options.for_s)
        size = await db_full.fetchval("select pg_total_relation_size('jobmaster.job') / 1048576")
    finally:
        await db_empty.close()
        await db_full.close()
    medians = {name: report.median(values) for name, values in rates.items()}
    return {
        "value": round(medians["full"]),
        "unit": "jobs/s",
        "empty_per_s": round(medians["empty"]),
        "yardstick": None,
        "ratio": report.ratio(medians["full"], medians["empty"]),
        **ticks,
        "due_per_s": options.due_per_s,
        "all": {name: [round(value) for value in values] for name, values in rates.items()},
        "waiting": options.waiting,
        "fill_s": round(fill_s),
        "table_mib": size,
        "jobs": options.jobs,
        "rounds": options.rounds,
        **await report.stamp(full),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--due-per-s", type=float, default=500.0)
    parser.add_argument("--for-s", type=float, default=120.0, help="about a pass a second")
    options = report.arguments(parser)
    with cluster(coordinator=False, workers=0) as empty:
        logs = Path(empty.logs) / "full"
        logs.mkdir()
        full = Cluster(empty.nats, empty.postgres, logs, name="benchfull")
        full.dsn = empty.postgres.create_database("benchfull")
        full.migrate()
        try:
            result = uvloop.run(run(empty, full, options))
        finally:
            full.stop_all()
    bounds = {"tick_p99_ms": TICK_P99_S * 1000, "due_early": 0}
    report.show("future", result, options, at_least={"ratio": 0.9}, at_most=bounds)


if __name__ == "__main__":
    main()
