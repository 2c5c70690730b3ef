"""A coordinator in this process, and a worker that is nothing but a registration: the test itself reports outcomes."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from jm_core import wire
from jm_core.model import AttemptOutcome, BucketStatus, Priority
from jm_core.wire import BucketRecord, EventBatch, Finished, Run, WorkerRecord
from jm_master.config import CoordinatorConfig, PostgresConfig
from jm_master.coordinator import Coordinator
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.kv import CasKv, Written
from jm_nats.provision import ensure_bucket, ensure_cluster
from jm_nats.publisher import JetPublisher
from jm_nats.pull import PullReader, ack
from jm_nats.subjects import RUN_CONSUMER, Names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from jm_core.wire import Event, JobReceipt
    from jm_nats.connection import NatsLink

LEASE_S: Final = 1.5
_IDS: Final = itertools.count()
FAST: Final = CoordinatorConfig(lease_s=LEASE_S, poll_s=0.1, outbox_age_s=0.5)


@asynccontextmanager
async def coordinating(
    nats_url: str, dsn: str, cluster: str, config: CoordinatorConfig = FAST, *, leads: bool = True
) -> AsyncIterator[Coordinator]:
    """A coordinator that leads by the time the body runs, and is stopped in order after it."""
    coordinator = Coordinator(NatsConfig(servers=(nats_url,)), PostgresConfig(dsn=dsn), cluster, config)
    stop = asyncio.Event()
    running = asyncio.create_task(coordinator.run(stop))
    waiting = asyncio.create_task(coordinator.leading.wait() if leads else coordinator.ready.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    waiting.cancel()
    try:
        if running.done():
            await running
        assert coordinator.ready.is_set(), "the coordinator did not get ready"
        yield coordinator
    finally:
        stop.set()
        await asyncio.wait_for(running, 10)


@asynccontextmanager
async def linked(nats_url: str, cluster: str, *, lease_s: float = LEASE_S) -> AsyncIterator[Bench]:
    async with await connect(NatsConfig(servers=(nats_url,)), client_name="test") as link:
        names = Names(cluster)
        await ensure_cluster(link, names, lease_s=lease_s)
        async with JetPublisher(link) as publisher:
            yield Bench(link, names, publisher)


class Bench:
    """The test's own connection to the cluster under test."""

    def __init__(self, link: NatsLink, names: Names, publisher: JetPublisher) -> None:
        self.link = link
        self.names = names
        self.publisher = publisher

    async def submit(self, *jobs: dict[str, Any], raw: bytes | None = None, receipt_to: str | None = None) -> None:
        """One message, however it looks."""
        headers = {wire.HEADER_RECEIPT_TO: receipt_to} if receipt_to else None
        await self.publisher.publish(self.names.submit, raw or msgspec.json.encode(jobs), headers=headers)

    async def submit_and_wait(self, *jobs: dict[str, Any], raw: bytes | None = None) -> list[JobReceipt]:
        """One message, and the writer's answer to it."""
        inbox = self.link.nc.new_inbox()
        subscription = await self.link.nc.subscribe(inbox)
        await self.submit(*jobs, raw=raw, receipt_to=inbox)
        message = await subscription.next_msg(timeout=20)
        await subscription.unsubscribe()
        return wire.decode_receipts(message.data).receipts

    async def call(self, operation: str, request: object) -> wire.Any:
        """The reply of the API as plain Python values."""
        data = request if isinstance(request, bytes) else msgspec.json.encode(request)
        reply = await self.link.nc.request(self.names.api(operation), data, timeout=15)
        return msgspec.json.decode(reply.data)

    @asynccontextmanager
    async def worker(self, *handlers: str, slots: int = 100, lane: str = "default") -> AsyncIterator[FakeWorker]:
        """A live worker with one bucket of medium priority."""
        worker = FakeWorker(self, list(handlers) or ["noop"], slots, lane)
        await worker.open()
        try:
            yield worker
        finally:
            await worker.close()


