import asyncio
import os
from contextlib import asynccontextmanager

from taskiq_nats import NATSObjectStoreResultBackend, PullBasedJetStreamBroker

from peer_process import KEEPS_RESULTS, TEXT, mark, mark_end

SETTINGS = "PullBasedJetStreamBroker, one message a pull (its default) from submit to record and to start, pull_consume_batch=100 for drain, waiting and kill; taskiq worker --workers 1 --max-async-tasks 100 --ack-type when_executed"
KEEPS = "a result in a NATS object store"
BULK = "500 kiq() at once (it has no bulk call)"
RECOVERY = "JetStream's ack wait, 30 s (its default)"
CHUNK = 500

# A pull for 100 waits for the other 99 until its timeout: good for a queue that is full, bad for one that is at rest.
PULL = {} if KEEPS_RESULTS else {"pull_consume_batch": 100, "pull_consume_timeout": 0.5}
broker = PullBasedJetStreamBroker(os.environ["BENCH_NATS"], queue="bench", **PULL)
if KEEPS_RESULTS:
    broker = broker.with_result_backend(NATSObjectStoreResultBackend(os.environ["BENCH_NATS"], keep_results=True))
WORKER = ["-m", "taskiq", "worker", "peer_taskiq:broker", "--workers", "1", "--max-async-tasks", "100"]
WORKER += ["--ack-type", "when_executed", "--log-level", "WARNING"]


@broker.task(task_name="noop")
async def noop(n: int, to: str):
    mark(n)


@broker.task(task_name="sleep5")
async def sleep5(n: int, to: str):
    mark(n)
    await asyncio.sleep(0.005)


@broker.task(task_name="sleep20")
async def sleep20(n: int, to: str):
    mark(n)
    await asyncio.sleep(0.02)
    mark_end(n)


TASKS = {"noop": noop, "sleep5": sleep5, "sleep20": sleep20}


def setup():
    pass


class Client:
    async def one(self, handler, number):
        await TASKS[handler].kiq(n=number, to=TEXT)

    async def bulk(self, handler, numbers):
        await asyncio.gather(*[TASKS[handler].kiq(n=n, to=TEXT) for n in numbers])


@asynccontextmanager
async def client():
    await broker.startup()
    yield Client()
    await broker.shutdown()


@asynccontextmanager
async def ledger():
    await broker.startup()
    store = await broker.js.object_store("taskiq_results")

    async def count():
        status = await store.status()
        return status.size and len(await store.list())

    yield count
    await broker.shutdown()
