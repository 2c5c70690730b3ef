"""How late the event loop is, looked at once a second, for the metrics. A worker's pulse does it for a worker."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Final

from jm_nats import telemetry
from jm_nats.pace import tick_s
from jm_nats.troubles import trouble

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
REFRESH_TICKS: Final = 10  # an SDK that is installed after the start is noticed so late; dearer than all else here
STALL_S: Final = 1.0  # later than that is a stall


async def watch_loop(each_tick: Callable[[], object] = lambda: None) -> None:
    """Until cancelled. Args: each_tick: called every second."""
    for ticks in itertools.count(1):
        before_s, wait_s = time.monotonic(), tick_s(TICK_S)
        await asyncio.sleep(wait_s)
        if ticks % REFRESH_TICKS == 0:
            telemetry.refresh()
        lag_s = max(0.0, time.monotonic() - before_s - wait_s)
        note_lag(lag_s)
        if lag_s > STALL_S:
            trouble(log, "event loop turned late", {"late_s": round(lag_s, 1)})
        each_tick()


def note_lag(lag_s: float) -> None:
    telemetry.loop_lagged(lag_s)
    if lag_s > STALL_S:
        telemetry.stalled("loop")
