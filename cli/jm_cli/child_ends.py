"""When a child has ended, told by the kernel: a look ten times a second would find it a twentieth later on average, and
costs as much on all the days when nothing happens.
"""

import asyncio
import os
from typing import Final, Self

CALM_S: Final = 1.0  # between two looks, when the kernel tells of every child


class ChildEnds:
    """Wakes who waits when a child that is watched has ended. Where the system has no pidfd (Linux has), ``watch`` says
    so, and looking is all there is.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._watched: dict[int, int] = {}  # pid: its descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in list(self._watched):
            self._close(pid)

    def watch(self, pid: int) -> bool:
        """Whether its end will be told. It is a child that has not been waited for, so the number is its own."""
        if pid in self._watched:
            return True
        if not hasattr(os, "pidfd_open"):
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # an old kernel, or one that does not allow it
            return False
        self._watched[pid] = descriptor
        self._loop.add_reader(descriptor, self._note, pid)
        return True

    async def wait(self, stop: asyncio.Event, timeout_s: float) -> None:
        """Until one has ended, ``stop`` is set, or ``timeout_s`` is over."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._ended, stop)]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._ended.clear()

    def _note(self, pid: int) -> None:
        self._close(pid)
        self._ended.set()

    def _close(self, pid: int) -> None:
        descriptor = self._watched.pop(pid)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
