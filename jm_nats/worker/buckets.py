"""The buckets that this worker owns: opened, served, and closed one by one."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from jm_core.model import BucketEvent, BucketKind, BucketStatus, Priority
from jm_core.wire import BucketRecord
from jm_nats.connection import NatsLink
from jm_nats.ensure import Created
from jm_nats.errors import AgentError, ConsumerGoneError
from jm_nats.kv import CasKv
from jm_nats.provision import ensure_bucket
from jm_nats.publisher import JetPublisher
from jm_nats.subjects import Names
from jm_nats.troubles import trouble
from jm_nats.worker.control import ControlIntake
from jm_nats.worker.engine import Engine
from jm_nats.worker.execution import Ask
from jm_nats.worker.intake import Intake, Room
from jm_nats.worker.outcomes import BucketPort, Reporter
from jm_nats.worker.registration import BucketTakenError, Record, new_record
from jm_nats.worker.registry_check import OwnBucket, RegistryCheck
from jm_nats.worker.rpc import RefusedOrderError
from jm_nats.worker.tasks import Tasks, all_done, cancelled

log = logging.getLogger("jobmaster.worker")

POLL_S: Final = 0.02
RETRY_PAUSE_S: Final = 1.0


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
        self.wanted: Counter[tuple[str, Priority]] = Counter()
        self._closing = False  # nothing is opened any more
        self.being_opened: set[str] = set()
        self.check = RegistryCheck(self, link, names, kv, tasks, incarnation=incarnation, replicas=replicas)

    # Opening.

    async def open_wanted(self) -> None:
        """As many proper buckets for every wanted lane and priority as there should be.

        Raises:
            AgentError.
        """
        async with self._opening:
            if self._closing:
                return
            for lane, priority in (self.wanted - self._served()).elements():
                await self._open(new_record(self._worker, self._incarnation, lane, priority))

    def surplus(self) -> list[OwnBucket]:
        """Proper buckets that are open and not wanted (any more): of several alike, the youngest."""
        too_many = self._served() - self.wanted
        found: list[OwnBucket] = []
        for bucket in reversed(self._open_ones(BucketKind.PROPER)):
            route = bucket.value.lane, Priority(bucket.value.priority)
            if too_many[route] > 0:
                too_many[route] -= 1
                found.append(bucket)
        return found

    def _served(self) -> Counter[tuple[str, Priority]]:
        return Counter((b.value.lane, Priority(b.value.priority)) for b in self._open_ones(BucketKind.PROPER))

    async def replace_lost(self) -> None:
        """Open what is wanted and not there; where NATS refuses that, the others go on, and it is tried again."""
        try:
            await self.open_wanted()
        except AgentError as error:
            trouble(log, "no bucket can be opened in place of one that was lost", {"problem": str(error)})

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

    def _open_ones(self, kind: BucketKind) -> list[OwnBucket]:
        return [b for b in self.own.values() if not b.port.closed and b.value.kind == kind]

    async def _open(self, value: BucketRecord) -> OwnBucket:
        """Its stream first, its record last, so that a listed bucket can always be written to."""
        name = value.bucket
        self.being_opened.add(name)
        try:
            return self._serve_it(value, await self._create(value))
        except BaseException:
            # Whether its record was stored nobody can tell: the answer may be what was lost.
            self._tasks.start(self.check.undo_open(name), f"undoes {name}", ends=True)
            raise
        finally:
            self.being_opened.discard(name)

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
        control = ControlIntake(self._link, self._names, port, self._engine, lambda: self._heal(bucket))
        bucket.tidy = control.tidy
        bucket.tasks = [
            self._tasks.start(port.reporter.run(), f"reports {bucket.name}"),
            self._tasks.start(self._serve(bucket), f"intake {bucket.name}"),
            self._tasks.start(bucket.intake.keep_alive(), f"keep-alive {bucket.name}"),
            self._tasks.start(control.run(), f"control {bucket.name}"),
            self._tasks.start(control.remove_pointless(), f"tidying {bucket.name}"),
        ]
        return bucket

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
                await self.check.verify_one(bucket)
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
            await self.check.verify_one(bucket)
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

    def give_up(self, bucket: OwnBucket) -> int:
        """It is somebody else's: its handlers are cancelled, nothing of it is reported. How many were."""
        bucket.over = True
        self.own.pop(bucket.name, None)
        asked = self._engine.forget(bucket.port, Ask.OVERTAKEN)
        # Not waited for: one of them may be who asks.
        for task in bucket.tasks:
            task.cancel()
        return asked

    def halt(self) -> None:
        """Fail-stop: take nothing, cancel, report nothing."""
        self._closing = True
        for bucket in self.own.values():
            self._engine.forget(bucket.port, Ask.HALTED)

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
