"""Buckets whose worker is gone: taken from it, left to a survivor to drain, and carried out once they are empty.

What to do about a bucket is decided by ``jm_core.ownership.care_for``; here it is done. A worker drains it where one
lives (DESIGN 7). Where none does, or none takes it up within a lease, the coordinator takes its jobs back by the record
alone, which needs no stream.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

import anyio

from jm_core.agent_names import agent_of
from jm_core.errors import IllegalMoveError, InvalidNameError
from jm_core.health import Invariant, InvariantViolatedError
from jm_core.model import BucketStatus
from jm_core.ownership import ADOPTABLE, CarryOut, DrainBySelf, MarkLost, adopted, care_for, lost
from jm_core.wire import BucketRecord
from jm_master.applied import events_recorded
from jm_master.pg_errors import RowRefusedError
from jm_master.queries import named
from jm_master.record_store import held_of
from jm_master.terms import LostTermError
from jm_nats import telemetry
from jm_nats.crashpoints import reach
from jm_nats.errors import AgentError
from jm_nats.pace import tick_s
from jm_nats.provision import delete_bucket, delete_consumer
from jm_nats.subjects import RUN_CONSUMER
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from jm_core.ids import Term
    from jm_core.ownership import Care
    from jm_master.database import Database
    from jm_master.ledger import Ledger
    from jm_master.recorder import Recorder
    from jm_master.registry import Registry
    from jm_master.watch import Watch
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

LOGGED_IDS_MAX: Final = 20
ROWS_MAX: Final = 2_000
AT_ONCE: Final = 8
HOLDER: Final = "coordinator"  # stands as the worker of a bucket that the leader drains itself


class Undertaker:
    """Looks after every bucket that does not simply serve."""

    def __init__(
        self,
        link: NatsLink,
        names: Names,
        *,
        registry: Registry,
        watch: Watch,
        database: Database,
        recorder: Recorder,
        ledger: Ledger,
        term: Term,
    ) -> None:
        self._link = link
        self._names = names
        self._registry = registry
        self._view = registry.view
        self._watch = watch
        self._database = database
        self._recorder = recorder
        self._ledger = ledger
        self._term = term
        self._sql = named("bucket", database.schema)
        self._strays_before: set[str] = set()
        self._stray_streams_before: set[str] = set()
        self._unreadable_before: dict[str, int] = {}
        self._under_way: set[str] = set()
        self._turns = anyio.CapacityLimiter(AT_ONCE)
        self._tasks: TaskGroup
        self._waiting_since: dict[str, tuple[str, float]] = {}  # bucket: status, and when it was first seen in it

    async def run(self) -> None:
        """Until cancelled. NATS being away costs passes, not the process.

        Raises:
            LostTermError: somebody else leads.
        """
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._look_for_strays)
            while True:
                await self._registry.attention.wait(tick_s(self._watch.sweep_s))
                await self.look_once()
                telemetry.duty_passed()

    async def _look_for_strays(self) -> None:
        while True:
            await anyio.sleep(self._watch.lease_s)
            if self._watch.may_judge(now_s=time.monotonic()):
                try:
                    await self._drop_unreadable()
                    await self._bury_strays()
                    await self._delete_stray_streams()
                except AgentError as error:
                    log.debug("strays cannot be looked for", extra={"problem": str(error)})

    async def look_once(self) -> None:
        """One pass over all buckets: decide, and do it."""
        now_s = time.monotonic()
        may_judge = self._watch.may_judge(now_s=now_s)
        cares = [care for record in list(self._view.buckets.values()) if (care := self._care(record, now_s, may_judge))]
        for bucket in self._waiting_since.keys() - self._view.buckets.keys():
            del self._waiting_since[bucket]
        # First whose worker is gone: what takes long must not hold up that.
        lost_ones = [care for care in cares if isinstance(care, MarkLost)]
        self._say_who_is_lost({care.bucket for care in lost_ones}, now_s)
        async with anyio.create_task_group() as tasks:
            for care in lost_ones:
                tasks.start_soon(self._apart, care.bucket, partial(self._mark_lost, care.bucket))
        for care in cares:
            if not isinstance(care, MarkLost) and care.bucket not in self._under_way:
                self._under_way.add(care.bucket)
                self._tasks.start_soon(self._in_turn, care)

    def _say_who_is_lost(self, buckets: set[str], now_s: float) -> None:
        """One line a worker, however many buckets it has."""
        by_worker = Counter(self._view.buckets[bucket].worker for bucket in buckets)
        for worker, count in by_worker.items():
            silent_s = round(self._registry.silence(worker, now_s=now_s).silent_s, 1)
            log.warning("worker lost", extra={"worker": worker, "buckets": count, "silent_s": silent_s})

    async def _in_turn(self, care: DrainBySelf | CarryOut) -> None:
        """In the background, a few at a time: it waits for what the recorder has still to do."""
        try:
            async with self._turns:
                await self._apart(care.bucket, partial(self._do, care))
        finally:
            self._under_way.discard(care.bucket)

    def _care(self, record: BucketRecord, now_s: float, may_judge: bool) -> Care | None:  # noqa: FBT001
        if record.bucket in self._under_way:
            return None
        status, since_s = self._waiting_since.get(record.bucket, ("", now_s))
        if status != record.status:
            since_s = now_s
            self._waiting_since[record.bucket] = (record.status, now_s)
        return care_for(
            record,
            self._registry.silence(record.worker, now_s=now_s),
            waited_s=now_s - since_s,
            adopters=self._view.has_adopters(),
            may_judge=may_judge,
            lease_s=self._watch.lease_s,
        )

    async def _apart(self, bucket: str, work: Callable[[], Awaitable[None]]) -> None:
        """One that cannot be helped now must not hold up the others."""
        try:
            await work()
        except AgentError as error:
            trouble(log, "bucket waits for NATS", {"bucket": bucket, "problem": str(error)})
        except (InvalidNameError, RowRefusedError) as error:  # nobody of ours has written that
            log.error("bucket's record makes no sense", extra={"bucket": bucket, "problem": str(error)})  # noqa: TRY400
        except IllegalMoveError as error:
            raise InvariantViolatedError(Invariant.ILLEGAL_BUCKET_MOVE, f"bucket {bucket}: {error}") from error

    async def _do(self, care: DrainBySelf | CarryOut) -> None:
        match care:
            case DrainBySelf():
                await self._drain_by_self(care.bucket)
            case CarryOut():
                record = self._view.buckets.get(care.bucket)
                if record is not None:
                    await self._carry_out(record)
            case _:
                assert_never(care)

    async def _mark_lost(self, bucket: str) -> None:
        """Judged once more by asking, then by compare-and-set on what was judged: an owner that lives wins."""

        def mark(record: BucketRecord) -> BucketRecord | None:
            silence = self._registry.silence(record.worker, now_s=time.monotonic())
            care = care_for(record, silence, waited_s=0.0, adopters=True, may_judge=True, lease_s=self._watch.lease_s)
            if not isinstance(care, MarkLost):
                return None
            how = "has gone: its key was taken away" if silence.resigned else f"was silent for {silence.silent_s:.1f} s"
            if silence.present is not None:
                how = "was started anew"
            return lost(record, reason=f"worker {record.worker} {how}", now_s=time.time())

        record = self._view.buckets.get(bucket)
        if record is None:
            return
        await self._registry.ask_for(record.worker)
        marked = await self._registry.change(bucket, mark)
        if marked is not None:
            log.info("bucket lost", extra={"bucket": bucket, "worker": marked.opener, "reason": marked.reason})
            telemetry.bucket_lost()
            reach("lost.after_mark")

    async def _drain_by_self(self, bucket: str) -> None:
        lost_at = time.time()

        def take(record: BucketRecord) -> BucketRecord | None:
            nonlocal lost_at
            if record.status not in ADOPTABLE:
                return None  # a worker was quicker
            lost_at = record.changed_at
            return adopted(record, worker=HOLDER, incarnation=f"term-{self._term}", now_s=time.time())

        record = await self._registry.change(bucket, take)
        if record is not None:
            log.debug("no worker drains it, the record does", extra={"bucket": bucket, "worker": record.opener})
            await self._carry_out(record)
            if record.was_lost:
                telemetry.bucket_drained(time.time() - lost_at)

    async def _carry_out(self, record: BucketRecord) -> None:
        await self._bury(record, "lost" if record.was_lost else "drained")
        await self._registry.remove_bucket(record.bucket)

    async def _drop_unreadable(self) -> None:
        """Records that we have never seen otherwise, and that no owner has written again for a lease."""
        known, now = self._view.buckets, self._view.unreadable_buckets
        unreadable = {bucket: revision for bucket, revision in now.items() if bucket not in known}
        for bucket, revision in unreadable.items() & self._unreadable_before.items():
            await self._apart(bucket, partial(self._registry.drop_unreadable, bucket, revision))
        self._unreadable_before = unreadable

    async def _bury_strays(self) -> None:
        """An owner nobody has ever seen counts as dead. Twice missing, because a row may be older than the look."""
        strays = await self._strays()
        for bucket in strays & self._strays_before:
            unknown = BucketRecord(bucket, "", "", "", 0, 0, BucketStatus.LOST, was_lost=True)
            await self._apart(bucket, partial(self._bury, unknown, "unknown"))
        self._strays_before = strays

    async def _delete_stray_streams(self) -> None:
        """Of workers that died between making a bucket's stream and listing it. Twice missing, as above."""
        prefix = self._names.bucket_stream_prefix
        subject = self._names.run("x").replace(".x.", ".*.")
        listed = await self._link.api("STREAM.NAMES", {"subject": subject})
        there = {name.removeprefix(prefix) for name in listed.get("streams") or [] if name.startswith(prefix)}
        strays = there - self._view.buckets.keys() - self._under_way
        for bucket in strays & self._stray_streams_before:
            if not await self._registry.has_bucket(bucket):
                log.warning("stream without a bucket deleted", extra={"bucket": bucket})
                await delete_bucket(self._link, self._names, bucket)
        self._stray_streams_before = strays

    async def _strays(self) -> set[str]:
        """Buckets of our agent that rows point at and the registry does not know."""
        rows = await self._database.ride_out(lambda: self._database.fetch(self._sql["buckets_with_jobs"]))
        ours = {self._database.bare(name) for row in rows if agent_of(name := row["bucket_id"]) == self._database.agent}
        strays = ours - self._view.buckets.keys()
        return {bucket for bucket in strays if not await self._registry.has_bucket(bucket)}

    async def _bury(self, record: BucketRecord, reason: str) -> None:
        """Hand back what the record still says is in it, then let it go. Each step is safe to repeat by the next
        leader.
        """
        bucket = record.bucket
        await delete_consumer(self._link, self._names.bucket_stream(bucket), RUN_CONSUMER)
        await events_recorded(self._link, self._names)
        returned = await self._return_rows(record)
        await delete_bucket(self._link, self._names, bucket)
        await self._tombstone(record, reason, returned)
        self._ledger.forget(bucket)
        jobs = record.returned + returned
        log.log(
            logging.INFO if jobs else logging.DEBUG,
            "bucket ends",
            extra={"bucket": bucket, "worker": record.opener, "reason": reason, "jobs": jobs},
        )

    async def _return_rows(self, record: BucketRecord) -> int:
        returned, before = 0, set[str]()
        while True:
            rows = await self._database.ride_out(
                lambda: self._database.fetch(self._sql["load_bucket"], self._database.stored(record.bucket), ROWS_MAX)
            )
            ids = {row["id"] for row in rows}
            if not rows or ids == before:
                if rows:
                    log.error("rows cannot be returned", extra={"bucket": record.bucket, "jobs": len(rows)})
                return returned
            before = ids
            ends = [self._recorder.end_of_left(held_of(row), was_lost=record.was_lost) for row in rows]
            await self._recorder.record_apart(ends, bucket=record.bucket, worker=record.opener)
            returned += len(ends)
            if record.was_lost:
                facts = {"bucket": record.bucket, "worker": record.opener, "jobs": len(ends)}
                shown = " ".join(str(row["id"]) for row in rows[:LOGGED_IDS_MAX])
                log.warning("jobs of a lost worker put back by the record", extra=facts | {"job_ids": shown})

    async def _tombstone(self, record: BucketRecord, reason: str, returned: int) -> None:
        row = await self._database.ride_out(
            lambda: self._database.fetchrow(
                self._sql["bury_bucket"],
                self._term,
                self._database.stored(record.bucket),
                record.opener,
                record.lane,
                record.priority,
                record.epoch,
                reason,
                record.returned + returned,
                record.opened_at,
            )
        )
        if row is None or not row["terms"]:
            raise LostTermError(self._term)
