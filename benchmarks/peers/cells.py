"""What is measured of a peer. Every figure is of jobs that were seen to run: a number each, in files of their own."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from benchmarks.peers.roster import APPS, Peer
from benchmarks.peers.servers import Servers

STOP_S: Final = 10.0
START_S: Final = 30.0
SINGLE_S: Final = 2.0
BULK_S: Final = 10.0
DRAIN_S: Final = 30.0
IDLE_PER_S: Final = 20.0
IDLE_S: Final = 5.0
HALF_S: Final = 5.0
KILL_JOBS: Final = 1_000
KILL_AFTER: Final = 250
RECOVER_S: Final = 120.0
SETTLE_S: Final = 2.0  # what is run once more comes with, or just after, what was still to be run
POLL_S: Final = 0.01
WARM: Final = 1_000_000_000  # numbers from here on are not of the measurement
LOG_CHARS: Final = 600

Cell = dict[str, Any]


class CellError(Exception):
    """The peer did not do what was asked of it; its own words are in the text."""


class Run:
    """One peer's processes in one fresh state."""

    def __init__(self, peer: Peer, python: str, environment: dict[str, str]) -> None:
        self.peer = peer
        self.out = Path(environment["BENCH_OUT"])
        self._python = python
        self._environment = environment
        self._processes: list[subprocess.Popen[bytes]] = []
        self._offsets: dict[Path, int] = {}
        self._starts: list[tuple[int, float]] = []
        self._ends: list[tuple[int, float]] = []
        try:
            self.call("setup", limit_s=60.0)
            for command in peer.beside:
                self._start(list(command))
        except BaseException:
            self.close()
            raise

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.out / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [self._python, *arguments],
                env=self._environment,
                stdout=log,
                stderr=log,
                cwd=APPS,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def start_worker(self) -> subprocess.Popen[bytes]:
        code = f"import peer_process, {self.peer.module} as p, json; print(json.dumps(getattr(p, 'WORKER', None)))"
        done = subprocess.run(
            [self._python, "-c", code], env=self._environment, cwd=APPS, capture_output=True, text=True, check=True
        )
        own = json.loads(done.stdout.strip().splitlines()[-1])
        return self._start(own or [str(APPS / "peer_process.py"), self.peer.module, "worker"])

    def begin(self, role: str, *arguments: object) -> subprocess.Popen[str]:
        """A role that goes on beside us; ``ended`` waits for its answer."""
        command = [self._python, str(APPS / "peer_process.py"), self.peer.module, role, *map(str, arguments)]
        process = subprocess.Popen(
            command, env=self._environment, cwd=APPS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)  # type: ignore[arg-type]
        return process

    @staticmethod
    def ended(process: subprocess.Popen[str], limit_s: float) -> Cell:
        """Raises CellError."""
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise CellError(f"no answer in {limit_s:g} s") from None
        if process.returncode != 0 or not out.strip():
            raise CellError(f"exit {process.returncode}: {err.strip()[-LOG_CHARS:]}")
        answer: Cell = json.loads(out.strip().splitlines()[-1])
        return answer

    def call(self, role: str, *arguments: object, limit_s: float) -> Cell:
        return self.ended(self.begin(role, *arguments), limit_s)

    def marks(self) -> list[tuple[int, float]]:
        """Every handler call so far: the job's number, and when it began."""
        self._read()
        return self._starts

    def ends(self) -> list[tuple[int, float]]:
        """Every handler call that came to its end, of handlers that say so, and when."""
        self._read()
        return self._ends

    def _read(self) -> None:
        """What was added since the last time. A line that is being written waits."""
        for path in self.out.glob("marks-*.log"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + whole
            starts, ends = parse(data[:whole].decode())
            self._starts += starts
            self._ends += ends

    def until_marked(self, count: int, limit_s: float, *, ended: bool = False) -> bool:
        """So many different jobs have begun (or ended)."""
        until_s, seen, numbers = time.monotonic() + limit_s, 0, set[int]()
        while True:
            found = self.ends() if ended else self.marks()
            numbers.update(number for number, _ in found[seen:])
            seen = len(found)
            if len(numbers) >= count:
                return True
            if time.monotonic() > until_s:
                return False
            time.sleep(POLL_S)

    def watch(self) -> subprocess.Popen[str]:
        """A process that is connected to where records are kept, and counts them as soon as ``want`` is called."""
        watcher = self.begin("finished", DRAIN_S)
        until_s = time.monotonic() + START_S
        while not (self.out / "watching").exists():
            if watcher.poll() is not None:
                self.ended(watcher, START_S)
                raise CellError("the watcher ended before it watched")
            if time.monotonic() > until_s:
                raise CellError(f"the watcher was not connected in {START_S:g} s")
            time.sleep(POLL_S)
        return watcher

    def want(self, records: int) -> None:
        part = self.out / "wanted.part"
        part.write_text(str(records))
        part.replace(self.out / "wanted")

    def warm_up(self) -> None:
        """A first job has gone all the way."""
        self.call("bulk", "noop", 1, 30, WARM, limit_s=60.0)
        until_s = time.monotonic() + START_S
        while not any(path.read_text() for path in self.out.glob("marks-*.log")):
            if time.monotonic() > until_s:
                raise CellError(f"no job ran in {START_S:g} s: {self.log()}")
            time.sleep(0.05)

    def log(self) -> str:
        path = self.out / "log.txt"
        return path.read_text(errors="replace")[-LOG_CHARS:].strip() if path.exists() else ""

    def close(self) -> None:
        for process in self._processes:
            _signal_all(process, signal.SIGTERM)
        until_s = time.monotonic() + STOP_S
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until_s - time.monotonic()))
            _signal_all(process, signal.SIGKILL)
            process.wait()


