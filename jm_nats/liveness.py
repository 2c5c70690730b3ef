"""How a whole process is: its groups' reports, and whether its event loop turns. Asked from other threads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from jm_core import limits
from jm_core.health import Answer, GroupReport, is_live, is_ready
from jm_nats.pace import tick

if TYPE_CHECKING:
    from collections.abc import Sequence

TICK_S: Final = 1.0


class Reporter(Protocol):
    """A ``HealthBoard``, or whoever can say the same."""

    def report(self) -> GroupReport: ...


class Look(NamedTuple):
    """One look at a process."""

    groups: list[GroupReport]
    stuck_s: float
    live: Answer
    ready: Answer


class Liveness:
    """Run ``tick`` in the event loop; ``look`` from any thread.

    Args:
        boards: of the groups in this process.
    """

    def __init__(self, boards: Sequence[Reporter], *, stall_limit_s: float = limits.STALL_LIMIT_S) -> None:
        self._boards = boards
        self._stall_limit_s = stall_limit_s
        self._ticked_s = time.monotonic()

    async def tick(self) -> None:
        """Show that the event loop turns, until cancelled."""
        while True:
            self._ticked_s = time.monotonic()
            await tick(TICK_S)

    def look(self) -> Look:
        groups = [board.report() for board in self._boards]
        stuck_s = max(0.0, time.monotonic() - self._ticked_s - TICK_S)
        live = is_live(groups, stuck_s=stuck_s, stall_limit_s=self._stall_limit_s)
        ready = is_ready(groups)
        if not live.ok:  # what must be restarted is of no use to anybody
            ready = Answer(ok=False, reasons=(*ready.reasons, *(r for r in live.reasons if r not in ready.reasons)))
        return Look(groups, stuck_s, live, ready)
