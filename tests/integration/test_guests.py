"""What people ask must leave connections to those that write and record jobs."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from jm_core import api
from jm_master.config import PostgresConfig
from jm_master.database import Database, as_guest
from jm_master.job_store import JobStore
from jm_master.service import Service
from jm_master.waiters import ResultWaiters
from tests.support.master import linked
from tests.support.waiting import wait_until


@pytest.fixture
async def opened(database):
    async with Database(PostgresConfig(dsn=database, connections_max=3, connect_timeout_s=5.0)) as store:
        yield store


async def test_requests_of_every_kind_together_take_two_connections_and_the_leader_has_one_at_once(
    nats_server, cluster_name, opened
):
    inside, most, go_on = 0, 0, asyncio.Event()

    async def holding(_: bytes):
        nonlocal inside, most
        async with opened.connection():
            inside += 1
            most = max(most, inside)
            await go_on.wait()
            inside -= 1
        return api.UnservedList([])

    async with linked(nats_server.url, cluster_name) as bench, anyio.create_task_group() as tasks:
        service = Service(
            bench.link,
            bench.names,
            JobStore(opened),
            ResultWaiters(),
            operations={"test_a": holding, "test_b": holding},
            guests_max=opened.guests_max,
        )
        await tasks.start(service.run)
        asked = [asyncio.create_task(bench.call(f"test_{'ab'[n % 2]}", {})) for n in range(8)]
        await wait_until(lambda: inside == 2, what="two requests that hold a connection")
        with anyio.fail_after(2.0):  # less than it takes to give the pool up
            assert await opened.fetchval("SELECT 1") == 1
        go_on.set()
        assert all("data" in reply for reply in await asyncio.gather(*asked))
        assert most == 2
        tasks.cancel_scope.cancel()


async def test_who_is_no_guest_does_not_wait_for_guests(opened):
    limiter = anyio.Semaphore(0)
    with as_guest(limiter), anyio.move_on_after(0.1) as waited:
        await opened.fetchval("SELECT 1")
    assert waited.cancelled_caught
    assert await opened.fetchval("SELECT 1") == 1
    limiter.release()
    with as_guest(limiter):
        assert await opened.fetchval("SELECT 2") == 2
