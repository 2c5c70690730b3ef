"""One, two and four worker processes, with handlers that wait 5 ms and handlers that compute 5 ms.

python -m benchmarks.scaling --json

``--processes`` of one ``jm worker``, and a backlog of several seconds that is submitted at once. Two figures a setting:
jobs a second, beside the most that slots (waiting) or cores (computing) allow; and which share of the slots' time was
in use while jobs waited, from every job's ``started_at`` and ``finished_at``. A timer of the event loop ends up to a
millisecond late, so slots that are all in use for waiting handlers give less than the most.
"""

import argparse
import asyncio
import os
import time
from typing import Any, NamedTuple

import asyncpg
import uvloop

from benchmarks import report
from benchmarks.app import sleep5, spin5
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.slot_usage import usage
from jm_nats.census import read_census
from jm_nats.handlers import Handler

TIMEOUT_S = 180.0
POLL_S = 0.1
HANDLER_S = 0.005
WARM_UP_S = 2.0  # of work, before the watch starts: connections, code, and the rate that a worker's credit follows
SPANS = """
select extract(epoch from started_at)::float8, extract(epoch from finished_at)::float8, worker_id
  from jobmaster.job where handler = $1 and status = 4 and id > $2
"""
LAST = "select coalesce(max(id::text), '00000000-0000-0000-0000-000000000000')::uuid from jobmaster.job"


class Kind(NamedTuple):
    """``slots`` of a process: for waiting few enough that they are the limit, not the pipeline that feeds them."""

    handler: Handler
    slots: int
    for_s: float

    def most_per_s(self, processes: int) -> float:
        at_once = self.slots * processes
        if self.handler is spin5:
            at_once = min(processes, os.cpu_count() or 1)  # a process computes on one core at a time
        return at_once / HANDLER_S


KINDS = {"async": Kind(sleep5, 10, 4.0), "cpu": Kind(spin5, 2, 10.0)}


async def one_run(made: Cluster, kind: Kind, processes: int) -> dict[str, float]:
    made.start_worker("worker", "--processes", str(processes), "--slots", str(kind.slots))
    db = await asyncpg.connect(made.dsn)
    try:
        await until_ready(made, db)
        async with made.client() as client:
            await until_workers(client, processes)
            await submit(db, client, kind.handler, int(kind.most_per_s(processes) * WARM_UP_S))
            before = await db.fetchval(LAST)
            count = int(kind.most_per_s(processes) * kind.for_s)
            await submit(db, client, kind.handler, count)
        rows = await db.fetch(SPANS, kind.handler.name, before)
    finally:
        await db.close()
        made.stop("worker")
    assert len(rows) == count, f"{len(rows)} of {count} jobs ran"
    assert len({row[2] for row in rows}) == processes, "not every process had jobs"
    spans = [(row[0], row[1]) for row in rows]
    elapsed = max(end for _, end in spans) - min(start for start, _ in spans)
    most = kind.most_per_s(processes)
    return {
        "per_s": round(count / elapsed),
        "most_per_s": round(most),
        "of_most": round(count / elapsed / most, 3),
        "usage": round(usage(spans, kind.slots * processes), 3),
    }


async def until_workers(client: Any, processes: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len((await read_census(client.link, client.names)).workers) != processes:
        if time.monotonic() > deadline:
            raise SystemExit(f"{processes} workers did not come")
        await asyncio.sleep(POLL_S)


async def submit(db: asyncpg.Connection, client: Any, handler: Handler, count: int) -> None:
    """Return when all of them have ended."""
    done = await db.fetchval("select count(*) from jobmaster.job where status = 4")
    receipts = await client.submit_many(handler.jobs({} for _ in range(count)), wait="recorded")
    assert all(receipt.status == "recorded" for receipt in receipts)
    deadline = time.monotonic() + TIMEOUT_S
    while await db.fetchval("select count(*) from jobmaster.job where status = 4") < done + count:
        if time.monotonic() > deadline:
            raise SystemExit("not all jobs ran in time")
        await asyncio.sleep(POLL_S)


async def run(made: Cluster, processes: list[int], rounds: int) -> dict[str, Any]:
    """Every setting in turn, so many times."""
    found: dict[str, list[dict[str, float]]] = {f"{kind}_{count}": [] for kind in KINDS for count in processes}
    for _ in range(rounds):
        for name, kind in KINDS.items():
            for count in processes:
                found[f"{name}_{count}"].append(await one_run(made, kind, count))
    medians = {
        name: {key: report.median([found[key] for found in runs]) for key in runs[0]} for name, runs in found.items()
    }
    first, last = min(processes), max(processes)
    return {
        "value": medians[f"async_{last}"]["of_most"],
        "unit": f"of what the slots allow, {last} processes that wait",
        "yardstick": None,
        "ratio": None,
        # What the last setting is of the first, by how much more it may do: 1 is linear.
        **{f"linear_{name}": linear(kind, medians, name, first, last) for name, kind in KINDS.items()},
        **{f"of_most_{name}": values["of_most"] for name, values in medians.items()},
        **{f"usage_{name}": values["usage"] for name, values in medians.items()},
        "medians": medians,
        "slots": {name: kind.slots for name, kind in KINDS.items()},
        "processes": processes,
        "rounds": rounds,
        "all": found,
        **await report.stamp(made),
    }


def linear(kind: Kind, medians: dict[str, dict[str, float]], name: str, first: int, last: int) -> float:
    grown = medians[f"{name}_{last}"]["per_s"] / medians[f"{name}_{first}"]["per_s"]
    return round(grown / (kind.most_per_s(last) / kind.most_per_s(first)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = report.arguments(parser)
    with cluster(workers=0) as made:
        result = uvloop.run(run(made, options.processes, options.rounds))
    bounds = {f"linear_{name}": 0.8 for name in KINDS}
    bounds |= {f"usage_{name}_{count}": 0.9 for name in KINDS for count in options.processes}
    report.show("scaling", result, options, at_least=bounds)


if __name__ == "__main__":
    main()
