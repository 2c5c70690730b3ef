import os
import time
from contextlib import asynccontextmanager

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from peer_process import KEEPS_RESULTS, TEXT, mark, mark_end

SLEEPS = os.environ.get("BENCH_SLEEPS") == "1"
SETTINGS = "RedisBroker; dramatiq -p 2 -t 8 (its defaults on 2 cores) for what does nothing, -p 1 -t 100 for what waits"
KEEPS = "a result in Redis for ten minutes"
BULK = "send in a loop (it has no bulk call)"
RECOVERY = "a worker's heartbeat, 60 s (its default)"
WORKER = ["-m", "dramatiq", "peer_dramatiq"] + (["-p", "1", "-t", "100"] if SLEEPS else ["-p", "2", "-t", "8"])

broker = RedisBroker(url=os.environ["BENCH_REDIS"] + "/0")
if KEEPS_RESULTS:
    broker.add_middleware(Results(backend=RedisBackend(url=os.environ["BENCH_REDIS"] + "/1"), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(n, to):
    mark(n)


@dramatiq.actor(actor_name="sleep5")
def sleep5(n, to):
    mark(n)
    time.sleep(0.005)


@dramatiq.actor(actor_name="sleep20")
def sleep20(n, to):
    mark(n)
    time.sleep(0.02)
    mark_end(n)


ACTORS = {"noop": noop, "sleep5": sleep5, "sleep20": sleep20}


def setup():
    pass


class Client:
    async def one(self, handler, number):
        ACTORS[handler].send(n=number, to=TEXT)

    async def bulk(self, handler, numbers):
        for number in numbers:
            ACTORS[handler].send(n=number, to=TEXT)


@asynccontextmanager
async def client():
    yield Client()


@asynccontextmanager
async def ledger():
    results = redis.Redis.from_url(os.environ["BENCH_REDIS"] + "/1")

    async def count():
        return results.dbsize()

    yield count
