"""The thread that says "alive". It has a loop and a connection of its own, so that a handler that blocks the event loop
does not kill its worker (DESIGN 7).
"""

import asyncio
import contextvars
import dataclasses
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from jm_core import limits, wire
from jm_core.errors import JmError
from jm_core.kv_records import worker_at
from jm_core.model import WorkerState
from jm_core.wire import WorkerRecord
from jm_nats import telemetry
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.errors import WorkerNameTakenError
from jm_nats.kv import CasKv, Entry, Stale, Written
from jm_nats.subjects import Names
from jm_nats.troubles import trouble

log = logging.getLogger("jobmaster.worker")

STALL_LIMIT_S: Final = limits.STALL_LIMIT_S
CLAIM_POLL_S: Final = 0.2
STOP_PATIENCE_S: Final = 10.0


class Heartbeat:
    """Puts the worker's record into the workers KV every ``period_s``; the KV's max age is the lease.

    Every beat is a compare-and-set on the one before, so that two processes of one name do not believe each other's
    beats to be their own: the first one keeps the name, as long as it beats.

    Args:
        snapshot: builds the record; called in the heartbeat's thread, so it only reads plain numbers.
        last_tick_s: monotonic time of the main loop's last turn; when that is older than ``STALL_LIMIT_S`` the worker
            is stuck for good and the thread stops vouching for it.
        on_end: called on the loop that made this one, when the thread ends though it was not told to: somebody else
            has our name, or there is a bug.
    """

    def __init__(
        self,
        config: NatsConfig,
        names: Names,
        *,
        period_s: float,
        lease_s: float,
        snapshot: Callable[[], WorkerRecord],
        last_tick_s: Callable[[], float],
        on_end: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        # Whoever comes back later than a lease after NATS did is taken for dead.
        wait_max_s = min(config.reconnect_wait_max_s, lease_s / 4)
        self._config = dataclasses.replace(config, reconnect_wait_max_s=wait_max_s)
        self._names = names
        self._period_s = period_s
        self._lease_s = lease_s
        self._snapshot = snapshot
        self._last_tick_s = last_tick_s
        self._on_end = on_end
        self._first: asyncio.Future[None] | None = None
        self._owner = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._beat_now: asyncio.Event | None = None
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._main,), name="jm-heartbeat", daemon=True
        )
        self._revision = 0
        self._resigns = True
        self._began = False
        self._withheld = False
        self.acknowledged_s = float("-inf")  # monotonic time at which the last beat left that NATS confirmed
        self.unbroken_since_s = float("inf")  # since then each was confirmed before the one before it had run out
        self.failing = 0  # beats in a row that were not confirmed

    async def start(self) -> None:
        """Return after the first acknowledged beat: a bucket must never be registered for a worker nobody has seen.

        Raises:
            WorkerNameTakenError: after a lease at most, during which the other one was seen to beat.
            JmError: the first beat failed.
        """
        self._first = self._owner.create_future()
        self._thread.start()
        await self._first

    @property
    def silent_s(self) -> float:
        """Since the last beat left that NATS confirmed."""
        return time.monotonic() - self.acknowledged_s

    async def stop(self, patience_s: float = STOP_PATIENCE_S, *, resigns: bool = True) -> None:
        """Beat to the very end, then take the key away so that nobody waits for a lease; or, if something of ours may
        still run that must not be overlapped, let it lapse. A daemon thread that NATS does not answer is left to itself
        after ``patience_s``.
        """
        self._resigns = resigns
        self._stop.set()
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join, patience_s)

    def soon(self) -> None:
        """Something changed that others should know now."""
        if self._loop is not None and self._beat_now is not None and self._thread.is_alive():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._beat_now.set)

    def _main(self) -> None:
        try:
            asyncio.run(self._beat_for_ever())
        except BaseException as error:
            began = self._began  # else it is ``start`` that raises it
            self._tell(error)
            if not isinstance(error, Exception):
                raise
            if began and not self._stop.is_set():
                self._call(functools.partial(self._on_end, error))

    def _tell(self, error: BaseException | None) -> None:
        def settle() -> None:
            if self._first is not None and not self._first.done():
                if error is None:
                    self._first.set_result(None)
                else:
                    self._first.set_exception(error)

        self._call(settle)

    def _call(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the worker's loop is closed: nobody asks any more
            self._owner.call_soon_threadsafe(what)

    async def _beat_for_ever(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._beat_now = asyncio.Event()
        async with await connect(self._config, client_name=f"jobmaster heartbeat {self._snapshot().worker}") as link:
            kv = await CasKv.open(link, self._names.workers_kv)
            if not await self._claim(kv):
                return
            self._began = True
            self._tell(None)
            await self._go_on(kv)
            if self._resigns:
                # Compare-and-set: a process that took over our id keeps its key.
                await kv.delete(self._snapshot().worker, revision=self._revision)

    async def _go_on(self, kv: CasKv) -> None:
        assert self._stopping is not None
        due_s: float | None = None  # of the first beat that is not acknowledged yet
        while not self._stopping.is_set():
            next_s = time.monotonic() + self._period_s
            await self._pause()
            due_s = min(due_s or next_s, time.monotonic())  # the pause may have been cut short
            if await self._try_beat(kv):
                telemetry.heartbeat_acknowledged(time.monotonic() - due_s)
                due_s = None

    # The first beat.

    async def _claim(self, kv: CasKv) -> bool:
        """Take the name; from a process that is dead at once, from one that is about to go once it has gone, from one
        whose key has not moved when it has expired. False: we were told to stop.
        """
        assert self._stopping is not None
        name = self._snapshot().worker
        seen: int | None = None
        deadline_s = time.monotonic() + self._lease_s + self._period_s
        while not self._stopping.is_set():
            entry = await kv.get(name)
            other = _decoded(entry)
            if entry is not None and other is not None and not has_died(other):
                goes = other.state in (WorkerState.STOPPING, WorkerState.HALTED)
                if not goes and (seen not in (None, entry.revision) or time.monotonic() >= deadline_s):
                    raise WorkerNameTakenError(other)
                if seen is None:
                    log.info(  # a restart in place is no trouble; one that lives makes the start fail
                        "the worker id is in use; waiting whether its process still beats",
                        extra={"worker": name, "host": other.host, "pid": other.pid},
                    )
                seen = entry.revision
                await asyncio.sleep(CLAIM_POLL_S)
                continue
            if await self._write(kv, entry.revision if entry else None):
                return True
        return False

    # Beating.

    async def _pause(self) -> None:
        assert self._stopping is not None
        assert self._beat_now is not None
        waits = [asyncio.ensure_future(self._stopping.wait()), asyncio.ensure_future(self._beat_now.wait())]
        await asyncio.wait(waits, timeout=self._period_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        self._beat_now.clear()

    async def _try_beat(self, kv: CasKv) -> bool:
        """One beat, and whether it was confirmed; a failed one must never end the loop (BR-064).

        Raises:
            WorkerNameTakenError: the name is somebody else's.
        """
        stuck_s = time.monotonic() - self._last_tick_s()
        if stuck_s > STALL_LIMIT_S:
            facts = {"stuck_s": round(stuck_s)}
            trouble(log, "event loop is stuck; heartbeat withheld", facts, level=logging.ERROR)
            if not self._withheld:
                telemetry.stalled("heartbeat_withheld")
            self._withheld = True
            return False
        self._withheld = False
        try:
            return await self._beat(kv)
        except WorkerNameTakenError:
            raise
        except JmError as error:
            self.failing += 1
            # The first of a row; an outage must not fill the log.
            log.log(
                logging.WARNING if self.failing == 1 else logging.DEBUG,
                "heartbeat failed",
                extra={"problem": str(error)},
            )
        except Exception:  # a bug in here must not kill the worker either; it is logged with its trace
            self.failing += 1
            log.log(
                logging.ERROR if self.failing == 1 else logging.DEBUG,
                "heartbeat failed in an unforeseen way",
                exc_info=True,
            )
        return False

    async def _beat(self, kv: CasKv) -> bool:
        if await self._write(kv, self._revision):
            return True
        name = self._snapshot().worker
        entry = await kv.get(name)
        other = _decoded(entry)
        if entry is not None and other is not None and other.incarnation != self._snapshot().incarnation:
            raise WorkerNameTakenError(other)
        # It expired while NATS or we were away, or was purged, or the answer to a beat of ours was lost.
        return await self._write(kv, entry.revision if entry else None)

    async def _write(self, kv: CasKv, revision: int | None) -> bool:
        sent_s = time.monotonic()
        record = self._snapshot()
        value = wire.encode(record)
        if revision is None:
            answer = await kv.create(record.worker, value)
        else:
            answer = await kv.update(record.worker, value, revision=revision)
        match answer:
            case Written(revision=written):
                # It reached the server before we had its answer; had the one before run out by then, others may have
                # taken us for dead in between.
                if not time.monotonic() < self.acknowledged_s + self._lease_s:
                    self.unbroken_since_s = sent_s
                self._revision, self.acknowledged_s, self.failing = written, sent_s, 0
                return True
            case Stale():
                return False


def _decoded(entry: Entry | None) -> WorkerRecord | None:
    return None if entry is None else worker_at(entry.key, entry.value)


def pid_space() -> str:
    """In which a pid means what it says: this boot of this machine, and the namespace that containers have. Empty where
    that cannot be told.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def has_died(other: WorkerRecord) -> bool:
    """Whether its process was one of those that we can see, and is not there any more."""
    if not other.pid_space or other.pid_space != pid_space() or other.pid == os.getpid():
        return False
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
