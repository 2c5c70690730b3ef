"""Waiting for something that nobody tells us about: a row in Postgres, an empty stream, a line in a log."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S: Final = 0.01
TIMEOUT_S: Final = 20.0


async def wait_until(
    condition: Callable[[], object],
    timeout_s: float = TIMEOUT_S,
    *,
    what: str = "the condition",
    shown: Callable[[], Any] | None = None,
) -> Any:
    """The first true value of ``condition``, asked a hundred times a second.

    Args:
        condition: a function or a coroutine function; one look must be cheap.
        what: for the message when it never comes true.
        shown: what else to say then, e.g. the state as it is.

    Raises:
        AssertionError: not true in time, with the last value.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value: Any = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() >= deadline:
            extra = f"; {shown()}" if shown else ""
            raise AssertionError(f"{what}: not within {timeout_s:g} s, last seen {value!r}{extra}")
        await asyncio.sleep(POLL_S)
