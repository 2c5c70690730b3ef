"""A bound on what is under way at once, in number and in bytes."""

import asyncio
from collections import deque


class Gate:
    """Lets in so many and so large, in the order of their coming. One that is larger than all room goes alone."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_left = count_max
        self._bytes_left = bytes_max
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def try_enter(self, size: int) -> bool:
        """In at once, if nobody waits and there is room."""
        if self._waiting or not self._fits(size):
            return False
        self._take(size)
        return True

    async def enter(self, size: int) -> None:
        """In when it is our turn."""
        if self.try_enter(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size)  # our turn came with the cancellation
            else:
                turn.cancel()
                self._admit()  # we may have been the one that did not fit
            raise

    def leave(self, size: int) -> None:
        self._count_left += 1
        self._bytes_left += size
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            turn, size = self._waiting[0]
            if not turn.done():
                if not self._fits(size):
                    return
                self._take(size)
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        return self._count_left > 0 and (size <= self._bytes_left or self._bytes_left == self._bytes_max)

    def _take(self, size: int) -> None:
        self._count_left -= 1
        self._bytes_left -= size
