import asyncio
import os
from contextlib import asynccontextmanager

from saq import Queue, Worker

from peer_process import KEEPS_RESULTS, TEXT, mark, mark_end

SETTINGS = "Redis with hiredis, Worker(concurrency=100)"
KEEPS = "the job in Redis for ten minutes"
BULK = "1,000 enqueue() at once (it has no bulk call)"
RECOVERY = "the job's own timeout, 10 s (its default), found by a sweep every 60 s"
TTL = 600 if KEEPS_RESULTS else -1


async def noop(ctx, *, n, to):
    mark(n)


async def sleep5(ctx, *, n, to):
    mark(n)
    await asyncio.sleep(0.005)


async def sleep20(ctx, *, n, to):
    mark(n)
    await asyncio.sleep(0.02)
    mark_end(n)


def setup():
    pass


class Client:
    def __init__(self, queue):
        self._queue = queue

    async def one(self, handler, number):
        await self._queue.enqueue(handler, n=number, to=TEXT, ttl=TTL, retries=3)

    async def bulk(self, handler, numbers):
        await asyncio.gather(*[self._queue.enqueue(handler, n=n, to=TEXT, ttl=TTL, retries=3) for n in numbers])


@asynccontextmanager
async def client():
    queue = Queue.from_url(os.environ["BENCH_REDIS"] + "/0")
    await queue.connect()
    yield Client(queue)
    await queue.disconnect()


def worker():
    queue = Queue.from_url(os.environ["BENCH_REDIS"] + "/0")

    async def run():
        await queue.connect()
        await Worker(queue, functions=[noop, sleep5, sleep20], concurrency=100).start()

    asyncio.run(run())


@asynccontextmanager
async def ledger():
    queue = Queue.from_url(os.environ["BENCH_REDIS"] + "/0")
    await queue.connect()

    async def count():
        jobs = len(await queue.redis.keys("saq:job:*"))
        return jobs - await queue.count("incomplete")

    yield count
    await queue.disconnect()
