"""Buckets that others left behind: claimed by compare-and-set, emptied, handed to the coordinator (DESIGN 7)."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
from nats.js.api import AckPolicy, ConsumerConfig

from jm_core import limits, wire
from jm_core.errors import InvalidNameError
from jm_core.kv_records import bucket_at
from jm_core.model import BucketEvent, BucketStatus, ReturnReason
from jm_core.ownership import ADOPTABLE, adopted, moved
from jm_core.wire import BucketRecord, EventBatch, Returned
from jm_nats import telemetry
from jm_nats.acks import ack
from jm_nats.connection import NatsLink
from jm_nats.crashpoints import reach
from jm_nats.ensure import ensure_consumer
from jm_nats.errors import AgentError, ConsumerGoneError, NoSuchStreamError
from jm_nats.kv import CasKv, Stale
from jm_nats.provision import BUCKET_ACK_WAIT_S, delete_consumer
from jm_nats.publisher import JetPublisher
from jm_nats.pull import PullReader
from jm_nats.subjects import CTL_CONSUMER, Names
from jm_nats.troubles import trouble
from jm_nats.worker.tasks import Tasks

log = logging.getLogger("jobmaster.worker")

MESSAGES_MAX: Final = 64
BYTES_MAX: Final = 8 * 1024 * 1024
EVENTS_MAX: Final = 500
LOGGED_IDS_MAX: Final = 20
EMPTY_POLL_S: Final = 0.02
RETRY_PAUSE_S: Final = 0.5


class _OvertakenError(Exception):
    """Somebody else drains it now."""


class Adopter:
    """Takes over what is left behind.

    Args:
        may: whether our own lease holds: who may be dead himself adopts nobody.
    """

    def __init__(
        self,
        link: NatsLink,
        names: Names,
        kv: CasKv,
        publisher: JetPublisher,
        tasks: Tasks,
        *,
        worker: str,
        incarnation: str,
        may: Callable[[], bool],
    ) -> None:
        self._link = link
        self._names = names
        self._kv = kv
        self._publisher = publisher
        self._tasks = tasks
        self._worker = worker
        self._incarnation = incarnation
        self._may = may
        self._room = asyncio.Semaphore(limits.ADOPTIONS_MAX)
        self._tended: set[str] = set()  # that a task is about
        self._news: set[str] = set()  # of them, those that were seen again meanwhile
        self._claimed: dict[str, BucketRecord] = {}  # as we have written it
        self.draining: set[str] = set()

    def seen(self, name: str, record: BucketRecord | None) -> None:
        """What the registry says of a bucket."""
        if record is None or not (record.status in ADOPTABLE or self._is_ours(record)):
            return
        if name in self._tended:
            self._news.add(name)  # it may have looked before that
        else:
            self._tended.add(name)
            self._tasks.start(self._tend(name), f"adopts {name}", ends=True)

    def _is_ours(self, record: BucketRecord) -> bool:
        """Also what we claimed without hearing that we did, or could not finish."""
        return record.status == BucketStatus.DRAINING and record.incarnation == self._incarnation

    async def finished(self) -> None:
        """Return when what was claimed is done; nothing more is claimed once ``may`` says no."""
        while self.draining:  # noqa: ASYNC110 - at most for a few seconds, once
            await asyncio.sleep(EMPTY_POLL_S)

    async def _tend(self, name: str) -> None:
        try:
            while True:
                self._news.discard(name)
                async with self._room:
                    await self._until_done(name)
                if name not in self._news:
                    return
        finally:
            self._tended.discard(name)
            self._claimed.pop(name, None)
            self.draining.discard(name)

    async def _until_done(self, name: str) -> None:
        while True:
            try:
                # What is begun is finished, also by who adopts nothing new any more.
                if (self._may() or name in self.draining) and await self._adopt_once(name):
                    return
            except _OvertakenError:
                log.info("somebody else drains it", extra={"bucket": name})
                continue  # unless it was left once more meanwhile
            except InvalidNameError as error:
                log.error("bucket cannot be drained, its name cannot be", extra={"problem": str(error)})  # noqa: TRY400
                return
            except AgentError as error:
                trouble(log, "adopted bucket waits for NATS", {"bucket": name, "problem": str(error)})
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _adopt_once(self, name: str) -> bool:
        """Claim and drain it. True: there is nothing to do about it (any more)."""
        entry = await self._kv.get(name)
        if entry is None:
            return True
        record, revision = bucket_at(name, entry.value), entry.revision
        if record is None:
            return await self._write_again(name, revision)
        lost_at = record.changed_at  # or, where we claimed it without hearing that we did, then
        if record.status in ADOPTABLE:
            if not self._may():
                self.draining.discard(name)
                return False
            record = adopted(record, worker=self._worker, incarnation=self._incarnation, now_s=time.time())
            answer = await self._kv.update(name, wire.encode(record), revision=revision)
            if isinstance(answer, Stale):
                # Look again who was quicker, and at once: we hold a place that another bucket may be waiting for.
                return await self._adopt_once(name)
            revision = answer.revision
            self._claimed[name] = record
        elif not self._is_ours(record):
            return True
        self.draining.add(name)
        await self._drain(record, revision)
        if record.was_lost:
            telemetry.bucket_drained(time.time() - lost_at)
        return True

    async def _write_again(self, name: str, revision: int) -> bool:
        """Somebody wrote what nobody can read over it: say again that we drain it. Else it is the leader's to mend."""
        mine = self._claimed.get(name)
        if mine is None:
            return True
        trouble(log, "bucket's record could not be read; written again", {"bucket": name})
        await self._kv.update(name, wire.encode(mine), revision=revision)
        return False

    async def _drain(self, record: BucketRecord, revision: int) -> None:
        began_s = time.monotonic()
        extra = {"bucket": record.bucket, "from": record.opener, "epoch": record.epoch}
        # Left in order: its worker has said so.
        log.log(
            logging.INFO if record.was_lost else logging.DEBUG, "bucket adopted", extra=extra | {"why": record.reason}
        )
        reach("adopter.after_claim")
        try:
            returned, reaped = await self._empty(record)
        except (NoSuchStreamError, ConsumerGoneError) as absent:
            if await self._is_overtaken(record):
                raise _OvertakenError from absent
            if isinstance(absent, ConsumerGoneError):
                raise
            returned, reaped = 0, []  # nothing to read any more: the record knows what was in it
        done = moved(record, BucketEvent.EMPTIED, now_s=time.time(), returned=returned)
        if isinstance(await self._kv.update(record.bucket, wire.encode(done), revision=revision), Stale):
            raise _OvertakenError
        extra |= {"jobs": returned, "took_s": round(time.monotonic() - began_s, 3)}
        if record.was_lost and returned:  # these jobs lost their worker: their names are what is asked for (BR-061)
            log.warning("jobs of a lost worker handed back", extra=extra | {"job_ids": " ".join(reaped)})
        else:
            log.log(logging.INFO if returned else logging.DEBUG, "bucket emptied", extra=extra)

    async def _is_overtaken(self, record: BucketRecord) -> bool:
        entry = await self._kv.get(record.bucket)
        seen = None if entry is None else bucket_at(record.bucket, entry.value)
        return seen is None or seen.epoch != record.epoch

    async def _empty(self, record: BucketRecord) -> tuple[int, list[str]]:
        """Return every job in its stream: those that are due and those that the server holds for later. How many they
        were, and the ids of the first.
        """
        stream, consumer = self._names.bucket_stream(record.bucket), f"drain_{record.epoch}"
        await self._expel(stream, consumer)
        subjects = [self._names.run(record.bucket), self._names.sched_any(record.bucket)]
        wanted = ConsumerConfig(
            durable_name=consumer, filter_subjects=subjects, ack_policy=AckPolicy.EXPLICIT, ack_wait=BUCKET_ACK_WAIT_S
        )
        await ensure_consumer(self._link, stream, wanted)
        returned, reaped = 0, list[str]()
        async with PullReader(self._link, stream, consumer, batch=MESSAGES_MAX, max_bytes=BYTES_MAX) as reader:
            while True:
                try:
                    async with asyncio.timeout(EMPTY_POLL_S):
                        messages = await reader.take(MESSAGES_MAX)
                except TimeoutError:
                    if await self._is_empty(stream, consumer):
                        return returned, reaped
                    continue
                runs = [run for message in messages for run in _runs(message.data, record.bucket)]
                await self._hand_back(record, runs)
                reaped += [run.id for run in runs[: LOGGED_IDS_MAX - len(reaped)]]
                reach("adopter.after_returned")
                for message in messages:
                    ack(message)
                returned += len(runs)

    async def _expel(self, stream: str, but: str) -> None:
        """End whoever reads from it: a zombie's pulls now fail, and so do those of an adopter before us."""
        listed = await self._link.api(f"CONSUMER.NAMES.{stream}")
        for consumer in listed.get("consumers") or []:
            if consumer not in (CTL_CONSUMER, but):
                await delete_consumer(self._link, stream, consumer)

    async def _is_empty(self, stream: str, consumer: str) -> bool:
        info = await self._link.api(f"CONSUMER.INFO.{stream}.{consumer}")
        return not info["num_pending"] and not info["num_ack_pending"]

    async def _hand_back(self, record: BucketRecord, runs: list[wire.Run]) -> None:
        """In the name of who had it: the record says which worker died with the job."""
        reason = ReturnReason.LOST if record.was_lost else ReturnReason.ABANDONED
        now_s = time.time()
        for start in range(0, len(runs), EVENTS_MAX):
            events = [Returned(run.id, run.dispatch, reason, now_s) for run in runs[start : start + EVENTS_MAX]]
            batch = EventBatch(record.bucket, record.epoch, record.opener, list(events))
            await self._publisher.publish(self._names.events(record.bucket), wire.encode(batch))


def _runs(data: bytes, bucket: str) -> list[wire.Run]:
    try:
        return wire.decode_runs(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        log.error("undecodable run message dropped", extra={"bucket": bucket, "error": str(error)[:200]})  # noqa: TRY400
        return []
