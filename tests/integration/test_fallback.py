"""Due jobs that nobody serves get a stand-in, and are seen where there can be none."""

from __future__ import annotations

import logging
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace as changed

import asyncpg
import pytest
from msgspec.structs import replace

from jm_core import rpc, wire
from jm_core.model import BucketKind, BucketStatus, Priority
from jm_core.wire import BucketRecord
from jm_nats.api_client import ApiClient
from jm_nats.kv import CasKv
from jm_nats.provision import ensure_bucket
from tests.support.master import FAST, FakeWorker, coordinating, job, linked
from tests.support.rpc import answering
from tests.support.waiting import wait_until

CONFIG = changed(FAST, no_bucket_threshold_s=0.5)


@pytest.fixture
async def bench(nats_server, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench:
        yield bench


@pytest.fixture
async def leading(nats_server, database, cluster_name, bench):
    async with coordinating(nats_server.url, database, cluster_name, CONFIG) as coordinator:
        yield coordinator


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    yield connection
    await connection.close()


class StandIn:
    """A worker that opens fallback buckets when asked, each with a reader of its own."""

    def __init__(self, bench, worker, stack):
        self.bench = bench
        self.worker = worker
        self.opened = {}
        self.retired = []
        self._stack = stack

    async def answer(self, request):
        match request:
            case rpc.OpenFallback(lane=lane, serves=serves):
                if (lane, serves) not in self.opened:
                    self.opened[lane, serves] = await self._open(lane, serves)
                return rpc.Answer(bucket=self.opened[lane, serves].bucket)
            case rpc.Retire(bucket=bucket):
                self.retired.append(bucket)
                return rpc.Answer()
            case _:
                return rpc.Answer()

    async def _open(self, lane, serves):
        record = BucketRecord(
            f"f-{uuid.uuid4().hex[:8]}",
            self.worker.name,
            self.worker.record.incarnation,
            lane,
            Priority.CRITICAL,
            1,
            BucketStatus.ACTIVE.value,
            kind=BucketKind.FALLBACK,
            serves=serves,
        )
        bucket = FakeWorker(self.bench, [], 10, lane)  # the part of it that reads
        bucket.bucket, bucket.bucket_record, bucket.name = record.bucket, record, self.worker.name
        bucket.record = self.worker.record
        await ensure_bucket(self.bench.link, self.bench.names, record.bucket)
        await bucket.open()
        self._stack.push_async_callback(bucket.close)
        return bucket


@asynccontextmanager
async def standing_in(bench, *handlers, lane="elsewhere"):
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(bench.worker(*handlers, lane=lane))
        stand_in = StandIn(bench, worker, stack)
        await stack.enter_async_context(answering(bench, worker, stand_in.answer))
        yield stand_in


async def opened(stand_in, lane, serves):
    return await wait_until(lambda: stand_in.opened.get((lane, serves)), what="a fallback bucket")


async def test_a_lane_that_nobody_serves_gets_a_stand_in_that_retires_when_a_proper_bucket_comes(leading, bench, db):
    submitted = job("mail", lane="bulk", priority="low")
    async with standing_in(bench, "mail") as stand_in:
        await bench.submit_and_wait(submitted)
        bucket = await opened(stand_in, "bulk", Priority.LOW)
        (run,) = await bucket.runs(1)
        assert run.id == submitted["id"]
        await bucket.succeed([run])
        await wait_until(lambda: db.fetchval("SELECT status = 4 FROM job"), what="the end")
        async with bench.worker("mail", lane="bulk") as proper:  # medium priority: another route
            await wait_until(lambda: leading.registry.view.route("bulk", Priority.MEDIUM), what="its bucket")
            assert stand_in.retired == []
            record = replace(proper.bucket_record, bucket=f"p-{uuid.uuid4().hex[:8]}", priority=Priority.LOW)
            await CasKv(bench.link, bench.names.buckets_kv).create(record.bucket, wire.encode(record))
            await wait_until(lambda: stand_in.retired, what="the order to retire")
            assert set(stand_in.retired) == {bucket.bucket}
            assert [one.bucket for one in leading.registry.view.route("bulk", Priority.LOW)] == [record.bucket]


async def test_a_fallback_bucket_is_given_nothing_that_its_worker_does_not_know(leading, bench, db):
    async with standing_in(bench, "mail") as stand_in:
        known, unknown = job("mail", lane="bulk"), job("typo", lane="bulk")
        await bench.submit_and_wait(unknown)
        await bench.submit_and_wait(known)
        bucket = await opened(stand_in, "bulk", Priority.MEDIUM)
        (run,) = await bucket.runs(1)
        assert run.id == known["id"]
        client = ApiClient(bench.link, bench.names)
        (left,) = await wait_until(lambda: only(client, "typo"), what="the unserved kind")
        assert (left.lane, left.priority, left.reason) == ("bulk", "medium", "no live worker knows the handler")
        assert await db.fetchval("SELECT status FROM job WHERE handler = 'typo'") == 1


async def only(client, handler):
    found = (await client.unserved()).unserved
    return found if [kind.handler for kind in found] == [handler] else None


async def test_a_handler_that_nobody_knows_is_said_once(leading, bench, caplog):
    caplog.set_level(logging.ERROR, "jm_master.fallback")
    async with standing_in(bench, "mail") as stand_in:
        await bench.submit_and_wait(job("typo", lane="bulk"))
        await wait_until(lambda: caplog.records, what="the complaint")
        await bench.submit_and_wait(job("mail", lane="bulk"))
        await opened(stand_in, "bulk", Priority.MEDIUM)  # passes went on
        assert [(record.handler, record.lane) for record in caplog.records] == [("typo", "bulk")]
        assert [record.reason for record in caplog.records] == ["no live worker knows the handler"]


async def test_a_new_leader_opens_no_second_one(bench, db, nats_server, database, cluster_name):
    async with standing_in(bench, "mail") as one, standing_in(bench, "mail") as other:
        async with coordinating(nats_server.url, database, cluster_name, CONFIG):
            await bench.submit_and_wait(job("mail", lane="bulk"))
            await wait_until(lambda: one.opened or other.opened, what="a fallback bucket")
        async with coordinating(nats_server.url, database, cluster_name, CONFIG):
            await bench.submit_and_wait(job("mail", lane="bulk"))
            bucket = next(iter((one.opened or other.opened).values()))
            await bucket.runs(2)
            assert len(one.opened) + len(other.opened) == 1


async def test_when_the_stand_in_dies_the_next_one_is_asked_without_a_second_wait(
    bench, db, nats_server, database, cluster_name
):
    patient = changed(FAST, no_bucket_threshold_s=4.0)
    async with (
        coordinating(nats_server.url, database, cluster_name, patient),
        standing_in(bench, "mail") as dies,
    ):
        await bench.submit_and_wait(job("mail", lane="bulk"))
        bucket = await opened(dies, "bulk", Priority.MEDIUM)
        (run,) = await bucket.runs(1)
        async with standing_in(bench, "mail") as lives:
            await dies.worker.die()
            await bucket.die()
            tombstone = "SELECT 1 FROM bucket WHERE bucket_id = $1"
            await wait_until(lambda: db.fetchval(tombstone, bucket.bucket), what="the burial")
            # A second wait would be 4 s from here.
            successor = await wait_until(
                lambda: lives.opened.get(("bulk", Priority.MEDIUM)), timeout_s=2.5, what="the successor"
            )
            (again,) = await successor.runs(1)
            assert (again.id, again.dispatch) == (run.id, 2)
