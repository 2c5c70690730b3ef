"""Two small signals between the leader's loops."""

import anyio


class Wake:
    """For one sleeper: ``set`` is remembered until it looks, so that nothing that happened meanwhile is missed."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """True when it was set; False after ``timeout_s``. Clears it."""
        with anyio.move_on_after(timeout_s):
            await self._event.wait()
        was_set = self._event.is_set()
        self._event = anyio.Event()
        return was_set


class Pulse:
    """For any number of sleepers: ``beat`` wakes who sleeps now and is not remembered. Look first, then wait."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def beat(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """False after ``timeout_s``."""
        with anyio.move_on_after(timeout_s) as scope:
            await self._event.wait()
        return not scope.cancelled_caught
