"""The wall times of an RFC 5545 rule, one period after the other.

dateutil expands a year or a month, which is the hard part of the RFC. It is not given the whole rule: its
generator starts at DTSTART, years ago, and never returns for a rule that matches nothing. So periods are stepped here,
at most ``HORIZON_YEARS`` ahead, and weeks and the times of a day, which need no library, are told here too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import MAXYEAR, date, datetime, time, timedelta
from functools import lru_cache
from math import gcd
from typing import Final

from jm_core.recurrence.base import HORIZON_YEARS

Days = Iterator[tuple[date, Iterable[date]]]  # (first day of a period, the days in it that count, ascending)
Periods = Iterator[tuple[date, Iterable[datetime]]]

FREQUENCIES: Final = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
STEPPING: Final = frozenset({"HOURLY", "MINUTELY", "SECONDLY"})
UNIT_S: Final = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}
DAY_S: Final = 86_400
LISTED_MAX: Final = 5_000
ONE_DAY: Final = timedelta(days=1)
ONE_SECOND: Final = timedelta(seconds=1)
ALONE: Final = 9_999  # years to the next period: the generator ends after the one it was started in


@dataclass(frozen=True, slots=True)
class Rule:
    """Empty tuples: not given. ``by_day`` holds (ordinal or 0, weekday with Monday = 0)."""

    frequency: str
    start: datetime  # naive, whole seconds
    interval: int = 1
    until: datetime | None = None  # naive, inclusive
    by_month: tuple[int, ...] = ()
    by_week: tuple[int, ...] = ()
    by_year_day: tuple[int, ...] = ()
    by_month_day: tuple[int, ...] = ()
    by_day: tuple[tuple[int, int], ...] = ()
    by_hour: tuple[int, ...] = ()
    by_minute: tuple[int, ...] = ()
    by_second: tuple[int, ...] = ()
    by_position: tuple[int, ...] = ()
    week_start: int = 0

    def after(self, wall: datetime) -> datetime | None:
        """The first wall time of the rule strictly after a naive one."""
        found = next(self.walls(max(wall, self.start - ONE_SECOND)), None)
        return None if found is None or (self.until and found > self.until) else found

    def walls(self, wall: datetime) -> Iterator[datetime]:
        """All of them after ``wall``, ascending, up to a pause of ``HORIZON_YEARS``; UNTIL is left to the caller."""
        last = wall
        for day, found in self._stepping_days(wall) if self.frequency in STEPPING else self._periods(wall):
            for each in found:
                if each > wall and each >= self.start:
                    yield each
                    last = each
            if day.year > last.year + HORIZON_YEARS:
                return

    def limited_to(self, number: int) -> "Rule":
        """COUNT as UNTIL: the same occurrences, found without counting from the start each time."""
        last = self.start - ONE_SECOND
        for seen, wall in enumerate(self.walls(last), start=1):
            last = wall
            if seen == number:
                break
        return replace(self, until=last)

    def _periods(self, wall: datetime) -> Periods:
        periods = {"YEARLY": self._years, "MONTHLY": self._months, "WEEKLY": self._weeks, "DAILY": self._days}
        times = self._clock_times()
        for begin, days in periods[self.frequency](wall):
            if self.by_position:
                found = [datetime.combine(day, at) for day in days for at in times]
                places = {at - 1 if at > 0 else at + len(found) for at in self.by_position}
                yield begin, [each for at, each in enumerate(found) if at in places]
            else:
                yield begin, (datetime.combine(day, at) for day in days if day >= wall.date() for at in times)

    def _years(self, wall: datetime) -> Days:
        passed = max(0, (wall.year - self.start.year) // self.interval)
        for year in range(self.start.year + passed * self.interval, MAXYEAR + 1, self.interval):
            begin = date(year, 1, 1)
            yield begin, _expanded(self, begin)

    def _months(self, wall: datetime) -> Days:
        first = self.start.year * 12 + self.start.month - 1
        passed = max(0, (wall.year * 12 + wall.month - 1 - first) // self.interval)
        for month in range(first + passed * self.interval, (MAXYEAR + 1) * 12, self.interval):
            begin = date(month // 12, month % 12 + 1, 1)
            yield begin, _expanded(self, begin) if not self.by_month or begin.month in self.by_month else ()

    def _weeks(self, wall: datetime) -> Days:
        week_days = {day for _, day in self.by_day} or {self.start.weekday()}
        first = self.start.date() - (self.start.weekday() - self.week_start) % 7 * ONE_DAY
        step = timedelta(weeks=self.interval)
        begin = first + max(0, (wall.date() - first) // step) * step
        while begin.year < MAXYEAR:
            days = [begin + each * ONE_DAY for each in range(7)]
            yield (
                begin,
                [d for d in days if d.weekday() in week_days and (not self.by_month or d.month in self.by_month)],
            )
            begin += step

    def _days(self, wall: datetime) -> Days:
        first = self.start.date()
        for day, matches in self._matching_days(wall):
            yield day, (day,) if matches and not (day - first).days % self.interval else ()

    def _stepping_days(self, wall: datetime) -> Periods:
        begin = max(wall, self.start)
        if _reachable(self) == ():
            return
        for day, matches in self._matching_days(wall):
            yield day, self._times_stepping(max(datetime.combine(day, time()), begin), day) if matches else ()

    def _matching_days(self, wall: datetime) -> Iterator[tuple[date, bool]]:
        """The days that pass the filters; and the end of each year with False, for the caller to see time go by."""
        begin = max(wall, self.start).date()
        for year in range(begin.year, MAXYEAR + 1):
            for day in _days_of(year, self.by_month, self.by_year_day, self.by_month_day, self.by_day):
                if day >= begin:
                    yield day, True
            yield date(year, 12, 31), False

    def _clock_times(self) -> list[time]:
        return [
            time(hour, minute, second)
            for hour in self.by_hour or (self.start.hour,)
            for minute in self.by_minute or (self.start.minute,)
            for second in self.by_second or (self.start.second,)
        ]

    def _times_stepping(self, begin: datetime, day: date) -> Iterator[datetime]:
        """From the unit (hour, minute or second) of ``begin`` on, all of that day."""
        unit_s = UNIT_S[self.frequency]
        origin_s, step_s = self._phase()
        midnight = datetime.combine(day, time())
        first_s = int((begin - midnight).total_seconds()) // unit_s * unit_s
        origin_s -= (day - self.start.date()).days * DAY_S  # seconds are counted from this day's midnight
        units: Sequence[int] | None = _reachable(self)
        if units is None:
            units = range(first_s + (origin_s - first_s) % step_s, DAY_S, step_s)
        for at_s in units:
            if at_s >= first_s and (at_s - origin_s) % step_s == 0 and self._allows(at_s):
                yield from self._within(midnight + timedelta(seconds=at_s), unit_s)

    def _phase(self) -> tuple[int, int]:
        """(second of the first day that the interval is counted from, seconds of the interval)."""
        unit_s = UNIT_S[self.frequency]
        start_s = self.start.hour * 3_600 + self.start.minute * 60 + self.start.second
        return start_s // unit_s * unit_s, self.interval * unit_s

    def _allows(self, at_s: int) -> bool:
        hour, minute, second = at_s // 3_600, at_s // 60 % 60, at_s % 60
        return (
            (not self.by_hour or hour in self.by_hour)
            and (self.frequency == "HOURLY" or not self.by_minute or minute in self.by_minute)
            and (self.frequency != "SECONDLY" or not self.by_second or second in self.by_second)
        )

    def _within(self, unit: datetime, unit_s: int) -> Iterator[datetime]:
        minutes = (self.by_minute or (self.start.minute,)) if unit_s == 3_600 else (unit.minute,)
        seconds = (self.by_second or (self.start.second,)) if unit_s > 1 else (unit.second,)
        for minute in minutes:
            for second in seconds:
                yield unit.replace(minute=minute, second=second)


@lru_cache(maxsize=1024)
def _reachable(rule: Rule) -> tuple[int, ...] | None:
    """The seconds of a day at which a unit of the rule can begin, whatever the day; None: too many to list.

    An interval that shares a divisor with the day never comes to some of them: to none that the rule asks for, maybe,
    and then no day needs to be looked at.
    """
    hours = rule.by_hour or range(24)
    minutes = (0,) if rule.frequency == "HOURLY" else rule.by_minute or range(60)
    seconds = (rule.by_second or range(60)) if rule.frequency == "SECONDLY" else (0,)
    if len(hours) * len(minutes) * len(seconds) > LISTED_MAX:
        return None
    origin_s, step_s = rule._phase()  # noqa: SLF001 - the rule's own, here for its cache
    shared_s = gcd(step_s, DAY_S)
    units = [hour * 3_600 + minute * 60 + second for hour in hours for minute in minutes for second in seconds]
    return tuple(at_s for at_s in units if (at_s - origin_s) % shared_s == 0)


@lru_cache(maxsize=1024)
def _expanded(rule: Rule, begin: date) -> tuple[date, ...]:
    """The days that the rule names in the year or month from ``begin`` on."""
    from dateutil import rrule  # noqa: PLC0415 - 20 ms, for those who use it

    month, month_day = rule.by_month, rule.by_month_day
    if not (rule.by_week or rule.by_year_day or month_day or rule.by_day):  # then DTSTART says which day (RFC 5545)
        month_day = (rule.start.day,)
        if rule.frequency == "YEARLY":
            month = month or (rule.start.month,)
    found = rrule.rrule(
        getattr(rrule, rule.frequency),
        dtstart=datetime.combine(begin, time()),
        interval=ALONE * 12,
        wkst=rule.week_start,
        bymonth=month or None,
        bymonthday=month_day or None,
        byyearday=rule.by_year_day or None,
        byweekno=rule.by_week or None,
        byweekday=[rrule.weekday(day, nth or None) for nth, day in rule.by_day] or None,
    )
    return tuple(each.date() for each in found)


@lru_cache(maxsize=512)
def _days_of(
    year: int,
    by_month: tuple[int, ...],
    by_year_day: tuple[int, ...],
    by_month_day: tuple[int, ...],
    by_day: tuple[tuple[int, int], ...],
) -> tuple[date, ...]:
    """The days of a year that pass the filters of a rule by the day, hour, minute or second."""
    from dateutil import rrule  # noqa: PLC0415

    filtered = by_year_day or by_month_day or by_day
    found = rrule.rrule(
        rrule.YEARLY,
        dtstart=datetime(year, 1, 1),  # noqa: DTZ001
        interval=ALONE,
        bymonth=by_month or None,
        byyearday=by_year_day or None,
        bymonthday=by_month_day or (None if filtered else range(1, 32)),
        byweekday=[rrule.weekday(day) for _, day in by_day] or None,
    )
    return tuple(each.date() for each in found)
