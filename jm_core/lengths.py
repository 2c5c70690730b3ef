"""Lengths of time as people write them, one rule for intervals, delays, timeouts and retention."""

import re
from decimal import Decimal
from typing import Final

from jm_core.errors import InvalidScheduleError

UNITS_S: Final = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
DURATION: Final = re.compile(r"([0-9]{1,12}(?:[.][0-9]{1,6})?)\s*([wdhms])\s*", re.IGNORECASE)
BARE_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:[.][0-9]{1,6})?")


def length_s(text: str, *, kind: str = "every", offset: int = 0) -> Decimal:
    """Seconds of ``90``, ``90s``, ``15m``, ``1h30m``, ``1d``: larger units first, each once; a day is 24 hours.

    Args:
        kind: of what is complained about.
        offset: where ``text`` begins in it, in characters.

    Raises:
        InvalidScheduleError.
    """
    begin = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    if BARE_SECONDS.fullmatch(text[begin:end]):
        return Decimal(text[begin:end])
    total = Decimal(0)
    largest = None
    at = begin
    while at < end or at == begin:  # at least once: an empty text is none
        found = DURATION.match(text, at)
        order = "wdhms".index(found[2].lower()) if found else -1
        if found is None or (largest is not None and order <= largest):
            problem = "larger units come first, each once" if found else f"{text[at:end]!r} is no length of time"
            expected = ("a number with w, d, h, m or s",)
            raise InvalidScheduleError(kind, problem, offset + at + 1, expected, remedy="15m, 1h30m or 90s for example")
        total += Decimal(found[1]) * UNITS_S[found[2].lower()]
        largest = order
        at = found.end()
    return total
