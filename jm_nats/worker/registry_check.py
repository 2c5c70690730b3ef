"""What the registry says of our buckets, held against what we know: who is overtaken gives up, what was lost is written
again, what is listed as ours and is not goes to others (``jm_core.ownership.standing``).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from jm_core import wire
from jm_core.health import Invariant, InvariantViolatedError
from jm_core.kv_records import bucket_at
from jm_core.model import BucketStatus
from jm_core.ownership import Standing, lost, standing
from jm_core.wire import BucketRecord
from jm_nats.connection import NatsLink
from jm_nats.errors import AgentError
from jm_nats.kv import CasKv, Written
from jm_nats.provision import delete_bucket, ensure_bucket
from jm_nats.subjects import Names
from jm_nats.troubles import trouble
from jm_nats.worker.intake import Intake
from jm_nats.worker.outcomes import BucketPort
from jm_nats.worker.registration import Record
from jm_nats.worker.tasks import Tasks

log = logging.getLogger("jobmaster.worker")

RETRY_PAUSE_S: Final = 1.0
OWN_STATUS: Final = frozenset({BucketStatus.ACTIVE, BucketStatus.COMPLETING})


class OwnBucket:
    """One of ours, with all that serves it."""

    def __init__(self, record: Record, port: BucketPort, intake: Intake) -> None:
        self.record = record
        self.port = port
        self.intake = intake
        self.tasks: list[asyncio.Task[None]] = []
        self.seen_s = time.monotonic()  # when the registry last said that it is ours
        self.over = False
        self.tidy: Callable[[], None] = lambda: None  # looks for messages that have become pointless

    @property
    def name(self) -> str:
        return self.port.bucket

    @property
    def value(self) -> BucketRecord:
        return self.record.value


class Lease(Protocol):
    """What we ask of the guard."""

    doubted_s: float

    def holds(self) -> bool: ...


class Held(Protocol):
    """What we ask of whoever has the buckets."""

    own: dict[str, OwnBucket]
    being_opened: set[str]

    def give_up(self, bucket: OwnBucket) -> int: ...

    def replace_lost(self) -> Awaitable[None]: ...


class RegistryCheck:
    """Args: buckets: ours."""

    def __init__(
        self,
        buckets: Held,
        link: NatsLink,
        names: Names,
        kv: CasKv,
        tasks: Tasks,
        *,
        incarnation: str,
        replicas: int,
    ) -> None:
        self._buckets = buckets
        self._link = link
        self._names = names
        self._kv = kv
        self._tasks = tasks
        self._incarnation = incarnation
        self._replicas = replicas
        self.lease: Lease | None = None

    def changed(self, name: str, seen: BucketRecord | None) -> None:
        """What the watch saw of one of them; a rumour that is looked into, because a watch may lag behind."""
        bucket = self._buckets.own.get(name)
        if bucket is None:
            if seen is not None and self._is_listed_as_ours(seen) and name not in self._buckets.being_opened:
                self._tasks.start(self.undo_open(name), f"disowns {name}", ends=True)
        elif standing(bucket.value, seen) is not Standing.OURS:
            self._tasks.start(self._look_into(bucket), f"looks into {name}", ends=True)

    def _is_listed_as_ours(self, record: BucketRecord) -> bool:
        return record.incarnation == self._incarnation and record.status in OWN_STATUS

    def unreadable(self, name: str) -> None:
        """Something is written there that is no record."""
        bucket = self._buckets.own.get(name)
        if bucket is not None:
            self._tasks.start(self._look_into(bucket), f"looks into {name}", ends=True)

    async def _look_into(self, bucket: OwnBucket) -> None:
        try:
            await self.verify_one(bucket)
        except AgentError as error:
            log.debug("the registry cannot be asked", extra={"bucket": bucket.name, "error": str(error)})
        await self._buckets.replace_lost()

    async def verify(self) -> None:
        """Ask the registry for each; those that are not ours are given up.

        Raises:
            AgentError: it does not answer; nothing can be said of the rest.
            InvariantViolatedError: see ``verify_one``.
        """
        for bucket in list(self._buckets.own.values()):
            await self.verify_one(bucket)

    async def verify_one(self, bucket: OwnBucket) -> None:
        """Raises: AgentError, InvariantViolatedError."""
        if bucket.over:
            return
        asked_s = time.monotonic()
        entry = await self._kv.get(bucket.name)
        seen = bucket_at(entry.key, entry.value) if entry is not None else None
        if seen is None and entry is not None:
            await self._write_again(bucket, entry.revision)
            return
        match standing(bucket.value, seen):
            case Standing.OURS:
                assert entry is not None
                bucket.seen_s = asked_s
                bucket.record.revision = entry.revision
            case Standing.MISSING if self._could_not_be_lost(bucket):
                await self._register_again(bucket)
            case Standing.WENT_BACK:
                assert seen is not None
                detail = f"bucket {bucket.name}: the registry says epoch {seen.epoch}, ours is {bucket.value.epoch}"
                raise InvariantViolatedError(Invariant.BUCKET_EPOCH_WENT_BACK, detail)
            case _:
                self._give_up(bucket, seen)

    def _could_not_be_lost(self, bucket: OwnBucket) -> bool:
        """Nobody can have taken us for dead since it was last seen: the registry was emptied."""
        return self.lease is not None and self.lease.holds() and self.lease.doubted_s < bucket.seen_s

    async def _write_again(self, bucket: OwnBucket, revision: int) -> None:
        """Somebody wrote something over its record that nobody can read: say again what it is."""
        answer = await self._kv.update(bucket.name, wire.encode(bucket.value), revision=revision)
        if isinstance(answer, Written):
            trouble(log, "bucket's record could not be read; written again", {"bucket": bucket.name})
            bucket.record.revision, bucket.seen_s = answer.revision, time.monotonic()

    async def _register_again(self, bucket: OwnBucket) -> None:
        await ensure_bucket(self._link, self._names, bucket.name, replicas=self._replicas)
        record = await Record.create(self._kv, bucket.value)
        if record is not None:
            log.warning("the registry had lost our bucket; registered again", extra={"bucket": bucket.name})
            bucket.record.revision = record.revision
            bucket.seen_s = time.monotonic()

    def _give_up(self, bucket: OwnBucket, seen: BucketRecord | None) -> None:
        if bucket.over:
            return
        by = f"{seen.worker} (epoch {seen.epoch}, {seen.status})" if seen is not None else "nobody any more"
        log.warning(
            "bucket is not ours any more, we were taken for dead; what runs of it is cancelled, it cannot count",
            extra={
                "bucket": bucket.name,
                "owner": by,
                "why": seen.reason if seen else "",
                "cancelled": self._buckets.give_up(bucket),
            },
        )
        if seen is not None and seen.incarnation == self._incarnation:
            self._tasks.start(self.undo_open(bucket.name), f"disowns {bucket.name}", ends=True)

    async def undo_open(self, name: str) -> None:
        """Of a bucket that nobody serves: its stream goes; if it is listed, it is others' to drain."""
        while True:
            try:
                entry = await self._kv.get(name)
                if entry is None:
                    await delete_bucket(self._link, self._names, name)
                elif (record := bucket_at(name, entry.value)) is not None:
                    await self._disown(name, record, entry.revision)
                else:  # nobody's, and nobody could know whose: what it holds is a stray bucket's, for the leader
                    await self._kv.delete(name, revision=entry.revision)
                    continue
            except AgentError as error:
                log.debug("bucket cannot be undone yet", extra={"bucket": name, "error": str(error)})
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return

    async def _disown(self, name: str, record: BucketRecord, revision: int) -> None:
        """Listed as ours, and we know nothing of it."""
        if name in self._buckets.own or not self._is_listed_as_ours(record):
            return
        left = lost(record, reason="its worker does not know it", now_s=time.time())
        log.warning("bucket is listed as ours and is not; left to others", extra={"bucket": name})
        await self._kv.update(name, wire.encode(left), revision=revision)
