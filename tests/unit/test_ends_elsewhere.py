"""Who waits for a job that may end at another agent, whose recorder tells ours nothing."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from jm_core.api import ResultReply
from jm_master import ends_service
from jm_master.ends_service import EndsService
from jm_master.pg_errors import StoreUnavailableError
from jm_master.waiters import ResultWaiters

IDS = [f"0190a000-0000-7000-8000-{n:012x}" for n in range(30)]


class Store:
    def __init__(self):
        self.ended, self.reads, self.looks, self.is_away = set(), 0, [], False

    async def result(self, job_id):
        self.reads += 1
        return ResultReply(job_id, "succeeded" if job_id in self.ended else "processing")

    async def which_ended(self, ids):
        if self.is_away:
            self.is_away = False
            raise StoreUnavailableError("db", "gone")
        self.looks.append(len(ids))
        return [job_id for job_id in ids if job_id in self.ended]


async def read(ask):
    return await ask()


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(ends_service, "OTHERS_POLL_S", 0.02)
    return Store()


async def asked(service, job_id, wait_s):
    data = msgspec.json.encode({"id": job_id, "wait_s": wait_s})
    return (await service.operations()["job-result"](data)).status


async def test_one_look_a_second_serves_all_who_wait_and_no_one_reads_for_nothing(store):
    service = EndsService(store, ResultWaiters(), read, others=lambda: True)
    duty = asyncio.create_task(service.run())
    waiting = [asyncio.create_task(asked(service, job_id, 30)) for job_id in IDS]
    async with asyncio.timeout(10):
        while len(store.looks) < 10:
            await asyncio.sleep(0.01)
        assert (store.reads, set(store.looks)) == (len(IDS), {len(IDS)})
        store.is_away = True
        store.ended = set(IDS)
        assert await asyncio.gather(*waiting) == ["succeeded"] * len(IDS)
    assert store.reads == 2 * len(IDS)
    duty.cancel()


async def test_without_other_agents_nobody_looks(store):
    service = EndsService(store, ResultWaiters(), read)
    duty = asyncio.create_task(service.run())
    began_s = time.monotonic()
    assert await asked(service, IDS[0], 0.3) == "processing"
    assert time.monotonic() - began_s >= 0.3
    assert (store.looks, store.reads) == ([], 2)
    duty.cancel()
