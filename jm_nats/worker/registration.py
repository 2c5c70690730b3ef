"""What a worker tells the cluster: its buckets, and the defaults of its handlers."""

import logging
import time

import msgspec
import uuid_utils

from jm_core import wire
from jm_core.errors import JmError
from jm_core.model import WEIGHTS, BucketStatus, Priority
from jm_core.wire import BucketRecord
from jm_nats.app import JobMaster
from jm_nats.connection import NatsLink
from jm_nats.kv import CasKv, Stale, Written
from jm_nats.provision import ensure_bucket
from jm_nats.subjects import Names

log = logging.getLogger("jobmaster.worker")


class BucketTakenError(JmError):
    """Somebody else changed our bucket's record: our epoch is over."""


def new_bucket_id(lane: str, priority: Priority) -> str:
    """``<lane>-<priority>-<random>``, at most 40 characters; never used again after its tombstone."""
    return f"{lane[:20]}-{priority.label}-{uuid_utils.uuid4().hex[:8]}"


class Registration:
    """The worker's entries in the bucket registry, each changed by compare-and-set."""

    def __init__(self, link: NatsLink, names: Names, buckets: CasKv, *, replicas: int) -> None:
        self._link = link
        self._names = names
        self._buckets = buckets
        self._replicas = replicas
        self._held: dict[str, tuple[BucketRecord, int]] = {}

    async def open(self, worker: str, incarnation: str, lane: str, priority: Priority) -> BucketRecord:
        """Create a bucket: its stream first, its record last, so that a listed bucket can always be written to."""
        record = BucketRecord(
            bucket=new_bucket_id(lane, priority),
            worker=worker,
            incarnation=incarnation,
            lane=lane,
            priority=int(priority),
            epoch=1,
            status=BucketStatus.ACTIVE.value,
            weight=WEIGHTS[priority],
            opened_at=time.time(),
        )
        await ensure_bucket(self._link, self._names, record.bucket, replicas=self._replicas)
        match await self._buckets.create(record.bucket, wire.encode(record)):
            case Written(revision=revision):
                self._held[record.bucket] = (record, revision)
            case Stale():
                raise BucketTakenError(f"bucket {record.bucket} exists already")
        return record

    async def move_all(self, status: BucketStatus) -> None:
        """Set the status of every bucket of ours that is still ours."""
        for bucket, (record, revision) in list(self._held.items()):
            moved = msgspec.structs.replace(record, status=status.value)
            match await self._buckets.update(bucket, wire.encode(moved), revision=revision):
                case Written(revision=new_revision):
                    self._held[bucket] = (moved, new_revision)
                case Stale():
                    log.warning("bucket is not ours any more", extra={"bucket": bucket})
                    del self._held[bucket]


async def publish_defaults(cluster: CasKv, app: JobMaster) -> None:
    """Tell the writer what foreign clients may leave out. Written only when it changed: an idle KV stays quiet."""
    for handler in app.handlers.values():
        key = f"handler.{handler.name}"
        value = wire.encode(handler.defaults())
        entry = await cluster.get(key)
        if entry is None or entry.value != value:
            await cluster.put(key, value)
