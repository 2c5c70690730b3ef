"""The lifecycle rate of a cluster whose table is not empty: for benchmarks that set something beside it."""

import asyncio
import time
from datetime import datetime

import asyncpg

from benchmarks.app import noop
from benchmarks.cluster import Cluster
from jm_nats import JobClient

POLL_S = 0.05
TIMEOUT_S = 1_800.0
# What is under way or due. By index alone: neither future jobs nor ended ones are read.
BUSY = """
select exists(select from jobmaster.job where status in (2, 3) and run_at <= now())
    or exists(select from jobmaster.job where status = 1 and lane = 'default' and priority = 3 and handler = 'noop'
                                          and run_at <= now())
"""
ENDED_ONCE = """
select count(*) from jobmaster.job where queued_at >= $1 and status = 4 and attempt = 1 and started_at >= run_at
"""


async def clock(db: asyncpg.Connection) -> datetime:
    now: datetime = await db.fetchval("select clock_timestamp()")
    return now


async def lifecycle_per_s(made: Cluster, db: asyncpg.Connection, jobs: int) -> float:
    """Jobs per second, from the first submit of no-op jobs that are due at once to the last recorded outcome."""
    began = await clock(db)
    async with made.client() as client:
        rows = ({"to": "x@example.com", "n": 1} for _ in range(jobs))
        started_s = time.perf_counter()
        receipts = await client.submit_many(noop.jobs(rows))
        assert len(receipts) == jobs
        await until_quiet(made, client, db)
        elapsed_s = time.perf_counter() - started_s
    ended = await db.fetchval(ENDED_ONCE, began)
    if ended != jobs:
        raise SystemExit(f"{ended} of {jobs} jobs ended once")
    return jobs / elapsed_s


async def until_quiet(made: Cluster, client: JobClient, db: asyncpg.Connection) -> None:
    """Until nothing is queued, and nothing that is due is without a recorded outcome."""
    deadline_s = time.monotonic() + TIMEOUT_S
    streams = (client.names.pending_stream, client.names.events_stream)
    while time.monotonic() < deadline_s:
        lying = [(await client.link.js.stream_info(name)).state.messages for name in streams]
        if not any(lying) and not await db.fetchval(BUSY):
            return
        made.check_alive()
        await asyncio.sleep(POLL_S)
    raise SystemExit("not all jobs were recorded in time")
