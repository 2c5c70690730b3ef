"""The worker's side loops: what it keeps an eye on while it serves."""

import asyncio
import logging
import time
from typing import Final

from jm_core.kv_records import bucket_at
from jm_core.limits import STALL_LIMIT_S
from jm_nats import telemetry
from jm_nats.clock import CorrectedClock
from jm_nats.connection import NatsLink, server_clock_offset
from jm_nats.errors import AgentError
from jm_nats.health import HealthBoard
from jm_nats.kv import Changed, Removed, Snapshot
from jm_nats.loop_lag import REFRESH_TICKS, note_lag
from jm_nats.pace import tick, tick_s
from jm_nats.provision import ensure_cluster
from jm_nats.subjects import Names
from jm_nats.troubles import trouble
from jm_nats.worker.blocking import Culprit
from jm_nats.worker.config import WorkerConfig
from jm_nats.worker.parts import Parts

log = logging.getLogger("jobmaster.worker")

TICK_S: Final = 1.0
BLOCKED_S: Final = 1.0
CLOCK_CHECK_S: Final = 60.0
CLOCK_SKEW_WARN_S: Final = 1.0
ENSURE_AFTER_BEATS: Final = 3  # unconfirmed ones in a row, on a connection that is up: is the KV still there?


class LoopPulse:
    """Whether the event loop turns, and who holds it up when it does not.

    ``last_tick_s``, ``lag_s`` are read by the heartbeat's thread, which also calls ``look``: it is the only one that
    can say anything while the loop is blocked. It comes by once a heartbeat, so a block of a few seconds may be over
    before anybody has looked whose it is.
    """

    def __init__(self, culprit: Culprit) -> None:
        self.last_tick_s = time.monotonic()
        self.lag_s = 0.0
        self._culprit = culprit
        self._named_s = 0.0  # the tick after which a culprit was named
        self._name = ""
        self._ticks = 0

    async def run(self) -> None:
        """How late a timer fires is how long something blocked the loop."""
        while True:
            before = time.monotonic()
            wait_s = tick_s(TICK_S)
            await asyncio.sleep(wait_s)
            self.last_tick_s = time.monotonic()
            self._ticks += 1
            if self._ticks % REFRESH_TICKS == 0:
                telemetry.refresh()
            self.lag_s = max(0.0, self.last_tick_s - before - wait_s)
            note_lag(self.lag_s)
            for _ in telemetry.flush(telemetry.current_group()):
                await asyncio.sleep(0)
            if self.lag_s > BLOCKED_S:
                self._say_it_turns()

    def _say_it_turns(self) -> None:
        name, self._name = self._name, ""
        extra: dict[str, object] = {"blocked_s": round(self.lag_s, 1)}
        if name:
            log.warning(
                "event loop was blocked; declare the handler sync or executor='process'",
                extra=extra | {"handler": name},
            )
        else:
            log.warning("event loop stood still; no handler was caught at it", extra=extra)

    def look(self) -> None:
        """From the heartbeat's thread: name who blocks the loop, once for each time that it is blocked."""
        late_s = time.monotonic() - self.last_tick_s - TICK_S
        if late_s <= BLOCKED_S or self._named_s == self.last_tick_s:
            return
        name, where = self._culprit.find()
        if name:  # else it is between two handlers, or we were frozen, or the machine is busy
            self._named_s, self._name = self.last_tick_s, name
            telemetry.stalled("handler_blocks")
            log.warning(
                "event loop is blocked: the handler does not await",
                extra={"handler": name, "where": where, "for_s": round(late_s, 1)},
            )


async def watch_registry(parts: Parts) -> None:
    """What happens to buckets: ours, and those that others leave behind."""

    def seen(key: str, value: bytes | None) -> None:
        record = None if value is None else bucket_at(key, value)
        if record is None and value is not None:  # of another version, or garbage
            parts.buckets.check.unreadable(key)
        else:
            parts.buckets.check.changed(key, record)
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


async def watch_own(parts: Parts, lease_s: float) -> None:
    """Ask for every bucket of ours once in a while: a watch does not see that a KV was purged."""
    while True:
        await asyncio.sleep(lease_s)
        try:
            await parts.buckets.check.verify()
        except AgentError as error:
            log.debug("the registry cannot be asked", extra={"error": str(error)})
        else:
            await parts.buckets.replace_lost()


async def watch_slots(parts: Parts, board: HealthBoard) -> None:
    """Raises:
    InvariantViolatedError: see ``Engine.check_slots``.
    """
    while True:
        parts.engine.check_slots()
        board.cycle("slots", STALL_LIMIT_S)
        await tick(TICK_S)


async def watch_store(parts: Parts, names: Names, config: WorkerConfig) -> None:
    """NATS is there and confirms no heartbeat: has it lost its store? Make anew what we need of it."""
    while True:
        await tick(TICK_S)
        if parts.heartbeat.failing < ENSURE_AFTER_BEATS or not parts.link.connected:
            continue
        try:
            await ensure_cluster(parts.link, names, replicas=config.replicas, lease_s=config.lease_s)
        except AgentError as error:
            log.debug("the cluster's streams cannot be looked at", extra={"error": str(error)})


async def watch_heartbeat(parts: Parts, board: HealthBoard, config: WorkerConfig) -> None:
    """For the health board: a confirmed heartbeat is a real round trip; without one for three leases we are stalled."""
    last_s = 0.0
    while True:
        if parts.heartbeat.acknowledged_s > last_s:
            last_s = parts.heartbeat.acknowledged_s
            board.cycle("heartbeat", 3 * config.lease_s)
            board.cleared("heartbeat")
        elif parts.heartbeat.failing:
            board.trouble("heartbeat", f"NATS has not confirmed the last {parts.heartbeat.failing}")
        await tick(config.heartbeat_s / 2)


async def watch_clock(link: NatsLink, clock: CorrectedClock) -> None:
    """Measure again now and then; the last offset holds while NATS is away."""
    while True:
        await asyncio.sleep(CLOCK_CHECK_S)
        try:
            if link.connected:
                await measure_clock(link, clock)
        except AgentError as error:
            log.debug("clock not measured", extra={"error": str(error)})


async def measure_clock(link: NatsLink, clock: CorrectedClock) -> None:
    """Raises: AgentUnavailableError."""
    measured = await server_clock_offset(link)
    clock.offset_s = measured.correction_s
    if abs(measured.offset_s) > CLOCK_SKEW_WARN_S:
        trouble(log, "clock differs from NATS'; corrected for due times", {"offset_s": measured.offset_s})
