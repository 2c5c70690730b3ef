"""A worker's buckets and adoptions with real NATS, where the answer to a write gets lost at the worst moment."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from jm_core import wire
from jm_core.model import BucketStatus, Priority
from jm_core.wire import BucketRecord
from jm_nats import JobMaster
from jm_nats.config import NatsConfig
from jm_nats.errors import AgentUnavailableError, NoSuchStreamError
from jm_nats.kv import CasKv
from jm_nats.provision import ensure_bucket
from jm_nats.worker import Worker, WorkerConfig
from tests.support.master import LEASE_S, linked
from tests.support.waiting import wait_until

LOST = AgentUnavailableError("nats://here", "the answer was lost", remedy="wait")


@pytest.fixture
async def bench(nats_server, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench:
        yield bench


@asynccontextmanager
async def working(nats_server, cluster_name, **config):
    app = JobMaster(cluster_name, nats=NatsConfig(servers=(nats_server.url,)))

    @app.handler("sleep", timeout=600)
    async def sleep(seconds: float = 60.0) -> None:
        await asyncio.sleep(seconds)

    settings = {"lease_s": LEASE_S, "heartbeat_s": 0.3, "priorities": (Priority.MEDIUM,)} | config
    worker = Worker(app, WorkerConfig(**settings))
    stop, hurry = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(worker.run(stop, hurry))
    ready = asyncio.create_task(worker.ready.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    ready.cancel()
    try:
        assert worker.ready.is_set(), running
        yield worker, stop, running
    finally:
        stop.set()
        hurry.set()
        await asyncio.wait({running}, timeout=20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def loses_the_answer(method, *, times=1):
    """The write is stored, and nobody hears of it."""
    left = times

    async def losing(*args, **kwargs):
        nonlocal left
        answer = await method(*args, **kwargs)
        if left:
            left -= 1
            raise LOST
        return answer

    return losing


async def records(bench) -> list[BucketRecord]:
    return [wire.decode_bucket(entry.value) for entry in await CasKv(bench.link, bench.names.buckets_kv).entries()]


async def abandoned(bench, name: str) -> BucketRecord:
    """A bucket that somebody left behind."""
    await ensure_bucket(bench.link, bench.names, name)
    record = BucketRecord(name, "gone", "gone-1", "default", 3, 1, BucketStatus.LOST.value, was_lost=True)
    await CasKv(bench.link, bench.names.buckets_kv).create(name, wire.encode(record))
    return record


async def status_of(bench, name: str) -> str:
    entry = await CasKv(bench.link, bench.names.buckets_kv).get(name)
    return wire.decode_bucket(entry.value).status if entry else "gone"


async def test_a_bucket_whose_adoption_was_stored_unheard_is_drained_all_the_same(
    bench, nats_server, cluster_name
) -> None:
    async with working(nats_server, cluster_name) as (worker, _, _):
        kv = worker._parts.adopter._kv
        kv.update = loses_the_answer(kv.update)
        await abandoned(bench, "left")
        await wait_until(lambda: is_emptied(bench, "left"), what="it is emptied")


async def is_emptied(bench, name: str) -> bool:
    return await status_of(bench, name) == BucketStatus.READY_TO_DELETE


async def test_a_bucket_that_is_left_twice_is_adopted_twice(bench, nats_server, cluster_name) -> None:
    """The second time while its adopter is still about the first."""
    async with working(nats_server, cluster_name) as (worker, _, _):
        adopter = worker._parts.adopter
        entered, go_on = asyncio.Event(), asyncio.Event()
        empty = adopter._empty

        async def slowly(record):
            entered.set()
            await go_on.wait()
            return await empty(record)

        adopter._empty = slowly
        await abandoned(bench, "left")
        await asyncio.wait_for(entered.wait(), 10)
        kv = CasKv(bench.link, bench.names.buckets_kv)
        entry = await kv.get("left")
        again = replace(wire.decode_bucket(entry.value), status=BucketStatus.LOST.value)
        await kv.update("left", wire.encode(again), revision=entry.revision)
        go_on.set()
        await wait_until(lambda: is_emptied(bench, "left"), what="it is emptied")
        assert next(record for record in await records(bench) if record.bucket == "left").epoch == 3


async def test_a_bucket_that_was_listed_unheard_does_not_stay_ours(bench, nats_server, cluster_name) -> None:
    async with working(nats_server, cluster_name) as (worker, _, _):
        buckets = worker._parts.buckets
        kv = buckets._kv
        kv.create = loses_the_answer(kv.create)
        buckets.wanted["mail", Priority.MEDIUM] += 1
        with pytest.raises(AgentUnavailableError):
            await buckets.open_wanted()
        await buckets.open_wanted()

        async def one_serves() -> bool:
            mail = [record for record in await records(bench) if record.lane == "mail"]
            serving = [record for record in mail if record.status == BucketStatus.ACTIVE]
            return [record.bucket for record in serving] == [name for name in buckets.own if name.startswith("mail")]

        await wait_until(one_serves, what="only the bucket that is served is active")


async def test_a_stream_whose_bucket_could_not_be_listed_is_deleted(bench, nats_server, cluster_name) -> None:
    async with working(nats_server, cluster_name) as (worker, _, _):
        buckets = worker._parts.buckets
        made = []

        async def refuse(name, value):
            made.append(name)
            raise LOST

        buckets._kv.create = refuse
        with pytest.raises(AgentUnavailableError):
            await buckets.open_fallback("mail", 3, "a test")

        async def stream_is_gone() -> bool:
            try:
                await bench.link.api(f"STREAM.INFO.{bench.names.bucket_stream(made[0])}")
            except NoSuchStreamError:
                return True
            return False

        await wait_until(stream_is_gone, what="its stream is deleted")


async def test_a_worker_that_drains_for_longer_than_a_lease_opens_nothing(bench, nats_server, cluster_name) -> None:
    async with working(nats_server, cluster_name, drain_timeout_s=4 * LEASE_S) as (worker, stop, running):
        parts = worker._parts
        parts.engine.unreported = lambda *_: 0 if parts.engine.enough else 1  # as a job that runs on
        parts.engine.enough = False
        before = {record.bucket for record in await records(bench)}
        stop.set()
        until_s = time.monotonic() + 2.5 * LEASE_S
        while time.monotonic() < until_s:
            assert {record.bucket for record in await records(bench)} == before
            assert {record.status for record in await records(bench)} <= {BucketStatus.ACTIVE, BucketStatus.COMPLETING}
            await asyncio.sleep(0.1)
        assert {record.status for record in await records(bench)} == {BucketStatus.COMPLETING}
        parts.engine.enough = True
        await asyncio.wait_for(running, 10)
        assert {record.status for record in await records(bench)} == {BucketStatus.READY_TO_DRAIN}


async def test_a_worker_whose_lost_bucket_cannot_be_replaced_serves_on_with_the_others(
    bench, nats_server, cluster_name, monkeypatch
) -> None:
    """As with a node of an R3 cluster away: a new stream is refused, and the lease is sure again all the same."""
    async with working(nats_server, cluster_name) as (worker, _, _):
        parts = worker._parts

        async def refused() -> None:
            raise LOST

        parts.buckets.open_wanted = refused
        parts.guard._until_s = float("-inf")
        parts.guard._trusted_s = float("-inf")
        await wait_until(parts.guard.holds, what="the lease is sure again")


async def test_unread_messages_are_not_denied(bench, nats_server, cluster_name) -> None:
    async with working(nats_server, cluster_name) as (worker, _, _):
        (bucket,) = worker._parts.buckets.own.values()
        worker._parts.buckets.room.wait = asyncio.Event().wait  # the engine is full: nothing is taken any more
        await bench.publisher.publish(bench.names.run(bucket.name), b"[]")
        await bench.publisher.publish(bench.names.run(bucket.name), b"[]")
        await wait_until(lambda: bucket.intake.unread, what="a message lies in the reader")
        with pytest.raises(Exception, match="lie here unread"):
            await worker._parts.buckets.holds(bucket.name, [("x", 1)])


async def test_the_handler_that_blocks_the_loop_is_found_on_the_stack() -> None:
    from jm_nats.worker.blocking import Culprit  # noqa: PLC0415

    app = JobMaster("shop")
    found = []

    @app.handler("spins")
    async def spins() -> None:
        found.append(culprit.find())

    culprit = Culprit(app.handlers)
    await spins()
    ((name, where),) = found
    assert name == "spins"
    assert where
    assert culprit.find()[0] == ""
