"""CPU a job of each process over a lifecycle of no-op jobs: of this checkout, or of two in turn.

python -m benchmarks.cpu --json
python -m benchmarks.cpu --against /path/of/another/checkout --json

CPU time is disturbed far less by another load on the machine than jobs per second are: the measure to develop by.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import uvloop

from benchmarks import report
from benchmarks.app import noop
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.lifecycle import until_recorded

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 600.0
# What is not there in every build of Postgres is not asked for: these are.
SQL = """
select pg_current_wal_lsn() - '0/0'::pg_lsn as wal_bytes, xact_commit as commits
  from pg_stat_database where datname = current_database()
"""


def cpu_s(process: psutil.Process) -> float:
    """User and system, with the children: those that live, and those that ended and were waited for."""
    times = process.cpu_times()
    own = times.user + times.system + times.children_user + times.children_system
    return float(own) + sum(cpu_s(child) for child in process.children())


def used(made: Cluster) -> dict[str, float]:
    pids = {name: process.pid for name, process in made.processes.items()}
    assert made.nats.pid is not None
    assert made.postgres.pid is not None
    pids |= {"nats": made.nats.pid, "postgres": made.postgres.pid}
    return {name: cpu_s(psutil.Process(pid)) for name, pid in pids.items()}


async def submitted(made: Cluster, db: asyncpg.Connection, jobs: int) -> float:
    """A lifecycle, to its last recorded outcome; the CPU seconds of the submitting."""
    before = await db.fetchval("select count(*) from jobmaster.job")
    async with made.client() as client:
        rows = ({"to": "x@example.com", "n": 1} for _ in range(jobs))
        began = resource.getrusage(resource.RUSAGE_SELF)
        receipts = await client.submit_many(noop.jobs(rows))
        ended = resource.getrusage(resource.RUSAGE_SELF)
        assert len(receipts) == jobs
        await until_recorded(made, client, db, before + jobs)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


async def lifecycle(made: Cluster, jobs: int) -> dict[str, float]:
    """Per job: µs of CPU of each process, bytes of write-ahead log; jobs a commit."""
    db = await asyncpg.connect(made.dsn)
    try:
        await until_ready(made, db)
        await submitted(made, db, jobs // 10)  # warm
        before, facts, began = used(made), dict(await db.fetchrow(SQL)), time.perf_counter()
        client_s = await submitted(made, db, jobs)
        seconds, after = time.perf_counter() - began, used(made)
        now = dict(await db.fetchrow(SQL))
    finally:
        await db.close()
    us = {f"{name}_us": 1e6 * (after[name] - before[name]) / jobs for name in before}
    us["client_us"] = 1e6 * client_s / jobs
    return {
        **us,
        "all_us": sum(us.values()),
        "wal_bytes": float(now["wal_bytes"] - facts["wal_bytes"]) / jobs,
        "jobs_per_commit": jobs / (now["commits"] - facts["commits"]),
        "jobs_per_s": jobs / seconds,
    }


async def lifecycle_and_stamp(made: Cluster, jobs: int) -> dict[str, Any]:
    return {**await lifecycle(made, jobs), "stamp": await report.stamp(made)}


def of_checkout(root: Path, jobs: int) -> dict[str, Any]:
    """One run by the code of a checkout, in a process of its own; only this file is always ours."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "cli")]), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--one", "--jobs", str(jobs)]
    done = subprocess.run(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, check=True, text=True, timeout=TIMEOUT_S
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {key: round(report.median([run[key] for run in runs]), 2) for key in runs[0] if key != "stamp"}


def compared(jobs: int, rounds: int, against: Path | None) -> dict[str, Any]:
    """Both sides in turn, the other way round every second time."""
    sides = {"ours": ROOT} | ({"theirs": against.resolve()} if against else {})
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sorted(sides, reverse=bool(number % 2)):
            runs[name].append(of_checkout(sides[name], jobs))
            print(f"{number} {name}: {medians(runs[name][-1:])}", file=sys.stderr)
    middle = {name: medians(found) for name, found in runs.items()}
    ours, theirs = middle["ours"], middle.get("theirs")
    return {
        "value": ours["all_us"],
        "unit": "µs of CPU a job, all processes together",
        "yardstick": theirs["all_us"] if theirs else None,
        "ratio": report.ratio(ours["all_us"], theirs["all_us"] if theirs else None),
        "medians": middle,
        "less": {key: round(theirs[key] - ours[key], 2) for key in ours} if theirs else None,
        "all": {name: [medians([run]) for run in found] for name, found in runs.items()},
        "jobs": jobs,
        "rounds": rounds,
        **runs["ours"][-1]["stamp"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, run in turn with this one")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = report.arguments(parser)
    if options.one:
        with cluster() as made:
            print(json.dumps(uvloop.run(lifecycle_and_stamp(made, options.jobs))))
        return
    if options.against and not (options.against / "benchmarks" / "cluster.py").exists():
        parser.error(f"--against {options.against}: no checkout of this project (it has no benchmarks/cluster.py)")
    report.show("cpu", compared(options.jobs, options.rounds, options.against), options)


if __name__ == "__main__":
    main()
