"""The self-fence: a worker that may be taken for dead starts nothing more (DESIGN 7).

Heartbeats leave by a thread of their own; here, on the loop's thread, it is judged whether they still hold. Once the
lease has been in doubt it is trusted again only after the registry was asked for every bucket: the process may have
been frozen, and the first heartbeat after that says nothing about what others have done meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from jm_core.lease import self_fence_margin_s, trusted_until_s
from jm_nats.errors import AgentError

log = logging.getLogger("jobmaster.worker")


class Guard:
    """Whether the lease holds.

    Args:
        acknowledged_s: monotonic time at which the last heartbeat was sent that NATS confirmed.
        verify: asks the registry for every bucket of ours, and gives up those that are not; raises AgentError while
            it cannot.
        on_trust: the lease is sure again.
    """

    def __init__(
        self,
        acknowledged_s: Callable[[], float],
        *,
        lease_s: float,
        verify: Callable[[], Awaitable[None]],
        on_trust: Callable[[], None],
    ) -> None:
        self._acknowledged_s = acknowledged_s
        self._lease_s = lease_s
        self._margin_s = self_fence_margin_s(lease_s)
        self._verify = verify
        self._on_trust = on_trust
        self._look_s = min(0.5, self._margin_s / 2)
        self._until_s = self._trusted_until_s()
        self._is_doubted = False
        self.doubted_s = float("-inf")  # monotonic time at which the lease was last seen in doubt

    def holds(self) -> bool:
        """Asked before every start: as cheap as can be."""
        return time.monotonic() < self._until_s

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._look_s)

    async def look(self) -> None:
        if self.holds():
            self._until_s = self._trusted_until_s()
            return
        self._doubt()
        until_s = self._trusted_until_s()
        if time.monotonic() >= until_s:
            return
        try:
            await self._verify()
        except AgentError as error:
            log.debug("the registry cannot be asked yet", extra={"error": str(error)})
            return
        if time.monotonic() >= until_s:
            return  # frozen again meanwhile
        self._until_s = until_s
        log.info("the lease is sure again")
        self._is_doubted = False
        self._on_trust()

    def _doubt(self) -> None:
        self.doubted_s = time.monotonic()
        if not self._is_doubted:
            self._is_doubted = True
            silent_s = round(self.doubted_s - self._acknowledged_s(), 1)
            log.warning("the lease is in doubt, nothing is started", extra={"unconfirmed_s": silent_s})

    def _trusted_until_s(self) -> float:
        return trusted_until_s(self._acknowledged_s(), lease_s=self._lease_s, margin_s=self._margin_s)
