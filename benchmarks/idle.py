"""What an idle cluster costs: a coordinator and five workers with 25 buckets, and nothing to do.

python -m benchmarks.idle --json
"""

import argparse
import asyncio
import time
from typing import Any

import asyncpg
import uvloop

from benchmarks import report
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.procstat import cpu_s

WORKERS = 5


async def stored_bytes(made: Cluster, db: asyncpg.Connection) -> dict[str, int]:
    """What NATS and Postgres keep."""
    async with made.client() as client:
        streams = await client.link.js.streams_info()
        return {
            "nats": sum(info.state.bytes for info in streams),
            "nats_messages": sum(info.state.messages for info in streams),
            "buckets": sum("_B_" in (info.config.name or "") for info in streams),
            "postgres": int(await db.fetchval("select pg_database_size(current_database())")),
        }


async def run(made: Cluster, seconds: float) -> dict[str, Any]:
    db = await asyncpg.connect(made.dsn)
    try:
        await until_ready(made, db)
        await asyncio.sleep(5)  # what a start leaves behind: first listings, first heartbeats
        pids = {name: process.pid for name, process in made.processes.items()}
        before, stored, started = cpu_s(pids), await stored_bytes(made, db), time.monotonic()
        await asyncio.sleep(seconds)
        elapsed = time.monotonic() - started
        after, kept = cpu_s(pids), await stored_bytes(made, db)
    finally:
        await db.close()
    share = {name: round(100 * (after[name] - before[name]) / elapsed, 2) for name in pids}
    return {
        "value": round(sum(share.values()), 2),
        "unit": "% of one core, coordinator and workers together",
        "yardstick": None,
        "ratio": None,
        "busiest": max(share.values()),
        "per_process": share,
        "buckets": kept["buckets"],
        "growth_bytes": {name: kept[name] - stored[name] for name in ("nats", "nats_messages", "postgres")},
        "seconds": seconds,
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = report.arguments(parser)
    with cluster(workers=WORKERS) as made:
        result = uvloop.run(run(made, options.seconds))
    report.show("idle", result, options, at_most={"busiest": 1.0})


if __name__ == "__main__":
    main()