def _signal_all(process: subprocess.Popen[Any], number: int) -> None:
    """To it and to what it has started: pools of processes survive their parent otherwise."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


@contextmanager
def run_of(servers: Servers, peer: Peer, python: str, **settings: str) -> Iterator[Run]:
    with servers.cell(peer, **settings) as environment:
        run = None
        try:
            run = Run(peer, python, environment)
            yield run
        finally:
            if run is not None:
                run.close()


def parse(text: str) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Starts and ends in whole lines of a file of marks, without those of the warm-up."""
    starts: list[tuple[int, float]] = []
    ends: list[tuple[int, float]] = []
    for line in text.splitlines():
        *kind, number, at = line.split()
        if int(number) < WARM:
            (ends if kind else starts).append((int(number), float(at)))
    return starts, ends


def first_of(marks: list[tuple[int, float]]) -> dict[int, float]:
    """When each job was marked for the first time."""
    first: dict[int, float] = {}
    for number, at in marks:
        first[number] = min(at, first.get(number, at))
    return first


def after_kill(starts: list[tuple[int, float]], ends: list[tuple[int, float]], queued: int, killed_at: float) -> Cell:
    """A job that was begun is not done: done is what ended."""
    begun, ended, first = Counter(n for n, _ in starts), Counter(n for n, _ in ends), first_of(ends)
    complete = len(ended) >= queued
    return {
        "recovery_s": max(first.values()) - killed_at if complete else None,
        "lost": queued - len(ended),
        "duplicates": sum(1 for times in ended.values() if times > 1),
        "started_again": sum(begun.values()) - len(begun),
        "complete": complete,
    }


def per_s(starts: list[float], share: float = 1.0) -> float:
    """Handlers started a second, from the first to the last."""
    ordered = sorted(starts)[: max(2, int(len(starts) * share))]
    if len(ordered) < 2 or ordered[-1] <= ordered[0]:
        raise CellError(f"only {len(starts)} jobs ran")
    return (len(ordered) - 1) / (ordered[-1] - ordered[0])


