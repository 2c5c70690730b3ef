"""Buckets whose worker is gone: their jobs go back to the master, their stream goes away, a tombstone stays.

Interim: here the coordinator itself takes back what a lost bucket held. Adoption by a surviving worker (DESIGN 7)
will replace ``Undertaker._return_rows`` for buckets whose stream can still be read; the watch over who is lost stays.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import anyio

from jm_core.ends import End
from jm_core.model import BucketStatus, JobStatus
from jm_core.wire import BucketRecord
from jm_master.queries import named
from jm_master.record_store import held_of
from jm_master.terms import LostTermError
from jm_nats.errors import AgentError, NoSuchStreamError
from jm_nats.provision import delete_bucket, delete_consumer
from jm_nats.subjects import RECORDER_CONSUMER, RUN_CONSUMER

if TYPE_CHECKING:
    from jm_core.ends import Held
    from jm_core.ids import Term
    from jm_master.database import Database
    from jm_master.ledger import Ledger
    from jm_master.recorder import Recorder
    from jm_master.registry import Registry
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

SWEEP_MAX_S: Final = 1.0
EVENTS_POLL_S: Final = 0.05
ROWS_MAX: Final = 2_000
LOST: Final = BucketStatus.LOST.value
DONE: Final = {BucketStatus.READY_TO_DRAIN.value, BucketStatus.READY_TO_DELETE.value}


class Watch:
    """Whether our own observation allows to call anybody lost (DESIGN 7, blind time).

    Silence while NATS or we ourselves were away says nothing: all keys may have expired together. So nobody is called
    lost before one full lease of unbroken observation.
    """

    def __init__(self, lease_s: float) -> None:
        self.sweep_s = min(SWEEP_MAX_S, lease_s / 10)
        self.lease_s = lease_s
        self._since_s: float | None = None
        self._looked_s = 0.0

    def blind(self) -> None:
        self._since_s = None

    def may_judge(self, *, now_s: float) -> bool:
        """To be asked at every look: a long time between two means that we were frozen ourselves."""
        if self._since_s is None or now_s - self._looked_s > self.lease_s / 2:
            self._since_s = now_s
        self._looked_s = now_s
        return now_s - self._since_s >= self.lease_s


class Undertaker:
    """Finds buckets whose time is over and carries them out."""

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

    async def run(self) -> None:
        """Until cancelled. NATS being away costs passes, not the process."""
        strays_at_s = time.monotonic() + self._watch.lease_s
        while True:
            await self._registry.worker_gone.wait(self._watch.sweep_s)
            now_s = time.monotonic()
            may_judge = self._watch.may_judge(now_s=now_s)
            try:
                await self._bury_all(self._done(), "drained")
                if may_judge:
                    await self._bury_all(self._orphans(), "lost")
                if may_judge and now_s >= strays_at_s:
                    strays_at_s = now_s + self._watch.lease_s
                    await self._bury_strays()
            except* AgentError as errors:
                log.warning("lost buckets wait for NATS", extra={"problem": str(errors.exceptions[0])})

    def _done(self) -> list[str]:
        return [bucket for bucket, record in self._view.buckets.items() if record.status in DONE]

    def _orphans(self) -> list[str]:
        """Also what an earlier leader, or an earlier pass, has taken and not carried out, whoever lives again."""
        buckets = self._view.buckets.items()
        return [bucket for bucket, record in buckets if record.status == LOST or self._view.is_orphan(record)]

    async def _bury_all(self, buckets: list[str], reason: str) -> None:
        async with anyio.create_task_group() as tasks:
            for bucket in buckets:
                tasks.start_soon(self._bury_registered, bucket, reason)

    async def _bury_strays(self) -> None:
        """An owner nobody has ever seen counts as dead. Twice missing, because a row may be older than the look."""
        strays = await self._strays()
        for bucket in strays & self._strays_before:
            await self._bury(_unknown(bucket), "unknown")
        self._strays_before = strays

    async def _strays(self) -> set[str]:
        """Buckets that rows point at and the registry does not know."""
        rows = await self._database.ride_out(lambda: self._database.fetch(self._sql["buckets_with_jobs"]))
        strays = {str(row["bucket_id"]) for row in rows} - self._view.buckets.keys()
        return {bucket for bucket in strays if not await self._registry.has_bucket(bucket)}

    async def _bury_registered(self, bucket: str, reason: str) -> None:
        """First the epoch: from here on the old owner, should it be alive, knows that the bucket is not its own."""
        taken = await self._registry.take_over(bucket, unless_alive=reason == "lost")
        if taken is not None:
            await self._bury(taken, reason)
            await self._registry.remove_bucket(bucket)

    async def _bury(self, record: BucketRecord, reason: str) -> None:
        """Hand back what the bucket held, then let it go. Each step is safe to repeat by the next leader."""
        bucket = record.bucket
        level = logging.INFO if reason == "drained" else logging.WARNING
        log.log(level, "bucket ends", extra={"bucket": bucket, "worker": record.worker, "reason": reason})
        await delete_consumer(self._link, self._names.bucket_stream(bucket), RUN_CONSUMER)
        await self._events_recorded()
        returned = await self._return_rows(bucket, record.worker, was_lost=reason != "drained")
        await delete_bucket(self._link, self._names, bucket)
        await self._tombstone(record, reason, returned)
        self._ledger.forget(bucket)

    async def _events_recorded(self) -> None:
        """Wait until the recorder has applied what was reported by now: a finished job must not run again."""
        stream = self._names.events_stream
        try:
            info = await self._link.api(f"STREAM.INFO.{stream}")
            last = info["state"]["last_seq"]
            while await self._applied_seq(stream) < last:  # noqa: ASYNC110 - NATS has no event for it
                await anyio.sleep(EVENTS_POLL_S)
        except NoSuchStreamError:
            return

    async def _applied_seq(self, stream: str) -> int:
        info = await self._link.api(f"CONSUMER.INFO.{stream}.{RECORDER_CONSUMER}")
        idle = not info["num_pending"] and not info["num_ack_pending"]
        return int(info["delivered"]["stream_seq"] if idle else info["ack_floor"]["stream_seq"])

    async def _return_rows(self, bucket: str, worker: str, *, was_lost: bool) -> int:
        returned = 0
        while True:
            rows = await self._database.ride_out(
                lambda: self._database.fetch(self._sql["load_bucket"], bucket, ROWS_MAX)
            )
            if not rows:
                return returned
            held = [held_of(row) for row in rows]
            ends = [self._end_of(job, was_lost=was_lost) for job in held]
            await self._recorder.record_apart(ends, bucket=bucket, worker=worker)
            returned += len(ends)

    def _end_of(self, held: Held, *, was_lost: bool) -> End:
        if was_lost or held.started_at is not None:
            return self._recorder.end_of_lost(held)
        return End(held.id, held.dispatch, 0, JobStatus.ON_MASTER)  # came after its worker had closed the door

    async def _tombstone(self, record: BucketRecord, reason: str, returned: int) -> None:
        row = await self._database.ride_out(
            lambda: self._database.fetchrow(
                self._sql["bury_bucket"],
                self._term,
                record.bucket,
                record.worker,
                record.lane,
                record.priority,
                record.epoch,
                reason,
                returned,
                record.opened_at,
            )
        )
        if row is None or not row["terms"]:
            raise LostTermError(self._term)


def _unknown(bucket: str) -> BucketRecord:
    return BucketRecord(bucket, "", "", "", 0, 0, BucketStatus.LOST)
