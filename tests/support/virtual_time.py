"""An event loop whose clock stands still while anything is ready, and jumps to the next timer when nothing is.

So a test of a five-minute timeout takes a millisecond, and two runs are the same. Real threads and processes still
take real time: the loop looks for their answers before it jumps, and a test that waits for one gives its timers room.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

EPOCH_S = 1_900_000_000.0  # what a wall clock shows at first


class _JumpingSelector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self.loop.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self.now_s = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s


class WallClock:
    """``jm_nats.clock.Clock`` that goes with the loop; ``shift_s`` is what somebody set it forward by."""

    def __init__(self) -> None:
        self.shift_s = 0.0
        self._loop = asyncio.get_running_loop()  # asked from threads too
        self._started_s = self._loop.time()

    def now(self) -> float:
        return EPOCH_S + self._loop.time() - self._started_s + self.shift_s


def on_loop(
    factory: Callable[[], asyncio.AbstractEventLoop], test: Callable[..., Coroutine[Any, Any, None]]
) -> Callable[..., None]:
    """Make a plain test of an async one, on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test(*args, **kwargs))

    return run
