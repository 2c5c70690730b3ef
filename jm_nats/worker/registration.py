"""What a worker tells the cluster: its buckets' records, and the defaults of its handlers."""

import time
from typing import Final

import uuid_utils

from jm_core import wire
from jm_core.errors import JmError
from jm_core.kv_records import bucket_at, handler_at
from jm_core.model import WEIGHTS, BucketEvent, BucketKind, BucketStatus, Priority
from jm_core.ownership import moved
from jm_core.wire import BucketRecord
from jm_nats.app import JobMaster
from jm_nats.kv import CasKv, Entry, Stale, Written

MOVE_TRIES: Final = 5
HANDLER_PREFIX: Final = "handler."


class BucketTakenError(JmError):
    """A bucket id that was made up at random exists already."""


def new_bucket_id(lane: str, priority: Priority) -> str:
    """``<lane>-<priority>-<random>``, at most 40 characters; never used again after its tombstone."""
    return f"{lane[:20]}-{priority.label}-{uuid_utils.uuid4().hex[:8]}"


def new_record(
    worker: str,
    incarnation: str,
    lane: str,
    priority: Priority,
    *,
    kind: BucketKind = BucketKind.PROPER,
    serves: int = 0,
    reason: str = "",
) -> BucketRecord:
    return BucketRecord(
        bucket=new_bucket_id(lane, priority),
        worker=worker,
        incarnation=incarnation,
        lane=lane,
        priority=int(priority),
        epoch=1,
        status=BucketStatus.ACTIVE.value,
        weight=WEIGHTS[priority],
        opened_at=time.time(),
        kind=kind,
        serves=serves,
        reason=reason,
    )


class Record:
    """One bucket's entry in the registry, changed by compare-and-set on what we wrote last."""

    def __init__(self, kv: CasKv, value: BucketRecord, revision: int) -> None:
        self._kv = kv
        self.value = value
        self.revision = revision

    @classmethod
    async def create(cls, kv: CasKv, value: BucketRecord) -> "Record | None":
        """None: there is one already."""
        match await kv.create(value.bucket, wire.encode(value)):
            case Written(revision=revision):
                return cls(kv, value, revision)
            case Stale():
                return None

    async def move(self, event: BucketEvent, *, reason: str = "") -> bool:
        """False: somebody else has changed it: it is not ours any more.

        Raises:
            IllegalMoveError, AgentError.
        """
        value = moved(self.value, event, now_s=time.time(), reason=reason)
        for _ in range(MOVE_TRIES):
            match await self._kv.update(value.bucket, wire.encode(value), revision=self.revision):
                case Written(revision=revision):
                    self.value, self.revision = value, revision
                    return True
                case Stale(current=Entry() as seen) if bucket_at(seen.key, seen.value) is None:
                    self.revision = seen.revision  # nobody took it: somebody wrote what nobody can read over it
                case Stale():
                    return False
        return False


async def publish_defaults(cluster: CasKv, app: JobMaster) -> None:
    """Tell the writer what foreign clients may leave out. Written only when it changed: an idle KV stays quiet."""
    for handler in app.handlers.values():
        key = f"{HANDLER_PREFIX}{handler.name}"
        value = wire.encode(handler.defaults())
        entry = await cluster.get(key)
        if entry is None or entry.value != value:
            await cluster.put(key, value)


async def mend_defaults(cluster: CasKv, app: JobMaster, entry: Entry) -> None:
    """Somebody wrote what nobody can read over the defaults of a handler of ours.

    Raises:
        AgentError: NATS does not answer.
    """
    handler = app.handlers.get(entry.key.removeprefix(HANDLER_PREFIX))
    if handler is not None and entry.key.startswith(HANDLER_PREFIX) and handler_at(entry.value) is None:
        await cluster.update(entry.key, wire.encode(handler.defaults()), revision=entry.revision)
