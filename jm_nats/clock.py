"""Whose time a worker holds ``run_at`` by: its own clock, corrected by what it measured against NATS (DESIGN 9)."""

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...


class CorrectedClock:
    """The system's clock plus a measured offset. ``offset_s`` is what to add to ours to get the server's."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self.offset_s = offset_s

    def now(self) -> float:
        return time.time() + self.offset_s
