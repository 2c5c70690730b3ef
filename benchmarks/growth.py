"""Five million jobs through one table with retention on: what Postgres writes for each, and whether it stays that fast.

python -m benchmarks.growth --json

As many no-op jobs as go through with a bounded backlog, under the shortest retention there is, so that jobs are removed
while others come. The table begins as if that had gone on for a while: it holds what ended in the last ``OLD_S`` at the
lifecycle rate measured before, a part of which is to be removed at once. Sampled on the way: throughput, size of the
table and its indexes, dead rows, WAL. ``ratio`` is the throughput of the last tenth of the jobs by that of the first.
The table is bounded when its peak in the second half is not above that of the first by more than ``GROWTH_MAX``: it
holds a retention's jobs and what has been removed since autovacuum came last, which is once a minute at most, so its
size swings. Where nothing is removed or used again, five million jobs make it grow by more.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import uvloop

from benchmarks import report
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.rates import lifecycle_per_s
from jm_nats import JobClient

GROWTH_MAX = 1.25
KEEP = "60s"
OLD_S = 90.0  # a retention, and half of one that the sweep may be late
SAMPLE_S = 1.0
TIMEOUT_S = 600.0
SHOW_SAMPLES = 20
CHUNK = 10_000  # jobs submitted between two looks at the backlog
BACKLOG_POLL_S = 0.05
MESSAGE_JOBS = 200  # of ours in the front door
SAMPLE = """
select pg_current_wal_lsn() - '0/0'::pg_lsn as wal_bytes, pg_relation_size(c.oid) as table_bytes,
       pg_indexes_size(c.oid) as index_bytes, s.n_live_tup as live, s.n_dead_tup as dead, s.n_tup_upd as updated,
       s.n_tup_hot_upd as hot, s.n_tup_del as deleted, s.autovacuum_count as vacuums
  from pg_class as c join pg_stat_user_tables as s on s.relid = c.oid where c.oid = 'jobmaster.job'::regclass
"""
OLD = """
insert into jobmaster.job (id, handler, args, status, priority, lane, run_at, attempt, max_attempts, dispatch,
                           timeout_s, queued_at, recorded_at, started_at, finished_at, worker_id, bucket_id)
select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
        || substr(md5(n::text), 4, 15))::uuid,
       'noop', '{"n": 1}', 4, 3, 'default', at, 1, 4, 1, 300, at, at, at, at, 'host-4711-1a2b3c4d', 'b-019acd3b'
  from (select n, now() - (1 - n / $1::float8) * $2::float8 * interval '1 second' as at
          from generate_series(0, $1::int - 1) as n) as u
"""
UNFINISHED = "select count(*) from jobmaster.job where status = 1 or status in (2, 3)"
REMOVED = "select coalesce(sum(removed), 0)::bigint from jobmaster.retention where kind = 'succeeded'"
# Of one moment: a job is removed and counted by one transaction.
ENDED = """
select (select count(*) from jobmaster.job where status = 4)
     + (select coalesce(sum(removed), 0)::bigint from jobmaster.retention where kind = 'succeeded')