def submit(servers: Servers, peer: Peer, python: str, jobs: int) -> Cell:
    """One by one; in bulk; and then what is queued is drained by a worker that comes."""
    with run_of(servers, peer, python) as run:
        single = run.call("one", "noop", SINGLE_S, limit_s=60.0)
        queued = run.call("bulk", "noop", jobs, BULK_S, WARM // 2, limit_s=60.0)
        total = single["count"] + 1 + queued["count"]
        run.start_worker()
        all_ran = run.until_marked(total, DRAIN_S)
        starts = first_of(run.marks())
        return {
            "one_per_s": single["count"] / single["seconds"],
            "bulk_per_s": queued["count"] / queued["seconds"],
            "drain_per_s": per_s(list(starts.values())),
            "drained": len(starts),
            "complete": all_ran and len(starts) == total,
        }


def lifecycle(servers: Servers, peer: Peer, python: str, jobs: int) -> Cell:
    """Submit while a worker runs, to the last kept record; then, at rest and at half that rate, submit to start."""
    with run_of(servers, peer, python, BENCH_KEEP="1") as run:
        run.start_worker()
        run.warm_up()
        watcher = run.watch()
        queued = run.call("bulk", "noop", jobs, BULK_S, limit_s=60.0)
        count = queued["count"]
        run.until_marked(count, DRAIN_S)
        run.want(count + 1)  # not before: counting costs some of them a lot; one more is the warm-up's
        watched = run.ended(watcher, 2 * DRAIN_S)
        starts = first_of(run.marks())
        last = max(starts.values(), default=0.0)
        records = max(0, watched["count"] - 1)
        kept = records >= count
        rate = min(len(starts), records) / (max(watched["at"] if kept else last, last) - queued["began_at"])
        cell: Cell = {"lifecycle_per_s": rate, "kept": records, "complete": kept and len(starts) == count}
        time.sleep(1.0)
        run.call("rate", "noop", IDLE_PER_S, IDLE_S, 10 * jobs, limit_s=60.0)
        half = max(1.0, rate / 2)
        time.sleep(1.0)
        run.call("rate", "noop", half, HALF_S, 100 * jobs, limit_s=60.0)
        due = _due(run)
        run.until_marked(count + len(due), DRAIN_S)
        starts = first_of(run.marks())
        for name, lo, hi in (("idle", 10 * jobs, 100 * jobs), ("half", 100 * jobs, WARM)):
            late = [(starts[n] - at) * 1000 for n, at in due.items() if lo <= n < hi and n in starts]
            missing = sum(1 for n in due if lo <= n < hi and n not in starts)
            if late:
                cell[f"{name}_p50_ms"] = report.percentile(late, 0.5)
                cell[f"{name}_p99_ms"] = report.percentile(late, 0.99)
            cell[f"{name}_missing"] = missing
            cell["complete"] = cell["complete"] and missing == 0
        return cell


def _due(run: Run) -> dict[int, float]:
    lines = (run.out / "due.log").read_text().splitlines()
    return {int(number): float(at) for number, at in (line.split() for line in lines)}


def sleepers(servers: Servers, peer: Peer, python: str, jobs: int) -> Cell:
    """Handlers that wait 5 ms each, a hundred at once: 20,000 a second at best."""
    with run_of(servers, peer, python, BENCH_SLEEPS="1") as run:
        run.start_worker()
        run.warm_up()
        queued = run.call("bulk", "sleep5", jobs, BULK_S, limit_s=60.0)
        all_ran = run.until_marked(queued["count"], DRAIN_S)
        return {"sleep_per_s": per_s(list(first_of(run.marks()).values())), "complete": all_ran}


def recovery(servers: Servers, peer: Peer, python: str, jobs: int) -> Cell:
    """``kill -9`` of the worker with a quarter done; another one is started at once."""
    del jobs
    with run_of(servers, peer, python, BENCH_SLEEPS="1", BENCH_SYNC="1") as run:
        worker = run.start_worker()
        run.warm_up()
        filling = run.begin("bulk", "sleep20", KILL_JOBS, BULK_S)
        if not run.until_marked(KILL_AFTER, DRAIN_S):
            raise CellError(f"{len(run.marks())} jobs ran in {DRAIN_S:g} s: {run.log()}")
        _signal_all(worker, signal.SIGKILL)
        killed_at = time.time()
        worker.wait()
        run.start_worker()
        queued = run.ended(filling, 60.0)["count"]
        if run.until_marked(queued, RECOVER_S, ended=True):
            time.sleep(SETTLE_S)
        return after_kill(run.marks(), run.ends(), queued, killed_at)


WORKLOADS: Final[dict[str, Callable[[Servers, Peer, str, int], Cell]]] = {
    "submit": submit,
    "lifecycle": lifecycle,
    "sleepers": sleepers,
    "recovery": recovery,
}
