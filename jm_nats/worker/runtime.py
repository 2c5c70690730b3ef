"""Wires a worker's loops together and owns the order in which they stop."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Final, Self

import msgspec
import uuid_utils

from jm_core import wire
from jm_core.errors import InvalidSettingError
from jm_core.model import BucketStatus, Priority, ReturnReason
from jm_core.rebalance import Waiting, jobs_to_return
from jm_core.wire import BucketRecord, WorkerRecord
from jm_nats import telemetry
from jm_nats.app import JobMaster
from jm_nats.clock import CorrectedClock
from jm_nats.connection import NatsLink, connect, server_clock_offset
from jm_nats.errors import AgentError
from jm_nats.health import HealthBoard
from jm_nats.kv import CasKv, Entry
from jm_nats.provision import ensure_cluster
from jm_nats.publisher import JetPublisher
from jm_nats.worker.config import WorkerConfig
from jm_nats.worker.engine import Engine
from jm_nats.worker.execution import Executors
from jm_nats.worker.heartbeat import Heartbeat
from jm_nats.worker.intake import Intake, Room
from jm_nats.worker.outcomes import BucketPort, Reporter
from jm_nats.worker.registration import Registration, publish_defaults

log = logging.getLogger("jobmaster.worker")

TICK_S: Final = 1.0
CLOCK_CHECK_S: Final = 60.0
CLOCK_SKEW_WARN_S: Final = 1.0
FLUSH_TIMEOUT_S: Final = 5.0


class Worker:
    """Runs an app's handlers until told to stop.

    ``run(stop)`` serves until ``stop`` is set, then drains: intake ends, held jobs go back at once, running ones get
    ``drain_timeout_s``, outcomes are flushed, and the heartbeat goes on to the very end. ``hurry`` set ends the drain
    now.
    """

    def __init__(self, app: JobMaster, config: WorkerConfig | None = None, *, board: HealthBoard | None = None) -> None:
        if not app.handlers:
            raise InvalidSettingError(
                f"{app!r} has no handlers; declare one with @{app.cluster}.handler(...) and import it"
            )
        self.app = app
        self.config = config or WorkerConfig()
        self.board = board or HealthBoard(self.config.worker_id, "worker")
        self.lanes = self.config.lanes or tuple(app.lanes())
        self.incarnation = uuid_utils.uuid7().hex
        self.clock = CorrectedClock()
        self.ready = asyncio.Event()
        self._started_at = time.time()
        self._last_tick_s = time.monotonic()
        self._loop_lag_s = 0.0
        self._engine: Engine | None = None

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:
        """Serve; returns after a complete drain.

        Raises:
            AgentUnavailableError and kin: NATS could not be reached at start.
        """
        async with AsyncExitStack() as stack:
            link = await connect(self.app.nats_config(), client_name=f"jobmaster worker {self.config.worker_id}")
            stack.push_async_callback(link.close)
            await ensure_cluster(link, self.app.names, replicas=self.config.replicas, lease_s=self.config.lease_s)
            await self._measure_clock(link)
            telemetry.refresh()
            await self._serve(link, stop, hurry or asyncio.Event())

    async def _serve(self, link: NatsLink, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        executors = Executors(self.config.process_slots)
        room = Room()
        engine = self._engine = Engine(
            self.app.handlers,
            slots=self.config.slots,
            executors=executors,
            clock=self.clock,
            cancel_grace_s=self.config.cancel_grace_s,
            on_room=lambda: room.update(engine),
        )
        heartbeat = self._heartbeat()
        await heartbeat.start()
        publisher = JetPublisher(link)
        try:
            registration = await self._register(link)
            async with _Tasks() as reporting, _Tasks() as side:
                ports = [self._port(publisher, record) for record in await self._open_buckets(registration)]
                for port in ports:
                    reporting.start(port.reporter.run(), f"reports {port.bucket}")
                intakes = [Intake(link, self.app.names, port, engine, room) for port in ports]
                async with _Tasks() as intake:
                    for reader in intakes:
                        intake.start(reader.run(), "intake")
                        side.start(reader.keep_alive(), "keep-alive")
                    side.start(self._watch_loop(), "loop lag")
                    side.start(self._watch_clock(link), "clock")
                    side.start(self._rebalance(link, engine), "rebalance")
                    log.info("worker ready", extra={"worker": self.config.worker_id, "buckets": len(ports)})
                    self.ready.set()
                    await _first(stop.wait(), intake.failed(), side.failed(), reporting.failed())
                await self._drain(engine, ports, registration, hurry)
        finally:
            # Also when a loop has failed: what is cancelled below frees slots, and nothing more may start in them.
            engine.close_intake()
            executors.close()
            await publisher.close()
            await heartbeat.stop()

    async def _drain(
        self, engine: Engine, ports: list[BucketPort], registration: Registration, hurry: asyncio.Event
    ) -> None:
        """The stop order. Intake has ended already."""
        log.info("worker drains", extra={"running": engine.running, "held": engine.held})
        # First the door, then the floor: what we hand back must not be assigned to us again.
        await _within(FLUSH_TIMEOUT_S, registration.move_all(BucketStatus.COMPLETING), "buckets not marked completing")
        engine.close_intake()
        await self._running_end(engine, self.config.drain_timeout_s, hurry)
        if engine.unreported():
            engine.interrupt()
            await self._running_end(engine, self.config.cancel_grace_s, asyncio.Event())
        if engine.unreported():
            log.warning("handlers ignore cancellation", extra={"jobs": engine.running_names()})
        # What is not flushed is unacked too: it comes back by the lost path. Never hang on a NATS that is away.
        await _within(FLUSH_TIMEOUT_S, self._hand_over(ports, registration), "reports not flushed")

    async def _hand_over(self, ports: list[BucketPort], registration: Registration) -> None:
        for port in ports:
            await port.reporter.flushed()
        await registration.move_all(BucketStatus.READY_TO_DRAIN)

    async def _running_end(self, engine: Engine, patience_s: float, hurry: asyncio.Event) -> None:
        """Wait until nothing is unreported, ``patience_s`` is over, or somebody hurries."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        # Ends come from many handlers; asking 50 times a second for at most the drain timeout is the simple way.
        while engine.unreported() and loop.time() < deadline and not hurry.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    # -- registration

    async def _register(self, link: NatsLink) -> Registration:
        cluster = await CasKv.open(link, self.app.names.cluster_kv)
        await publish_defaults(cluster, self.app)
        buckets = await CasKv.open(link, self.app.names.buckets_kv)
        return Registration(link, self.app.names, buckets, replicas=self.config.replicas)

    async def _open_buckets(self, registration: Registration) -> list[BucketRecord]:
        wanted = [(lane, priority) for lane in self.lanes for priority in sorted(self.config.priorities)]
        return [
            await registration.open(self.config.worker_id, self.incarnation, lane, priority)
            for lane, priority in wanted
        ]

    def _port(self, publisher: JetPublisher, record: BucketRecord) -> BucketPort:
        reporter = Reporter(
            publisher,
            self.app.names.events(record.bucket),
            bucket=record.bucket,
            epoch=record.epoch,
            worker=self.config.worker_id,
        )
        return BucketPort(record.bucket, record.lane, Priority(record.priority), reporter)

    # -- heartbeat

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self.app.nats_config(),
            self.app.names,
            period_s=self.config.heartbeat_s,
            snapshot=self._record,
            last_tick_s=lambda: self._last_tick_s,
        )

    def _record(self) -> WorkerRecord:
        engine = self._engine
        return WorkerRecord(
            worker=self.config.worker_id,
            incarnation=self.incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            slots=self.config.slots,
            lanes=list(self.lanes),
            handlers=sorted(self.app.handlers),
            running=engine.running if engine else 0,
            held=engine.held if engine else 0,
            loop_lag_s=self._loop_lag_s,
            clock_offset_s=self.clock.offset_s,
            beat_at=self.clock.now(),
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
                names = self._engine.running_names() if self._engine else []
                log.warning(
                    "event loop was blocked; a handler does not await, declare it sync or executor='process'",
                    extra={"blocked_s": round(self._loop_lag_s, 1), "running": names[:5]},
                )

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


class _Tasks:
    """Background tasks that end with the block, and whose failure somebody waits for: a loop that died in silence
    behind a process that looks alive is the worst fault of all (BR-203).
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Awaitable[None], name: str) -> None:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def failed(self) -> None:
        await asyncio.shield(self._failure)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._failure.done():
            return
        error = task.exception() or RuntimeError(f"{task.get_name()} ended by itself")
        log.error("loop ended", extra={"loop": task.get_name()}, exc_info=error)
        self._failure.set_exception(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure.done():
            self._failure.exception()  # seen by whoever waited; must not warn again
        else:
            self._failure.cancel()


async def _first(*waits: Awaitable[object]) -> None:
    """Return when the first of ``waits`` does, raising what it raises."""
    tasks = [asyncio.ensure_future(w) for w in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
