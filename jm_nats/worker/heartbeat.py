"""The thread that says "alive". It has a loop and a connection of its own, so that a handler that blocks the event loop
does not kill its worker (DESIGN 7).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from jm_core import wire
from jm_core.errors import JmError
from jm_core.wire import WorkerRecord
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.kv import CasKv
from jm_nats.subjects import Names

log = logging.getLogger("jobmaster.worker")

STALL_LIMIT_S = 60.0


class Heartbeat:
    """Puts the worker's record into the workers KV every ``period_s``; the KV's max age is the lease.

    Args:
        snapshot: builds the record; called in the heartbeat's thread, so it only reads plain numbers.
        last_tick_s: monotonic time of the main loop's last turn; when that is older than ``STALL_LIMIT_S`` the worker
            is stuck for good and the thread stops vouching for it.
    """

    def __init__(
        self,
        config: NatsConfig,
        names: Names,
        *,
        period_s: float,
        snapshot: Callable[[], WorkerRecord],
        last_tick_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._names = names
        self._period_s = period_s
        self._snapshot = snapshot
        self._last_tick_s = last_tick_s
        self._first: asyncio.Future[None] | None = None
        self._owner = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name="jm-heartbeat", daemon=True)
        self._revision = 0
        self.acknowledged_s = 0.0  # monotonic time of the last beat that NATS confirmed

    async def start(self) -> None:
        """Return after the first acknowledged beat: a bucket must never be registered for a worker nobody has seen.

        Raises:
            JmError: the first beat failed.
        """
        self._first = self._owner.create_future()
        self._thread.start()
        await self._first

    async def stop(self) -> None:
        """Beat to the very end, then take the key away so that nobody waits for a lease."""
        self._stop.set()
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join, 10.0)

    def _main(self) -> None:
        try:
            asyncio.run(self._beat_for_ever())
        except BaseException as error:
            self._tell(error)
            if not isinstance(error, Exception):
                raise
            if not self._stop.is_set():
                log.exception("heartbeat ended")

    def _tell(self, error: BaseException | None) -> None:
        def settle() -> None:
            if self._first is not None and not self._first.done():
                if error is None:
                    self._first.set_result(None)
                else:
                    self._first.set_exception(error)

        self._owner.call_soon_threadsafe(settle)

    async def _beat_for_ever(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with await connect(self._config, client_name=f"jobmaster heartbeat {self._snapshot().worker}") as link:
            kv = await CasKv.open(link, self._names.workers_kv)
            await self._beat(kv)
            self._tell(None)
            while not self._stopping.is_set():
                await self._pause()
                await self._try_beat(kv)
            # Compare-and-set: a process that took over our id keeps its key.
            await kv.delete(self._snapshot().worker, revision=self._revision)

    async def _pause(self) -> None:
        assert self._stopping is not None
        try:
            async with asyncio.timeout(self._period_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _try_beat(self, kv: CasKv) -> None:
        """One beat; a failed one must never end the loop (BR-064)."""
        stuck_s = time.monotonic() - self._last_tick_s()
        if stuck_s > STALL_LIMIT_S:
            log.error("event loop is stuck; heartbeat withheld", extra={"stuck_s": round(stuck_s)})
            return
        try:
            await self._beat(kv)
        except JmError as error:
            log.warning("heartbeat failed", extra={"error": str(error)})
        except Exception:  # a bug in here must not kill the worker either; it is logged with its trace
            log.exception("heartbeat failed")

    async def _beat(self, kv: CasKv) -> None:
        record = self._snapshot()
        self._revision = (await kv.put(record.worker, wire.encode(record))).revision
        self.acknowledged_s = time.monotonic()
