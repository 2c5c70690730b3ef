"""A million old jobs are removed under a steady load: what that costs those who submit meanwhile.

python -m benchmarks.retention --json

Rounds of a load without and with retention in turn, on one cluster (the coordinator is started anew for each), then
retention alone to its end. ``ratio`` is p99 with by p99 without, of submit to recorded: that which needs Postgres.
"""

import argparse
import asyncio
import os
import time
from typing import Any

import asyncpg
import uvloop

from benchmarks import report
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, until_ready

KEEP = "30d"
NEVER = "never"
WARM_S = 3.0
END_TIMEOUT_S = 1_800.0
# As a month leaves them: ids of version 7 in the order of time, one in ten failed after two attempts.
FILL = """
insert into jobmaster.job (id, handler, args, status, priority, lane, run_at, attempt, max_attempts, dispatch,
                           timeout_s, queued_at, recorded_at, started_at, finished_at, worker_id, bucket_id, result)
select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
        || substr(md5(n::text), 4, 15))::uuid,
       'noop', '{"to": "x@example.com", "n": 1}', case when n % 10 = 0 then 5 else 4 end, 3, 'default', at, 1, 4, 1,
       300, at, at, at, at, 'host-4711-1a2b3c4d', 'b-019acd3b', '{"ok": true}'
  from (select n, now() - interval '60 days' + n * interval '1 second' as at from generate_series(1, $1::int) as n) as u
"""
ATTEMPTS = """
insert into jobmaster.attempt (job_id, attempt, dispatch, outcome, worker_id, bucket_id, started_at, finished_at, error)
select j.id, d, d, 'failed', 'host-4711-1a2b3c4d', 'b-019acd3b', j.queued_at, j.queued_at, 'RuntimeError: no mailbox'
  from jobmaster.job as j cross join generate_series(1, 2) as d where j.status = 5
"""
OLD = "select count(*) from jobmaster.job where queued_at < now() - interval '40 days'"
ORPHANS = "select count(*) from jobmaster.attempt where job_id not in (select id from jobmaster.job)"
STATS = """
select n_live_tup as live, n_dead_tup as dead, autovacuum_count as vacuums,
       pg_relation_size(relid) / 1048576 as table_mib
  from pg_stat_user_tables where schemaname = 'jobmaster' and relname = 'job'
"""


async def load(made: Cluster, per_s: float, for_s: float) -> tuple[list[float], list[float]]:
    """Milliseconds of each submit at a steady rate: half of them up to ``queued``, half up to ``recorded``."""
    queued: list[float] = []
    recorded: list[float] = []

    async def one(number: int) -> None:
        job = noop.job({"to": "x@example.com", "n": number})
        wait, times = ("recorded", recorded) if number % 2 else ("queued", queued)
        began_s = time.perf_counter()
        await client.submit(job, wait=wait)
        if began_s - start_s > WARM_S:
            times.append((time.perf_counter() - began_s) * 1000)

    async with made.client() as client:
        start_s = time.perf_counter()
        tasks = []
        for number in range(int(per_s * for_s)):
            await asyncio.sleep(max(0.0, start_s + number / per_s - time.perf_counter()))
            tasks.append(asyncio.create_task(one(number)))
        await asyncio.gather(*tasks)
    return queued, recorded


async def led_by(made: Cluster, db: asyncpg.Connection, retention: str) -> None:
    """A coordinator with that retention, warm."""
    if "coordinator" in made.processes:
        await asyncio.to_thread(made.stop, "coordinator")
    os.environ["JM_RETENTION"] = retention
    made.start_coordinator()
    await until_ready(made, db)


async def run(made: Cluster, rows: int, per_s: float, for_s: float, rounds: int) -> dict[str, Any]:
    db = await asyncpg.connect(made.dsn, command_timeout=600)
    try:
        await db.execute(FILL, rows)
        await db.execute(ATTEMPTS)
        await db.execute("vacuum analyze jobmaster.job")
        measured: dict[str, list[list[float]]] = {NEVER: [], KEEP: []}
        queued: dict[str, list[float]] = {NEVER: [], KEEP: []}
        removed = 0
        for _ in range(rounds):
            for retention in (NEVER, KEEP):
                await led_by(made, db, retention)
                before = await db.fetchval(OLD)
                times = await load(made, per_s, for_s)
                removed += before - await db.fetchval(OLD)
                queued[retention].append(report.percentile(times[0], 0.99))
                measured[retention].append(times[1])
        under_load_s, left = rounds * for_s, await db.fetchval(OLD)
        during = dict(await db.fetchrow(STATS))
        began_s = time.monotonic()
        while await db.fetchval(OLD):
            made.check_alive()
            if time.monotonic() - began_s > END_TIMEOUT_S:
                raise SystemExit("retention did not come to its end in time")
            await asyncio.sleep(1.0)
        alone_s = time.monotonic() - began_s
        assert await db.fetchval(ORPHANS) == 0
        after = dict(await db.fetchrow(STATS))
    finally:
        await db.close()
    p99 = {kind: [report.percentile(times, 0.99) for times in rounds_] for kind, rounds_ in measured.items()}
    return {
        "value": round(report.median(p99[KEEP]), 2),
        "unit": "ms",
        "without_ms": round(report.median(p99[NEVER]), 2),
        "ratio": report.ratio(report.median(p99[KEEP]), report.median(p99[NEVER])),
        "ratio_queued": report.ratio(report.median(queued[KEEP]), report.median(queued[NEVER])),
        "p50_ms": [round(report.median([t for r in measured[kind] for t in r]), 2) for kind in (NEVER, KEEP)],
        "all_with_ms": [round(value, 2) for value in p99[KEEP]],
        "all_without_ms": [round(value, 2) for value in p99[NEVER]],
        "rows": rows,
        "per_s": per_s,
        "removed_under_load": removed,
        "removed_per_s_under_load": round(removed / under_load_s),
        "removed_per_s_alone": round(left / alone_s) if alone_s > 1 else None,
        "table_during": during,
        "table_after": after,
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--per-s", type=float, default=200.0)
    parser.add_argument("--for-s", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = report.arguments(parser)
    with cluster(coordinator=False) as made:
        result = uvloop.run(run(made, options.rows, options.per_s, options.for_s, options.rounds))
    report.show("retention", result, options, at_most={"ratio": 1.3})


if __name__ == "__main__":
    main()
