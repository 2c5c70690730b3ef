import asyncio
import os
from contextlib import asynccontextmanager

from streaq import Worker

from peer_process import KEEPS_RESULTS, TEXT, mark, mark_end

SETTINGS = "Worker(concurrency=100), streaq run"
KEEPS = "a result in Redis for five minutes"
BULK = "enqueue_many"
RECOVERY = "idle timeout, 60 s (its default)"
WORKER = ["-m", "streaq", "run", "peer_streaq:app"]
TTL = 300 if KEEPS_RESULTS else 0

app = Worker(redis_url=os.environ["BENCH_REDIS"] + "/0", concurrency=100)


@app.task(name="noop", ttl=TTL, silent=True)
async def noop(n: int, to: str) -> None:
    mark(n)


@app.task(name="sleep5", ttl=TTL, silent=True)
async def sleep5(n: int, to: str) -> None:
    mark(n)
    await asyncio.sleep(0.005)


@app.task(name="sleep20", ttl=TTL, silent=True)
async def sleep20(n: int, to: str) -> None:
    mark(n)
    await asyncio.sleep(0.02)
    mark_end(n)


TASKS = {"noop": noop, "sleep5": sleep5, "sleep20": sleep20}


def setup():
    pass


class Client:
    async def one(self, handler, number):
        await TASKS[handler].enqueue(n=number, to=TEXT)

    async def bulk(self, handler, numbers):
        await app.enqueue_many([TASKS[handler].enqueue(n=n, to=TEXT) for n in numbers])


@asynccontextmanager
async def client():
    async with app:
        yield Client()


@asynccontextmanager
async def ledger():
    async with app:

        async def count():
            return len(await app.redis.keys("streaq:default:task:results:*"))

        yield count
