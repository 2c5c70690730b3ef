"""Messages of the events stream, read. What cannot be read, or cannot be stored, is kept in table ``rejected``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct, field
from nats.aio.msg import Msg

from jm_core import limits, wire
from jm_core.ids import is_name
from jm_core.payload import cut_text
from jm_master.save_store import Refusal
from jm_nats.pull import meta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jm_core.ends import End


class _Envelope(Struct):
    bucket: str
    epoch: int
    worker: str
    events: list[Raw]


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_event: Callable[[Raw], wire.Event] = msgspec.json.Decoder(wire.Event).decode


class Batch(Struct):
    """Messages that are applied together."""

    messages: list[Msg]
    reports: list[wire.EventBatch] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def events(self) -> int:
        return sum(len(report.events) for report in self.reports)

    def add(self, later: Batch) -> None:
        """Apply what came after it together with it."""
        self.messages += later.messages
        self.reports += later.reports
        self.refusals += later.refusals

    @property
    def workers(self) -> list[str]:
        return [report.worker for report in self.reports]

    @property
    def buckets(self) -> list[str]:
        return [report.bucket for report in self.reports]


def decoded(messages: Sequence[Msg], events_max: int) -> list[Batch]:
    """Messages in order, cut into batches of about ``events_max`` events."""
    batches = [Batch([])]
    count = 0
    for message in messages:
        batch = batches[-1]
        batch.messages.append(message)
        try:
            report = wire.decode_events(message.data)
            _check_names(report)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            report = _apart(message, error, batch.refusals)
        batch.reports.append(report)
        count += len(report.events)
        if count >= events_max:
            batches.append(Batch([]))
            count = 0
    return [batch for batch in batches if batch.messages]


def _apart(message: Msg, error: Exception, refusals: list[Refusal]) -> wire.EventBatch:
    """Those events that can be read (a newer worker may send others); the rest is refused one by one."""
    try:
        envelope = _decode_envelope(message.data)
        _check_names(envelope)
    except (msgspec.DecodeError, RecursionError, ValueError):
        refusals.append(_refusal(_source(message), message.data, f"not a batch of events: {error}"))
        return wire.EventBatch("", 0, "", [])
    report = wire.EventBatch(envelope.bucket, envelope.epoch, envelope.worker, [])
    for place, raw in enumerate(envelope.events):
        try:
            report.events.append(_decode_event(raw))
        except (msgspec.DecodeError, RecursionError, ValueError) as problem:
            refusals.append(_refusal(f"{_source(message)}/{place}", bytes(raw), f"not an event: {problem}"))
    return report


def _check_names(report: wire.EventBatch | _Envelope) -> None:
    """Statements share the names of all reports in a batch: one that Postgres refuses would cost everybody's events.

    Raises:
        ValueError.
    """
    for name in (report.bucket, report.worker):
        if not is_name(name):
            raise ValueError(f"{name[:40]!r} is no name of a bucket or worker")


def event_refusal(event: End | wire.Started | wire.Progress | wire.Returned, problem: str) -> Refusal:
    """One event that not even a plain form of it can be stored of: a job id that is none, a number out of range."""
    kind = type(event).__name__.lower()
    source = cut_text(f"event/{event.id}/{event.dispatch}/{kind}", limits.UNIQUE_KEY_CHARS_MAX)
    return _refusal(source, wire.encode(event), f"{kind} refused by Postgres: {problem}")


def _source(message: Msg) -> str:
    facts = meta(message)
    return f"{cut_text(message.subject, limits.UNIQUE_KEY_CHARS_MAX)}/{facts.stream_seq}/{facts.timestamp_ns}"


def _refusal(source: str, raw: bytes, reason: str) -> Refusal:
    return Refusal(source, raw[: limits.RAW_KEPT_BYTES_MAX], cut_text(reason, limits.ERROR_BYTES_MAX))
