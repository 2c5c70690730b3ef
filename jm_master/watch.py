"""Whether our own observation allows to call anybody lost (DESIGN 7, blind time)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from jm_nats.errors import AgentError
from jm_nats.pace import tick

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

SWEEP_MAX_S: Final = 1.0


class Watch:
    """Silence while NATS or we ourselves were away says nothing: all keys may have expired together. So nobody is
    called lost before one full lease of unbroken observation.

    Runs in every coordinator, leading or not: a new leader has been observing for a while already.
    """

    def __init__(self, lease_s: float) -> None:
        self.sweep_s = min(SWEEP_MAX_S, lease_s / 10)
        self.lease_s = lease_s
        self._since_s: float | None = None
        self._looked_s = 0.0

    def blind(self) -> None:
        self._since_s = None

    def looked(self, *, now_s: float) -> None:
        """We could see just now. A long time between two looks means that we were frozen, or blind, ourselves."""
        if self._since_s is None or now_s - self._looked_s > self.lease_s / 2:
            self._since_s = now_s
        self._looked_s = now_s

    def may_judge(self, *, now_s: float) -> bool:
        if self._since_s is None or now_s - self._looked_s > self.lease_s / 2:
            return False
        return now_s - self._since_s >= self.lease_s

    async def run(self, probe: Callable[[], Awaitable[object]]) -> None:
        """Look until cancelled. ``probe`` asks the KV of the heartbeats something: a connection that is up says nothing
        of the stream behind it, which may be without a leader while all of its keys run out.
        """
        while True:
            try:
                await probe()
            except AgentError as error:
                log.debug("cannot see the heartbeats", extra={"problem": str(error)})
                self.blind()
            else:
                self.looked(now_s=time.monotonic())
            await tick(self.sweep_s)