"""


@dataclass(frozen=True)
class Sample:
    """Of the table, ``at_s`` seconds after the first submit, when ``recorded`` outcomes were."""

    at_s: float
    recorded: int
    table: dict[str, int]


async def table_now(db: asyncpg.Connection) -> dict[str, int]:
    row = await db.fetchrow(SAMPLE)
    assert row is not None
    return {key: int(value) for key, value in row.items()}


class Load:
    """Submits all jobs, but never more than ``backlog`` ahead of what has been recorded."""

    def __init__(self, made: Cluster, client: JobClient, db: asyncpg.Connection, *, jobs: int, backlog: int) -> None:
        self.samples: list[Sample] = []
        self._made = made
        self._client = client
        self._db = db
        self._jobs = jobs
        self._backlog = backlog
        self._submitted = 0
        self._began_s = time.perf_counter()

    async def run(self) -> None:
        while self._submitted < self._jobs:
            count = min(CHUNK, self._jobs - self._submitted)
            async for receipts in self._client.submit_stream(noop.jobs({"n": n} for n in range(count))):
                self._submitted += len(receipts)
            await self._until_at_most(self._backlog)
        await self._until_at_most(0)

    async def _until_at_most(self, count: int) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while await self.unfinished() > count:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"more than {count} jobs are still not recorded")
            await asyncio.sleep(BACKLOG_POLL_S)

    async def unfinished(self) -> int:
        """Submitted and not recorded as ended; notes a sample now and then."""
        self._made.check_alive()
        stream = await self._client.link.js.stream_info(self._client.names.pending_stream)
        left = MESSAGE_JOBS * int(stream.state.messages) + int(await self._db.fetchval(UNFINISHED))
        at_s = time.perf_counter() - self._began_s
        if not left or not self.samples or at_s - self.samples[-1].at_s >= SAMPLE_S:
            self.samples.append(Sample(at_s, self._submitted - left, await table_now(self._db)))
            if len(self.samples) % SHOW_SAMPLES == 0:
                report.progress(self.samples[-1])
        return left


def reached_s(samples: Sequence[Sample], recorded: float) -> float:
    """When so many outcomes were recorded, between two samples in proportion."""
    before = Sample(0.0, 0, {})
    for found in samples:
        if found.recorded >= recorded:
            share = (recorded - before.recorded) / max(1, found.recorded - before.recorded)
            return before.at_s + share * (found.at_s - before.at_s)
        before = found
    raise SystemExit(f"{recorded:.0f} outcomes were never recorded")


def tenth_per_s(samples: Sequence[Sample], jobs: int, tenth: int) -> float:
    """Throughput of the tenth number ``tenth`` (0 to 9) of the jobs."""
    elapsed_s = reached_s(samples, jobs * (tenth + 1) / 10) - reached_s(samples, jobs * tenth / 10)
    return jobs / 10 / elapsed_s


def growth(samples: Sequence[Sample], key: str) -> float:
    """Peak in the second half of the time by the peak in the first."""
    half_s = samples[-1].at_s / 2
    peaks = [max(found.table[key] for found in samples if (found.at_s > half_s) is late) for late in (False, True)]
    return round(peaks[1] / peaks[0], 3)


async def plain(made: Cluster, db: asyncpg.Connection, jobs: int) -> dict[str, Any]:
    """A lifecycle of jobs that are due at once: bytes of WAL and dead rows that each leaves behind."""
    await db.execute("vacuum jobmaster.job")
    await db.execute("checkpoint")
    before = await table_now(db)
    per_s = await lifecycle_per_s(made, db, jobs)
    wal_bytes = (await table_now(db))["wal_bytes"] - before["wal_bytes"]
    after, deadline_s = before, time.monotonic() + TIMEOUT_S
    while after["updated"] - before["updated"] < jobs:  # an idle session tells its counts after some seconds
        if time.monotonic() > deadline_s:
            raise SystemExit("Postgres does not tell of the updates")
        await asyncio.sleep(SAMPLE_S)
        after = await table_now(db)
    updated = after["updated"] - before["updated"]
    return {
        "wal_bytes_per_job": round(wal_bytes / jobs),
        "dead_rows_per_job": round((updated + after["deleted"] - before["deleted"]) / jobs, 2),
        "hot_share": round((after["hot"] - before["hot"]) / max(1, updated), 2),
        "jobs_per_s": round(per_s),
    }


async def begin_old(made: Cluster, db: asyncpg.Connection, rows: int) -> None:
    """What ended lately, and a coordinator that finds it there and removes from now on."""
    await asyncio.to_thread(made.stop, "coordinator")
    await db.execute(OLD, rows, OLD_S)
    await db.execute("vacuum analyze jobmaster.job")
    await db.execute("checkpoint")
    os.environ["JM_RETENTION"] = KEEP
    made.start_coordinator()
    await until_ready(made, db)
    report.progress(f"{rows} ended jobs are there")


async def run(made: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    db = await asyncpg.connect(made.dsn, command_timeout=600)
    try:
        await db.execute("set enable_seqscan = off")
        await until_ready(made, db)
        await lifecycle_per_s(made, db, options.plain_jobs // 10)  # warm
        alone = [await plain(made, db, options.plain_jobs) for _ in range(options.rounds)]
        report.progress(alone)
        old = round(OLD_S * report.median([found["jobs_per_s"] for found in alone]))
        await begin_old(made, db, min(old, options.jobs))
        ended_before = await db.fetchval(ENDED)
        before = await table_now(db)
        async with made.client() as client:
            load = Load(made, client, db, jobs=options.jobs, backlog=options.backlog)
            await load.run()
        samples, after = load.samples, await table_now(db)
        removed = await db.fetchval(REMOVED)
        ended = await db.fetchval(ENDED) - ended_before
        if ended != options.jobs:
            raise SystemExit(f"{ended} jobs ended, {options.jobs} were submitted")
    finally:
        await db.close()
    tenths = [round(tenth_per_s(samples, options.jobs, tenth)) for tenth in range(10)]
    return {
        "value": round((after["wal_bytes"] - before["wal_bytes"]) / options.jobs),
        "unit": "bytes of WAL a job, with retention on",
        "yardstick": None,
        "ratio": report.ratio(tenths[-1], tenths[0]),
        "tenths_per_s": tenths,
        "plain": alone,
        "removed": removed,
        "table_growth": growth(samples, "table_bytes"),
        "index_growth": growth(samples, "index_bytes"),
        "table_mib": [round(found.table["table_bytes"] / 2**20) for found in thinned(samples)],
        "index_mib": [round(found.table["index_bytes"] / 2**20) for found in thinned(samples)],
        "dead_rows": [found.table["dead"] for found in thinned(samples)],
        "vacuums": after["vacuums"],
        "jobs": options.jobs,
        "old_jobs": min(old, options.jobs),
        "backlog": options.backlog,
        "retention": KEEP,
        **await report.stamp(made),
    }


def thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    """About ten of them, from the first to the last."""
    return [samples[round(place * (len(samples) - 1) / 10)] for place in range(11)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000_000)
    parser.add_argument("--plain-jobs", type=int, default=100_000)
    parser.add_argument("--backlog", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3, help="of the plain lifecycle")
    options = report.arguments(parser)
    with cluster() as made:
        result = uvloop.run(run(made, options))
    bounds = {"table_growth": GROWTH_MAX, "index_growth": GROWTH_MAX}
    report.show("growth", result, options, at_least={"ratio": 0.9}, at_most=bounds)


if __name__ == "__main__":
    main()
