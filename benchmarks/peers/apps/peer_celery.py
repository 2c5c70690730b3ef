import os
import time
from contextlib import asynccontextmanager

import redis
from celery import Celery

from peer_process import KEEPS_RESULTS, TEXT, mark, mark_end

SLEEPS = os.environ.get("BENCH_SLEEPS") == "1"
SETTINGS = "Redis broker, acks_late, prefetch multiplier 64; prefork pool of 2 for what does nothing, 100 threads for what waits"
KEEPS = "a result in Redis for a day"
BULK = "apply_async over one connection (a group does the same)"
RECOVERY = "visibility timeout, an hour (its default)"

app = Celery("bench", broker=os.environ["BENCH_REDIS"] + "/0")
app.conf.update(
    result_backend=os.environ["BENCH_REDIS"] + "/1" if KEEPS_RESULTS else None,
    task_ignore_result=not KEEPS_RESULTS,
    task_acks_late=True,
    worker_prefetch_multiplier=64 if not SLEEPS else 4,
    worker_hijack_root_logger=False,
)
WORKER = ["-m", "celery", "-A", "peer_celery", "worker", "--loglevel", "ERROR", "--without-gossip", "--without-mingle"]
WORKER += ["--pool", "threads", "-c", "100"] if SLEEPS else ["--pool", "prefork", "-c", "2"]


@app.task(name="noop")
def noop(n, to):
    mark(n)


@app.task(name="sleep5")
def sleep5(n, to):
    mark(n)
    time.sleep(0.005)


@app.task(name="sleep20")
def sleep20(n, to):
    mark(n)
    time.sleep(0.02)
    mark_end(n)


def setup():
    pass


class Client:
    def __init__(self, producer):
        self._producer = producer

    async def one(self, handler, number):
        app.tasks[handler].apply_async(kwargs={"n": number, "to": TEXT}, producer=self._producer)

    async def bulk(self, handler, numbers):
        for number in numbers:
            await self.one(handler, number)


@asynccontextmanager
async def client():
    with app.producer_pool.acquire(block=True) as producer:
        yield Client(producer)


@asynccontextmanager
async def ledger():
    results = redis.Redis.from_url(os.environ["BENCH_REDIS"] + "/1")

    async def count():
        return results.dbsize()

    yield count
