"""Who is there: the workers and buckets of a cluster as their records in NATS say, joined, for people to look at.

Ages are by the server's clock, which stamped the records: a laptop whose clock is off sees the same. A record that
cannot be read (of a newer version, or damaged) is listed as such, never left out in silence.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from jm_core import wire
from jm_core.errors import ClusterUnknownError
from jm_core.kv_records import NOT_READ
from jm_core.model import Priority
from jm_core.wire import BucketRecord, WorkerRecord
from jm_nats.connection import server_clock_offset
from jm_nats.errors import NoSuchConsumerError, NoSuchStreamError
from jm_nats.kv import CasKv, Entry
from jm_nats.subjects import RUN_CONSUMER, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jm_nats.connection import NatsLink

__all__ = [
    "BucketView",
    "Census",
    "GoneWorker",
    "OwnerState",
    "StreamFacts",
    "Unreadable",
    "WorkerView",
    "read_census",
    "read_stream_facts",
]

RecordT = TypeVar("RecordT", WorkerRecord, BucketRecord)
CLOCK_SAMPLES: Final = 2


class OwnerState:
    """Whether a bucket's owner lives."""

    ALIVE: Final = "alive"
    GONE: Final = "gone"  # no heartbeat: its buckets are taken over within a lease
    RESTARTED: Final = "restarted"  # another process beats under its worker id


class WorkerView(Struct, frozen=True):
    """A live worker. Times in seconds; ``beat_age_s`` and ``uptime_s`` by the server's clock."""

    worker: str
    state: str
    mode: str
    health: str
    reasons: list[str]
    host: str
    pid: int
    incarnation: str
    slots: int
    running: int
    held: int
    finished: int
    beat_age_s: float
    uptime_s: float
    loop_lag_s: float
    clock_offset_s: float
    lanes: list[str]
    priorities: list[str]
    handlers: list[str]
    buckets: list[str]  # that it owns, in any state
    draining: list[str]  # that it has adopted


class GoneWorker(Struct, frozen=True):
    """One without a heartbeat that is still the owner of buckets."""

    worker: str
    incarnation: str
    buckets: list[str]


class BucketView(Struct, frozen=True):
    """``changed_age_s``: since the record was last written. ``serves``: the priority whose jobs it takes."""

    bucket: str
    status: str
    lane: str
    priority: str
    kind: str
    serves: str
    worker: str
    owner: str  # OwnerState
    origin: str  # who opened it
    incarnation: str
    epoch: int
    weight: int
    reason: str
    age_s: float
    changed_age_s: float


class Unreadable(Struct, frozen=True):
    """A record that this version cannot read."""

    kv: str
    key: str
    age_s: float
    problem: str


class Census(Struct, frozen=True):
    """All records at one moment, each list by name. ``at`` is the server's time, seconds since the epoch."""

    cluster: str
    at: float
    workers: list[WorkerView]
    gone: list[GoneWorker]
    buckets: list[BucketView]
    unreadable: list[Unreadable]

    def worker(self, worker_id: str) -> WorkerView | None:
        return next((view for view in self.workers if view.worker == worker_id), None)

    def bucket(self, bucket: str) -> BucketView | None:
        return next((view for view in self.buckets if view.bucket == bucket), None)


class StreamFacts(Struct, frozen=True):
    """What lies in a bucket's stream: messages, each of up to 500 jobs.

    ``pending_runs`` and ``unacked_runs`` are None when the run consumer is gone, as in a bucket that is drained.
    """

    stream: str
    messages: int
    bytes: int
    scheduled: int  # to be moved to the runs when they are due
    pending_runs: int | None
    unacked_runs: int | None
    redelivered_runs: int | None


async def read_census(link: NatsLink, names: Names) -> Census:
    """Look once.

    Raises:
        ClusterUnknownError: NATS knows no such cluster; nothing is made.
        AgentUnavailableError: no answer.
    """
    try:
        workers_kv, buckets_kv = await CasKv.open(link, names.workers_kv), await CasKv.open(link, names.buckets_kv)
    except NoSuchStreamError:
        raise ClusterUnknownError(names.cluster, link.server) from None
    offset, workers, buckets = await asyncio.gather(
        server_clock_offset(link, samples=CLOCK_SAMPLES), workers_kv.entries(), buckets_kv.entries()
    )
    return census_of(names, workers, buckets, at=time.time() + offset.offset_s)


