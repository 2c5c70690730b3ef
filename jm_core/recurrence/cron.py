"""Cron expressions: cronsim finds the wall times, zones.py makes instants of them, and this module adds what cronsim
lacks: ``W``, the names of the whole week up to Sunday, ``@daily`` and its like, and errors that say where.
"""

import calendar
import copy
import re
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Final

from cronsim import CronSim, CronSimError

from jm_core.errors import InvalidScheduleError
from jm_core.recurrence.zones import load_zone, next_instant

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
ANY_DAY: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - wall times are naive: the zone comes in afterwards


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()  # of the values from ``low`` on
    marks: str = ""

    @property
    def expected(self) -> tuple[str, ...]:
        named = (f"{self.names[0]}-{self.names[-1]}",) if self.names else ()
        marks = (self.marks,) if self.marks else ()
        return (f"{self.low}-{self.high}", *named, "*", "a range 1-5", "a step */2", *marks)


MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
FIELDS: Final = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31, marks="L, LW, 15W"),
    _Field("month", 1, 12, MONTHS),
    _Field("day of week", 0, 7, DAYS, marks="MON#2, 5L"),
)
DAY_OF_MONTH: Final = 3
DAY_OF_WEEK: Final = 5
NEAREST: Final = re.compile(r"([0-9]{1,2})W")


class _Sim(CronSim):
    """cronsim with ``15W``: the weekday nearest to that day of the month, never in another month (as in Quartz)."""

    nearest: frozenset[int] = frozenset()

    def match_dom(self, d: date) -> bool:
        return super().match_dom(d) or any(d.day == _nearest_weekday(d, day) for day in self.nearest)


@dataclass(frozen=True, slots=True)
class Cron:
    text: str
    zone: str
    expression: str = field(repr=False)  # normalized: six fields in upper case
    stepping: bool = field(repr=False)
    sim: _Sim = field(repr=False, compare=False)
    kind: str = "cron"

    def after(self, instant: datetime) -> datetime | None:
        return next_instant(self.wall_after, load_zone(self.zone), instant, stepping=self.stepping)

    def wall_after(self, wall: datetime) -> datetime | None:
        sim = copy.copy(self.sim)  # the expression is read once; only where the search stands is its own
        sim.dt = wall
        return next(sim, None)

    def describe(self) -> str:
        return f"{_explained(self.expression)}, {self.zone}"


def parse_cron(text: str, zone: str) -> Cron:
    """Five fields: minute, hour, day of month, month, day of week; six: seconds first. Case does not matter.

    Raises:
        InvalidScheduleError: with the position of the first item that is wrong; also where no day can ever match.
    """
    load_zone(zone)
    fields = [(found.group().upper(), found.start() + 1) for found in re.finditer(r"\S+", _without_macro(text))]
    if len(fields) == 5:
        fields.insert(0, ("0", 1))
    if len(fields) != 6:
        raise _miscounted(text, len(fields))
    parts = [_field(FIELDS[index], part, position) for index, (part, position) in enumerate(fields)]
    sim = _simulator(parts, text)
    full = (sim.seconds, 60), (sim.minutes, 60), (sim.hours, 24)
    stepping = any("*" in part or "/" in part for part in parts[:3]) or any(len(s) == n for s, n in full)
    return Cron(text, zone, " ".join(parts), stepping, sim)


def _miscounted(text: str, count: int) -> InvalidScheduleError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    remedy = "0 9 * * MON-FRI is 09:00 from Monday to Friday"
    if count == 7:
        remedy = "a field for the year there is not, give the schedule an end"
    elif count > 7:
        remedy = "put it in quotes, or the shell replaces each * by the names of files"
    expected = ("5: minute hour day-of-month month day-of-week", "6: with the second first")
    return InvalidScheduleError("cron", f"{shown!r}: {count} field{'s' * (count > 1)}", None, expected, remedy=remedy)


def _without_macro(text: str) -> str:
    word = text.strip().lower()
    if not word.startswith("@"):
        return text
    if word not in MACROS:
        raise InvalidScheduleError("cron", f"{text!r} is unknown", 1, tuple(MACROS), remedy="or write the five fields")
    return MACROS[word]


def _field(kind: _Field, text: str, position: int) -> str:
    """The field, normalized.

    Raises:
        InvalidScheduleError.
    """
    items = []
    for item in text.split(","):
        items.append(_item(kind, item, position))
        position += len(item) + 1
    return ",".join(items)


def _item(kind: _Field, item: str, position: int) -> str:
    if kind.name == "day of week":  # Sunday ends a week as well as it begins one
        item = re.sub(r"^(MON|TUE|WED|THU|FRI|SAT|[1-6])-(SUN|0)(?=/|$)", r"\1-7", item)
    if kind.name == "day of month" and (found := NEAREST.fullmatch(item)) and 1 <= int(found[1]) <= 31:
        return item
    problem, remedy = _problem(kind, item)
    if problem:
        raise InvalidScheduleError("cron", f"{kind.name}: {problem}", position, kind.expected, remedy=remedy)
    return item


