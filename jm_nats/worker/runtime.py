"""Wires a worker's loops together and owns the order in which they stop."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Final

import msgspec
import uuid_utils
from nats import errors

from jm_core import limits, rpc, wire
from jm_core.errors import InvalidSettingError
from jm_core.model import BucketKind, ReturnReason, WorkerMode, WorkerState
from jm_core.rebalance import Waiting, jobs_to_return
from jm_core.wire import WorkerRecord
from jm_nats import telemetry
from jm_nats.app import JobMaster
from jm_nats.clock import CorrectedClock
from jm_nats.connection import NatsLink, connect, server_clock_offset
from jm_nats.errors import AgentError
from jm_nats.health import HealthBoard
from jm_nats.kv import CasKv, Changed, Entry, Removed, Snapshot
from jm_nats.provision import ensure_cluster
from jm_nats.publisher import JetPublisher
from jm_nats.worker.adoption import Adopter
from jm_nats.worker.buckets import Buckets
from jm_nats.worker.config import WorkerConfig
from jm_nats.worker.engine import Engine
from jm_nats.worker.execution import Ask, Executors
from jm_nats.worker.guard import Guard
from jm_nats.worker.heartbeat import Heartbeat, WorkerNameTakenError
from jm_nats.worker.registration import publish_defaults
from jm_nats.worker.rpc import RefusedOrderError, WorkerRpc
from jm_nats.worker.tasks import Tasks, first

log = logging.getLogger("jobmaster.worker")

TICK_S: Final = 1.0
CLOCK_CHECK_S: Final = 60.0
CLOCK_SKEW_WARN_S: Final = 1.0
FLUSH_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.02
ENSURE_AFTER_BEATS: Final = 3  # unconfirmed ones in a row, on a connection that is up: is the KV still there?


class Worker:
    """Runs an app's handlers until told to stop.

    ``run(stop)`` serves until ``stop`` is set, then drains: nothing more is started, held jobs go back at once, running
    ones get ``drain_timeout_s``, outcomes are flushed, and the heartbeat goes on to the very end. ``hurry`` set ends
    the drain now.
    """

    def __init__(self, app: JobMaster, config: WorkerConfig | None = None, *, board: HealthBoard | None = None) -> None:
        if not app.handlers:
            raise InvalidSettingError(
                f"{app!r} has no handlers; declare one with @{app.cluster}.handler(...) and import it"
            )
        self.app = app
        self.config = config or WorkerConfig()
        self.board = board or HealthBoard(self.config.worker_id, "worker")
        self.runs_jobs = self.config.mode is not WorkerMode.DRAIN
        self.lanes = (self.config.lanes or tuple(app.lanes())) if self.runs_jobs else ()
        self.incarnation = uuid_utils.uuid7().hex
        self.clock = CorrectedClock()
        self.ready = asyncio.Event()
        self.state = WorkerState.SERVING
        self._started_at = time.time()
        self._last_tick_s = time.monotonic()
        self._loop_lag_s = 0.0
        self._parts: _Parts | None = None
        self._stop_asked = asyncio.Event()
        self._hurry_asked = asyncio.Event()
        self._drain_changed = asyncio.Event()
        self._drain_asked = False

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:
        """Serve; returns after a complete drain.

        Raises:
            AgentUnavailableError and kin: NATS could not be reached at start.
            WorkerNameTakenError: another process has our worker id, at start or later.
            JmError, Exception: a loop failed in a way that is nobody's outage. The worker has stopped at once then:
                it takes nothing, its handlers are cancelled, nothing more is reported, and its buckets are free for
                others.
        """
        async with AsyncExitStack() as stack:
            link = await connect(self.app.nats_config(), client_name=f"jobmaster worker {self.config.worker_id}")
            stack.push_async_callback(link.close)
            await ensure_cluster(link, self.app.names, replicas=self.config.replicas, lease_s=self.config.lease_s)
            await self._measure_clock(link)
            telemetry.refresh()
            await self._serve(link, stop, hurry or asyncio.Event())

    async def _serve(self, link: NatsLink, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heartbeat = self._heartbeat(taken)
        await heartbeat.start()
        executors = Executors(self.config.process_slots)
        publisher = JetPublisher(link)
        try:
            async with Tasks() as tasks:
                parts = self._parts = await self._make_parts(link, heartbeat, executors, publisher, tasks)
                try:
                    async with WorkerRpc(link, self.app.names, self.config.worker_id, self):
                        await self._start(parts)
                        failed = asyncio.ensure_future(first(tasks.failed(), taken))
                        tasks.start(self._pass_on(stop, self._stop_asked), "stop", ends=True)
                        tasks.start(self._pass_on(hurry, self._hurry_asked), "hurry", ends=True)
                        serving = asyncio.ensure_future(self._until_stopped(parts))
                        try:
                            await first(failed, serving)
                        finally:
                            await _ended(failed, serving)
                except BaseException:
                    # Also when a loop has failed: what is cancelled from here on frees slots, and nothing may start.
                    self.state = WorkerState.HALTED
                    parts.buckets.halt()
                    raise
        finally:
            executors.close()
            await publisher.close()
            await heartbeat.stop()

    async def _make_parts(
        self, link: NatsLink, heartbeat: Heartbeat, executors: Executors, publisher: JetPublisher, tasks: Tasks
    ) -> "_Parts":
        names = self.app.names
        cluster = await CasKv.open(link, names.cluster_kv)
        if self.runs_jobs:
            await publish_defaults(cluster, self.app)
        await cluster.close()
        kv = await CasKv.open(link, names.buckets_kv)
        me = {"worker": self.config.worker_id, "incarnation": self.incarnation}
        engine = Engine(
            self.app.handlers,
            slots=self.config.slots,
            executors=executors,
            clock=self.clock,
            cancel_grace_s=self.config.cancel_grace_s,
            on_room=lambda: buckets.room.update(engine),
            may_start=lambda: guard.holds(),  # noqa: PLW0108 - made below
        )
        buckets = Buckets(
            link, names, kv, engine, publisher, tasks, **me, replicas=self.config.replicas, reconcile=self._hint(link)
        )
        guard = Guard(
            lambda: heartbeat.acknowledged_s, lease_s=self.config.lease_s, verify=buckets.verify, on_trust=engine.pump
        )
        buckets.lease = guard
        # Who is about to go leaves it to those who stay.
        may = lambda: guard.holds() and self.state in (WorkerState.SERVING, WorkerState.DRAINING)  # noqa: E731
        adopter = Adopter(link, names, kv, publisher, tasks, **me, may=may)
        return _Parts(link, heartbeat, engine, buckets, guard, adopter, kv, tasks)

    def _hint(self, link: NatsLink) -> Callable[[str], Awaitable[None]]:
        async def reconcile(bucket: str) -> None:
            """A hint: the reconciler comes by itself, later."""
            with suppress(errors.Error, OSError):
                await link.nc.publish(self.app.names.wake, wire.encode({"reconcile": bucket}))

        return reconcile

    async def _start(self, parts: "_Parts") -> None:
        if self.runs_jobs:
            parts.buckets.wanted = [(lane, p) for lane in self.lanes for p in sorted(self.config.priorities)]
            await parts.buckets.open_wanted()
            parts.tasks.start(self._rebalance(parts.link, parts.engine), "rebalance")
        parts.tasks.start(self._watch_registry(parts), "registry")
        parts.tasks.start(parts.guard.run(), "lease")
        parts.tasks.start(self._watch_loop(), "loop lag")
        parts.tasks.start(self._watch_clock(parts.link), "clock")
        parts.tasks.start(self._watch_store(parts), "store")
        parts.heartbeat.soon()
        log.info("worker ready", extra={"worker": self.config.worker_id, "buckets": len(parts.buckets.own)})
        self.ready.set()

    @staticmethod
    async def _pass_on(asked: asyncio.Event, to: asyncio.Event) -> None:
        await asked.wait()
        to.set()

    # -- stopping

    async def _until_stopped(self, parts: "_Parts") -> None:
        """Serve; then drain, by a signal or by an order."""
        while not self._stop_asked.is_set():
            self._drain_changed.clear()
            if self._drain_asked:
                self._set_state(WorkerState.DRAINING)
                if await self._drained(parts):
                    break
                self._set_state(WorkerState.SERVING)
                await _within(FLUSH_TIMEOUT_S, parts.buckets.open_wanted(), "buckets not opened again")
            else:
                await first(self._stop_asked.wait(), self._drain_changed.wait())
        self._set_state(WorkerState.STOPPING)
        await self._stop(parts)

    async def _drained(self, parts: "_Parts") -> bool:
        """Take no more. True once nothing runs, or when we are to stop; False when the order was taken back."""
        log.info("worker drains by order", extra={"running": parts.engine.running, "held": parts.engine.held})
        await _within(FLUSH_TIMEOUT_S, parts.buckets.close_all(reason="drained by order"), "buckets not closed")
        while self._drain_asked and not self._stop_asked.is_set():
            if not parts.engine.unreported() and not parts.adopter.draining:
                return True
            await asyncio.sleep(POLL_S)
        if self._stop_asked.is_set():
            return True
        for bucket in [b for b in parts.buckets.own.values() if b.port.closed]:
            parts.tasks.start(
                parts.buckets.retire(bucket, reason="drained by order"), f"retires {bucket.name}", ends=True
            )
        return False

    async def _stop(self, parts: "_Parts") -> None:
        """The stop order. Intake goes on to the end: what still comes goes back at once, to where it can run."""
        engine, buckets = parts.engine, parts.buckets
        log.info("worker drains", extra={"running": engine.running, "held": engine.held})
        await _within(FLUSH_TIMEOUT_S, buckets.close_all(reason="its worker stops"), "buckets not marked completing")
        await self._running_end(engine, self.config.drain_timeout_s, self._hurry_asked)
        if engine.ask(Ask.SHUTDOWN):
            await self._running_end(engine, limits.EXIT_GRACE_S, asyncio.Event())
        if engine.unreported():
            log.warning("handlers ignore cancellation", extra={"jobs": engine.running_names()})
            engine.report_unended()
        await _within(FLUSH_TIMEOUT_S, parts.adopter.finished(), "adopted buckets not emptied")
        # What is not flushed is unacked too: it comes back by the lost path. Never hang on a NATS that is away.
        await _within(FLUSH_TIMEOUT_S, self._leave_all(buckets), "reports not flushed")

    @staticmethod
    async def _leave_all(buckets: Buckets) -> None:
        await asyncio.gather(*[buckets.leave(bucket) for bucket in list(buckets.own.values())])

    async def _running_end(self, engine: Engine, patience_s: float, hurry: asyncio.Event) -> None:
        """Wait until nothing is unreported, ``patience_s`` is over, or somebody hurries."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        # Ends come from many handlers; asking 50 times a second for at most the drain timeout is the simple way.
        while engine.unreported() and loop.time() < deadline and not hurry.is_set():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    def _set_state(self, state: WorkerState) -> None:
        self.state = state
        if self._parts is not None:
            self._parts.heartbeat.soon()

    # -- orders, as jm_core.rpc has them

    async def holds(self, bucket: str, jobs: list[tuple[str, int]]) -> list[str]:
        parts = self._parts
        if parts is None or bucket not in parts.buckets.own:
            raise RefusedOrderError(f"bucket {bucket!r} is not one of ours")
        return await parts.buckets.holds(bucket, jobs)

    async def open_fallback(self, lane: str, serves: int, reason: str) -> str:
        if self._parts is None or not self.runs_jobs or self.state is not WorkerState.SERVING:
            raise RefusedOrderError(f"the worker is {self.state.value}, it opens no bucket")
        return await self._parts.buckets.open_fallback(lane, serves, reason)

    async def retire(self, bucket: str, reason: str) -> None:
        parts = self._parts
        own = parts.buckets.own.get(bucket) if parts is not None else None
        if parts is None or own is None:
            raise RefusedOrderError(f"bucket {bucket!r} is not one of ours")
        if own.value.kind is not BucketKind.FALLBACK:
            raise RefusedOrderError(f"bucket {bucket!r} is no fallback bucket; drain its worker instead")
        if not own.port.closed:
            parts.tasks.start(parts.buckets.retire(own, reason=reason), f"retires {bucket}", ends=True)

    def drain(self, undo: bool) -> None:  # noqa: FBT001 - the words of jm_core.rpc.Drain
        if self.state not in (WorkerState.SERVING, WorkerState.DRAINING) or self._stop_asked.is_set():
            raise RefusedOrderError(f"the worker is {self.state.value} already")
        self._drain_asked = not undo
        self._drain_changed.set()

    def stop(self, hurry: bool) -> None:  # noqa: FBT001 - the words of jm_core.rpc.Stop
        self._stop_asked.set()
        if hurry:
            self._hurry_asked.set()

    def status(self) -> rpc.WorkerStatus:
        if self._parts is None:
            return rpc.WorkerStatus(self.state.value)
        return self._parts.engine.status(self._shown_state().value)

    # -- heartbeat

    def _heartbeat(self, taken: "asyncio.Future[None]") -> Heartbeat:
        def on_taken(error: WorkerNameTakenError) -> None:
            if not taken.done():
                taken.set_exception(error)

        return Heartbeat(
            self.app.nats_config(),
            self.app.names,
            period_s=self.config.heartbeat_s,
            lease_s=self.config.lease_s,
            snapshot=self._record,
            last_tick_s=lambda: self._last_tick_s,
            on_taken=on_taken,
        )

    def _shown_state(self) -> WorkerState:
        fenced = self._parts is not None and not self._parts.guard.holds()
        return WorkerState.FENCED if fenced and self.state is WorkerState.SERVING else self.state

    def _record(self) -> WorkerRecord:
        """Called in the heartbeat's thread."""
        parts = self._parts
        return WorkerRecord(
            worker=self.config.worker_id,
            incarnation=self.incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            slots=self.config.slots if self.runs_jobs else 0,
            lanes=list(self.lanes),
            handlers=sorted(self.app.handlers) if self.runs_jobs else [],
            running=parts.engine.running if parts else 0,
            held=parts.engine.held if parts else 0,
            loop_lag_s=self._loop_lag_s,
            clock_offset_s=self.clock.offset_s,
            beat_at=self.clock.now(),
            mode=self.config.mode,
            state=self._shown_state(),
            finished=parts.engine.finished if parts else 0,
            draining=sorted(parts.adopter.draining) if parts else [],
            priorities=sorted(self.config.priorities) if self.runs_jobs else [],
        )

    # -- side loops

    async def _watch_loop(self) -> None:
        """How late a timer fires is how long something blocked the loop."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            self._last_tick_s = time.monotonic()
            telemetry.refresh()
            self._loop_lag_s = max(0.0, self._last_tick_s - before - TICK_S)
            if self._loop_lag_s > TICK_S:
                names = self._parts.engine.running_names() if self._parts else []
                log.warning(
                    "event loop was blocked; a handler does not await, declare it sync or executor='process'",
                    extra={"blocked_s": round(self._loop_lag_s, 1), "running": names[:5]},
                )

    async def _watch_registry(self, parts: "_Parts") -> None:
        """What happens to buckets: ours, and those that others leave behind."""

        def seen(key: str, value: bytes | None) -> None:
            with suppress(msgspec.DecodeError):  # of another version
                record = wire.decode_bucket(value) if value is not None else None
                parts.buckets.changed(key, record)
                if self.config.mode is not WorkerMode.COORDINATOR:
                    parts.adopter.seen(key, record)

        async with parts.kv.watch() as changes:
            async for change in changes:
                match change:
                    case Snapshot(entries=entries):
                        there = {entry.key: entry.value for entry in entries}
                        for key in {*there, *parts.buckets.own}:
                            seen(key, there.get(key))
                    case Changed(entry=entry):
                        seen(entry.key, entry.value)
                    case Removed(key=key):
                        seen(key, None)

    async def _watch_store(self, parts: "_Parts") -> None:
        """NATS is there and confirms no heartbeat: has it lost its store? Make anew what we need of it."""
        while True:
            await asyncio.sleep(TICK_S)
            if parts.heartbeat.failing < ENSURE_AFTER_BEATS or not parts.link.connected:
                continue
            try:
                await ensure_cluster(
                    parts.link, self.app.names, replicas=self.config.replicas, lease_s=self.config.lease_s
                )
            except AgentError as error:
                log.debug("the cluster's streams cannot be looked at", extra={"error": str(error)})

    async def _watch_clock(self, link: NatsLink) -> None:
        """Measure again now and then; the last offset holds while NATS is away."""
        while True:
            await asyncio.sleep(CLOCK_CHECK_S)
            try:
                if link.connected:
                    await self._measure_clock(link)
            except AgentError as error:
                log.debug("clock not measured", extra={"error": str(error)})

    async def _measure_clock(self, link: NatsLink) -> None:
        measured = await server_clock_offset(link)
        self.clock.offset_s = measured.offset_s
        if abs(measured.offset_s) > CLOCK_SKEW_WARN_S:
            log.warning("clock differs from NATS'; corrected for due times", extra={"offset_s": measured.offset_s})

    async def _rebalance(self, link: NatsLink, engine: Engine) -> None:
        """Hand back what waits while a neighbour idles. NATS being away costs passes, not the running handlers."""
        workers = CasKv(link, self.app.names.workers_kv)
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._rebalance_once(workers, engine)
            except AgentError as error:
                log.debug("neighbours unknown, nothing is handed back", extra={"error": str(error)})

    async def _rebalance_once(self, workers: CasKv, engine: Engine) -> None:
        """The neighbours are read only when something does wait."""
        held = engine.waiting_since()
        now = asyncio.get_running_loop().time()
        waiting = [Waiting(i, h.run.handler, h.port.lane, now - h.since_s) for i, h in enumerate(held)]
        if not jobs_to_return(waiting, [self._anybody(waiting)]):
            return
        others = _records(entry for entry in await workers.entries() if entry.key != self.config.worker_id)
        # `held` may have moved on while we asked: take only what still waits.
        still = set(map(id, engine.waiting_since()))
        chosen = [held[i] for i in jobs_to_return(waiting, others) if id(held[i]) in still]
        if chosen:
            engine.hand_back(chosen, ReturnReason.REBALANCED)
            log.info("jobs handed back to an idle neighbour", extra={"jobs": len(chosen)})

    def _anybody(self, waiting: list[Waiting]) -> WorkerRecord:
        """A neighbour that could take everything: is there anything at all to ask about?"""
        return WorkerRecord(
            "", "", "", 0, 0.0, len(waiting), sorted({w.lane for w in waiting}), sorted({w.handler for w in waiting})
        )


class _Parts:
    """What a running worker is made of."""

    def __init__(  # noqa: PLR0917 - that is what it is for
        self,
        link: NatsLink,
        heartbeat: Heartbeat,
        engine: Engine,
        buckets: Buckets,
        guard: Guard,
        adopter: Adopter,
        kv: CasKv,
        tasks: Tasks,
    ) -> None:
        self.link = link
        self.heartbeat = heartbeat
        self.engine = engine
        self.buckets = buckets
        self.guard = guard
        self.adopter = adopter
        self.kv = kv
        self.tasks = tasks


async def _ended(*futures: "asyncio.Future[None]") -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


def _records(entries: Iterable[Entry]) -> list[WorkerRecord]:
    """Of the neighbours that can be read: one of another version may not be."""
    records = []
    for entry in entries:
        with suppress(msgspec.DecodeError):
            records.append(wire.decode_worker(entry.value))
    return records


async def _within(patience_s: float, work: Awaitable[None], otherwise: str) -> None:
    try:
        async with asyncio.timeout(patience_s):
            await work
    except (TimeoutError, AgentError) as error:
        log.warning(otherwise, extra={"patience_s": patience_s, "error": str(error)})