async def read_stream_facts(link: NatsLink, names: Names, bucket: str) -> StreamFacts | None:
    """None: there is no stream (any more)."""
    stream = names.bucket_stream(bucket)
    try:
        # One message a subject is kept of these: so many subjects are so many messages.
        info = await link.api(f"STREAM.INFO.{stream}", {"subjects_filter": names.sched_any(bucket)})
    except NoSuchStreamError:
        return None
    try:
        run = await link.api(f"CONSUMER.INFO.{stream}.{RUN_CONSUMER}")
    except (NoSuchConsumerError, NoSuchStreamError):
        run = {}
    return StreamFacts(
        stream=stream,
        messages=info["state"]["messages"],
        bytes=info["state"]["bytes"],
        scheduled=info.get("total", 0),
        pending_runs=run.get("num_pending"),
        unacked_runs=run.get("num_ack_pending"),
        redelivered_runs=run.get("num_redelivered"),
    )


def census_of(names: Names, workers: Iterable[Entry], buckets: Iterable[Entry], *, at: float) -> Census:
    """Join the entries of the two KVs. Pure."""
    unreadable: list[Unreadable] = []
    workers_read = _decoded(names.workers_kv, workers, wire.decode_worker, unreadable, at)
    buckets_read = _decoded(names.buckets_kv, buckets, wire.decode_bucket, unreadable, at)
    incarnations = {record.worker: record.incarnation for record, _ in workers_read}
    owned: dict[tuple[str, str], list[str]] = {}
    for record, _ in buckets_read:
        owned.setdefault((record.worker, record.incarnation), []).append(record.bucket)
    return Census(
        cluster=names.cluster,
        at=at,
        workers=[_worker(record, age_s, owned, at) for record, age_s in workers_read],
        gone=[
            GoneWorker(worker, incarnation, found)
            for (worker, incarnation), found in owned.items()
            if incarnations.get(worker) != incarnation
        ],
        buckets=[_bucket(record, age_s, incarnations, at) for record, age_s in buckets_read],
        unreadable=unreadable,
    )


def _decoded(
    kv: str, entries: Iterable[Entry], decode: Callable[[bytes], RecordT], unreadable: list[Unreadable], at: float
) -> list[tuple[RecordT, float]]:
    """Records with their age; what cannot be read goes to ``unreadable``."""
    found = []
    for entry in entries:
        age_s = max(0.0, at - entry.stored_at.timestamp())
        try:
            found.append((decode(entry.value), age_s))
        except NOT_READ as error:
            unreadable.append(Unreadable(kv, entry.key, age_s, str(error)))
    return found


def _worker(record: WorkerRecord, age_s: float, owned: dict[tuple[str, str], list[str]], at: float) -> WorkerView:
    return WorkerView(
        worker=record.worker,
        state=record.state.value,
        mode=record.mode.value,
        health=record.health,
        reasons=record.reasons,
        host=record.host,
        pid=record.pid,
        incarnation=record.incarnation,
        slots=record.slots,
        running=record.running,
        held=record.held,
        finished=record.finished,
        beat_age_s=age_s,
        uptime_s=max(0.0, at - record.started_at - record.clock_offset_s),
        loop_lag_s=record.loop_lag_s,
        clock_offset_s=record.clock_offset_s,
        lanes=record.lanes,
        priorities=[_label(number) for number in record.priorities],
        handlers=record.handlers,
        buckets=owned.get((record.worker, record.incarnation), []),
        draining=record.draining,
    )


def _bucket(record: BucketRecord, age_s: float, incarnations: dict[str, str], at: float) -> BucketView:
    living = incarnations.get(record.worker)
    return BucketView(
        bucket=record.bucket,
        status=record.status,
        lane=record.lane,
        priority=_label(record.priority),
        kind=record.kind.value,
        serves=_label(record.serves_priority),
        worker=record.worker,
        owner=_owner_state(living, record.incarnation),
        origin=record.opener,
        incarnation=record.incarnation,
        epoch=record.epoch,
        weight=record.weight,
        reason=record.reason,
        age_s=max(age_s, at - record.opened_at) if record.opened_at else age_s,
        changed_age_s=age_s,
    )


def _owner_state(living: str | None, incarnation: str) -> str:
    if living is None:
        return OwnerState.GONE
    return OwnerState.ALIVE if living == incarnation else OwnerState.RESTARTED


def _label(number: int) -> str:
    """A priority that this version does not know is shown as its number."""
    try:
        return Priority(number).label
    except ValueError:
        return str(number)
