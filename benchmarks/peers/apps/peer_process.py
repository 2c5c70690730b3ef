"""One process of a peer's run, in the peer's own environment: the standard library and the peer, nothing else.

    python peer_process.py peer_celery bulk noop 20000 10

A peer is a module of this folder with ``SETTINGS``, ``client()``, ``setup()``, ``finished()``, and ``worker()`` or
``WORKER`` (arguments for Python). Its handlers call ``mark`` first
(and ``mark_end`` at last, where it matters): the same for everybody, and cheap.
"""

import asyncio
import atexit
import importlib
import inspect
import json
import os
import sys
import threading
import time

TICK_S = 0.01
FLUSH_S = 0.02
FINE_S = 0.002
SINGLY_PER_S = 100.0  # up to that rate each job is submitted by itself
TEXT = "x@example.com"


class Marks:
    """``number started_at`` of each handler call, and ``E number ended_at``, appended to a file of this process.

    With BENCH_SYNC each one is written before the handler goes on: a process that is killed has then told all it did.
    """

    def __init__(self):
        self._afresh()
        os.register_at_fork(after_in_child=self._afresh)

    def _afresh(self):
        """A pool's child is another process than the one that imported us; its parent's lock may have been held."""
        self._lock = threading.Lock()
        self._pid = 0

    def _open(self):
        with self._lock:
            pid = os.getpid()
            if self._pid == pid:
                return  # another thread was first
            path = os.path.join(os.environ["BENCH_OUT"], f"marks-{pid}.log")
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._lines = []
            self._sync = os.environ.get("BENCH_SYNC") == "1"
            if not self._sync:
                threading.Thread(target=self._keep_flushing, daemon=True).start()
                atexit.register(self._flush)
            self._pid = pid  # last: who sees it finds all of the above

    def add(self, number):
        self._add(f"{number} {time.time():.6f}\n")

    def end(self, number):
        self._add(f"E {number} {time.time():.6f}\n")

    def _add(self, line):
        if self._pid != os.getpid():
            self._open()
        if self._sync:
            os.write(self._file, line.encode())
        else:
            self._lines.append(line)

    def _keep_flushing(self):
        while True:
            time.sleep(FLUSH_S)
            self._flush()

    def _flush(self):
        with self._lock:  # the thread and the way out
            count = len(self._lines)
            if count:
                os.write(self._file, "".join(self._lines[:count]).encode())
                del self._lines[:count]


_marks = Marks()
mark, mark_end = _marks.add, _marks.end
KEEPS_RESULTS = os.environ.get("BENCH_KEEP") == "1"


async def one(peer, handler, seconds):
    """Submitted one after the other, each awaited."""
    async with peer.client() as client:
        await client.one(handler, 0)
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < float(seconds):
            count += 1
            await client.one(handler, count)
        return {"count": count, "seconds": time.perf_counter() - began}


async def bulk(peer, handler, jobs, limit_s, first="0"):
    """In chunks of a thousand, as fast as it goes, for ``limit_s`` at most."""
    async with peer.client() as client:
        began_at, began, count = time.time(), time.perf_counter(), 0
        while count < int(jobs) and time.perf_counter() - began < float(limit_s):
            size = min(1_000 if not getattr(peer, "CHUNK", 0) else peer.CHUNK, int(jobs) - count)
            await client.bulk(handler, range(int(first) + count, int(first) + count + size))
            count += size
        return {"count": count, "seconds": time.perf_counter() - began, "began_at": began_at}


def due_after(per_s, index):
    """Seconds from the start to the instant at which a job is due.

    Singly, each has an instant of its own; in bulk, all jobs of a tick have the tick's: our ticks are in no latency.
    """
    if per_s <= SINGLY_PER_S:
        return index / per_s
    return int(index / (per_s * TICK_S) + 1e-9) * TICK_S


async def _until(at):
    """To a tenth of a millisecond: an event loop alone is up to one late."""
    if (wait_s := at - time.time() - FINE_S) > 0:
        await asyncio.sleep(wait_s)
    if (wait_s := at - time.time()) > 0:
        time.sleep(wait_s)


async def rate(peer, handler, per_s, seconds, first):
    """At a steady rate whatever becomes of them; when each was meant to be submitted goes to ``due.log``."""
    per_s, total, first = float(per_s), int(float(per_s) * float(seconds)), int(first)
    async with peer.client() as client:
        start, count = time.time() + 0.2, 0
        due = [start + due_after(per_s, index) for index in range(total)]
        while count < total:
            await _until(due[count])
            now, until = max(time.time(), due[count]), count + 1
            if per_s <= SINGLY_PER_S:
                await client.one(handler, first + count)
            else:
                while until < total and due[until] <= now:  # this tick's, and those of ticks that we are behind
                    until += 1
                await client.bulk(handler, range(first + count, first + until))
            count = until
    with open(os.path.join(os.environ["BENCH_OUT"], "due.log"), "a") as file:
        file.writelines(f"{first + index} {at:.6f}\n" for index, at in enumerate(due))
    return {"count": total, "seconds": time.time() - start}


async def finished(peer, limit_s):
    """Wait for as many kept records of ended jobs as the file ``wanted`` says; it is written while we are connected."""
    out, seen = os.environ["BENCH_OUT"], 0
    wanted_path = os.path.join(out, "wanted")
    async with peer.ledger() as count:
        await count()
        with open(os.path.join(out, "watching"), "w"):
            pass
        while not os.path.exists(wanted_path):
            await asyncio.sleep(0.005)
        with open(wanted_path) as file:
            wanted = int(file.read())
        began = time.perf_counter()
        while time.perf_counter() - began < float(limit_s):
            seen = await count()
            if seen >= wanted:
                break
            await asyncio.sleep(0.02)
        return {"count": seen, "at": time.time()}


async def setup(peer):
    """Tables, streams: whatever the peer needs once."""
    made = peer.setup()
    if inspect.isawaitable(made):
        await made
    return {}


ROLES = {"setup": setup, "one": one, "bulk": bulk, "rate": rate, "finished": finished}


def main():
    name, role, *arguments = sys.argv[1:]
    peer = importlib.import_module(name)
    if role == "settings":
        print(json.dumps({"settings": peer.SETTINGS, "keeps": peer.KEEPS, "bulk": peer.BULK}))
    elif role == "worker":
        peer.worker()
    else:
        print(json.dumps(asyncio.run(ROLES[role](peer, *arguments))), flush=True)


if __name__ == "__main__":
    sys.modules["peer_process"] = sys.modules["__main__"]  # one `mark` for us and for the peer's module
    main()
