"""Zones, and how times on the wall clock become instants when clocks change.

The policy, which docs/schedules.md explains to people:

- *fixed-time* (``0 9 * * *``): every wall time happens exactly once. One in a gap happens at the first instant after
  the gap (several in one gap: once), one in a fold at the first of its two instants.
- *stepping* (``*/15 * * * *``): real time. An instant is due when the wall clock then shows a matching time: twice in
  a fold, not at all in a gap.
"""

import difflib
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from jm_core.errors import InvalidScheduleError
from jm_core.recurrence.base import HORIZON_YEARS, in_utc, within_range

WallAfter = Callable[[datetime], datetime | None]
"""The first wall time (naive, whole seconds) strictly after a naive one; None: never again."""

ZONE_CHARS_MAX: Final = 64
SECOND: Final = timedelta(seconds=1)
# Not IANA names: they depend on the machine, or count leap seconds. Python would load them nonetheless.
MACHINE_ZONES: Final = frozenset({"localtime", "posixrules", "Factory"})
MACHINE_PREFIXES: Final = ("posix/", "right/")


def load_zone(name: str) -> ZoneInfo:
    """The zone of an IANA name.

    Raises:
        InvalidScheduleError: there is none of this name; near matches are offered.
    """
    usual = name not in MACHINE_ZONES and not name.startswith(MACHINE_PREFIXES) and len(name) <= ZONE_CHARS_MAX
    if usual and name:
        try:
            return ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: "America" is a folder
            pass
    near = tuple(_near(name))
    shown = ascii(name if len(name) <= ZONE_CHARS_MAX else name[: ZONE_CHARS_MAX - 3] + "...")
    remedy = f"did you mean {' or '.join(near)}?" if near else "use an IANA name, Europe/Berlin or UTC for example"
    raise InvalidScheduleError("zone", f"{shown} is no time zone", remedy=remedy)


def _near(name: str) -> list[str]:
    """Up to three names that may have been meant: the same in another case, its last part, or one like it."""
    wanted = name[:ZONE_CHARS_MAX].casefold().replace(" ", "_")
    known = {zone.casefold(): zone for zone in sorted(zoneinfo.available_timezones() - MACHINE_ZONES)}
    if wanted in known:
        return [known[wanted]]
    cities = [zone for folded, zone in known.items() if "/" in folded and folded.rpartition("/")[2] == wanted]
    if cities:
        return cities[:3]
    return [known[folded] for folded in difflib.get_close_matches(wanted, known, n=3, cutoff=0.7)]


def next_instant(wall_after: WallAfter, zone: ZoneInfo, instant: datetime, *, stepping: bool) -> datetime | None:
    """The first instant strictly after ``instant``, in UTC, that the rule's wall times come to in ``zone``."""
    start = in_utc(instant)
    search = _next_stepping if stepping else _next_fixed
    try:
        return within_range(search(wall_after, zone, start))
    except (OverflowError, ValueError):  # past the year 9999
        return None


def _next_fixed(wall_after: WallAfter, zone: ZoneInfo, start: datetime) -> datetime | None:
    """Wall times map to instants in their own order, so the first that maps to a later one is the next.

    No wall time up to the clock's own at ``start`` can: that one maps to ``start`` or, the second time round a fold,
    before it.
    """
    wall = _shown(start, zone)
    if wall.fold:  # what is left of the fold has had its turn the first time round
        first_time = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
        wall = _shown(_first_change(first_time, start, zone) - SECOND, zone)
    while True:
        found = wall_after(_plain(wall))
        if found is None:
            return None
        instant = fixed_instant(found, zone)
        if instant > start:
            return instant
        wall = found  # in one gap with the occurrence at ``start``


def fixed_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Where a fixed-time occurrence of a naive wall time happens, in UTC."""
    usual, other = _both_instants(wall, zone)
    return _first_change(other, usual, zone) if other < usual else usual


def _next_stepping(wall_after: WallAfter, zone: ZoneInfo, start: datetime) -> datetime | None:
    wall = _shown(start, zone)
    found = wall_after(_plain(wall))
    first, second = _both_instants(wall, zone)
    if first < second and not wall.fold:  # the first time round: the second comes before what follows the fold
        change = _first_change(start.replace(microsecond=0), second, zone)
        if found is None or found > _shown(change - SECOND, zone):
            found = wall_after(_plain(_shown(change, zone)) - SECOND)
    while found is not None and found.year <= wall.year + HORIZON_YEARS:  # all of them in gaps: "*/15 2 * 3 SUN#2"
        first, second = _both_instants(found, zone)
        if second >= first:
            return first if first > start else second
        gap_ends = _first_change(second, first, zone)  # what lies in a gap never shows on the clock
        found = wall_after(_plain(_shown(gap_ends, zone)) - SECOND)
    return None


def _shown(instant: datetime, zone: ZoneInfo) -> datetime:
    """What the wall clock shows: naive, with ``fold`` = 1 the second time round."""
    return instant.astimezone(zone).replace(tzinfo=None)


def _plain(wall: datetime) -> datetime:
    return wall.replace(microsecond=0, fold=0)


def _both_instants(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """With PEP 495's fold 0 and 1: equal on most days, ascending in a fold, descending in a gap."""
    return (
        wall.replace(tzinfo=zone, fold=0).astimezone(UTC),
        wall.replace(tzinfo=zone, fold=1).astimezone(UTC),
    )


def _first_change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The first instant with another offset than ``before`` has; ``after`` has one. To the second, as zones are."""
    usual = before.astimezone(zone).utcoffset()
    low, high = 0, int((after - before).total_seconds()) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if (before + middle * SECOND).astimezone(zone).utcoffset() == usual:
            low = middle
        else:
            high = middle
    return before + high * SECOND
