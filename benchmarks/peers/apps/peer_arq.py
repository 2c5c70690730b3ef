import asyncio
import os
from contextlib import asynccontextmanager

from arq import create_pool
from arq.connections import RedisSettings

from peer_process import KEEPS_RESULTS, TEXT, mark, mark_end

SETTINGS = "max_jobs=100, poll_delay=0.01"
KEEPS = "a result in Redis for an hour"
BULK = "1,000 enqueue_job() at once (it has no bulk call)"
RECOVERY = "the job's own timeout, 300 s and 10 (its default)"
REDIS = RedisSettings.from_dsn(os.environ["BENCH_REDIS"] + "/0")
WORKER = ["-m", "arq", "peer_arq.WorkerSettings"]


async def noop(ctx, n, to):
    mark(n)


async def sleep5(ctx, n, to):
    mark(n)
    await asyncio.sleep(0.005)


async def sleep20(ctx, n, to):
    mark(n)
    await asyncio.sleep(0.02)
    mark_end(n)


class WorkerSettings:
    functions = [noop, sleep5, sleep20]
    redis_settings = REDIS
    max_jobs = 100
    poll_delay = 0.01
    keep_result = 3600 if KEEPS_RESULTS else 0


def setup():
    pass


class Client:
    def __init__(self, pool):
        self._pool = pool

    async def one(self, handler, number):
        await self._pool.enqueue_job(handler, n=number, to=TEXT)

    async def bulk(self, handler, numbers):
        await asyncio.gather(*[self._pool.enqueue_job(handler, n=n, to=TEXT) for n in numbers])


@asynccontextmanager
async def client():
    pool = await create_pool(REDIS)
    yield Client(pool)
    await pool.aclose()


@asynccontextmanager
async def ledger():
    pool = await create_pool(REDIS)

    async def count():
        return len(await pool.keys("arq:result:*"))

    yield count
    await pool.aclose()
