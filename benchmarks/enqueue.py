"""Submitting: in bulk, by many callers at once, and one awaited after the other; no coordinator and no worker.

python -m benchmarks.enqueue --json

Three measures, each in turn with what it is held against: ``submit_many`` and concurrent ``submit`` with the enqueueing
of the yardstick (200 jobs a message), the lone awaited ``submit`` with nats.py's awaited ``js.publish`` of the same
bytes to a stream of the same settings on the same server.
"""

import argparse
import asyncio
import time
from typing import Any

import uvloop

from benchmarks import report, yardstick
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, provision
from jm_nats import JobClient
from jm_nats.packer import encode_message

BARE_STREAM = "BENCH_BARE"
BARE_SUBJECT = "bench.bare"
BLOCKS = 40  # of a round of lone publishes: ours and the bare ones in turn, so that noise meets both
ARGS: dict[str, Any] = {"to": "x@example.com", "n": 1}


async def check_stored(client: JobClient, jobs: int) -> None:
    """The front door holds exactly ``jobs`` jobs; it is empty afterwards."""
    js, stream = client.link.js, client.names.pending_stream
    state = (await js.stream_info(stream)).state
    stored = 0
    for sequence in range(state.first_seq, state.last_seq + 1):
        stored += ((await js.get_msg(stream, sequence)).data or b"").count(b'"handler"')
    assert stored == jobs, f"{stored} jobs are stored, {jobs} were submitted"
    await js.purge_stream(stream)


async def in_bulk(made: Cluster, jobs: int) -> float:
    async with made.client() as client:
        started = time.perf_counter()
        receipts = await client.submit_many(noop.jobs(ARGS for _ in range(jobs)))
        elapsed = time.perf_counter() - started
        assert len(receipts) == jobs
        await check_stored(client, jobs)
    return jobs / elapsed


async def concurrently(made: Cluster, jobs: int, callers: int) -> float:
    """``callers`` tasks, each submitting one job, awaiting its receipt, submitting the next."""

    async def call(count: int) -> int:
        for _ in range(count):
            receipt = await client.submit(noop.job(ARGS))
            assert receipt.status == "queued"
        return count

    async with made.client() as client:
        started = time.perf_counter()
        done = await asyncio.gather(*[call(count) for count in shares(jobs, callers)])
        elapsed = time.perf_counter() - started
        assert sum(done) == jobs
        await check_stored(client, jobs)
    return jobs / elapsed


def shares(jobs: int, callers: int) -> list[int]:
    """``jobs`` dealt out evenly."""
    return [jobs // callers + (number < jobs % callers) for number in range(callers)]


async def alone(made: Cluster, jobs: int) -> tuple[float, float]:
    """Lone awaited submits a second, and bare awaited publishes of the same bytes; in turn, block by block."""
    async with made.client() as client:
        js, stream = client.link.js, client.names.pending_stream
        live = (await js.stream_info(stream)).config
        await js.add_stream(live.evolve(name=BARE_STREAM, subjects=[BARE_SUBJECT]))
        ours_s = bare_s = 0.0
        for count in shares(jobs, BLOCKS):
            wanted = [noop.job(ARGS) for _ in range(count)]
            bodies = [encode_message([job]) for job in wanted]
            began = time.perf_counter()
            for body in bodies:
                await js.publish(BARE_SUBJECT, body)
            between = time.perf_counter()
            for job in wanted:
                await client.submit(job)
            ours_s += time.perf_counter() - between
            bare_s += between - began
        assert (await js.stream_info(BARE_STREAM)).state.messages == jobs
        await js.delete_stream(BARE_STREAM)
        await check_stored(client, jobs)
    return jobs / ours_s, jobs / bare_s


async def run(made: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    await provision(made)
    found: dict[str, list[float]] = {name: [] for name in ("yardstick", "many", "concurrent", "lone", "lone_bare")}
    for _ in range(options.rounds):
        measured = await asyncio.to_thread(yardstick.measure, made, jobs=options.jobs)
        if measured is not None:
            found["yardstick"].append(measured["enqueue_per_s"])
        found["many"].append(await in_bulk(made, options.jobs))
        found["concurrent"].append(await concurrently(made, options.jobs, options.callers))
        lone, bare = await alone(made, options.lone)
        found["lone"].append(lone)
        found["lone_bare"].append(bare)
    medians = {name: report.median(values) for name, values in found.items() if values}
    limit = medians.get("yardstick")
    return {
        "value": round(medians["many"]),
        "unit": "jobs/s",
        "yardstick": limit,
        "ratio": report.ratio(medians["many"], limit),
        "ratio_many": report.ratio(medians["many"], limit),
        "ratio_concurrent": report.ratio(medians["concurrent"], limit),
        "ratio_lone": report.ratio(medians["lone"], medians["lone_bare"]),
        "many_per_s": round(medians["many"]),
        "concurrent_per_s": round(medians["concurrent"]),
        "lone_per_s": round(medians["lone"]),
        "lone_bare_per_s": round(medians["lone_bare"]),
        "jobs": options.jobs,
        "callers": options.callers,
        "lone": options.lone,
        "rounds": options.rounds,
        "all": {name: [round(value) for value in values] for name, values in found.items()},
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--callers", type=int, default=1_000, help="tasks that submit at the same time")
    parser.add_argument("--lone", type=int, default=2_000, help="submits awaited one after the other")
    parser.add_argument("--rounds", type=int, default=3)
    options = report.arguments(parser)
    with cluster(coordinator=False, workers=0) as made:
        result = uvloop.run(run(made, options))
    report.show("enqueue", result, options, at_least={"ratio_many": 0.9, "ratio_concurrent": 0.5, "ratio_lone": 0.9})


if __name__ == "__main__":
    main()
