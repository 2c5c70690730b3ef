"""Troubles that repeat for as long as something is away: said once a minute, however many meet with them.

NATS away for an hour, a hundred buckets, a try a second each: without this the log is full of one fact. What is left
out is still there at level DEBUG.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Final

from jm_nats.log_context import current_group

EVERY_S: Final = 60.0
KEYS_MAX: Final = 1_000  # kept, as long as that many are not said within a minute

_lock: Final = threading.Lock()
_said_s: Final[dict[tuple[object, ...], float]] = {}
_left_out: Final[dict[tuple[object, ...], int]] = {}


def trouble(
    log: logging.Logger,
    event: str,
    facts: Mapping[str, object] | None = None,
    *,
    level: int = logging.WARNING,
    about: str = "",
) -> None:
    """Log ``event``; at DEBUG if this worker or coordinator has said so less than a minute ago,
    at the same level.

    The line that follows says ``left_out``: how many there were in between.

    Args:
        about: what tells one such trouble from another that has to be said beside it; one of few values.
    """
    key = (log.name, event, about, level, current_group())
    extra = dict(facts or {})
    with _lock:
        now_s = time.monotonic()
        is_due = now_s - _said_s.get(key, -EVERY_S) >= EVERY_S
        if is_due:
            if len(_said_s) >= KEYS_MAX:
                _forget_old(now_s)
            _said_s[key] = now_s
            if left_out := _left_out.pop(key, 0):
                extra["left_out"] = left_out
        else:
            _left_out[key] = _left_out.get(key, 0) + 1
    log.log(level if is_due else logging.DEBUG, event, extra=extra, stacklevel=2)


def _forget_old(now_s: float) -> None:
    for key in [key for key, said_s in _said_s.items() if now_s - said_s >= EVERY_S]:
        del _said_s[key]
        _left_out.pop(key, None)


def forget_troubles() -> None:
    """Say everything anew; for tests, which share a process."""
    with _lock:
        _said_s.clear()
        _left_out.clear()
