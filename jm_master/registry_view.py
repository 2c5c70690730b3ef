"""The leader's picture of who is alive: buckets, workers and handler defaults. In memory; ``registry`` keeps it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

import msgspec

from jm_core import wire
from jm_core.model import BucketStatus, Priority, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from jm_core.wire import BucketRecord, HandlerDefaults, WorkerRecord

log = logging.getLogger(__name__)
T = TypeVar("T")


class RegistryView:
    """What is known now. Only buckets that are active, with their own worker alive, are offered for jobs."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerRecord] = {}
        self.buckets: dict[str, BucketRecord] = {}
        self.bucket_revisions: dict[str, int] = {}
        self.handlers: dict[str, HandlerDefaults] = {}
        self._routes: dict[tuple[str, int], list[BucketRecord]] = {}
        self._by_worker: dict[str, list[BucketRecord]] = {}
        self._known: dict[str, frozenset[str]] = {}

    def route(self, lane: str, priority: int) -> Sequence[BucketRecord]:
        """The buckets that may be given jobs of this lane and priority."""
        return self._routes.get((lane, priority), ())

    def routes(self) -> Collection[tuple[str, int]]:
        return self._routes.keys()

    def worker_of(self, bucket: str) -> str | None:
        record = self.buckets.get(bucket)
        return record.worker if record else None

    def buckets_of(self, worker: str) -> list[str]:
        return [record.bucket for record in self._by_worker.get(worker, ())]

    def priorities_of(self, worker: str) -> list[Priority]:
        return [Priority(record.priority) for record in self._by_worker.get(worker, ())]

    def handlers_of(self, worker: str) -> frozenset[str]:
        return self._known.get(worker, frozenset())

    def slots_of(self, worker: str) -> int:
        record = self.workers.get(worker)
        return record.slots if record else 0

    def has_adopters(self) -> bool:
        """Whether any worker lives that could drain a bucket."""
        return any(worker.state != WorkerState.HALTED for worker in self.workers.values())

    def is_orphan(self, record: BucketRecord) -> bool:
        """Whether the bucket's worker, that very process, is not among the living."""
        worker = self.workers.get(record.worker)
        return worker is None or worker.incarnation != record.incarnation

    def set_worker(self, key: str, value: bytes | None) -> None:
        record = _decoded(wire.decode_worker, key, value)
        before = self.workers.get(key)
        if record is None:
            self.workers.pop(key, None)
        else:
            self.workers[key] = record
        if before is None or record is None or _differs(before, record):
            self._rebuild()

    def set_bucket(self, key: str, value: bytes | None, revision: int) -> None:
        if revision < self.bucket_revisions.get(key, 0):
            return  # a listing that overtook the watch
        record = _decoded(wire.decode_bucket, key, value)
        self.bucket_revisions[key] = revision
        if record is None:
            self.buckets.pop(key, None)
        else:
            self.buckets[key] = record
        self._rebuild()

    def set_handler(self, name: str, value: bytes | None) -> None:
        record = _decoded(wire.decode_handler_defaults, name, value)
        if record is None:
            self.handlers.pop(name, None)
        else:
            self.handlers[name] = record

    def _rebuild(self) -> None:
        self._known = {key: frozenset(worker.handlers) for key, worker in self.workers.items()}
        self._routes, self._by_worker = {}, {}
        for record in sorted(self.buckets.values(), key=lambda record: record.bucket):
            if record.status == BucketStatus.ACTIVE and not self.is_orphan(record):
                self._routes.setdefault((record.lane, record.priority), []).append(record)
                self._by_worker.setdefault(record.worker, []).append(record)


def _differs(before: WorkerRecord, now: WorkerRecord) -> bool:
    """Whether a heartbeat says anything that placement cares for."""
    return (before.incarnation, before.slots, before.handlers) != (now.incarnation, now.slots, now.handlers)


def _decoded(decode: Callable[[bytes], T], key: str, value: bytes | None) -> T | None:
    """None when it is gone, or when a newer version wrote what we cannot read."""
    if value is None:
        return None
    try:
        return decode(value)
    except (msgspec.DecodeError, ValueError):
        log.warning("registry entry cannot be read", extra={"key": key})
        return None
