"""How late the event loop is, looked at once a second, for the metrics. A worker's pulse does it for a worker."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from jm_nats import telemetry

TICK_S: Final = 1.0
STALL_S: Final = 1.0  # later than that is a stall


async def watch_loop(each_tick: Callable[[], object] = lambda: None) -> None:
    """Until cancelled. Args: each_tick: called every second."""
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(TICK_S)
        telemetry.refresh()
        note_lag(max(0.0, time.monotonic() - before_s - TICK_S))
        each_tick()


def note_lag(lag_s: float) -> None:
    telemetry.loop_lagged(lag_s)
    if lag_s > STALL_S:
        telemetry.stalled("loop")
