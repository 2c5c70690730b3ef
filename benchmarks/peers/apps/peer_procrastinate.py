import asyncio
import os
from contextlib import asynccontextmanager

import procrastinate

from peer_process import TEXT, mark, mark_end

SETTINGS = "PsycopgConnector, run_worker_async(concurrency=100), listen_notify; stalled jobs retried as its documentation shows, every 5 s"
KEEPS = "a row for every job (delete_jobs='never', its default)"
BULK = "batch_defer_async"
RECOVERY = "worker heartbeat, 30 s"

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_DSN"], max_size=10))


@app.task(name="noop")
async def noop(n, to):
    mark(n)


@app.task(name="sleep5")
async def sleep5(n, to):
    mark(n)
    await asyncio.sleep(0.005)


@app.task(name="sleep20")
async def sleep20(n, to):
    mark(n)
    await asyncio.sleep(0.02)
    mark_end(n)


async def setup():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


class Client:
    async def one(self, handler, number):
        await app.tasks[handler].defer_async(n=number, to=TEXT)

    async def bulk(self, handler, numbers):
        await app.tasks[handler].batch_defer_async(*[{"n": n, "to": TEXT} for n in numbers])


@asynccontextmanager
async def client():
    async with app.open_async():
        yield Client()


async def _retry_stalled():
    while True:
        await asyncio.sleep(5)
        for job in await app.job_manager.get_stalled_jobs():
            await app.job_manager.retry_job(job)


async def _work():
    async with app.open_async():
        retrying = asyncio.create_task(_retry_stalled())
        try:
            await app.run_worker_async(concurrency=100)
        finally:
            retrying.cancel()


def worker():
    asyncio.run(_work())


@asynccontextmanager
async def ledger():
    async with app.open_async():

        async def count():
            row = await app.connector.execute_query_one_async(
                "select count(*) as n from procrastinate_jobs where status = 'succeeded'"
            )
            return row["n"]

        yield count
