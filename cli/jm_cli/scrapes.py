"""Who reads ``/metrics``, counted: so that a process that has failed stop is not gone before anybody has seen why.

What ends a process at once, and is started anew by its init with all counters at 0, no alert can ever see.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any, Final

log = logging.getLogger("jobmaster.cli")

READS: Final = 2  # the second, because a single point of a series can get lost
LINGER_S: Final = 60.0  # Prometheus' own interval is a minute, ours 15 s
POLL_S: Final = 0.2
ANSWER_S: Final = 0.5  # a read is counted when it begins


class Scrapes:
    """A collector for Prometheus' registry that has nothing to say."""

    def __init__(self) -> None:
        self.count = 0

    def describe(self) -> Iterable[Any]:
        """So that to be registered is not to be read."""
        return ()

    def collect(self) -> Iterable[Any]:
        self.count += 1
        return ()

    async def linger(self, stop: asyncio.Event) -> None:
        """Until the page was read ``READS`` times more, ``LINGER_S`` are over, or ``stop``; not at all where nobody has
        ever read it.
        """
        if not self.count:
            return
        log.error("nothing runs any more; metrics are served until they were read", extra={"at_most_s": LINGER_S})
        until, until_s = self.count + READS, time.monotonic() + LINGER_S
        while self.count < until and time.monotonic() < until_s:
            if await _is_set_within(stop, POLL_S):
                return
        await _is_set_within(stop, ANSWER_S)


async def _is_set_within(stop: asyncio.Event, patience_s: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), patience_s)
    except TimeoutError:
        return False
    return True
