"""The buckets that this worker owns: opened, served, closed one by one, and given up when they are somebody else's."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

import msgspec

from jm_core import wire
from jm_core.health import Invariant, InvariantViolatedError
from jm_core.model import BucketEvent, BucketKind, BucketStatus, Priority
from jm_core.ownership import Standing, lost, standing
from jm_core.wire import BucketRecord
from jm_nats.connection import NatsLink
from jm_nats.ensure import Created
from jm_nats.errors import AgentError, ConsumerGoneError
from jm_nats.kv import CasKv, Written
from jm_nats.provision import delete_bucket, ensure_bucket
from jm_nats.publisher import JetPublisher
from jm_nats.subjects import Names
from jm_nats.worker.engine import Engine
from jm_nats.worker.execution import Ask
from jm_nats.worker.intake import Intake, Room
from jm_nats.worker.outcomes import BucketPort, Reporter
from jm_nats.worker.registration import BucketTakenError, Record, new_record
from jm_nats.worker.rpc import RefusedOrderError
from jm_nats.worker.tasks import Tasks, all_done, cancelled

log = logging.getLogger("jobmaster.worker")

POLL_S: Final = 0.02
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


class Buckets:
    """All of them.

    Args:
        reconcile: tells the coordinator that the messages of a bucket were lost.
    """

    def __init__(  # noqa: PLR0917 - its parts, made in one place
        self,
        link: NatsLink,
        names: Names,
        kv: CasKv,
        engine: Engine,
        publisher: JetPublisher,
        tasks: Tasks,
        *,
        worker: str,
        incarnation: str,
        replicas: int,
        reconcile: Callable[[str], Awaitable[None]],
    ) -> None:
        self._link = link
        self._names = names
        self._kv = kv
        self._engine = engine
        self._publisher = publisher
        self._tasks = tasks
        self._worker = worker
        self._incarnation = incarnation
        self._replicas = replicas
        self._reconcile = reconcile
        self._opening = asyncio.Lock()
        self.own: dict[str, OwnBucket] = {}
        self.room = Room()
        self.lease: Lease | None = None
        self.wanted: list[tuple[str, Priority]] = []
        self._closing = False  # nothing is opened any more
        self._being_opened: set[str] = set()

    # Opening.

    async def open_wanted(self) -> None:
        """A proper bucket for every wanted lane and priority that has none.

        Raises:
            AgentError.
        """
        async with self._opening:
            if self._closing:
                return
            served = {(b.value.lane, b.value.priority) for b in self._open_ones(BucketKind.PROPER)}
            for lane, priority in self.wanted:
                if (lane, priority) not in served:
                    await self._open(new_record(self._worker, self._incarnation, lane, priority))

    async def open_fallback(self, lane: str, serves: int, reason: str) -> str:
        """The name of the fallback bucket for this lane and priority; opened if it is not there.

        Raises:
            AgentError.
        """
        async with self._opening:
            if self._closing:
                raise RefusedOrderError("the worker is about to go, it opens no bucket")
            for bucket in self._open_ones(BucketKind.FALLBACK):
                if (bucket.value.lane, bucket.value.serves) == (lane, serves):
                    return bucket.name
            highest = max((priority for _, priority in self.wanted), default=Priority.CRITICAL)
            record = new_record(
                self._worker, self._incarnation, lane, highest, kind=BucketKind.FALLBACK, serves=serves, reason=reason
            )
            log.warning("fallback bucket opened", extra={"bucket": record.bucket, "lane": lane, "reason": reason})
            return (await self._open(record)).name

    def _open_ones(self, kind: BucketKind) -> Iterable[OwnBucket]:
        return [b for b in self.own.values() if not b.port.closed and b.value.kind == kind]

    async def _open(self, value: BucketRecord) -> OwnBucket:
        """Its stream first, its record last, so that a listed bucket can always be written to."""
        name = value.bucket
        self._being_opened.add(name)
        try:
            return self._serve_it(value, await self._create(value))
        except BaseException:
            # Whether its record was stored nobody can tell: the answer may be what was lost.
            self._tasks.start(self._undo_open(name), f"undoes {name}", ends=True)
            raise
        finally:
            self._being_opened.discard(name)

    async def _create(self, value: BucketRecord) -> Record:
        await ensure_bucket(self._link, self._names, value.bucket, replicas=self._replicas)
        record = await Record.create(self._kv, value)
        if record is None:
            raise BucketTakenError(f"bucket {value.bucket} exists already")
        return record

    def _serve_it(self, value: BucketRecord, record: Record) -> OwnBucket:
        reporter = Reporter(
            self._publisher,
            self._names.events(value.bucket),
            bucket=value.bucket,
            epoch=value.epoch,
            worker=self._worker,
        )
        port = BucketPort(value.bucket, value.lane, Priority(value.priority), reporter)
        bucket = OwnBucket(record, port, Intake(self._link, self._names, port, self._engine, self.room))
        self.own[value.bucket] = bucket
        bucket.tasks = [
            self._tasks.start(port.reporter.run(), f"reports {bucket.name}"),
            self._tasks.start(self._serve(bucket), f"intake {bucket.name}"),
            self._tasks.start(bucket.intake.keep_alive(), f"keep-alive {bucket.name}"),
        ]
        return bucket

    async def _undo_open(self, name: str) -> None:
        """Of a bucket that nobody serves: its stream goes; if it is listed, it is others' to drain."""
        while True:
            try:
                entry = await self._kv.get(name)
                if entry is None:
                    await delete_bucket(self._link, self._names, name)
                else:
                    await self._disown(name, wire.decode_bucket(entry.value), entry.revision)
            except AgentError as error:
                log.debug("bucket cannot be undone yet", extra={"bucket": name, "error": str(error)})
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return

    async def _disown(self, name: str, record: BucketRecord, revision: int) -> None:
        """Listed as ours, and we know nothing of it."""
        if name in self.own or record.status not in OWN_STATUS or record.incarnation != self._incarnation:
            return
        left = lost(record, reason="its worker does not know it", now_s=time.time())
        log.warning("bucket is listed as ours and is not; left to others", extra={"bucket": name})
        await self._kv.update(name, wire.encode(left), revision=revision)

    async def _serve(self, bucket: OwnBucket) -> None:
        """Read its runs; when its stream or consumer was deleted, find out why."""
        while True:
            try:
                await bucket.intake.run()
            except ConsumerGoneError:
                await self._heal(bucket)

    async def _heal(self, bucket: OwnBucket) -> None:
        """Whoever takes a bucket deletes its consumer after it has changed the record; so if the record says that the
        bucket is ours, it was somebody else, or an accident, and both are made anew.
        """
        while not bucket.over:
            try:
                await self.verify_one(bucket)
                if not bucket.over:
                    outcomes = await ensure_bucket(self._link, self._names, bucket.name, replicas=self._replicas)
                    made = [what for what, outcome in outcomes.items() if isinstance(outcome, Created)]
                    log.warning("bucket was damaged, made anew", extra={"bucket": bucket.name, "made": made})
                    await self._reconcile(bucket.name)
                    return
            except AgentError as error:
                log.debug("bucket cannot be mended yet", extra={"bucket": bucket.name, "error": str(error)})
            await asyncio.sleep(RETRY_PAUSE_S)
        # Over: whoever found that out cancels us.
        await asyncio.Event().wait()

    # Closing.

    async def close(self, bucket: OwnBucket, *, reason: str) -> None:
        """Take nothing more and hand back what is held; what runs goes on. First the door, then the floor: what we
        hand back must not be assigned to us again.

        Raises:
            AgentError: the registry could not be told; it is closed all the same.
        """
        bucket.port.closed = True
        try:
            await self._move(bucket, BucketStatus.ACTIVE, BucketEvent.RETIRE, reason=reason)
        finally:
            if not bucket.over:
                self._engine.close(bucket.port)

    async def _move(self, bucket: OwnBucket, status: BucketStatus, event: BucketEvent, *, reason: str = "") -> None:
        """If it is in ``status``, and as long as it is ours."""
        while not bucket.over and bucket.value.status == status:
            if await bucket.record.move(event, reason=reason):
                return
            await self.verify_one(bucket)
            await asyncio.sleep(POLL_S)

    async def close_all(self, *, reason: str) -> None:
        """Close each, and open none until ``reopen``. May be repeated.

        Raises:
            AgentError: the first; all are closed, and not all are marked so.
        """
        self._closing = True
        async with self._opening:  # one that was just being opened is closed, too
            await all_done([self.close(bucket, reason=reason) for bucket in list(self.own.values())])

    def all_closed(self) -> bool:
        """Whether the registry knows it of each."""
        return all(bucket.value.status != BucketStatus.ACTIVE for bucket in self.own.values())

    def reopen(self) -> None:
        """What was closed stays so; ``open_wanted`` opens others."""
        self._closing = False

    async def leave_all(self) -> None:
        """Raises: AgentError, the first."""
        await all_done([self.leave(bucket) for bucket in list(self.own.values())])

    async def leave(self, bucket: OwnBucket) -> None:
        """Once nothing of it runs: its reports flushed, its record says that the rest is for others.

        Raises:
            AgentError: what is not flushed is unacked too, it comes back by the lost path.
        """
        await bucket.port.reporter.flushed()
        await self._move(bucket, BucketStatus.COMPLETING, BucketEvent.HANDED_BACK)
        if not bucket.over:
            await self._let_go(bucket)

    async def retire(self, bucket: OwnBucket, *, reason: str) -> None:
        """Close it and leave it when what runs has ended, however long that takes."""
        log.info("bucket retires", extra={"bucket": bucket.name, "reason": reason})
        while not bucket.over:
            try:
                await self.close(bucket, reason=reason)
                while self._engine.unreported(bucket.port):  # noqa: ASYNC110 - ends come from many handlers
                    await asyncio.sleep(POLL_S)
                await self.leave(bucket)
            except AgentError as error:
                log.debug("bucket cannot be left yet", extra={"bucket": bucket.name, "error": str(error)})
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _let_go(self, bucket: OwnBucket) -> None:
        bucket.over = True
        self.own.pop(bucket.name, None)
        await cancelled(bucket.tasks)

    def halt(self) -> None:
        """Fail-stop: take nothing, cancel, report nothing."""
        self._closing = True
        for bucket in self.own.values():
            self._engine.forget(bucket.port, Ask.HALTED)

    # Watching over them.

    def changed(self, name: str, seen: BucketRecord | None) -> None:
        """What the watch saw of one of them; a rumour that is looked into, because a watch may lag behind."""
        bucket = self.own.get(name)
        if bucket is None:
            if seen is not None and seen.incarnation == self._incarnation and name not in self._being_opened:
                self._tasks.start(self._undo_open(name), f"undoes {name}", ends=True)
        elif standing(bucket.value, seen) is not Standing.OURS:
            self._tasks.start(self._look_into(bucket), f"looks into {name}", ends=True)

    def unreadable(self, name: str) -> None:
        """Something is written there that is no record."""
        bucket = self.own.get(name)
        if bucket is not None:
            self._tasks.start(self._look_into(bucket), f"looks into {name}", ends=True)

    async def _look_into(self, bucket: OwnBucket) -> None:
        try:
            await self.verify_one(bucket)
        except AgentError as error:
            log.debug("the registry cannot be asked", extra={"bucket": bucket.name, "error": str(error)})
        await self.replace_lost()

    async def replace_lost(self) -> None:
        """Open what is wanted and not there; where NATS refuses that, the others go on, and it is tried again."""
        try:
            await self.open_wanted()
        except AgentError as error:
            log.warning("no bucket can be opened in place of one that was lost", extra={"error": str(error)})

    async def verify(self) -> None:
        """Ask the registry for each; those that are not ours are given up.

        Raises:
            AgentError: it does not answer; nothing can be said of the rest.
            InvariantViolatedError: see ``verify_one``.
        """
        for bucket in list(self.own.values()):
            await self.verify_one(bucket)

    async def verify_one(self, bucket: OwnBucket) -> None:
        """Raises: AgentError, InvariantViolatedError."""
        if bucket.over:
            return
        asked_s = time.monotonic()
        entry = await self._kv.get(bucket.name)
        try:
            seen = wire.decode_bucket(entry.value) if entry is not None else None
        except msgspec.DecodeError:
            assert entry is not None
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
                await self._give_up(bucket, seen)

    def _could_not_be_lost(self, bucket: OwnBucket) -> bool:
        """Nobody can have taken us for dead since it was last seen: the registry was emptied."""
        return self.lease is not None and self.lease.holds() and self.lease.doubted_s < bucket.seen_s

    async def _write_again(self, bucket: OwnBucket, revision: int) -> None:
        """Somebody wrote something over its record that nobody can read: say again what it is."""
        answer = await self._kv.update(bucket.name, wire.encode(bucket.value), revision=revision)
        if isinstance(answer, Written):
            log.warning("bucket's record could not be read; written again", extra={"bucket": bucket.name})
            bucket.record.revision, bucket.seen_s = answer.revision, time.monotonic()

    async def _register_again(self, bucket: OwnBucket) -> None:
        await ensure_bucket(self._link, self._names, bucket.name, replicas=self._replicas)
        record = await Record.create(self._kv, bucket.value)
        if record is not None:
            log.warning("the registry had lost our bucket; registered again", extra={"bucket": bucket.name})
            bucket.record.revision = record.revision
            bucket.seen_s = time.monotonic()

    async def _give_up(self, bucket: OwnBucket, seen: BucketRecord | None) -> None:
        if bucket.over:
            return
        asked = self._engine.forget(bucket.port, Ask.OVERTAKEN)
        by = f"{seen.worker} (epoch {seen.epoch}, {seen.status})" if seen is not None else "nobody any more"
        log.warning(
            "bucket is not ours any more, we were taken for dead; what runs of it is cancelled, it cannot count",
            extra={"bucket": bucket.name, "owner": by, "why": seen.reason if seen else "", "cancelled": asked},
        )
        bucket.over = True
        self.own.pop(bucket.name, None)
        if seen is not None and seen.incarnation == self._incarnation:
            self._tasks.start(self._undo_open(bucket.name), f"disowns {bucket.name}", ends=True)
        # Not waited for: one of them may be who asks.
        for task in bucket.tasks:
            task.cancel()

    # Questions.

    async def holds(self, name: str, jobs: list[tuple[str, int]]) -> list[str]:
        """Of these, what is here or ran here and is not in the events stream yet.

        Raises:
            RefusedOrderError: it cannot be told yet: some of its messages lie here unread.
            LookupError: not one of ours.
        """
        bucket = self.own[name]
        if bucket.intake.unread:
            raise RefusedOrderError(f"{bucket.intake.unread} messages of bucket {name!r} lie here unread; ask again")
        held = self._engine.holds(jobs)
        await bucket.port.reporter.stored()
        return held
