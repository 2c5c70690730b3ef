"""An attempt's progress on its way out: however often a handler reports it, a few reports a second leave the worker."""

import asyncio
from collections.abc import Callable

from jm_core import limits


class AttemptProgress:
    """The first report leaves at once, later ones ``every_s`` apart; what is newest always gets out.

    Between two of them a report costs an assignment, from whatever thread it comes: a handler that reports a hundred
    thousand times a second floods neither the event loop nor NATS nor Postgres, where each one kept is a row version.
    """

    __slots__ = ("_closed", "_every_s", "_loop", "_newest", "_pending", "_send", "_sent_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, send: Callable[[float, str], None], every_s: float = limits.PROGRESS_S
    ) -> None:
        """Args: send: called in the loop."""
        self._loop = loop
        self._send = send
        self._every_s = every_s
        self._sent_s = -every_s
        self._newest: tuple[float, str] | None = None
        self._pending = False  # somebody will come for the newest
        self._closed = False

    def report(self, fraction: float, note: str) -> None:
        """From any thread."""
        self._newest = (fraction, note)
        if not self._pending:  # two threads at once: two come, and the second finds nothing new
            self._pending = True
            self._loop.call_soon_threadsafe(self._due)

    def close(self) -> None:
        """The attempt has ended: what is left leaves now, nothing after it."""
        self._flush()
        self._closed = True

    def _due(self) -> None:
        wait_s = self._sent_s + self._every_s - self._loop.time()
        if wait_s <= 0:
            self._flush()
        elif not self._closed:
            self._loop.call_later(wait_s, self._flush)

    def _flush(self) -> None:
        # In this order: what is reported from now on either is the newest that we take, or comes with its own `_due`.
        self._pending = False
        newest, self._newest = self._newest, None
        if newest is not None and not self._closed:
            self._sent_s = self._loop.time()
            self._send(*newest)
