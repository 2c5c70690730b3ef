"""The way in: text and kind to a recurrence, and what is asked of every one of them."""

import re
from datetime import datetime

from jm_core.errors import InvalidScheduleError
from jm_core.lengths import BARE_SECONDS, DURATION
from jm_core.recurrence.base import KINDS, TEXT_CHARS_MAX, Recurrence
from jm_core.recurrence.cron import never_fires, parse_cron
from jm_core.recurrence.every import parse_every
from jm_core.recurrence.plain import parse_plain
from jm_core.recurrence.rrule import parse_rrule


def parse_recurrence(kind: str, text: str, zone: str, *, anchor: datetime | None = None) -> Recurrence:
    """Read an expression. Whether it fires at all is ``check_fires``'s question.

    Args:
        kind: one of ``KINDS``.
        zone: IANA name; an expression that names a zone itself (``plain``, ``rrule``) has the last word.
        anchor: where an interval or an rrule without DTSTART begins to count, aware; the beginning of 1970 otherwise.

    Raises:
        InvalidScheduleError: what is wrong, and where.
        ValueError: ``anchor`` has no offset.
    """
    if kind not in KINDS:
        raise InvalidScheduleError("kind", f"{kind!r} is unknown", expected=KINDS, remedy="choose one of them")
    _check_text(kind, text)
    match kind:
        case "cron":
            return parse_cron(text, zone)
        case "every":
            return parse_every(text, zone, anchor=anchor)
        case "rrule":
            return parse_rrule(text, zone, anchor=anchor)
    return parse_plain(text, zone, anchor=anchor)


def _check_text(kind: str, text: str) -> None:
    if not text.strip():
        raise InvalidScheduleError(kind, "the expression is empty", remedy="0 9 * * MON-FRI is one, as cron")
    if len(text) > TEXT_CHARS_MAX:
        problem = f"{len(text)} characters, the limit is {TEXT_CHARS_MAX}"
        raise InvalidScheduleError(kind, problem, remedy="make two schedules of it")
    for position, character in enumerate(text, start=1):
        if not (character.isascii() and (character.isprintable() or character in "\t\r\n")):
            problem = f"{character!a} is no character of an expression"
            raise InvalidScheduleError(kind, problem, position, remedy="write plain ASCII")


def guess_kind(text: str) -> str:
    """Which kind of expression it looks like; what looks like none is taken for cron."""
    shape = text.strip().upper()
    if re.match(r"EVERY\b", shape):
        return "plain"
    if "FREQ=" in shape or shape.startswith(("RRULE", "DTSTART")):
        return "rrule"
    if BARE_SECONDS.fullmatch(shape) or DURATION.match(shape):
        return "every"
    return "cron"


def check_fires(recurrence: Recurrence, after: datetime) -> None:
    """Refuse what never fires again.

    Args:
        after: aware.

    Raises:
        InvalidScheduleError.
    """
    if recurrence.after(after) is None:
        raise never_fires(recurrence.kind, recurrence.text, f"there is no occurrence after {after.isoformat()}")


def next_times(recurrence: Recurrence, after: datetime, count: int) -> list[datetime]:
    """The next ``count`` occurrences, in UTC; fewer when there are no more."""
    found: list[datetime] = []
    while len(found) < count:
        following = recurrence.after(found[-1] if found else after)
        if following is None:
            break
        found.append(following)
    return found
