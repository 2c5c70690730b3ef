"""Messages of the events stream, read. What cannot be read, or cannot be stored, is kept in table ``rejected``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field
from nats.aio.msg import Msg

from jm_core import limits, wire
from jm_core.payload import cut_text
from jm_master.save_store import Refusal
from jm_nats.pull import meta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_core.ends import End


class Batch(Struct):
    """Messages that are applied together."""

    messages: list[Msg]
    reports: list[wire.EventBatch] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

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
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            batch.refusals.append(_message_refusal(message, str(error)))
            continue
        batch.reports.append(report)
        count += len(report.events)
        if count >= events_max:
            batches.append(Batch([]))
            count = 0
    return [batch for batch in batches if batch.messages]


def event_refusal(event: End | wire.Started | wire.Progress, problem: str) -> Refusal:
    """One event that not even a plain form of it can be stored of: a job id that is none, a number out of range."""
    kind = type(event).__name__.lower()
    source = cut_text(f"event/{event.id}/{event.dispatch}/{kind}", limits.UNIQUE_KEY_CHARS_MAX)
    return _refusal(source, wire.encode(event), f"{kind} refused by Postgres: {problem}")


def _message_refusal(message: Msg, problem: str) -> Refusal:
    facts = meta(message)
    source = f"{message.subject}/{facts.stream_seq}/{facts.timestamp_ns}"
    return _refusal(source, message.data, f"not a batch of events: {problem}")


def _refusal(source: str, raw: bytes, reason: str) -> Refusal:
    return Refusal(source, raw[: limits.RAW_KEPT_BYTES_MAX], cut_text(reason, limits.ERROR_BYTES_MAX))
