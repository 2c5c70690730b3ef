"""Messages of the front door, read; and the receipts that answer them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field
from nats.aio.msg import Msg

from jm_core import limits, wire
from jm_core.intake import NewJob, Origin, Parsed, Rejection, read_message
from jm_core.model import OnConflict
from jm_core.payload import cut_text
from jm_core.rejection import rejection
from jm_core.wire import JobReceipt, Receipts, ReceiptStatus
from jm_master.save_store import Refusal
from jm_nats.pull import meta
from jm_nats.subjects import INBOX_RULE, is_inbox
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jm_core.intake import ClusterDefaults
    from jm_core.wire import HandlerDefaults

log = logging.getLogger(__name__)

LARGE_JOB_BYTES = 1_000  # a job of more counts for several, so that no statement gets too large


class Submitted(Struct):
    """One message. ``repeats``: places in ``parsed`` whose id came earlier in the same batch."""

    message: Msg
    origin: Origin
    parsed: list[Parsed]
    repeats: set[int] = field(default_factory=set)

    @property
    def queued_at(self) -> float:
        return self.origin.timestamp_ns / 1e9

    @property
    def receipt_to(self) -> str | None:
        """Where to answer; None when nobody asked, or for an answer that nobody must send."""
        subject = (self.message.headers or {}).get(wire.HEADER_RECEIPT_TO)
        if subject is None or is_inbox(subject):
            return subject
        trouble(log, "receipt not sent", {"subject": subject[:100], "rule": INBOX_RULE})
        return None

    def raw_of(self, place: int) -> bytes:
        """The bytes of one job, as far as the message can be taken apart."""
        if not _is_array(self.message):
            return self.message.data
        try:
            return bytes(wire.decode_raw_array(self.message.data)[place])
        except (msgspec.DecodeError, IndexError, RecursionError):
            return self.message.data

    def source(self, place: int) -> str:
        """Where a job lies: the same at every redelivery, and never that of another."""
        origin = self.origin
        return f"{origin.stream}/{origin.seq}/{origin.timestamp_ns}/{place}"


class Fates(Struct):
    """What became of the jobs of a batch that are not simply recorded, by id."""

    duplicates: dict[str, str] = field(default_factory=dict)  # -> the id that is there
    refused: dict[str, str] = field(default_factory=dict)  # -> Postgres's reason


def read(
    messages: Iterable[Msg], stream: str, handlers: Mapping[str, HandlerDefaults], cluster: ClusterDefaults
) -> Iterator[Submitted]:
    """One by one, when they are asked for."""
    return (_read_one(message, stream, handlers, cluster) for message in messages)


def _read_one(
    message: Msg, stream: str, handlers: Mapping[str, HandlerDefaults], cluster: ClusterDefaults
) -> Submitted:
    facts = meta(message)
    origin = Origin(stream, facts.stream_seq, facts.timestamp_ns)
    try:
        parsed = read_message(message.data, origin, handlers, cluster)
    except Exception as error:  # a bug in here must cost one message, not the whole front door
        log.exception("a message could not be read", extra={"stream": stream, "seq": origin.seq})
        parsed = [Rejection(message.data, f"internal error while reading: {type(error).__name__}")]
    return Submitted(message, origin, parsed)


def in_batches(read: Iterable[Submitted], jobs_max: int) -> Iterator[list[Submitted]]:
    """Cut messages, as they are read, so that a batch holds ``jobs_max`` jobs at most; a message is never cut."""
    batch: list[Submitted] = []
    room = jobs_max
    for submitted in read:
        jobs = max(len(submitted.parsed), len(submitted.message.data) // LARGE_JOB_BYTES)
        if batch and jobs > room:
            yield batch
            batch, room = [], jobs_max
        batch.append(submitted)
        room -= jobs
    if batch:
        yield batch


def _is_array(message: Msg) -> bool:
    return message.data[:1] == b"["


def accepted(batch: Sequence[Submitted]) -> list[list[NewJob]]:
    """The jobs to save, by message; an id that came before in the batch is left out and noted as a repeat."""
    jobs = [[job for job in submitted.parsed if type(job) is NewJob] for submitted in batch]
    total = sum(map(len, jobs))
    if len({job.id for of_message in jobs for job in of_message}) == total:
        return jobs
    return _without_repeats(batch)


def _without_repeats(batch: Sequence[Submitted]) -> list[list[NewJob]]:
    seen: dict[str, tuple[int, int]] = {}
    kept: list[list[NewJob]] = []
    for submitted in batch:
        kept.append([])
        for place, job in enumerate(submitted.parsed):
            if isinstance(job, Rejection):
                continue
            here = (submitted.origin.seq, place)
            if job.id not in seen:
                seen[job.id] = here
                kept[-1].append(job)
            elif seen[job.id] != here:  # else the same message was delivered twice, and is simply recorded
                submitted.repeats.add(place)
    return kept


def refuse_all(submitted: Submitted, reason: str) -> None:
    """None of its jobs is to be saved, for one reason."""
    submitted.parsed = [
        job
        if isinstance(job, Rejection)
        else rejection(submitted.raw_of(place), reason, job_id=job.id, handler=job.handler)
        for place, job in enumerate(submitted.parsed)
    ]


def refusals_of(batch: Sequence[Submitted]) -> list[Refusal]:
    return [
        refusal_of(submitted, place, rejection)
        for submitted in batch
        for place, rejection in enumerate(submitted.parsed)
        if type(rejection) is Rejection
    ]


def refusal_of(submitted: Submitted, place: int, rejection: Rejection) -> Refusal:
    reason = cut_text(rejection.reason, limits.ERROR_BYTES_MAX)
    names = [cut_text(text, limits.ERROR_BYTES_MAX) for text in (rejection.job_id, rejection.handler, rejection.field)]
    return Refusal(submitted.source(place), rejection.raw or submitted.message.data, reason, *names)


def receipts_for(submitted: Submitted, fates: Fates) -> bytes:
    """What the sender is told, per job, in the order of the message."""
    return wire.encode(Receipts([_receipt(job, place, submitted, fates) for place, job in enumerate(submitted.parsed)]))


def _receipt(job: Parsed, place: int, submitted: Submitted, fates: Fates) -> JobReceipt:
    if isinstance(job, Rejection):
        return JobReceipt(job.job_id, ReceiptStatus.REJECTED, reason=job.reason)
    if place in submitted.repeats:
        return JobReceipt(job.id, ReceiptStatus.DUPLICATE, existing_id=job.id)
    if job.id in fates.duplicates:
        return _duplicate(job, fates.duplicates[job.id])
    if job.id in fates.refused:
        return JobReceipt(job.id, ReceiptStatus.REJECTED, reason=fates.refused[job.id])
    return JobReceipt(job.id, ReceiptStatus.RECORDED)


def _duplicate(job: NewJob, existing_id: str) -> JobReceipt:
    reason = None
    if job.on_conflict == OnConflict.REJECT and existing_id != job.id:
        reason = f"unique_key {job.unique_key!r} is held by job {existing_id}"
    return JobReceipt(job.id, ReceiptStatus.DUPLICATE, existing_id, reason)
