"""What a process tells the service manager that started it: systemd, or another one that sets ``NOTIFY_SOCKET``.

Ready once its groups have started; alive for as long as ``/livez`` would be green; stopping once it was told to. Spoken
with the standard library: it is a datagram of ``KEY=VALUE`` lines (``man 3 sd_notify``).
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from jm_core import limits
from jm_core.health import GroupReport
from jm_nats.liveness import Liveness, Reporter

log = logging.getLogger("jobmaster.cli")

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"
POLL_S: Final = 1.0
SEND_S: Final = 1.0
# A start may take for ever, NATS or Postgres being away; while it is alive it asks for so much more time, at each poll.
START_MORE_S: Final = 30.0


class ServiceManager:
    """The way to it.

    Args:
        address: of its socket; "@" begins one that is in no file system.
        watchdog_s: without a sign of life for so long it ends us; None: it does not.
    """

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @staticmethod
    def from_environment(environment: MutableMapping[str, str] = os.environ) -> "ServiceManager | None":
        """None without one. The variables are taken out: what a process starts is not what the manager started."""
        address, usec, pid = (environment.pop(name, "") for name in (SOCKET, WATCHDOG, WATCHDOG_PID))
        if not address.startswith(("/", "@")):
            return None
        is_ours = usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
        return ServiceManager(address, int(usec) / 1e6 if is_ours else None)

    def tell(self, *lines: str) -> None:
        """A manager that does not hear is no reason to end: it has its own times."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.settimeout(SEND_S)
            try:
                way.sendto("\n".join(lines).encode(), self._address)
            except OSError as error:
                log.debug("the service manager does not hear", extra={"error": str(error)})


class _Teller(threading.Thread):
    """In a thread of its own: a handler that blocks the event loop for some seconds is no reason for a restart."""

    def __init__(self, manager: ServiceManager, liveness: Liveness) -> None:
        super().__init__(name="jm-notify", daemon=True)
        self._manager = manager
        self._liveness = liveness
        self._is_ready = self._is_silent = False
        self.done = threading.Event()

    def run(self) -> None:
        period_s = min(POLL_S, self._manager.watchdog_s / 3) if self._manager.watchdog_s else POLL_S
        while not self.done.is_set() and not (self._is_ready and self._manager.watchdog_s is None):
            self._tell()
            self.done.wait(period_s)

    def _tell(self) -> None:
        look = self._liveness.look()
        if not look.live.ok:
            if not self._is_silent:
                self._is_silent = True
                facts = {"reason": "; ".join(look.live.reasons)}
                log.error("not alive: the service manager gets no sign of life", extra=facts)
            return
        self._is_silent = False
        lines = ["WATCHDOG=1"] if self._manager.watchdog_s else []
        if not self._is_ready:
            self._is_ready = has_started(look.groups)
            lines.append("READY=1" if self._is_ready else f"EXTEND_TIMEOUT_USEC={START_MORE_S * 1e6:.0f}")
        self._manager.tell(*lines)


def has_started(groups: Sequence[GroupReport]) -> bool:
    """One that has failed is not waited for: the others do their work."""
    return all(group.started or group.halted for group in groups)


@asynccontextmanager
async def notifying(
    manager: ServiceManager | None,
    boards: Sequence[Reporter],
    stop: asyncio.Event,
    *,
    stall_limit_s: float = limits.STALL_LIMIT_S,
) -> AsyncIterator[None]:
    """Tell ``manager``, if there is one, how the process is; while it drains, too.

    Args:
        stop: set when the process was told to stop. Not when a worker drains by ``jm worker drain``: that may take
            hours, and a manager that hears of a stop gives it the time of one.
    """
    if manager is None:
        yield
        return
    liveness = Liveness(boards, stall_limit_s=stall_limit_s)
    teller = _Teller(manager, liveness)
    tasks = [asyncio.create_task(liveness.tick()), asyncio.create_task(_tell_stop(manager, stop))]
    teller.start()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        teller.done.set()
        await asyncio.to_thread(teller.join)
        manager.tell("STOPPING=1")


async def _tell_stop(manager: ServiceManager, stop: asyncio.Event) -> None:
    await stop.wait()
    manager.tell("STOPPING=1")
