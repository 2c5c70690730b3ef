"""Asks workers for what they should hold, and dispatches again what they do not. DESIGN 7; the rules are in
``jm_core.reconcile``.

The order of a bucket's pass matters. The rows come first, the outbox after them, the stream after that: what was sent
by the first look is in the stream, or with the worker, by the last. The worker is asked next, and what it has stored
before its answer is recorded before anything is decided.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import msgspec

from jm_core import reconcile as rules
from jm_core import rpc, wire
from jm_core.errors import InvalidNameError
from jm_core.reconcile import GONE, Out, StreamLook
from jm_master.applied import events_recorded
from jm_master.queries import named
from jm_master.record_store import held_of
from jm_master.wake import Wake
from jm_nats import telemetry
from jm_nats.errors import AgentError, NoSuchConsumerError, NoSuchStreamError
from jm_nats.subjects import RUN_CONSUMER
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.msg import Msg

    from jm_core.ends import End
    from jm_core.wire import BucketRecord
    from jm_master.database import Database
    from jm_master.recorder import Recorder
    from jm_master.registry_view import RegistryView
    from jm_master.worker_rpc import WorkerRpc
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

ROWS_MAX: Final = 500  # of a bucket in a pass
HINTS_MAX: Final = 1_000  # at once; anybody can send them, and a lost one costs time only
HINT_GAP_S: Final = 1.0  # between two looks at a bucket that a hint named
LOGGED_IDS_MAX: Final = 20
HINT_KEY: Final = "reconcile"
ANY_TIME_S: Final = -1e9
IDLE_S: Final = 30.0  # between two turns without work: they show that the duty lives, however rare its passes are


class Ports(Protocol):
    """What a pass asks of the world, in this order."""

    async def rows(self, bucket: str, due_for_s: float) -> list[Out]: ...

    async def look(self, bucket: str) -> StreamLook: ...

    async def held(self, worker: str, bucket: str, rows: Sequence[Out]) -> frozenset[str] | None: ...

    async def recorded(self) -> None: ...

    async def record(self, ends: Sequence[End], *, bucket: str, worker: str) -> None: ...


class Reconciler:
    """One term's. ``patience_s`` must exceed a bucket's ack wait."""

    def __init__(self, ports: Ports, view: RegistryView, *, reconcile_s: float, patience_s: float) -> None:
        self._ports = ports
        self._view = view
        self._reconcile_s = reconcile_s
        self._patience_s = patience_s
        self._seen_s: dict[str, dict[rules.Key, float]] = {}
        self._hinted: dict[str, float] = {}  # until when
        self._wake = Wake()

    def hint(self, bucket: str) -> None:
        """Its stream was made anew: look at it at once, and again until it can be judged."""
        if len(self._hinted) < HINTS_MAX:
            self._hinted[bucket] = time.monotonic() + self._patience_s
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled. NATS being away costs passes, not the process."""
        next_s = time.monotonic() + self._reconcile_s
        while True:
            if time.monotonic() >= next_s:
                await self._pass(self._buckets(), is_hint=False)
                next_s = time.monotonic() + self._reconcile_s
            await self._pass([bucket for bucket in self._buckets() if bucket.bucket in self._hinted], is_hint=True)
            telemetry.duty_passed()
            wait_s = max(0.0, next_s - time.monotonic())
            await self._wake.wait(min(wait_s, HINT_GAP_S if self._hinted else IDLE_S))

    async def _pass(self, buckets: Sequence[BucketRecord], *, is_hint: bool) -> None:
        for record in buckets:
            try:
                await (self.look_after_loss(record) if is_hint else self.look(record))
            except (AgentError, InvalidNameError) as error:
                trouble(log, "a bucket is not reconciled now", {"bucket": record.bucket, "problem": str(error)})
        now_s = time.monotonic()
        self._hinted = {bucket: until_s for bucket, until_s in self._hinted.items() if until_s > now_s}

    def _buckets(self) -> list[BucketRecord]:
        """Those with an owner to ask. What is lost or drained goes another way."""
        found = [
            record
            for record in self._view.buckets.values()
            if record.status in rules.LOOKED_AT and not self._view.is_orphan(record)
        ]
        self._seen_s = {record.bucket: self._seen_s.get(record.bucket, {}) for record in found}
        return found

    async def look(self, record: BucketRecord) -> int:
        """A regular pass over one bucket; returns how many jobs went back to the master."""
        bucket, now_s = record.bucket, time.monotonic()
        rows = await self._ports.rows(bucket, self._reconcile_s)
        before = self._seen_s.get(bucket, {})
        self._seen_s[bucket] = rules.first_seen(before, rows, now_s=now_s)
        suspects = rules.suspects(rows, self._seen_s[bucket], now_s=now_s, patience_s=self._patience_s)
        if not suspects or not rules.may_decide(await self._ports.look(bucket)):
            return 0
        return await self._judge(record, suspects) or 0

    async def look_after_loss(self, record: BucketRecord) -> int:
        bucket = record.bucket
        rows = await self._ports.rows(bucket, ANY_TIME_S)
        look = await self._ports.look(bucket)
        if look.messages:
            return 0
        suspects = rules.suspects_after_loss(rows, look)
        back = await self._judge(record, suspects) if suspects else 0
        if back is not None and len(rows) < ROWS_MAX and not any(row.is_unsent for row in rows):
            self._hinted.pop(bucket, None)
        return back or 0

    async def _judge(self, record: BucketRecord, suspects: Sequence[Out]) -> int | None:
        """None: the owner did not answer, and nothing was decided."""
        bucket, worker = record.bucket, record.worker
        held = await self._ports.held(worker, bucket, suspects)
        if held is None:
            return None
        missing = rules.hand_back(suspects, held, now_s=time.time())
        if missing:
            await self._ports.recorded()
            await self._ports.record(missing, bucket=bucket, worker=worker)
        return len(missing)


