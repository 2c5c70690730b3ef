"""Ten years of every zone that Python knows, against readings of the wall clock (tests/support/wall_clock.py)."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import pytest

from jm_core.recurrence import Recurrence, parse_recurrence
from tests.support.wall_clock import DAY, Readings, changes, readings, utc

BEGIN, END = utc(2020), utc(2030)
BEFORE = timedelta(hours=8)
MINUTES = 17 * 60
NOT_IANA = {"localtime", "posixrules", "Factory"}

Case = tuple[str, str, frozenset[int], bool]  # kind, expression, minutes of the day, stepping


@lru_cache
def behaviours() -> dict[tuple[tuple[datetime, timedelta | None], ...], list[str]]:
    """Zones that show the same times from 2020 to 2030 are one: the function of time is the same."""
    found: dict[tuple[tuple[datetime, timedelta | None], ...], list[str]] = {}
    for name in sorted(available_timezones() - NOT_IANA):
        zone = ZoneInfo(name)
        offsets = [(at, at.astimezone(zone).utcoffset()) for at in (BEGIN, *changes(zone, BEGIN, END))]
        found.setdefault(tuple(offsets), []).append(name)
    return found


def cases(wall: int, *, thorough: bool) -> Iterator[Case]:
    """Jobs at, before and after a time of the day (in minutes), and stepping ones over it."""
    for away in (-61, -1, 0, 1, 15, 30, 59, 60, 61):
        at = (wall + away) % DAY
        yield "cron", f"{at % 60} {at // 60} * * *", frozenset({at}), False
    first, second = wall // 60 % 24, (wall // 60 + 1) % 24
    listed = frozenset(hour * 60 + minute for hour in (first, second) for minute in (0, 20, 40))
    yield "cron", f"0,20,40 {first},{second} * * *", listed, False
    yield "cron", "*/15 * * * *", frozenset(range(0, DAY, 15)), True
    yield "cron", "30 * * * *", frozenset(range(30, DAY, 60)), True
    yield "cron", "5 */2 * * *", frozenset(range(5, DAY, 120)), True
    yield "cron", f"*/20 {first} * * *", frozenset(first * 60 + minute for minute in (0, 20, 40)), True
    if thorough:
        at = (wall + 30) % DAY
        fixed = frozenset({at})
        yield "plain", f"every day at {at // 60:02}:{at % 60:02}", fixed, False
        yield "rrule", f"FREQ=DAILY;BYHOUR={at // 60};BYMINUTE={at % 60};BYSECOND=0", fixed, False
        yield "rrule", "FREQ=HOURLY;BYMINUTE=30;BYSECOND=0", frozenset(range(30, DAY, 60)), True
        window = frozenset(range(first * 60, DAY, 20))
        yield "plain", f"every 20 minutes between {first:02}:00 and 23:59", window, True


def differences(recurrence: Recurrence, clock: Readings, times: frozenset[int], *, stepping: bool) -> list[str]:
    expected = clock.stepping(times) if stepping else clock.fixed(times)
    last = clock.begin + timedelta(minutes=len(clock.walls) - 1)
    found = []
    at = clock.begin - timedelta(seconds=1)
    while (following := recurrence.after(at)) is not None and following <= last:
        found.append(following)
        at = following
    # What falls on the first minute may belong to a gap before it: readings know nothing of that.
    return [f"{at:%Y-%m-%dT%H:%MZ}" for at in sorted(set(found) ^ set(expected)) if at > clock.begin]


@pytest.mark.slow
def test_every_zone_of_ten_years_keeps_the_written_policy():
    compared = 0
    wrong: list[str] = []
    for offsets, names in behaviours().items():
        zone = ZoneInfo(names[0])
        for nth, change in enumerate([at for at, _ in offsets[1:]] or [utc(2025, 6, 15)]):
            clock = readings(zone, change - BEFORE, MINUTES)
            wall = clock.walls[int(BEFORE.total_seconds() // 60) - 1] + 1
            for kind, expression, times, stepping in cases(wall % DAY, thorough=nth < 2):
                recurrence = parse_recurrence(kind, expression, names[0])
                bad = differences(recurrence, clock, times, stepping=stepping)
                wrong += [f"{names[0]} {kind} {expression!r}: {at}" for at in bad]
                compared += 1
    assert wrong == []
    assert sum(len(names) for names in behaviours().values()) > 400
    assert compared > 10_000


@pytest.mark.parametrize(
    ("expression", "times", "stepping"),
    [
        ("30 2 * * *", {150}, True),  # a fixed-time job taken for a stepping one: lost in the gap
        ("30 * * * *", set(range(30, DAY, 60)), False),  # the reverse: an hour of the fold is missing
        ("31 2 * * *", {150}, False),  # a minute late
    ],
    ids=["fixed as stepping", "stepping as fixed", "late"],
)
def test_the_comparison_sees_a_broken_policy(expression: str, times: set[int], stepping: bool):
    recurrence = parse_recurrence("cron", expression, "Europe/Berlin")
    clocks = [readings(ZoneInfo("Europe/Berlin"), change - BEFORE, MINUTES) for change in changes_of("Europe/Berlin")]
    assert any(differences(recurrence, clock, frozenset(times), stepping=stepping) for clock in clocks)


def changes_of(name: str) -> list[datetime]:
    return list(changes(ZoneInfo(name), utc(2024), utc(2025)))
