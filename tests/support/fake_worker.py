"""A worker that only talks: heartbeat record, rpc, and what it was told to do. For tests of those who ask."""

from __future__ import annotations

import time

from jm_core import rpc, wire
from jm_core.model import WorkerState
from jm_core.wire import BucketRecord, WorkerRecord
from jm_nats.worker.rpc import RefusedOrderError


def worker_record(worker="w-1", **more):
    fields = {
        "incarnation": "i-1",
        "host": "host-a",
        "pid": 4711,
        "started_at": time.time() - 60,
        "slots": 4,
        "lanes": ["default"],
        "handlers": ["noop", "sleep"],
        "beat_at": time.time(),
    }
    return WorkerRecord(worker=worker, **(fields | more))


def bucket_record(bucket="default-high-1", **more):
    fields = {
        "worker": "w-1",
        "incarnation": "i-1",
        "lane": "default",
        "priority": 4,
        "epoch": 1,
        "status": "active",
        "opened_at": time.time() - 60,
    }
    return BucketRecord(bucket=bucket, **(fields | more))


async def put_records(link, names, *records):
    """Write them as their owners would; ``bytes`` with a key for what nobody can read."""
    from jm_nats.kv import CasKv  # noqa: PLC0415

    for record in records:
        match record:
            case WorkerRecord():
                await CasKv(link, names.workers_kv).put(record.worker, wire.encode(record))
            case BucketRecord():
                await CasKv(link, names.buckets_kv).put(record.bucket, wire.encode(record))
            case (kv, key, value):
                await CasKv(link, kv).put(key, value)


class FakeOrders:
    """Notes every order in ``given``; owns the buckets of ``own``."""

    def __init__(self, own=("default-high-1",)):
        self.own = set(own)
        self.given = []
        self.state = WorkerState.SERVING
        self.trouble: Exception | None = None

    def _own(self, bucket):
        if self.trouble:
            raise self.trouble
        if bucket not in self.own:
            raise RefusedOrderError(f"bucket {bucket!r} is not one of mine")

    async def holds(self, bucket, jobs):
        self._own(bucket)
        self.given.append(("holds", bucket))
        return [job_id for job_id, dispatch in jobs if dispatch > 1]

    def recall(self, bucket, jobs):
        self._own(bucket)
        self.given.append(("recall", bucket))
        return [job_id for job_id, dispatch in jobs if dispatch > 1]

    async def open_fallback(self, lane, serves, reason):
        self.given.append(("open_fallback", lane, serves, reason))
        return f"{lane}-fallback"

    async def retire(self, bucket, reason):
        self._own(bucket)
        self.given.append(("retire", bucket, reason))

    def drain(self, undo):
        self.given.append(("drain", undo))
        self.state = WorkerState.SERVING if undo else WorkerState.DRAINING

    def stop(self, hurry):
        self.given.append(("stop", hurry))
        self.state = WorkerState.STOPPING

    def status(self):
        running = [rpc.RunningJob("j-1", "sleep", "default-high-1", 1, 12.5)]
        return rpc.WorkerStatus(self.state.value, running=running, running_total=1, held=3)
