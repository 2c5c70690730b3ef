"""One process of a peer's run, in the peer's own environment: the standard library and the peer, nothing else.

    python peer_process.py peer_celery bulk noop 20000 10

A peer is a module of this folder with ``SETTINGS``, ``client()``, ``setup()``, ``finished()``, and ``worker()`` or
``WORKER`` (arguments for Python). Its handlers call ``mark``: the same for everybody, and cheap.
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
SINGLY_PER_S = 100.0  # up to that rate each job is submitted by itself
TEXT = "x@example.com"


class Marks:
    """``number started_at`` of each handler call, appended to a file of this process.

    With BENCH_SYNC each one is written before the handler goes on: a process that is killed has then told all it did.
    """

    def __init__(self):
        self._pid = 0

    def _open(self):
        self._pid = os.getpid()  # a pool's child is another process than the one that imported us
        path = os.path.join(os.environ["BENCH_OUT"], f"marks-{self._pid}.log")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._lines = []
        self._sync = os.environ.get("BENCH_SYNC") == "1"
        if not self._sync:
            threading.Thread(target=self._keep_flushing, daemon=True).start()
            atexit.register(self._flush)

    def add(self, number):
        if self._pid != os.getpid():
            self._open()
        line = f"{number} {time.time():.6f}\n"
        if self._sync:
            os.write(self._file, line.encode())
        else:
            self._lines.append(line)

    def _keep_flushing(self):
        while True:
            time.sleep(FLUSH_S)
            self._flush()

    def _flush(self):
        count = len(self._lines)
        if count:
            os.write(self._file, "".join(self._lines[:count]).encode())
            del self._lines[:count]


mark = Marks().add
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


async def rate(peer, handler, per_s, seconds, first):
    """At a steady rate whatever becomes of them; when each was meant to be submitted goes to ``due.log``."""
    per_s, total, first = float(per_s), int(float(per_s) * float(seconds)), int(first)
    due, count = [], 0
    async with peer.client() as client:
        start = time.time() + 0.2
        while count < total:
            now = time.time()
            until = min(total, int((now - start) * per_s) + 1) if now >= start else count
            if until > count:
                numbers = range(first + count, first + until)
                due += [(number, start + (number - first) / per_s) for number in numbers]
                if per_s <= SINGLY_PER_S:
                    for number in numbers:
                        await client.one(handler, number)
                else:
                    await client.bulk(handler, numbers)
                count = until
            await asyncio.sleep(max(TICK_S - (time.time() - now), 0.001))
    with open(os.path.join(os.environ["BENCH_OUT"], "due.log"), "a") as file:
        file.writelines(f"{number} {at:.6f}\n" for number, at in due)
    return {"count": total, "seconds": time.time() - start}


async def finished(peer, wanted, limit_s):
    """Wait for so many kept records of ended jobs."""
    began, seen = time.perf_counter(), 0
    async with peer.ledger() as count:
        while time.perf_counter() - began < float(limit_s):
            seen = await count()
            if seen >= int(wanted):
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
