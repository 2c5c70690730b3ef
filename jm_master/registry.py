"""Keeps ``RegistryView`` from the registry's KVs, and changes buckets' records by compare-and-set.

Watches make it quick. Correctness rests on asking: a worker that was not heard of for longer than its lease is looked
up, and so is the worker of a bucket before that bucket is called lost.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, assert_never

import anyio
from msgspec.structs import replace

from jm_core import wire
from jm_core.model import BucketStatus
from jm_master.registry_view import RegistryView
from jm_master.wake import Wake
from jm_nats.errors import AgentError
from jm_nats.kv import CasKv, Changed, Removed, Snapshot, Stale, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from jm_core.wire import BucketRecord
    from jm_nats.connection import NatsLink
    from jm_nats.kv import Entry
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

HANDLER_PREFIX: Final = "handler."
LOOK_S: Final = 1.0


class Registry:
    """Runs in every coordinator, leading or not: a new leader has been watching for a while already."""

    def __init__(self, link: NatsLink, names: Names, *, lease_s: float) -> None:
        self.view = RegistryView()
        self.ready = anyio.Event()  # the first picture is complete
        self.worker_gone = Wake()
        self._workers = CasKv(link, names.workers_kv)
        self._buckets = CasKv(link, names.buckets_kv)
        self._cluster = CasKv(link, names.cluster_kv)
        self._lease_s = lease_s
        self._heard_s: dict[str, float] = {}
        self._missing_first = {"workers", "buckets", "cluster"}

    async def run(self) -> None:
        """Keep the view until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, self._workers, "workers", self._put_worker)
            tasks.start_soon(self._follow, self._buckets, "buckets", self._put_bucket)
            tasks.start_soon(self._follow, self._cluster, "cluster", self._put_cluster)
            tasks.start_soon(self._look_up_silent_workers)

    async def take_over(self, bucket: str, *, unless_alive: bool) -> BucketRecord | None:
        """Make the bucket ours: status ``lost``, a higher epoch. None: it is not ours to take, the view knows more now.

        Raises:
            AgentError: nobody can say at the moment.
        """
        entry = await self._buckets.get(bucket)
        if entry is None:
            self.view.set_bucket(bucket, None, self.view.bucket_revisions.get(bucket, 0))
            return None
        record = wire.decode_bucket(entry.value)
        lost = BucketStatus.LOST.value
        if unless_alive and record.status != lost and await self._is_alive(record):
            return None
        taken = replace(record, status=lost, epoch=record.epoch + 1)
        match await self._buckets.update(bucket, wire.encode(taken), revision=entry.revision):
            case Written(revision=revision):
                self.view.set_bucket(bucket, wire.encode(taken), revision)
                return taken
            case Stale():
                return None

    async def has_bucket(self, bucket: str) -> bool:
        return await self._buckets.get(bucket) is not None

    async def remove_bucket(self, bucket: str) -> None:
        await self._buckets.delete(bucket, revision=self.view.bucket_revisions[bucket])

    async def _is_alive(self, record: BucketRecord) -> bool:
        await self._ask_for(record.worker)
        return not self.view.is_orphan(record)

    async def _ask_for(self, worker: str) -> None:
        entry = await self._workers.get(worker)
        self._put_worker(worker, entry, 0)

    async def _look_up_silent_workers(self) -> None:
        """Heartbeats come several times per lease: who was silent for longer has expired, or the watch is dead."""
        while True:
            await anyio.sleep(LOOK_S)
            silent_since_s = time.monotonic() - self._lease_s - LOOK_S
            silent = [worker for worker, heard_s in self._heard_s.items() if heard_s < silent_since_s]
            try:
                for worker in silent:
                    await self._ask_for(worker)
            except AgentError as error:
                log.debug("cannot look up a silent worker", extra={"problem": str(error)})

    # What the watches bring.

    async def _follow(self, kv: CasKv, name: str, put: Callable[[str, Entry | None, int], None]) -> None:
        known: set[str] = set()
        async with kv.watch() as changes:
            async for change in changes:
                match change:
                    case Snapshot(entries=entries):
                        keys = {entry.key for entry in entries}
                        for gone in known - keys:
                            put(gone, None, 0)
                        for entry in entries:
                            put(entry.key, entry, entry.revision)
                        known = keys
                        self._complete(name)
                    case Changed(entry=entry):
                        known.add(entry.key)
                        put(entry.key, entry, entry.revision)
                    case Removed(key=key, revision=revision):
                        known.discard(key)
                        put(key, None, revision)
                    case _:
                        assert_never(change)

    def _complete(self, name: str) -> None:
        self._missing_first.discard(name)
        if not self._missing_first:
            self.ready.set()

    def _put_worker(self, key: str, entry: Entry | None, _: int) -> None:
        if entry is None:
            self._heard_s.pop(key, None)
            self.view.set_worker(key, None)
            self.worker_gone.set()
        else:
            self._heard_s[key] = time.monotonic()
            self.view.set_worker(key, entry.value)

    def _put_bucket(self, key: str, entry: Entry | None, revision: int) -> None:
        known = self.view.bucket_revisions.get(key, 0)
        self.view.set_bucket(key, entry.value if entry else None, revision or known)

    def _put_cluster(self, key: str, entry: Entry | None, _: int) -> None:
        if key.startswith(HANDLER_PREFIX):
            self.view.set_handler(key.removeprefix(HANDLER_PREFIX), entry.value if entry else None)
