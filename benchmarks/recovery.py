"""Crash recovery: ``kill -9`` of one of four workers under load; from that moment until every job that it held, started
or waiting in its buckets, has been started by a survivor. Jobs are counted in Postgres after each kill.

Those that wait are due just after the kill, and counted from then; what runs, and whatever else is in the dead worker's
buckets, from the kill.

python -m benchmarks.recovery --json
python -m benchmarks.recovery --processes 4 --json
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import uvloop

from benchmarks import report
from benchmarks.cluster import Cluster, cluster, until_ready
from benchmarks.recovery_app import NOTES_VARIABLE, held, short
from jm_core import limits
from jm_nats import JobClient
from jm_nats.census import Census, WorkerView, read_census

WORKERS = 4
APP = "benchmarks.recovery_app:jm"
AHEAD_S = 3.0  # between the submission of jobs that wait in buckets and the kill
DUE_AFTER_S = 0.25  # the kill
PATIENCE_S = 60.0
POLL_S = 0.02
LOAD_EVERY_S = 0.1


@dataclass
class Notes:
    """What handlers have noted: of each job the starts, as (pid, time), and who ended it."""

    path: Path
    starts: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    ends: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    _at: int = 0

    def read(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.decode().splitlines():
            kind, job_id, pid, at_s = line.split()
            of_kind = self.starts if kind == "S" else self.ends
            of_kind.setdefault(job_id, []).append((int(pid), float(at_s)))


@dataclass
class Kill:
    """One, and how long each job that the dead worker held took to start again."""

    pid: int
    started_s: list[float]
    waiting_s: list[float]

    @property
    def again_s(self) -> list[float]:
        return [*self.started_s, *self.waiting_s]


class Run:
    """Args: processes: 0: each worker is a process of its own, and nobody looks after it."""

    def __init__(self, made: Cluster, client: JobClient, db: asyncpg.Connection, folder: Path, processes: int) -> None:
        self.made = made
        self.client = client
        self.db = db
        self.notes = Notes(folder / "notes")
        self.processes = processes
        self.submitted = 0
        self._folder = folder
        self._number = 0

    async def start(self) -> None:
        if self.processes:
            self.made.start("worker", "worker", APP, "--processes", str(self.processes))
        else:
            for _ in range(WORKERS):
                self._start_one()
        await until_ready(self.made, self.db)
        self.submitted = int(await self.db.fetchval("select count(*) from jobmaster.job"))

    def _start_one(self) -> None:
        self._number += 1
        self.made.start(f"worker{self._number}", "worker", APP)

    async def census(self) -> Census:
        return await read_census(self.client.link, self.client.names)

    async def all_there(self) -> Census:
        """As many workers as there should be, each with its buckets, and nothing of a dead one left."""
        wanted = self.processes or WORKERS

        async def there() -> Census | None:
            census = await self.census()
            serving = [worker for worker in census.workers if worker.buckets and worker.state == "serving"]
            active = all(bucket.status == "active" for bucket in census.buckets)
            return census if len(serving) == len(census.workers) == wanted and active and not census.gone else None

        found: Census | None = await self.until(there, "all workers are there")
        assert found is not None
        return found

    async def until(self, look: Callable[[], Awaitable[Any]], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := await look()):
            if time.monotonic() > deadline:
                logs = "\n".join(self.made.log_of(name) for name in self.made.processes)
                raise SystemExit(f"not within {PATIENCE_S:g} s: {what}\n{logs}")
            await asyncio.sleep(POLL_S)
        return found

    async def kill_one(self, number: int, jobs: int) -> Kill:
        """Fill all, kill one, wait until what it held has started again and everything has ended."""
        workers = (await self.all_there()).workers
        release = self._folder / f"release{number}"
        ids = await self._submit([held.job({"release": str(release)}) for _ in range(jobs)])
        await self.until(lambda: self._are_seen_to_run(ids), "all held jobs run")
        kill_at_s = time.time() + AHEAD_S
        due = datetime.fromtimestamp(kill_at_s + DUE_AFTER_S, UTC)
        ids += await self._submit([short.job({}, run_at=due) for _ in range(jobs)])
        running = await self._running()
        victim = max(workers, key=lambda worker: sum(running.get(bucket, 0) for bucket in worker.buckets))
        if (left_s := kill_at_s - time.time()) < 0:
            raise SystemExit(f"too slow: the jobs that wait were submitted {-left_s:.3f} s too late")
        await asyncio.sleep(left_s)
        kill = await self._kill(victim, due.timestamp())
        release.touch()
        await self.until(lambda: self._have_ended(ids), "all jobs of the round have ended")
        return kill

    async def _submit(self, jobs: Sequence[Any]) -> list[str]:
        receipts = await self.client.submit_many(jobs)
        self.submitted += len(receipts)
        return [receipt.job_id for receipt in receipts]

    async def _kill(self, victim: WorkerView, due_s: float) -> Kill:
        rows = await self._rows_of(victim)
        at_s = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        rows |= await self._rows_of(victim)  # on their way to it
        if not self.processes:
            name = next(name for name, one in self.made.processes.items() if one.pid == victim.pid)
            self.made.processes.pop(name).wait()
            self._start_one()
        self.notes.read()
        # What it had ended, and not all of it was recorded, is not to start again.
        waits = {job_id: is_held for job_id, is_held in rows.items() if job_id not in self.notes.ends}
        if set(waits.values()) != {True, False}:
            raise SystemExit(f"the dead worker held nothing started, or nothing waiting: {len(waits)} jobs")
        await self.until(lambda: self._have_started_again(list(waits), victim.pid), "all started again")
        kill = Kill(victim.pid, [], [])
        for job_id, is_waiting in waits.items():
            starts = self.notes.starts[job_id]
            next_s = min(start_s for pid, start_s in starts if pid != victim.pid)
            has_started = any(pid == victim.pid for pid, _ in starts)
            since_s = max(at_s, due_s) if is_waiting else at_s
            (kill.started_s if has_started else kill.waiting_s).append(next_s - since_s)
        return kill

    def repeats(self, dead: set[int]) -> tuple[int, int]:
        """Starts after a job's first: in all, and those of jobs that no dead worker had started."""
        repeated = {job_id: starts for job_id, starts in self.notes.starts.items() if len(starts) > 1}
        unexplained = [starts for starts in repeated.values() if not dead & {pid for pid, _ in starts}]
        return sum(len(starts) - 1 for starts in repeated.values()), len(unexplained)

    async def _running(self) -> dict[str, int]:
        """How many jobs are seen to run, by bucket."""
        query = "select bucket_id, count(*) from jobmaster.job where status = 3 group by bucket_id"
        return {row["bucket_id"]: row["count"] for row in await self.db.fetch(query)}

    async def _rows_of(self, worker: WorkerView) -> dict[str, bool]:
        """What lies in its buckets, and whether that waits for its due time."""
        query = """select id::text, handler = 'short' and run_at > now() as waits
                   from jobmaster.job where bucket_id = any($1) and status in (2, 3)"""
        return {row["id"]: row["waits"] for row in await self.db.fetch(query, worker.buckets)}

    async def _have_started_again(self, ids: list[str], dead: int) -> bool:
        self.notes.read()
        return all(any(pid != dead for pid, _ in self.notes.starts.get(job_id, ())) for job_id in ids)

    async def _are_seen_to_run(self, ids: list[str]) -> bool:
        query = "select count(*) from jobmaster.job where id = any($1::uuid[]) and status = 3"
        return bool(await self.db.fetchval(query, ids) == len(ids))

    async def _have_ended(self, ids: list[str]) -> bool:
        query = "select count(*) from jobmaster.job where id = any($1::uuid[]) and status = 4"
        return bool(await self.db.fetchval(query, ids) == len(ids))

    @asynccontextmanager
    async def load(self, per_s: int) -> AsyncIterator[None]:
        """Short jobs all the while."""
        stop = asyncio.Event()

        async def submit() -> None:
            while not stop.is_set():
                began_s = time.monotonic()
                await self._submit([short.job({}) for _ in range(max(1, round(per_s * LOAD_EVERY_S)))])
                await asyncio.sleep(max(0.0, LOAD_EVERY_S - (time.monotonic() - began_s)))

        task = asyncio.create_task(submit())
        try:
            yield
        finally:
            stop.set()  # and not in the middle: what is submitted is counted
            await task

    async def counted(self) -> dict[str, int]:
        """By Postgres, all jobs so far; some of those that were just submitted are on their way."""
        rows = await self.db.fetch("select status, count(*) from jobmaster.job group by status")
        counts = {row["status"]: row["count"] for row in rows}
        return {
            "submitted": self.submitted,
            "saved": sum(counts.values()),
            "succeeded": counts.get(4, 0),
            "open": sum(counts.get(s, 0) for s in (1, 2, 3)),
        }

    async def finish(self) -> dict[str, int]:
        """Once everything has ended, or nobody can hope so any more."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            counts = await self.counted()
            if counts["succeeded"] >= self.submitted or time.monotonic() > deadline:
                return counts
            await asyncio.sleep(POLL_S)


async def run(made: Cluster, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    db = await asyncpg.connect(made.dsn)
    kills: list[Kill] = []
    counts: list[dict[str, int]] = []
    try:
        async with made.client() as client:
            one = Run(made, client, db, folder, options.processes)
            await one.start()
            async with one.load(options.rate):
                for number in range(options.kills):
                    kills.append(await one.kill_one(number, options.jobs))
                    counts.append(await one.counted())
                    worst_s = max(kills[-1].again_s)
                    print(f"kill {number + 1}: {len(kills[-1].again_s)} jobs, {worst_s:.3f} s", file=sys.stderr)
            last = await one.finish()
            one.notes.read()
    finally:
        await db.close()
    again_s = [value for kill in kills for value in kill.again_s]
    repeated, unexplained = one.repeats({kill.pid for kill in kills})
    return {
        "value": round(report.percentile(again_s, 0.99), 3),
        "unit": "s from the kill to the next start, p99 of all jobs that the dead workers held",
        "yardstick": None,
        "ratio": None,
        "p50_s": round(report.percentile(again_s, 0.5), 3),
        "max_s": round(max(again_s), 3),
        "started_p99_s": round(report.percentile([s for kill in kills for s in kill.started_s], 0.99), 3),
        "waiting_p99_s": round(report.percentile([s for kill in kills for s in kill.waiting_s], 0.99), 3),
        "all": [round(max(kill.again_s), 3) for kill in kills],
        "kills": len(kills),
        "jobs_started": sum(len(kill.started_s) for kill in kills),
        "jobs_waiting": sum(len(kill.waiting_s) for kill in kills),
        "lost": one.submitted - last["succeeded"],
        "started_twice": repeated,
        "started_twice_unexplained": unexplained,
        "counts": [*counts, last],
        "load_per_s": options.rate,
        "processes": options.processes,
        "lease_s": limits.LEASE_S,
        **await report.stamp(made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=100, help="that run, and as many that wait, in all workers")
    parser.add_argument("--rate", type=int, default=200, help="short jobs per second beside them")
    parser.add_argument("--processes", type=int, default=0, help="children of one supervisor, which sees them die")
    options = report.arguments(parser)
    bound_s = 1.0 if options.processes else limits.LEASE_S + 2.0
    with tempfile.TemporaryDirectory(prefix="jm-bench-") as name:
        folder = Path(name)
        os.environ[NOTES_VARIABLE] = str(folder / "notes")
        (folder / "notes").touch()
        with cluster(workers=0) as made:
            result = uvloop.run(run(made, folder, options))
    title = "recovery-processes" if options.processes else "recovery"
    report.show(title, result, options, at_most={"value": bound_s, "lost": 0, "started_twice_unexplained": 0})


if __name__ == "__main__":
    main()
