"""The self-fence: a worker that may be taken for dead starts nothing more (DESIGN 7).

Heartbeats leave by a thread of their own; here, on the loop's thread, it is judged whether they still hold. Once the
lease has been in doubt it is trusted again only after the registry was asked for every bucket: the process may have
been frozen, and the first heartbeat after that says nothing about what others have done meanwhile.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from jm_core.lease import self_fence_margin_s, trusted_until_s
from jm_nats.errors import AgentError
from jm_nats.pace import tick

log = logging.getLogger("jobmaster.worker")


class Beats(Protocol):
    """What we ask of the heartbeat. Monotonic times."""

    acknowledged_s: float  # the last beat left that NATS confirmed
    unbroken_since_s: float  # since then every beat was confirmed before the one before it had run out


class Guard:
    """Whether the lease holds.

    Args:
        beats: the heartbeat, which another thread keeps.
        verify: asks the registry for every bucket of ours, and gives up those that are not; raises AgentError while
            it cannot.
        on_trust: the lease is sure again.
    """

    def __init__(
        self, beats: Beats, *, lease_s: float, verify: Callable[[], Awaitable[None]], on_trust: Callable[[], None]
    ) -> None:
        self._beats = beats
        self._lease_s = lease_s
        self._margin_s = self_fence_margin_s(lease_s)
        self._verify = verify
        self._on_trust = on_trust
        self._look_s = min(0.5, self._margin_s / 2)
        self._is_doubted = False
        self.doubted_s = float("-inf")  # at which the lease was last seen in doubt
        self._trusted_s = time.monotonic()  # at which it was last known to hold
        self._until_s = self._trusted_until_s()

    def holds(self) -> bool:
        """Asked before every start: as cheap as can be."""
        return time.monotonic() < self._until_s or self._held_all_along()

    def _held_all_along(self) -> bool:
        """The loop was blocked, and the heartbeat's thread was not: nothing is in doubt. Once it was, only ``look``
        ends that.
        """
        if self._is_doubted or self._beats.unbroken_since_s > self._trusted_s:
            return False
        self._until_s = self._trusted_until_s()
        now_s = time.monotonic()
        if now_s >= self._until_s:
            return False
        self._trusted_s = now_s
        return True

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await tick(self._look_s)

    async def look(self) -> None:
        if self.holds():
            self._until_s = self._trusted_until_s()
            self._trusted_s = time.monotonic()
            return
        self._doubt()
        until_s = self._trusted_until_s()
        if time.monotonic() >= until_s:
            return
        asked_s = time.monotonic()
        try:
            await self._verify()
        except AgentError as error:
            log.debug("the registry cannot be asked yet", extra={"error": str(error)})
            return
        if time.monotonic() >= until_s:
            return  # frozen again meanwhile
        self._until_s, self._trusted_s = until_s, asked_s
        log.info("the lease is sure again")
        self._is_doubted = False
        self._on_trust()

    def _doubt(self) -> None:
        self.doubted_s = time.monotonic()
        if not self._is_doubted:
            self._is_doubted = True
            silent_s = round(self.doubted_s - self._beats.acknowledged_s, 1)
            log.warning("the lease is in doubt, nothing is started", extra={"unconfirmed_s": silent_s})

    def _trusted_until_s(self) -> float:
        return trusted_until_s(self._beats.acknowledged_s, lease_s=self._lease_s, margin_s=self._margin_s)
