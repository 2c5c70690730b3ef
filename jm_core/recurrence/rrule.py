"""RFC 5545 rules as text: what is read, what is refused by name, and the rule in a zone."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from jm_core.errors import InvalidScheduleError
from jm_core.recurrence.base import in_utc
from jm_core.recurrence.rule import FREQUENCIES, STEPPING, Rule
from jm_core.recurrence.zones import load_zone, next_instant

COUNT_MAX: Final = 1_000  # each is looked at once, when the rule is read
INTERVAL_MAX: Final = 100_000
TIMES_A_DAY_MAX: Final = 1_440
WEEKDAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
DAY: Final = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
MOMENT: Final = re.compile(r"[0-9]{8}(T[0-9]{6}Z?)?")
EXAMPLE: Final = "FREQ=WEEKLY;BYDAY=MO,WE;BYHOUR=9;BYMINUTE=0;BYSECOND=0 for example"


@dataclass(frozen=True, slots=True)
class _Numbers:
    attribute: str
    low: int
    high: int
    from_the_end: bool = False


NUMBERS: Final[Mapping[str, _Numbers]] = MappingProxyType(
    {
        "BYSECOND": _Numbers("by_second", 0, 59),
        "BYMINUTE": _Numbers("by_minute", 0, 59),
        "BYHOUR": _Numbers("by_hour", 0, 23),
        "BYMONTHDAY": _Numbers("by_month_day", 1, 31, from_the_end=True),
        "BYYEARDAY": _Numbers("by_year_day", 1, 366, from_the_end=True),
        "BYWEEKNO": _Numbers("by_week", 1, 53, from_the_end=True),
        "BYMONTH": _Numbers("by_month", 1, 12),
        "BYSETPOS": _Numbers("by_position", 1, 366, from_the_end=True),
    }
)
PARTS: Final = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST", *NUMBERS)
# What the RFC forbids or a schedule has no use for; dateutil takes it and makes something of its own of it.
FORBIDDEN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "BYMONTHDAY": ("WEEKLY",),
        "BYYEARDAY": ("DAILY", "WEEKLY", "MONTHLY"),
        "BYWEEKNO": FREQUENCIES[1:],
        "BYSETPOS": FREQUENCIES[4:],
    }
)


@dataclass(frozen=True, slots=True)
class RRule:
    text: str
    zone: str
    rule: Rule = field(repr=False)
    until: datetime | None = field(default=None, repr=False)  # of UNTIL in UTC
    kind: str = "rrule"

    def after(self, instant: datetime) -> datetime | None:
        stepping = self.rule.frequency in STEPPING
        found = next_instant(self.rule.after, load_zone(self.zone), instant, stepping=stepping)
        return None if found is None or (self.until and found > self.until) else found

    def describe(self) -> str:
        return f"{' '.join(self.text.split())}, counted from {self.rule.start.isoformat(' ')}, {self.zone}"


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    value: str
    position: int  # of the value


def parse_rrule(text: str, zone: str, *, anchor: datetime | None) -> RRule:
    """``FREQ=…`` with an optional ``RRULE:`` before it and an optional ``DTSTART`` of its own, by white space apart.

    Raises:
        InvalidScheduleError.
    """
    rules: list[tuple[str, int]] = []
    start: tuple[datetime, str] | None = None
    for word in re.finditer(r"\S+", text.upper()):
        name = re.split("[:;=]", word.group(), maxsplit=1)[0]
        if name == "DTSTART":
            start = _start(text[word.start() : word.end()], word.start() + 1, zone)
        elif name in ("RDATE", "EXDATE", "EXRULE"):
            problem = f"{name} is not supported"
            raise InvalidScheduleError("rrule", problem, word.start() + 1, remedy="make another schedule of it")
        else:
            skipped = len("RRULE:") if name == "RRULE" else 0
            rules.append((word.group()[skipped:], word.start() + skipped + 1))
    if len(rules) != 1:
        raise InvalidScheduleError(
            "rrule", f"{len(rules)} rules", rules[1][1] if rules else None, ("one FREQ=…",), remedy=EXAMPLE
        )
    begin, zone = start or (wall_of(anchor, zone), zone)
    return _assembled(text, zone, begin, _split(*rules[0]))


def _split(text: str, position: int) -> dict[str, _Part]:
    parts: dict[str, _Part] = {}
    for item in text.rstrip(";").split(";"):
        name, equals, value = item.partition("=")
        if not equals or name not in PARTS:
            raise InvalidScheduleError("rrule", f"{item!r} is no part of a rule", position, PARTS, remedy=EXAMPLE)
        if name in parts:
            raise InvalidScheduleError("rrule", f"{name} comes twice", position, remedy="join the values with commas")
        parts[name] = _Part(name, value, position + len(name) + 1)
        position += len(item) + 1
    return parts


def _assembled(text: str, zone: str, begin: datetime, parts: dict[str, _Part]) -> RRule:
    frequency = _frequency(parts)
    for name, frequencies in FORBIDDEN.items():
        if name in parts and frequency in frequencies:
            problem = f"{name} has no meaning with FREQ={frequency}"
            raise InvalidScheduleError("rrule", problem, parts[name].position, remedy="take it out, or change FREQ")
    if "COUNT" in parts and "UNTIL" in parts:
        raise InvalidScheduleError("rrule", "COUNT and UNTIL together", parts["UNTIL"].position, remedy="keep one")
    if "BYSETPOS" in parts and not any(name.startswith("BY") and name != "BYSETPOS" for name in parts):
        problem = "BYSETPOS picks from what other BY parts name, and there is none"
        raise InvalidScheduleError("rrule", problem, parts["BYSETPOS"].position, remedy="add BYDAY for example")
    rule = Rule(
        frequency,
        begin,
        interval=_number(parts.get("INTERVAL"), 1, INTERVAL_MAX) or 1,
        by_day=_days(parts.get("BYDAY"), frequency, with_weeks="BYWEEKNO" in parts),
        week_start=_week_start(parts.get("WKST")),
        **{kind.attribute: _numbers(parts[name], kind) for name, kind in NUMBERS.items() if name in parts},  # type: ignore[arg-type]
    )
    times = max(1, len(rule.by_hour)) * max(1, len(rule.by_minute)) * max(1, len(rule.by_second))
    if frequency not in STEPPING and times > TIMES_A_DAY_MAX:
        problem = f"{times} times a day, the limit is {TIMES_A_DAY_MAX} with FREQ={frequency}"
        raise InvalidScheduleError("rrule", problem, remedy="use FREQ=MINUTELY or SECONDLY, with the days as BY parts")
    number = _number(parts.get("COUNT"), 1, COUNT_MAX)
    if number:
        return RRule(text, zone, rule.limited_to(number))
    wall, instant = _until(parts.get("UNTIL"))
    return RRule(text, zone, replace(rule, until=wall), instant)


def _frequency(parts: dict[str, _Part]) -> str:
    if "FREQ" not in parts:
        raise InvalidScheduleError("rrule", "there is no FREQ", None, ("FREQ=DAILY",), remedy=EXAMPLE)
    part = parts["FREQ"]
    if part.value not in FREQUENCIES:
        raise InvalidScheduleError("rrule", f"FREQ={part.value}", part.position, FREQUENCIES, remedy="choose one")
    return part.value


def _number(part: _Part | None, low: int, high: int) -> int | None:
    if part is None:
        return None
    if not re.fullmatch("[0-9]{1,9}", part.value) or not low <= int(part.value) <= high:
        problem = f"{part.name}={part.value}"
        raise InvalidScheduleError("rrule", problem, part.position, (f"{low} to {high}",), remedy="correct the number")
    return int(part.value)


def _numbers(part: _Part, kind: _Numbers) -> tuple[int, ...]:
    found = set()
    position = part.position
    for item in part.value.split(","):
        good = re.fullmatch("[+-]?[0-9]{1,3}", item) is not None
        number = int(item) if good else 0
        if not good or not kind.low <= (abs(number) if kind.from_the_end else number) <= kind.high:
            expected = [f"{kind.low} to {kind.high}"] + [f"-{kind.high} to -{kind.low}"] * kind.from_the_end
            problem = f"{part.name}: {item!r} is none of its numbers"
            raise InvalidScheduleError("rrule", problem, position, tuple(expected), remedy="correct the number")
        found.add(number)
        position += len(item) + 1
    return tuple(sorted(found))


def _days(part: _Part | None, frequency: str, *, with_weeks: bool) -> tuple[tuple[int, int], ...]:
    if part is None:
        return ()
    days = set()
    position = part.position
    for item in part.value.split(","):
        found = DAY.fullmatch(item)
        nth = int(found[1] or 0) if found else 0
        if found is None or (found[1] and not 1 <= abs(nth) <= (5 if frequency == "MONTHLY" else 53)):
            problem = f"BYDAY: {item!r} is no day"
            raise InvalidScheduleError("rrule", problem, position, (*WEEKDAYS, "1MO", "-1FR"), remedy="correct it")
        if nth and (frequency not in FREQUENCIES[:2] or with_weeks):
            problem = f"BYDAY: the number of {item!r} means something only in a month or a year"
            raise InvalidScheduleError("rrule", problem, position, WEEKDAYS, remedy="take the number out")
        days.add((nth, WEEKDAYS.index(found[2])))
        position += len(item) + 1
    return tuple(sorted(days))


def _week_start(part: _Part | None) -> int:
    if part is None:
        return 0
    if part.value not in WEEKDAYS:
        raise InvalidScheduleError("rrule", f"WKST={part.value}", part.position, WEEKDAYS, remedy="choose one")
    return WEEKDAYS.index(part.value)


def _until(part: _Part | None) -> tuple[datetime | None, datetime | None]:
    """(on the wall clock, as an instant): at most one of them. A date alone means that whole day."""
    if part is None:
        return None, None
    moment = _moment(part.value, part.position, "UNTIL")
    if part.value.endswith("Z"):
        return None, moment.replace(tzinfo=UTC)
    return moment if "T" in part.value else moment + timedelta(days=1, seconds=-1), None


def _start(word: str, position: int, zone: str) -> tuple[datetime, str]:
    """The wall time and the zone of ``DTSTART:…``, ``DTSTART;TZID=Zone:…`` or ``DTSTART;VALUE=DATE:…``."""
    head, colon, value = word.partition(":")
    name, _, parameter = head.partition(";")
    if parameter.upper().startswith("TZID="):
        zone = parameter[len("TZID=") :]
    elif not colon or (parameter and not parameter.upper().startswith("VALUE=DATE")):
        expected = ("DTSTART:20260131T090000", "DTSTART;TZID=Europe/Berlin:20260131T090000")
        raise InvalidScheduleError(
            "rrule", f"{word!r} is no DTSTART", position + len(name), expected, remedy="correct it"
        )
    load_zone(zone)
    moment = _moment(value.upper(), position + len(head) + 1, "DTSTART")
    if value.upper().endswith("Z"):
        return wall_of(moment.replace(tzinfo=UTC), zone), zone
    return moment, zone


def _moment(text: str, position: int, name: str) -> datetime:
    if MOMENT.fullmatch(text):
        try:
            pattern = "%Y%m%dT%H%M%S" if "T" in text else "%Y%m%d"
            return datetime.strptime(text.rstrip("Z"), pattern)  # noqa: DTZ007 - a wall time
        except ValueError:  # the 31st of February
            pass
    expected = ("20260131", "20260131T090000", "20260131T080000Z")
    problem = f"{name}: {text!r} is no date and time"
    raise InvalidScheduleError("rrule", problem, position, expected, remedy="correct it")


def wall_of(anchor: datetime | None, zone: str) -> datetime:
    there = load_zone(zone)
    if anchor is None:
        return datetime(1970, 1, 1)  # noqa: DTZ001 - on the zone's own wall clock
    return in_utc(anchor).astimezone(there).replace(tzinfo=None, microsecond=0, fold=0)