class Wired:
    """``Ports`` onto Postgres, NATS and the workers."""

    def __init__(
        self, link: NatsLink, names: Names, *, database: Database, recorder: Recorder, rpc_to: WorkerRpc
    ) -> None:
        self._link = link
        self._names = names
        self._database = database
        self._recorder = recorder
        self._rpc = rpc_to
        self._sql = named("reconcile", database.schema)

    async def rows(self, bucket: str, due_for_s: float) -> list[Out]:
        stored = self._database.stored(bucket)
        found = await self._database.ride_out(
            lambda: self._database.fetch(self._sql["load_out"], stored, due_for_s, ROWS_MAX)
        )
        if not found:
            return []
        ids = [row["id"] for row in found]
        unsent = await self._database.ride_out(lambda: self._database.fetch(self._sql["load_unsent"], stored, ids))
        waiting = {row["id"] for row in unsent}
        return [Out(held_of(row), row["due_for_s"], is_unsent=row["id"] in waiting) for row in found]

    async def look(self, bucket: str) -> StreamLook:
        stream = self._names.bucket_stream(bucket)
        try:
            consumer = await self._link.api(f"CONSUMER.INFO.{stream}.{RUN_CONSUMER}")
            info = await self._link.api(f"STREAM.INFO.{stream}")
        except (NoSuchStreamError, NoSuchConsumerError):
            return GONE
        return StreamLook(info["state"]["messages"], consumer["num_pending"])

    async def held(self, worker: str, bucket: str, rows: Sequence[Out]) -> frozenset[str] | None:
        answer = await self._rpc.ask(worker, rpc.Holds(bucket, [row.key for row in rows]))
        return None if answer is None or answer.error else frozenset(answer.held)

    async def recorded(self) -> None:
        await events_recorded(self._link, self._names)

    async def record(self, ends: Sequence[End], *, bucket: str, worker: str) -> None:
        ids = [end.id for end in ends[:LOGGED_IDS_MAX]]
        log.warning(
            "jobs are not held by their worker and are dispatched again",
            extra={"bucket": bucket, "worker": worker, "jobs": len(ends), "job_ids": " ".join(ids)},
        )
        await self._recorder.record_apart(ends, bucket=bucket, worker=worker)


async def follow_hints(link: NatsLink, names: Names, reconciler: Reconciler) -> None:
    """Until cancelled. Hints: a lost one costs time only."""

    async def on_message(message: Msg) -> None:
        bucket = hinted_bucket(message.data)
        if bucket is not None:
            reconciler.hint(bucket)

    subscription = await link.nc.subscribe(names.wake, cb=on_message)
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.move_on_after(2, shield=True):
            await link.retire(subscription)


def hinted_bucket(data: bytes) -> str | None:
    """``{"reconcile": "<bucket>"}``; anybody may write anything there."""
    try:
        bucket = wire.decode_any(data)[HINT_KEY]
    except (msgspec.DecodeError, ValueError, RecursionError, LookupError, TypeError):
        return None
    return bucket if isinstance(bucket, str) else None
