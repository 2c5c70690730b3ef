"""What a schedule's times have to be, told minute by minute: no search, no cron library, nothing of ``jm_core``.

The wall clock of a zone is read once per minute around each change of the clocks. From these readings:

- *stepping*: due at every minute whose reading matches.
- *fixed*: a time of day W is due at the first minute at which the clock shows W or later. For a W that is shown twice
  that is the first time; for one that is never shown, the minute after the gap.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
DAY = 1_440
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of readings, which have no zone


@dataclass(frozen=True)
class Readings:
    """``walls[i]``: what the clock shows ``i`` minutes after ``begin``, in minutes since 1970."""

    begin: datetime
    walls: list[int]

    def stepping(self, times: frozenset[int]) -> list[datetime]:
        return [self.begin + at * MINUTE for at, wall in enumerate(self.walls) if wall % DAY in times]

    def fixed(self, times: frozenset[int]) -> list[datetime]:
        latest = list(accumulate(self.walls, max))
        days = range(self.walls[0] // DAY, latest[-1] // DAY + 1)
        wanted = [day * DAY + at for day in days for at in sorted(times)]
        due = {bisect_left(latest, wall) for wall in wanted if self.walls[0] <= wall <= latest[-1]}
        return [self.begin + at * MINUTE for at in sorted(due)]


def readings(zone: ZoneInfo, begin: datetime, minutes: int) -> Readings:
    walls = []
    for at in range(minutes):
        shown = (begin + at * MINUTE).astimezone(zone).replace(tzinfo=None)
        walls.append(int((shown - EPOCH).total_seconds()) // 60)
    return Readings(begin, walls)


def changes(zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[datetime]:
    """Every instant between the two at which the offset changes, to the minute."""
    step = timedelta(hours=6)
    at, offset = begin, begin.astimezone(zone).utcoffset()
    while at < end:
        following = (at + step).astimezone(zone).utcoffset()
        if following != offset:
            low, high = 0, int(step / MINUTE)
            while high - low > 1:
                middle = (low + high) // 2
                if (at + middle * MINUTE).astimezone(zone).utcoffset() == offset:
                    low = middle
                else:
                    high = middle
            yield at + high * MINUTE
        at, offset = at + step, following


def utc(year: int, month: int = 1, day: int = 1) -> datetime:
    return datetime(year, month, day, tzinfo=UTC)
