"""The leader's picture of who is alive: buckets, workers and handler defaults. In memory; ``registry`` keeps it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from jm_core.cluster import DEFAULT, ClusterSettings, served_as
from jm_core.fallback import Neighbour, Picture
from jm_core.kv_records import bucket_at, handler_at, worker_at
from jm_core.model import BucketKind, BucketStatus, Priority
from jm_core.wire import HandlerDefaults
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from jm_core.wire import BucketRecord, WorkerRecord

    Routes = dict[tuple[str, int], list[BucketRecord]]

log = logging.getLogger(__name__)

GONE_MAX: Final = 2_000  # removed buckets whose last revision is kept, against a listing that comes late


class Elsewhere(Struct, frozen=True):
    """What other agents' workers do. ``handlers`` are remembered while their agent is away."""

    handlers: Mapping[str, HandlerDefaults] = {}
    live: Mapping[str, Neighbour] = {}  # by agent
    away: frozenset[str] = frozenset()  # agents whose leader has not been heard of lately

    @property
    def neighbours(self) -> Collection[Neighbour]:
        return self.live.values()


class RegistryView:
    """What is known now. Only buckets that are active, with their own worker alive, are offered for jobs."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerRecord] = {}
        self.buckets: dict[str, BucketRecord] = {}
        self.bucket_revisions: dict[str, int] = {}
        self.unreadable_buckets: dict[str, int] = {}  # revision of what is written over a record, or instead of one
        self.handlers: dict[str, HandlerDefaults] = {}
        self.all_handlers: Mapping[str, HandlerDefaults] = self.handlers  # other agents', too
        self.elsewhere = Elsewhere()
        self.cluster: ClusterSettings = DEFAULT
        self.told: bytes | None = None  # what the KV says of them
        self._routes: dict[tuple[str, int], list[BucketRecord]] = {}
        self._by_worker: dict[str, list[BucketRecord]] = {}
        self._known: dict[str, frozenset[str]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def route(self, lane: str, priority: int) -> Sequence[BucketRecord]:
        """The buckets that may be given jobs of this lane and priority: the proper ones, or where there is none those
        that stand in (and take only what their worker knows: ``placement.eligible``).
        """
        return self._routes.get((lane, priority), ())

    def routes(self) -> Collection[tuple[str, int]]:
        return self._routes.keys()

    def picture(self) -> Picture:
        """For the rules about fallback buckets."""
        return Picture(dict(self.workers), [bucket for own in self._by_worker.values() for bucket in own])

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
        return bool(self.workers)

    def is_orphan(self, record: BucketRecord) -> bool:
        """Whether the bucket's worker, that very process, is not among the living."""
        worker = self.workers.get(record.worker)
        return worker is None or worker.incarnation != record.incarnation

    def set_worker(self, key: str, value: bytes | None) -> None:
        record = None if value is None else worker_at(key, value)
        if record is None and value is not None:
            _say_unreadable("workers", key)  # its next beat mends that
        before = self.workers.get(key)
        if record is None:
            self.workers.pop(key, None)
        else:
            self.workers[key] = record
        if before is None or record is None or _differs(before, record):
            self._rebuild()

    def set_bucket(self, key: str, value: bytes | None, revision: int) -> None:
        """What cannot be read leaves what was known: its owner writes it again, or who takes the bucket from it."""
        if revision < self.bucket_revisions.get(key, 0):
            return  # a listing that overtook the watch
        record = None if value is None else bucket_at(key, value)
        self.bucket_revisions[key] = revision
        self.unreadable_buckets.pop(key, None)
        if record is None and value is not None:
            _say_unreadable("buckets", key)
            self.unreadable_buckets[key] = revision
        elif record is None:
            self.buckets.pop(key, None)
            self._forget_in_time(key)
        else:
            self.buckets[key] = record
            self._gone.pop(key, None)
        self._rebuild()

    def set_handler(self, name: str, value: bytes | None) -> None:
        record = None if value is None else handler_at(value)
        if value is None:
            self.handlers.pop(name, None)
        elif record is None:
            _say_unreadable("handlers", name)  # what was known holds until a worker has written it again
        else:
            self.handlers[name] = record
        self._merge_handlers()

    def set_elsewhere(self, elsewhere: Elsewhere) -> None:
        self.elsewhere = elsewhere
        self._merge_handlers()

    def _merge_handlers(self) -> None:
        self.all_handlers = {**self.elsewhere.handlers, **self.handlers} if self.elsewhere.handlers else self.handlers

    def proper_routes(self) -> set[tuple[str, int]]:
        """What our workers serve by proper buckets, whatever the cluster's settings make of it."""
        own = [record for records in self._by_worker.values() for record in records]
        return {(record.lane, record.priority) for record in own if record.kind == BucketKind.PROPER}

    def known_handlers(self) -> dict[str, HandlerDefaults]:
        """Those that a live worker of ours has, with their defaults."""
        alive = frozenset[str]().union(*self._known.values())
        return {name: self.handlers[name] for name in sorted(alive & self.handlers.keys())}

    def set_cluster(self, settings: ClusterSettings) -> None:
        self.cluster = settings
        self._rebuild()

    def served_as(self, priority: int) -> Priority:
        return served_as(Priority(priority), self.cluster.off)

    def _rebuild(self) -> None:
        self._known = {key: frozenset(worker.handlers) for key, worker in self.workers.items()}
        self._by_worker = {}
        proper: dict[tuple[str, int], list[BucketRecord]] = {}
        standing_in: dict[tuple[str, int], list[BucketRecord]] = {}
        for record in sorted(self.buckets.values(), key=lambda record: record.bucket):
            if record.status == BucketStatus.ACTIVE and not self.is_orphan(record):
                routes = standing_in if record.kind == BucketKind.FALLBACK else proper
                routes.setdefault((record.lane, record.serves_priority), []).append(record)
                self._by_worker.setdefault(record.worker, []).append(record)
        self._routes = self._by_settings(standing_in | proper)

    def _by_settings(
        self, routes: dict[tuple[str, int], list[BucketRecord]]
    ) -> dict[tuple[str, int], list[BucketRecord]]:
        """Nothing is given out where nothing may start; a disabled priority's jobs go where others of the lane go."""
        if not self.cluster.starts:
            return {}
        off = self.cluster.off
        instead = {(lane, other): served_as(other, off) for lane in {lane for lane, _ in routes} for other in off}
        found = {route: routes[route[0], other] for route, other in instead.items() if (route[0], other) in routes}
        return routes | found

    def _forget_in_time(self, key: str) -> None:
        """Ids are never used again, so what is kept of the removed ones must not grow with every worker that ends."""
        self._gone[key] = None
        self._gone.move_to_end(key)
        while len(self._gone) > GONE_MAX:
            oldest, _ = self._gone.popitem(last=False)
            self.bucket_revisions.pop(oldest, None)


def _differs(before: WorkerRecord, now: WorkerRecord) -> bool:
    """Whether a heartbeat says anything that placement cares for."""
    return (before.incarnation, before.slots, before.handlers) != (now.incarnation, now.slots, now.handlers)


def _say_unreadable(what: str, key: str) -> None:
    """A newer version wrote it, or somebody who is none of us."""
    trouble(log, "registry entry cannot be read", {"of": what, "key": key})
