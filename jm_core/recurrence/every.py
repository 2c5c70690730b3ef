"""Intervals in real time, counted from an anchor: what the wall clock shows does not matter to them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from jm_core import limits
from jm_core.errors import InvalidScheduleError
from jm_core.lengths import length_s
from jm_core.recurrence.base import in_utc, within_range
from jm_core.recurrence.zones import load_zone

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
INTERVAL_MIN: Final = timedelta(seconds=1)
INTERVAL_MAX: Final = timedelta(seconds=limits.DELAY_S_MAX)


@dataclass(frozen=True, slots=True)
class Every:
    text: str
    zone: str
    interval: timedelta
    anchor: datetime  # itself the first occurrence
    kind: str = "every"

    def after(self, instant: datetime) -> datetime | None:
        start = in_utc(instant)
        if start < self.anchor:
            return self.anchor
        try:
            return within_range(self.anchor + ((start - self.anchor) // self.interval + 1) * self.interval)
        except OverflowError:
            return None

    def describe(self) -> str:
        return f"Every {in_words(self.interval)}, counted from {self.anchor.isoformat()}"


def parse_every(text: str, zone: str, *, anchor: datetime | None) -> Every:
    """``90``, ``90s``, ``15m``, ``1h30m``, ``1d``: larger units first; a day is 24 hours.

    Raises:
        InvalidScheduleError.
    """
    load_zone(zone)
    return Every(text, zone, parse_interval(text), EPOCH if anchor is None else in_utc(anchor))


def parse_interval(text: str, *, kind: str = "every", offset: int = 0) -> timedelta:
    """The length of ``text``, which stands ``offset`` characters into what is complained about.

    Raises:
        InvalidScheduleError.
    """
    return check_interval(length_s(text, kind=kind, offset=offset), text.strip(), kind)


def check_interval(seconds: Decimal, text: str, kind: str) -> timedelta:
    """The interval, when it is one that a schedule can keep.

    Raises:
        InvalidScheduleError: shorter than a second or longer than ten years.
    """
    if seconds < 1:
        raise InvalidScheduleError(kind, f"{text!r} is less than a second", remedy="the shortest interval is 1s")
    if seconds > int(limits.DELAY_S_MAX):
        raise InvalidScheduleError(
            kind, f"{text!r} is longer than {INTERVAL_MAX.days} days", remedy="use cron or rrule for dates so far apart"
        )
    return timedelta(microseconds=int(seconds * 1_000_000))


def in_words(interval: timedelta) -> str:
    rest = int(interval.total_seconds())
    words = []
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        count, rest = divmod(rest, seconds)
        if count:
            words.append(f"{count} {unit}")
    exact = rest + interval.microseconds / 1_000_000
    if exact or not words:
        words.append(f"{exact:g} s")
    return " ".join(words)