def _problem(kind: _Field, item: str) -> tuple[str, str]:  # noqa: PLR0911 - a list of cases, each with its words
    """What is wrong with it, and the remedy; empty when it is fine."""
    if not item:
        return "nothing between two commas", "take one comma out"
    if "?" in item:
        return "'?' is Quartz's", "write *"
    if kind.name == "day of month" and item.startswith("L-"):
        back = re.fullmatch(r"L-([12]?[0-9]|30)", item)
        number = f"=-{int(back[1]) + 1}" if back else ""  # L-3 is three days before the last, which itself is -1
        return (
            f"{item!r} counts back from the last day, which cron here does not",
            f"use --rrule with BYMONTHDAY{number}",
        )
    step = item.partition("/")[2]
    if step.isdecimal() and int(step) > kind.high - kind.low:
        return f"a step of {step} leaves the field at once", "for long intervals use --every"
    if step and item[0] in "LW":
        return f"{item!r} cannot have a step", "take the step out"
    around = ["*"] * 6
    around[FIELDS.index(kind)] = item
    if not _is_read(" ".join(around)):
        backwards = re.fullmatch(r"([0-9]+)-([0-9]+)(/.*)?", item) or re.fullmatch(r"([A-Z]{3})-([A-Z]{3})(/.*)?", item)
        if backwards and not _problem(kind, backwards[1])[0] and not _problem(kind, backwards[2])[0]:
            return f"the range {item} runs backwards", f"write {_forwards(kind, backwards[1], backwards[2], step)}"
        return f"{item!r} cannot be read", "see docs/schedules.md for what a field may hold"
    return "", ""


def _forwards(kind: _Field, first: str, last: str, step: str) -> str:
    """The values of a range that runs over the end of its field, as they can be written."""
    names = kind.names if first in kind.names else ()
    high = 6 if kind.name == "day of week" else kind.high
    size = high - kind.low + 1
    begin, end = ((names.index(text) if names else (int(text) - kind.low) % size) for text in (first, last))
    shown = names or [str(value) for value in range(kind.low, high + 1)]
    width = (end - begin) % size + 1
    if step.isdecimal() and int(step) > 0:
        return ",".join(shown[(begin + at) % size] for at in range(0, width, int(step)))
    parts = [(begin, size - 1), (0, end)] if begin + width > size else [(begin, end)]
    return ",".join(shown[low] if low == up else f"{shown[low]}-{shown[up]}" for low, up in parts)


def _is_read(expression: str) -> bool:
    try:
        CronSim(expression, ANY_DAY)
    except CronSimError:
        return False
    return True


def _simulator(parts: list[str], text: str) -> _Sim:
    days = parts[DAY_OF_MONTH].split(",")
    nearest = frozenset(int(item[:-1]) for item in days if NEAREST.fullmatch(item))
    numbered = ",".join(item for item in days if not NEAREST.fullmatch(item))
    # cronsim has to see a day; it is taken out again.
    shown = [*parts[:DAY_OF_MONTH], numbered or "1", *parts[DAY_OF_MONTH + 1 :]]
    try:
        sim = _Sim(" ".join(shown), ANY_DAY)
    except CronSimError:  # each field was fine by itself
        raise never_fires("cron", text, "none of its months has such a day") from None
    sim.nearest = nearest
    if not numbered:
        sim.days = set()
    return sim


def never_fires(kind: str, text: str, why: str) -> InvalidScheduleError:
    return InvalidScheduleError(kind, f"{text!r} never fires: {why}", remedy="correct it, or leave the schedule out")


def _nearest_weekday(day: date, wanted: int) -> int:
    """The day of ``day``'s month that ``15W`` means: 0 where the month has no such day at all."""
    last = calendar.monthrange(day.year, day.month)[1]
    if wanted > last:
        return 0
    match date(day.year, day.month, wanted).weekday():
        case 5:
            return wanted - 1 if wanted > 1 else wanted + 2
        case 6:
            return wanted + 1 if wanted < last else wanted - 2
    return wanted


def _explained(expression: str) -> str:
    """In the words of cronsim, which joins what is an OR with "and", and knows no ``W``."""
    parts = expression.split()
    days = parts[DAY_OF_MONTH].split(",")
    nearest = [item[:-1] for item in days if NEAREST.fullmatch(item)]
    either = not parts[DAY_OF_MONTH].startswith("*") and not parts[DAY_OF_WEEK].startswith("*")
    if either:
        by_month = _explained(" ".join([*parts[:DAY_OF_WEEK], "*"]))
        by_week = _explained(" ".join([*parts[:DAY_OF_MONTH], "*", *parts[DAY_OF_MONTH + 1 :]]))
        return f"{by_month} OR {by_week[0].lower()}{by_week[1:]}"
    if nearest:
        numbered = ",".join(item for item in days if not NEAREST.fullmatch(item))
        rest = _explained(" ".join(numbered or "*" if i == DAY_OF_MONTH else part for i, part in enumerate(parts)))
        joined = f"{rest} and" if numbered else rest.replace(" every day", "", 1)
        some_have_it = " (if it has one)" * any(int(day) > 28 for day in nearest)
        return f"{joined} on the weekday nearest to day {' and '.join(nearest)} of the month{some_have_it}"
    if parts[0] == "0":
        parts = parts[1:]
    return str(CronSim(" ".join(parts), ANY_DAY).explain())
