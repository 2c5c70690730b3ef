import asyncio
import json
import os
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from peer_process import TEXT, mark, mark_end

SETTINGS = "AsyncpgPoolDriver, run(batch_size=50, max_concurrent_tasks=100)"
KEEPS = "a row in its log table for every step of a job"
BULK = "enqueue of lists"
RECOVERY = "heartbeat_timeout 30 s, its default"


async def noop(job):
    mark(json.loads(job.payload)["n"])


async def sleep5(job):
    mark(json.loads(job.payload)["n"])
    await asyncio.sleep(0.005)


async def sleep20(job):
    mark(json.loads(job.payload)["n"])
    await asyncio.sleep(0.02)
    mark_end(json.loads(job.payload)["n"])


async def setup():
    connection = await asyncpg.connect(os.environ["BENCH_DSN"])
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


class Client:
    def __init__(self, queries):
        self._queries = queries

    async def one(self, handler, number):
        await self._queries.enqueue(handler, json.dumps({"n": number, "to": TEXT}).encode())

    async def bulk(self, handler, numbers):
        bodies = [json.dumps({"n": n, "to": TEXT}).encode() for n in numbers]
        await self._queries.enqueue([handler] * len(bodies), bodies, [0] * len(bodies))


@asynccontextmanager
async def client():
    connection = await asyncpg.connect(os.environ["BENCH_DSN"])
    yield Client(Queries(AsyncpgDriver(connection)))
    await connection.close()


async def _work():
    async with asyncpg.create_pool(os.environ["BENCH_DSN"], min_size=2, max_size=10) as pool:
        pgq = PgQueuer(AsyncpgPoolDriver(pool))
        for function in (noop, sleep5, sleep20):
            pgq.entrypoint(function.__name__)(function)
        await pgq.run(batch_size=50, max_concurrent_tasks=100)


def worker():
    asyncio.run(_work())


@asynccontextmanager
async def ledger():
    db = await asyncpg.connect(os.environ["BENCH_DSN"])
    yield lambda: db.fetchval("select count(*) from pgqueuer_log where status = 'successful'")
    await db.close()
