import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass

import awa

from peer_process import TEXT, mark, mark_end

SETTINGS = "AsyncClient.start([('default', 100)]), queue storage, defaults"
KEEPS = "a row for every ended job, for 24 hours (its default retention)"
BULK = "enqueue_many_copy"
RECOVERY = "heartbeat, 90 s (its default staleness)"


@dataclass
class Noop:
    n: int
    to: str


@dataclass
class Sleep5:
    n: int
    to: str


@dataclass
class Sleep20:
    n: int
    to: str


KINDS = {"noop": Noop, "sleep5": Sleep5, "sleep20": Sleep20}


async def setup():
    await awa.migrate(os.environ["BENCH_DSN"])
    async with awa.AsyncClient(os.environ["BENCH_DSN"]) as opened:
        await opened.install_queue_storage()  # its documented engine; else a first worker would have to start it


class Client:
    def __init__(self, opened):
        self._client = opened

    async def one(self, handler, number):
        await self._client.insert(KINDS[handler](number, TEXT))

    async def bulk(self, handler, numbers):
        await self._client.enqueue_many_copy([KINDS[handler](n, TEXT) for n in numbers])


@asynccontextmanager
async def client():
    async with awa.AsyncClient(os.environ["BENCH_DSN"]) as opened:
        yield Client(opened)


async def _work():
    app = awa.AsyncClient(os.environ["BENCH_DSN"])

    @app.task(Noop)
    async def noop(job):
        mark(job.args.n)

    @app.task(Sleep5)
    async def sleep5(job):
        mark(job.args.n)
        await asyncio.sleep(0.005)

    @app.task(Sleep20)
    async def sleep20(job):
        mark(job.args.n)
        await asyncio.sleep(0.02)
        mark_end(job.args.n)

    await app.start([("default", 100)])
    await asyncio.Event().wait()


def worker():
    asyncio.run(_work())


@asynccontextmanager
async def ledger():
    async with awa.AsyncClient(os.environ["BENCH_DSN"]) as opened:

        async def count():
            return sum(stat.completed_last_hour for stat in await opened.queue_stats())

        yield count
