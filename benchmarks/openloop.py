"""A steady load that waits for nobody: its own process, so that it shares no event loop with what it measures.

python -m benchmarks.openloop --per-s 5000 --for-s 10

Jobs arrive in bursts, one every 5 ms, at instants that are fixed beforehand: a burst that is sent late, because the
machine was busy or an earlier one has no receipt yet, still counts from when it should have come (no coordinated
omission). Each burst is one ``submit_many``, not awaited before the next. A job carries its instant, in microseconds
since the epoch, as argument ``n``; so the latency of every job can be read from Postgres.

Prints one JSON object: first and last instant, jobs, and how late the bursts left.
"""

import argparse
import asyncio
import gc
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import uvloop

from benchmarks.app import noop
from benchmarks.report import percentile
from jm_nats import JobClient, NatsConfig

TICK_S = 0.005
HEAD_START_S = 0.2


def bursts(per_s: float, for_s: float, tick_s: float = TICK_S) -> Iterator[tuple[float, int]]:
    """When, in seconds from the start, and how many: ``per_s`` over any stretch, to less than one job."""
    sent = 0
    for number in range(1, round(for_s / tick_s) + 1):
        due = int(per_s * number * tick_s + 1e-6)
        if due > sent:
            yield (number - 1) * tick_s, due - sent
        sent = due


async def load(client: JobClient, plan: Sequence[tuple[float, int]]) -> dict[str, Any]:
    async def burst(at_us: int, count: int) -> int:
        row = {"to": "x@example.com", "n": at_us}
        return len(await client.submit_many(noop.jobs(row for _ in range(count))))

    late_ms: list[float] = []
    tasks: list[asyncio.Task[int]] = []
    start_s = time.time() + HEAD_START_S
    for offset_s, count in plan:
        at_s = start_s + offset_s
        if (wait_s := at_s - time.time()) > 0:
            await asyncio.sleep(wait_s)
        late_ms.append((time.time() - at_s) * 1000)
        tasks.append(asyncio.create_task(burst(int(at_s * 1e6), count)))
    queued = sum(await asyncio.gather(*tasks))
    ended_s = time.time()
    return {
        "first_us": int(start_s * 1e6),
        "last_us": int((start_s + plan[-1][0]) * 1e6),
        "jobs": queued,
        "late_p50_ms": round(percentile(late_ms, 0.5), 2),
        "late_p99_ms": round(percentile(late_ms, 0.99), 2),
        "behind_ms": round((ended_s - start_s - plan[-1][0]) * 1000, 1),  # the last receipts came so long after
    }


async def run(per_s: float, for_s: float) -> dict[str, Any]:
    plan = list(bursts(per_s, for_s))
    servers = tuple(os.environ["JM_NATS_URL"].split(","))
    async with JobClient(os.environ["JM_CLUSTER"], NatsConfig(servers=servers)) as client:
        gc.freeze()
        found = await load(client, plan)
    planned = sum(count for _, count in plan)
    assert found["jobs"] == planned, f"{found['jobs']} receipts for {planned} jobs"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-s", type=float, required=True)
    parser.add_argument("--for-s", type=float, required=True)
    options = parser.parse_args()
    print(json.dumps(uvloop.run(run(options.per_s, options.for_s))))


if __name__ == "__main__":
    main()
