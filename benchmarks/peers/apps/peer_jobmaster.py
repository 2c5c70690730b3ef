"""Ourselves: NATS, Postgres, one coordinator, one worker, all defaults."""

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import asyncpg

from jm_core import limits
from jm_nats import JobClient, JobMaster, NatsConfig
from jm_nats.connection import connect
from jm_nats.provision import ensure_cluster
from peer_process import TEXT, mark, mark_end

SETTINGS = "defaults; one worker (100 slots), one coordinator"
KEEPS = "a row in Postgres for every job, with its attempts, for 30 days"
BULK = "submit_many"
RECOVERY = "lease of 10 s, a survivor takes over"
WORKER = ["-m", "jm_cli", "worker", "peer_jobmaster:jm"]

jm = JobMaster(os.environ["JM_CLUSTER"])


@jm.handler("noop")
async def noop(n: int, to: str):
    mark(n)


@jm.handler("sleep5")
async def sleep5(n: int, to: str):
    mark(n)
    await asyncio.sleep(0.005)


@jm.handler("sleep20")
async def sleep20(n: int, to: str):
    mark(n)
    await asyncio.sleep(0.02)
    mark_end(n)


async def setup():
    subprocess.run([sys.executable, "-m", "jm_cli", "migrate"], check=True, capture_output=True)
    config = NatsConfig(servers=(os.environ["JM_NATS_URL"],))
    opened = JobClient(os.environ["JM_CLUSTER"], config)
    async with await connect(config, client_name="setup") as link:
        await ensure_cluster(link, opened.names, lease_s=limits.LEASE_S)


class Client:
    def __init__(self, client):
        self._client = client

    async def one(self, handler, number):
        await self._client.submit(jm.handlers[handler].job({"n": number, "to": TEXT}))

    async def bulk(self, handler, numbers):
        await self._client.submit_many(jm.handlers[handler].jobs({"n": n, "to": TEXT} for n in numbers))


@asynccontextmanager
async def client():
    async with JobClient(os.environ["JM_CLUSTER"], NatsConfig(servers=(os.environ["JM_NATS_URL"],))) as opened:
        yield Client(opened)


@asynccontextmanager
async def ledger():
    db = await asyncpg.connect(os.environ["BENCH_DSN"])
    yield lambda: db.fetchval("select count(*) from jobmaster.job where status > 3")
    await db.close()
