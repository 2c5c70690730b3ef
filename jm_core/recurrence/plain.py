"""Plain language. The grammar is in docs/schedules.md; each function here reads one of its rules.

What is read comes down to an interval (``Every``), or to days of an RFC 5545 rule with times of the day on each.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from jm_core.errors import InvalidScheduleError
from jm_core.recurrence.base import in_utc
from jm_core.recurrence.every import EPOCH, Every, check_interval, in_words, parse_interval
from jm_core.recurrence.rrule import wall_of
from jm_core.recurrence.rule import Rule
from jm_core.recurrence.words import EXAMPLE, Words
from jm_core.recurrence.zones import load_zone, next_instant

Days = dict[str, object]  # what a Rule is made of
DaySet = tuple[tuple[int, int], ...]

DAY_S: Final = 86_400
WORKDAYS: Final = tuple((0, day) for day in range(5))
WEEKEND: Final = ((0, 5), (0, 6))
WEEKDAYS: Final = {
    name: number
    for number, full in enumerate(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"))
    for name in (full, full + "s", full[:3])
} | {"tues": 1, "weds": 2, "thur": 3, "thurs": 3}
MONTHS: Final = (
    {
        name: number
        for number, full in enumerate(
            """january february march april may june july august september october november december""".split(),  # noqa: SIM905
            start=1,
        )
        for name in (full, full[:3])
    }
    | {"sept": 9}
)
NTH: Final = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "last": -1}
UNITS: Final = {"hour": 3_600, "hours": 3_600, "minute": 60, "minutes": 60, "second": 1, "seconds": 1}
UNITS_SHOWN: Final = ("hour(s)", "minute(s)", "second(s)")
PERIODS: Final = ("day", "days", "week", "weeks", "month", "months", "year", "years")
PERIODS_SHOWN: Final = ("day(s)", "week(s)", "month(s)", "year(s)")
TIME: Final = ("a time 09:00",)
WEEKDAY: Final = ("a weekday mon-sun",)


@dataclass(frozen=True, slots=True)
class Plain:
    text: str
    zone: str  # the one that the text names, else the one given
    days: Rule = field(repr=False)  # at midnight
    seconds: Sequence[int] = field(repr=False)  # of the day, ascending
    stepping: bool = field(repr=False)
    kind: str = "plain"

    def after(self, instant: datetime) -> datetime | None:
        return next_instant(self.wall_after, load_zone(self.zone), instant, stepping=self.stepping)

    def wall_after(self, wall: datetime) -> datetime | None:
        midnight = wall.replace(hour=0, minute=0, second=0)
        day = self.days.after(midnight - timedelta(seconds=1))
        passed = 0
        if day == midnight:
            passed = bisect_right(self.seconds, int((wall - midnight).total_seconds()))
            if passed == len(self.seconds):
                day, passed = self.days.after(midnight), 0
        return None if day is None else day + timedelta(seconds=self.seconds[passed])

    def describe(self) -> str:
        return f"{' '.join(self.text.split())} ({'real time' if self.stepping else 'fixed time'}), {self.zone}"


@dataclass(frozen=True, slots=True)
class PlainInterval:
    text: str
    zone: str
    every: Every = field(repr=False)
    kind: str = "plain"

    def after(self, instant: datetime) -> datetime | None:
        return self.every.after(instant)

    def describe(self) -> str:
        return self.every.describe()


def parse_plain(text: str, zone: str, *, anchor: datetime | None) -> Plain | PlainInterval:
    """``every weekday at 9:00``, ``every 30 minutes between 09:00 and 18:00 in Europe/Berlin`` and so on.

    Raises:
        InvalidScheduleError: with the position of the first word that cannot stand there, and what could.
    """
    words = Words(text)
    words.need("every")
    number_at = words.position
    if words.at_duration():
        length = parse_interval(words.take(), kind="plain", offset=number_at - 1)
        return _interval(words, text, zone, anchor, length)
    number = words.number()
    if number == 0:
        raise InvalidScheduleError("plain", "every 0", number_at, ("a number from 1 on",), remedy=EXAMPLE)
    unit = words.accept(*UNITS, shown=UNITS_SHOWN)
    if unit:
        shown = unit if number is None else f"{number} {unit}"
        seconds = UNITS[unit] * (1 if number is None else number)
        return _interval(words, text, zone, anchor, check_interval(Decimal(seconds), shown, "plain"))
    rule, times = _days_and_times(words, number)
    zone = _zone(words, zone)
    return Plain(text, zone, _at_midnight(rule, zone, anchor), times, stepping=False)


def _interval(words: Words, text: str, zone: str, anchor: datetime | None, length: timedelta) -> Plain | PlainInterval:
    """The rule ``interval limits``: within a window, or on some days, it counts from where the window begins."""
    window, days, window_at = _limits(words, times=True)
    zone = _zone(words, zone)
    if window is None and days is None:
        begin = EPOCH if anchor is None else in_utc(anchor)
        return PlainInterval(text, zone, Every(text, zone, length, begin))
    if length.microseconds or length.total_seconds() >= DAY_S:
        problem = f"{in_words(length)} within a day"
        raise InvalidScheduleError("plain", problem, remedy="use whole seconds, less than a day")
    begin_s, end_s = window or (0, DAY_S - 1)
    if end_s < begin_s and days:
        problem = "the window passes midnight, so which day it belongs to is not clear"
        raise InvalidScheduleError("plain", problem, window_at, remedy="make two schedules, one per side of midnight")
    end_s += DAY_S * (end_s < begin_s)
    times: Sequence[int] = range(begin_s, end_s + 1, int(length.total_seconds()))
    if end_s >= DAY_S:
        times = tuple(sorted({each % DAY_S for each in times}))
    rule: Days = {"frequency": "WEEKLY", "by_day": days} if days else {"frequency": "DAILY"}
    return Plain(text, zone, _at_midnight(rule, zone, anchor), times, stepping=True)


def _limits(words: Words, *, times: bool) -> tuple[tuple[int, int] | None, DaySet | None, int]:
    """The rule limits = {"between" (time "and" time | weekday "and" weekday) | "on" weekday-list}, each once."""
    window: tuple[int, int] | None = None
    days: DaySet | None = None
    window_at = 0
    while (times and window is None) or days is None:
        at = words.position
        if days is None and words.accept("on"):
            days = _weekday_list(words)
        elif not words.accept("between"):
            break
        elif times and window is None and (words.at_time() or days is not None):
            begin_s, window_at = words.time(), at
            words.need("and")
            window = begin_s, words.time()
        elif days is None:
            begin = _weekday(words, *TIME * (times and window is None))
            words.need("and")
            length = (_weekday(words) - begin) % 7
            days = tuple(sorted((0, (begin + each) % 7) for each in range(length + 1)))
    return window, days, window_at


def _weekday_list(words: Words) -> DaySet:
    """The rule weekday-list = "weekdays" | "weekends" | weekday {("," | "and") weekday}."""
    group = words.accept("weekdays", "weekday", "weekends", "weekend")
    if group:
        return WORKDAYS if group.startswith("weekd") else WEEKEND
    found = {(0, _weekday(words, "weekdays", "weekends"))}
    while words.accept(",", "and"):
        words.accept("and")
        found.add((0, _weekday(words)))
    return tuple(sorted(found))


def _weekday(words: Words, *also: str) -> int:
    return WEEKDAYS[words.need(*WEEKDAYS, shown=(*WEEKDAY, *also))]


def _days_and_times(words: Words, number: int | None) -> tuple[Days, tuple[int, ...]]:
    """The rule days [times]."""
    if words.accept(*PERIODS, shown=PERIODS_SHOWN):
        return _period(words, words.last, number), _times(words)
    if number is not None:
        raise words.unexpected()
    return {"frequency": "WEEKLY", "by_day": _weekday_list(words)}, _times(words)


def _period(words: Words, unit: str, number: int | None) -> Days:
    """Which days of a day, week, month or year; with a number, of every so many of them."""
    interval = number or 1
    match unit.rstrip("s"):
        case "day":
            days = None if number else _limits(words, times=False)[1]
            return {"frequency": "WEEKLY", "by_day": days} if days else {"frequency": "DAILY", "interval": interval}
        case "week":
            words.need("on")
            return {"frequency": "WEEKLY", "interval": interval, "by_day": _weekday_list(words)}
        case "month":
            words.need("on")
            return {"frequency": "MONTHLY", "interval": interval, **_month_days(words)}
    words.need("on")
    month, day = _date(words)
    return {"frequency": "YEARLY", "interval": interval, "by_month": (month,), "by_month_day": (day,)}


def _month_days(words: Words) -> Days:
    """The rule month-days = ["the"] nth (weekday | "weekday" | "day") | ["the" | "day"] number {"and" number}."""
    words.accept("the")
    nth = words.accept(*NTH, shown=("first", "second", "last", "15th"))
    if not nth:
        return {"by_month_day": _day_numbers(words)}
    if words.accept("day"):
        return {"by_month_day": (NTH[nth],)}
    if words.accept("weekday"):
        return {"by_day": WORKDAYS, "by_position": (NTH[nth],)}
    return {"by_day": ((NTH[nth], _weekday(words, "day", "weekday")),)}


def _day_numbers(words: Words) -> tuple[int, ...]:
    words.accept("day")
    found = {words.day_number()}
    while words.accept(",", "and"):
        words.accept("and")
        words.accept("the")
        found.add(words.day_number())
    return tuple(sorted(found))


def _date(words: Words) -> tuple[int, int]:
    """The rule date = ["the"] number ["of"] month | month ["the"] number."""
    words.accept("the")
    at = words.position
    name = words.accept(*MONTHS, shown=("a month jan-dec",))
    if name:
        words.accept("the")
        day = words.day_number()
    else:
        day = words.day_number()
        words.accept("of")
        name = words.need(*MONTHS, shown=("a month jan-dec",))
    month = MONTHS[name]
    last = 29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    if day > last:
        raise InvalidScheduleError("plain", f"{name} has no day {day}: it never fires", at, remedy="correct the date")
    return month, day


def _times(words: Words) -> tuple[int, ...]:
    """The rule times = "at" time {("," | "and") time}; midnight without."""
    if not words.accept("at"):
        return (0,)
    found = {words.time()}
    while words.accept(",", "and"):
        words.accept("and")
        found.add(words.time())
    return tuple(sorted(found))


def _zone(words: Words, zone: str) -> str:
    """["in" zone], and then nothing more."""
    if words.accept("in"):
        at = words.position
        name = words.zone_name()
        try:
            load_zone(name)
        except InvalidScheduleError as error:
            raise InvalidScheduleError("plain", error.problem, at, remedy=error.remedy) from None
        zone = name
    words.end()
    load_zone(zone)
    return zone


def _at_midnight(rule: Days, zone: str, anchor: datetime | None) -> Rule:
    """Days are counted from the anchor's, in the zone: every second week from its week on."""
    begin = wall_of(anchor, zone).replace(hour=0, minute=0, second=0)
    return Rule(start=begin, **rule)  # type: ignore[arg-type]
