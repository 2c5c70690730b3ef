"""Wires a worker's loops together and owns the order in which they stop."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Final

import uuid_utils

from jm_core import limits
from jm_core.errors import InvalidSettingError
from jm_core.health import Invariant, InvariantViolatedError
from jm_core.model import WorkerMode, WorkerState
from jm_core.static_schedules import set_digest
from jm_core.wire import WorkerRecord
from jm_nats import telemetry
from jm_nats.app import JobMaster
from jm_nats.board_gauges import measured
from jm_nats.clock import CorrectedClock
from jm_nats.connection import NatsLink, connect
from jm_nats.errors import AgentError, AgentUnavailableError, WorkerNameTakenError
from jm_nats.health import HealthBoard
from jm_nats.kv import CasKv
from jm_nats.link_health import NAME as NATS
from jm_nats.link_health import watch_link
from jm_nats.log_context import set_group
from jm_nats.provision import ensure_cluster_at_start
from jm_nats.publisher import JetPublisher
from jm_nats.worker.blocking import Culprit
from jm_nats.worker.cluster_settings import ClusterSettingsFollower
from jm_nats.worker.config import WorkerConfig
from jm_nats.worker.engine import Engine
from jm_nats.worker.execution import Ask, Executors
from jm_nats.worker.gauges import WorkerGauges
from jm_nats.worker.heartbeat import Heartbeat, pid_space
from jm_nats.worker.neighbours import Neighbours
from jm_nats.worker.orders import WorkerOrders
from jm_nats.worker.parts import Parts, put_together
from jm_nats.worker.registration import publish_defaults
from jm_nats.worker.rpc import WorkerRpc
from jm_nats.worker.tasks import Tasks, first
from jm_nats.worker.watching import (
    LoopPulse,
    measure_clock,
    watch_clock,
    watch_heartbeat,
    watch_own,
    watch_registry,
    watch_slots,
    watch_store,
)

log = logging.getLogger("jobmaster.worker")

FLUSH_TIMEOUT_S: Final = 5.0
SILENT_TIMEOUT_S: Final = 1.0
POLL_S: Final = 0.02


class Worker:
    """Runs an app's handlers until told to stop.

    ``run(stop)`` serves until ``stop`` is set, then drains: nothing more is started, held jobs go back at once, running
    ones get ``drain_timeout_s``, outcomes are flushed, and the heartbeat goes on to the very end. ``hurry`` set ends
    the drain now.

    Args:
        incarnation: tells this process from others of its name; made up, unless somebody who will see it die has to
            know it. Never used twice.
    """

    def __init__(
        self,
        app: JobMaster,
        config: WorkerConfig | None = None,
        *,
        board: HealthBoard | None = None,
        incarnation: str = "",
    ) -> None:
        if not app.handlers:
            raise InvalidSettingError(
                f"{app!r} has no handlers; declare one with @{app.cluster}.handler(...) and import it"
            )
        self.app = app
        self.config = config or WorkerConfig()
        self.board = board or HealthBoard(self.config.worker_id, "worker")
        self.runs_jobs = self.config.mode is not WorkerMode.DRAIN
        self.lanes = (self.config.lanes or tuple(app.lanes())) if self.runs_jobs else ()
        self.incarnation = incarnation or uuid_utils.uuid7().hex
        self.clock = CorrectedClock()
        self.ready = asyncio.Event()
        self.state = WorkerState.SERVING
        self._started_at = time.time()
        self._pid_space = pid_space()
        self._declares = set_digest(app.schedules.values()) if self.runs_jobs else ""
        self._pulse = LoopPulse(Culprit(app.handlers))
        self._parts: Parts | None = None

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:
        """Serve; returns after a complete drain.

        Raises:
            AgentUnavailableError and kin: NATS could not be reached at start.
            WorkerNameTakenError: another process has our worker id, at start.
            InvariantViolatedError, Exception: fail-stop. A loop failed in a way that is nobody's outage: the worker
                takes nothing more, its handlers are cancelled, nothing more is reported, and others may have its
                buckets.
        """
        set_group("worker", self.config.worker_id, self.app.cluster)
        group = telemetry.Group(self.app.cluster, "worker", self.config.worker_id)
        async with AsyncExitStack() as stack:
            gauges = stack.enter_context(measured(self.board, group, {"nats": NATS}))
            stack.callback(telemetry.group_ended, group)
            WorkerGauges(self, lambda: self._parts).ask_with(gauges)
            link = await connect(self.app.nats_config(), client_name=f"jobmaster worker {self.config.worker_id}")
            stack.push_async_callback(link.close)
            await ensure_cluster_at_start(
                link, self.app.names, replicas=self.config.replicas, lease_s=self.config.lease_s
            )
            await measure_clock(link, self.clock)
            await self._serve(link, stop, hurry or asyncio.Event())

    async def _serve(self, link: NatsLink, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heartbeat = self._heartbeat(ended)
        executors = Executors(self.config.process_slots)
        publisher = JetPublisher(link)
        resigns = True
        try:
            await heartbeat.start()
            async with Tasks() as tasks:
                parts = self._parts = await self._make_parts(link, heartbeat, executors, publisher, tasks)
                try:
                    await self._serve_with(parts, ended, stop, hurry)
                finally:
                    resigns = await self._nothing_exclusive_runs(parts.engine)
        except InvariantViolatedError as error:
            self.board.violated(error.invariant, error.detail)
            raise
        finally:
            executors.close()
            await publisher.close()
            await heartbeat.stop(FLUSH_TIMEOUT_S if link.connected else SILENT_TIMEOUT_S, resigns=resigns)

    async def _nothing_exclusive_runs(self, engine: Engine) -> bool:
        """Once the heartbeat's key is gone others may run what we ran. True: none of it must not be overlapped."""
        deadline_s = time.monotonic() + self.config.cancel_grace_s
        while engine.exclusive_running() and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return not engine.exclusive_running()

    async def _make_parts(
        self, link: NatsLink, heartbeat: Heartbeat, executors: Executors, publisher: JetPublisher, tasks: Tasks
    ) -> Parts:
        names = self.app.names
        if self.runs_jobs:
            cluster = await CasKv.open(link, names.cluster_kv)
            await publish_defaults(cluster, self.app)
            await cluster.close()
        return put_together(
            link,
            names,
            await CasKv.open(link, names.buckets_kv),
            heartbeat,
            publisher,
            tasks,
            config=self.config,
            incarnation=self.incarnation,
            handlers=self.app.handlers,
            executors=executors,
            clock=self.clock,
            may_adopt=lambda: self.state in (WorkerState.SERVING, WorkerState.DRAINING),
        )

    async def _serve_with(
        self, parts: Parts, ended: "asyncio.Future[None]", stop: asyncio.Event, hurry: asyncio.Event
    ) -> None:
        schedules = list(self.app.schedules.values()) if self.runs_jobs else []
        orders = WorkerOrders(parts, self._shown_state, runs_jobs=self.runs_jobs, schedules=schedules)
        async with WorkerRpc(parts.link, self.app.names, self.config.worker_id, orders):
            try:
                await self._start(parts)
                parts.tasks.start(_pass_on(stop, orders.stop_asked), "stop", ends=True)
                parts.tasks.start(_pass_on(hurry, orders.hurry_asked), "hurry", ends=True)
                await first(parts.tasks.failed(), ended, self._until_stopped(parts, orders))
            except BaseException:
                # At once: what is cancelled from here on frees slots, and nothing may start in them, or be reported.
                self.state = WorkerState.HALTED
                parts.buckets.halt()
                raise

    async def _start(self, parts: Parts) -> None:
        start = parts.tasks.start
        start(parts.guard.run(), "lease")
        start(self._pulse.run(), "pulse")
        if self.runs_jobs:
            settings = ClusterSettingsFollower(parts, self.app, self.lanes, self.config)
            await settings.begin()
            await parts.buckets.open_wanted()
            start(settings.run(), "cluster settings")
            workers = CasKv(parts.link, self.app.names.workers_kv)
            start(Neighbours(workers, parts.engine, self.config.worker_id).run(), "neighbours")
        start(watch_registry(parts), "registry")
        start(watch_own(parts, self.config.lease_s), "own buckets")
        start(watch_clock(parts.link, self.clock), "clock")
        start(watch_store(parts, self.app.names, self.config), "store")
        start(watch_heartbeat(parts, self.board, self.config), "heartbeat")
        start(watch_link(parts.link, self.board), "link")
        start(watch_slots(parts, self.board), "slots")
        parts.heartbeat.soon()
        log.info("worker ready", extra={"worker": self.config.worker_id, "buckets": len(parts.buckets.own)})
        self.board.started()
        self.ready.set()

    # -- stopping

    async def _until_stopped(self, parts: Parts, orders: WorkerOrders) -> None:
        """Serve; then drain, by a signal or by an order."""
        while not orders.stop_asked.is_set():
            orders.drain_changed.clear()
            if not orders.drain_asked:
                await first(orders.stop_asked.wait(), orders.drain_changed.wait())
                continue
            self._set_state(WorkerState.DRAINING)
            if await self._drained(parts, orders):
                break
            self._set_state(WorkerState.SERVING)
            parts.buckets.reopen()
            await parts.buckets.replace_lost()
        self._set_state(WorkerState.STOPPING)
        await self._stop(parts, orders.hurry_asked)

    async def _drained(self, parts: Parts, orders: WorkerOrders) -> bool:
        """Take no more. True once nothing runs, or when we are to stop; False when the order was taken back."""
        log.info("worker drains by order", extra={"running": parts.engine.running, "held": parts.engine.held})
        await _within(FLUSH_TIMEOUT_S, parts.buckets.close_all(reason="drained by order"), "close buckets")
        while orders.drain_asked and not orders.stop_asked.is_set():
            if not parts.engine.unreported() and not parts.adopter.draining:
                return True
            if not parts.buckets.all_closed():
                await _within(FLUSH_TIMEOUT_S, parts.buckets.close_all(reason="drained by order"), "close buckets")
            await asyncio.sleep(POLL_S)
        if orders.stop_asked.is_set():
            return True
        for bucket in [b for b in parts.buckets.own.values() if b.port.closed]:
            work = parts.buckets.retire(bucket, reason="drained by order")
            parts.tasks.start(work, f"retires {bucket.name}", ends=True)
        return False

    async def _stop(self, parts: Parts, hurry: asyncio.Event) -> None:
        """The stop order. Intake goes on to the end: what still comes goes back at once, to where it can run."""
        engine, buckets = parts.engine, parts.buckets
        log.info("worker drains", extra={"running": engine.running, "held": engine.held})
        closing = asyncio.ensure_future(
            _within(self._patience_s(parts), buckets.close_all(reason="its worker stops"), "close buckets")
        )
        await _running_end(engine, self.config.drain_timeout_s, hurry)
        if engine.ask(Ask.SHUTDOWN):
            await _running_end(engine, limits.EXIT_GRACE_S, asyncio.Event())
        if engine.unreported():
            log.warning("handlers ignore cancellation", extra={"jobs": engine.running_names()})
            engine.report_unended()
        await asyncio.wait({closing}, timeout=self._patience_s(parts))
        closing.cancel()
        await _within(self._patience_s(parts), parts.adopter.finished(), "finish adopted buckets")
        # What is not flushed is unacked too: it comes back by the lost path. Never hang on a NATS that is away.
        handed_over = await _within(self._patience_s(parts), buckets.leave_all(), "flush reports")
        self.board.ended()
        if not handed_over:
            parts.link.abandon()
            problem, remedy = "no answer while the worker stopped", "what it held runs elsewhere after its lease"
            raise AgentUnavailableError(parts.link.server, problem, remedy=remedy)

    def _patience_s(self, parts: Parts) -> float:
        """With a NATS that has just been silent: an answer would be a surprise."""
        is_silent = parts.heartbeat.silent_s > 2 * self.config.heartbeat_s or not parts.link.connected
        return SILENT_TIMEOUT_S if is_silent else FLUSH_TIMEOUT_S

    def _set_state(self, state: WorkerState) -> None:
        self.state = state
        if self._parts is not None:
            self._parts.heartbeat.soon()

    # -- heartbeat

    def _heartbeat(self, ended: "asyncio.Future[None]") -> Heartbeat:
        def on_end(error: Exception) -> None:
            if isinstance(error, WorkerNameTakenError):
                error = InvariantViolatedError(Invariant.WORKER_ID_TAKEN, str(error))
            if not ended.done():
                ended.set_exception(error)

        return Heartbeat(
            self.app.nats_config(),
            self.app.names,
            period_s=self.config.heartbeat_s,
            lease_s=self.config.lease_s,
            snapshot=self._record,
            last_tick_s=lambda: self._pulse.last_tick_s,
            on_end=on_end,
        )

    def _shown_state(self) -> WorkerState:
        fenced = self._parts is not None and not self._parts.guard.holds()
        return WorkerState.FENCED if fenced and self.state is WorkerState.SERVING else self.state

    def _record(self) -> WorkerRecord:
        """Called in the heartbeat's thread, at every beat: also the time to look who blocks the loop."""
        self._pulse.look()
        parts, verdict = self._parts, self.board.verdict()
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
            loop_lag_s=self._pulse.lag_s,
            clock_offset_s=self.clock.offset_s,
            beat_at=self.clock.now(),
            mode=self.config.mode,
            state=self._shown_state(),
            health=verdict.health.value,
            reasons=list(verdict.reasons),
            finished=parts.engine.finished if parts else 0,
            draining=sorted(parts.adopter.draining) if parts else [],
            priorities=sorted(self.config.priorities) if self.runs_jobs else [],
            pid_space=self._pid_space,
            schedules=self._declares,
        )


async def _pass_on(asked: asyncio.Event, to: asyncio.Event) -> None:
    await asked.wait()
    to.set()


async def _running_end(engine: Engine, patience_s: float, hurry: asyncio.Event) -> None:
    """Wait until nothing is unreported, ``patience_s`` is over, or somebody hurries."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    # Ends come from many handlers; asking 50 times a second for at most the drain timeout is the simple way.
    while engine.unreported() and loop.time() < deadline and not hurry.is_set():  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


async def _within(patience_s: float, work: Awaitable[None], step: str) -> bool:
    """Whether it was done. What was not is what others do after our lease."""
    try:
        async with asyncio.timeout(patience_s):
            await work
    except (TimeoutError, AgentError) as error:
        problem = str(error) or f"no answer within {patience_s:g} s"
        log.warning("a step of the stop was not finished", extra={"step": step, "problem": problem})
        return False
    return True
