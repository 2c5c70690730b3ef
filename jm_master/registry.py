"""Keeps ``RegistryView`` from the registry's KVs, and changes buckets' records by compare-and-set.

Watches make it quick. Correctness rests on asking: a worker that was not heard of for longer than its lease is looked
up, and so is the worker of a bucket before that bucket is called lost.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, assert_never

import anyio

from jm_core import wire
from jm_core.cluster import KEY as SETTINGS_KEY
from jm_core.errors import InvalidNameError
from jm_core.model import BucketStatus
from jm_core.ownership import Silence
from jm_master.registry_view import RegistryView
from jm_master.wake import Wake
from jm_nats.errors import AgentError
from jm_nats.kv import CasKv, Changed, Removed, Snapshot, Stale, Written
from jm_nats.pace import tick

if TYPE_CHECKING:
    from collections.abc import Callable

    from jm_core.wire import BucketRecord
    from jm_nats.connection import NatsLink
    from jm_nats.kv import Entry
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

HANDLER_PREFIX: Final = "handler."
LOOK_S: Final = 1.0
FORGET_LEASES: Final = 100
PROBE_KEY: Final = "probe"  # nobody's: a worker of this name would do no harm


class Registry:
    """Runs in every coordinator, leading or not: a new leader has been watching for a while already."""

    def __init__(self, link: NatsLink, names: Names, *, lease_s: float) -> None:
        self.view = RegistryView()
        self.ready = anyio.Event()  # the first picture is complete
        self.attention = Wake()  # a worker went, or a bucket is in nobody's hands
        self._workers = CasKv(link, names.workers_kv)
        self._buckets = CasKv(link, names.buckets_kv)
        self._cluster = CasKv(link, names.cluster_kv)
        self._lease_s = lease_s
        self._heard_s: dict[str, float] = {}
        self._gone: dict[str, tuple[float, bool]] = {}  # worker: last heard of, and whether it took its key away
        self._worker_revisions: dict[str, int] = {}
        self._began_s = time.monotonic()
        self._missing_first = {"workers", "buckets", "cluster"}

    async def run(self) -> None:
        """Keep the view until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, self._workers, "workers", self._put_worker)
            tasks.start_soon(self._follow, self._buckets, "buckets", self._put_bucket)
            tasks.start_soon(self._follow, self._cluster, "cluster", self._put_cluster)
            tasks.start_soon(self._look_up_silent_workers)

    async def change(self, bucket: str, decide: Callable[[BucketRecord], BucketRecord | None]) -> BucketRecord | None:
        """Read the bucket's record, let ``decide`` say what it should be, write it if nobody was quicker. None: it
        stays as it is, and the view knows more now.

        Raises:
            AgentError: nobody can say at the moment.
        """
        entry = await self._buckets.get(bucket)
        if entry is None:
            self.view.set_bucket(bucket, None, self.view.bucket_revisions.get(bucket, 0))
            return None
        self.view.set_bucket(bucket, entry.value, entry.revision)
        record = self.view.buckets.get(bucket)  # as just read; or the last that could be, if that cannot
        wanted = None if record is None else decide(record)
        if wanted is None:
            return None
        value = wire.encode(wanted)
        match await self._buckets.update(bucket, value, revision=entry.revision):
            case Written(revision=revision):
                self.view.set_bucket(bucket, value, revision)
                return wanted
            case Stale():
                return None

    async def drop_unreadable(self, bucket: str, revision: int) -> None:
        """Take away what nobody can read and nobody has written again: its jobs are a stray bucket's then.

        Raises:
            AgentError: nobody can say at the moment.
            InvalidNameError: it is no bucket's name either.
        """
        if isinstance(answer := await self._buckets.delete(bucket, revision=revision), Written):
            self.view.set_bucket(bucket, None, answer.revision)
            log.warning("bucket's record could not be read and had no owner; removed", extra={"bucket": bucket})

    def silence(self, worker: str, *, now_s: float) -> Silence:
        """What we know of this worker. One that was never heard of is silent since we began to listen."""
        heard_s, resigned = self._gone.get(worker, (self._began_s, False))
        heard_s = self._heard_s.get(worker, heard_s)
        return Silence(self.view.workers.get(worker), now_s - heard_s, resigned)

    async def probe(self) -> None:
        """Ask the heartbeats' KV something.

        Raises:
            AgentError: it does not answer.
        """
        await self._workers.get(PROBE_KEY)

    async def has_bucket(self, bucket: str) -> bool:
        return await self._buckets.get(bucket) is not None

    async def remove_bucket(self, bucket: str) -> None:
        revision = self.view.bucket_revisions[bucket]
        match await self._buckets.delete(bucket, revision=revision):
            case Written(revision=deleted):
                self.view.set_bucket(bucket, None, deleted)
            case Stale():
                log.info("bucket was written again while it was removed", extra={"bucket": bucket})

    async def ask_for(self, worker: str) -> None:
        """Look it up, whatever the watch has brought so far.

        Raises:
            AgentError: nobody can say at the moment.
        """
        if worker:
            self._put_worker(worker, await self._workers.get(worker), 0)

    async def _look_up_silent_workers(self) -> None:
        """Heartbeats come several times per lease: who was silent for longer has expired, or the watch is dead."""
        while True:
            await tick(LOOK_S)
            silent_since_s = time.monotonic() - self._lease_s - LOOK_S
            silent = [worker for worker, heard_s in self._heard_s.items() if heard_s < silent_since_s]
            for worker in silent:
                try:
                    await self.ask_for(worker)
                except (AgentError, InvalidNameError) as error:
                    log.debug("cannot look up a silent worker", extra={"worker": worker, "problem": str(error)})
            self._forget_long_gone()

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
                    case Removed(key=key, revision=revision, expired=expired):
                        known.discard(key)
                        put(key, None, revision)
                        if kv is self._workers and not expired and revision >= self._worker_revisions.get(key, 0):
                            self._resigned(key)
                    case _:
                        assert_never(change)

    def _complete(self, name: str) -> None:
        self._missing_first.discard(name)
        if not self._missing_first:
            self.ready.set()

    def _put_worker(self, key: str, entry: Entry | None, revision: int) -> None:
        if 0 < revision < self._worker_revisions.get(key, 0):
            return  # an answer to a question of ours overtook the watch
        self._worker_revisions[key] = max(revision, entry.revision if entry else 0)
        if entry is None:
            heard_s = self._heard_s.pop(key, None)
            if heard_s is not None:
                self._gone[key] = (heard_s, False)
            self.view.set_worker(key, None)
            self.attention.set()
        else:
            self._heard_s[key] = time.monotonic()
            self._gone.pop(key, None)
            before = self.view.workers.get(key)
            self.view.set_worker(key, entry.value)
            now = self.view.workers.get(key)  # None: written by a version that we cannot read
            if before is not None and now is not None and before.incarnation != now.incarnation:
                self.attention.set()

    def _resigned(self, worker: str) -> None:
        """Its key was taken away on purpose: by itself at its end, or by whoever saw its process die."""
        heard_s, _ = self._gone.get(worker, (time.monotonic(), False))
        self._gone[worker] = (heard_s, True)

    def _forget_long_gone(self) -> None:
        owners = {record.worker for record in self.view.buckets.values()}
        before_s = time.monotonic() - FORGET_LEASES * self._lease_s
        for worker in [w for w, (heard_s, _) in self._gone.items() if heard_s < before_s and w not in owners]:
            del self._gone[worker]
            self._worker_revisions.pop(worker, None)

    def _put_bucket(self, key: str, entry: Entry | None, revision: int) -> None:
        known = self.view.bucket_revisions.get(key, 0)
        self.view.set_bucket(key, entry.value if entry else None, revision or known)
        record = self.view.buckets.get(key)
        if record is not None and record.status != BucketStatus.ACTIVE:
            self.attention.set()

    def _put_cluster(self, key: str, entry: Entry | None, _: int) -> None:
        if key == SETTINGS_KEY:
            self.view.told = entry.value if entry else None
        if key.startswith(HANDLER_PREFIX):
            self.view.set_handler(key.removeprefix(HANDLER_PREFIX), entry.value if entry else None)