class FakeWorker:
    """Beats, owns a bucket, and hands the runs it gets to the test."""

    def __init__(self, bench: Bench, handlers: list[str], slots: int, lane: str) -> None:
        self.bench = bench
        self.name = f"w-{uuid.uuid4().hex[:8]}"
        self.bucket = f"b-{uuid.uuid4().hex[:8]}"
        self.record = WorkerRecord(self.name, uuid.uuid4().hex, "host", 1, time.time(), slots, [lane], handlers)
        self.bucket_record = BucketRecord(
            self.bucket,
            self.name,
            self.record.incarnation,
            lane,
            Priority.MEDIUM,
            1,
            BucketStatus.ACTIVE.value,
            opened_at=time.time(),
        )
        self.revision = 0
        self._workers = CasKv(bench.link, bench.names.workers_kv)
        self._buckets = CasKv(bench.link, bench.names.buckets_kv)
        self._beating: asyncio.Task[None] | None = None
        self._reader: PullReader | None = None

    async def open(self) -> None:
        await self._workers.put(self.name, wire.encode(self.record))
        await ensure_bucket(self.bench.link, self.bench.names, self.bucket)
        written = await self._buckets.create(self.bucket, wire.encode(self.bucket_record))
        assert isinstance(written, Written)
        self.revision = written.revision
        self._beating = asyncio.create_task(self._beat())
        stream = self.bench.names.bucket_stream(self.bucket)
        self._reader = await PullReader(
            self.bench.link, stream, RUN_CONSUMER, batch=1000, max_bytes=8 * 1024 * 1024
        ).start()

    async def die(self) -> None:
        """No more beats: its key expires with the lease."""
        assert self._beating is not None
        self._beating.cancel()
        await asyncio.wait({self._beating})

    async def move(self, status: BucketStatus) -> None:
        self.bucket_record = replace(self.bucket_record, status=status.value, was_lost=status is BucketStatus.LOST)
        written = await self._buckets.update(self.bucket, wire.encode(self.bucket_record), revision=self.revision)
        assert isinstance(written, Written)
        self.revision = written.revision

    async def close(self) -> None:
        await self.die()
        if self._reader is not None:
            await self._reader.close()

    async def runs(self, count: int, timeout_s: float = 20) -> list[Run]:
        """The next ``count`` runs, acked at once."""
        assert self._reader is not None
        runs: list[Run] = []
        async with asyncio.timeout(timeout_s):
            while len(runs) < count:
                for message in await self._reader.take(100):
                    runs += wire.decode_runs(message.data)
                    ack(message)
        assert len(runs) == count
        return runs

    async def nothing_comes(self, for_s: float) -> bool:
        assert self._reader is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._reader.take(1)
                return False
        return True

    async def report(self, *events: Event) -> None:
        batch = EventBatch(self.bucket, self.bucket_record.epoch, self.name, list(events))
        await self.bench.publisher.publish(self.bench.names.events(self.bucket), wire.encode(batch))

    async def report_raw(self, data: bytes) -> None:
        await self.bench.publisher.publish(self.bench.names.events(self.bucket), data)

    async def succeed(self, runs: Sequence[Run], **fields: Any) -> None:
        await self.report(*[finished(run, AttemptOutcome.SUCCEEDED, **fields) for run in runs])

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 5)
            await self._workers.put(self.name, wire.encode(self.record))


def finished(run: Run, outcome: AttemptOutcome, **fields: Any) -> Finished:
    now_s = time.time()
    return Finished(run.id, run.dispatch, run.attempt, outcome, now_s - 0.001, now_s, **fields)


def job(handler: str = "noop", **fields: Any) -> dict[str, Any]:
    """A submission with an id of its own."""
    return {"id": new_id(), "handler": handler, **fields}


def new_id() -> str:
    """A UUID of version 7 that is greater than the one before."""
    order = next(_IDS) & 0xFFF
    bits = (
        (int(time.time() * 1000) << 80) | (7 << 76) | (order << 64) | (2 << 62) | (uuid.uuid4().int & ((1 << 62) - 1))
    )
    return str(uuid.UUID(int=bits))
