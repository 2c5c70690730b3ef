"""Sleep until this process' next common moment (``jm_core.pace``)."""

import random
import time
from typing import Final

import anyio

from jm_core.pace import until_tick_s

_PHASE_S: Final = random.random()


def tick_s(period_s: float) -> float:
    """From half to one and a half ``period_s``: what to wait for the next look."""
    return until_tick_s(time.monotonic(), period_s, phase_s=_PHASE_S)


async def tick(period_s: float) -> None:
    """Sleep until the next look of a loop that looks every ``period_s``."""
    await anyio.sleep(tick_s(period_s))
