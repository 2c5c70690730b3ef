"""The way in: text and kind to a recurrence, and what is asked of every one of them."""

from datetime import datetime

from jm_core.errors import InvalidScheduleError
from jm_core.recurrence.base import KINDS, TEXT_CHARS_MAX, Recurrence
from jm_core.recurrence.cron import never_fires, parse_cron


def parse_recurrence(kind: str, text: str, zone: str, *, anchor: datetime | None = None) -> Recurrence:
    """Read an expression.

    Args:
        kind: one of ``KINDS``.
        zone: IANA name; an expression that names a zone itself (``plain``, ``rrule``) has the last word.
        anchor: where an interval or an rrule without DTSTART begins to count, aware; the Unix epoch otherwise.

    Raises:
        InvalidScheduleError: what is wrong, and where.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidScheduleError(
            kind, f"{len(text)} characters, the limit is {TEXT_CHARS_MAX}", remedy="make two schedules of it"
        )
    if not text.strip():
        raise InvalidScheduleError(kind, "the expression is empty", remedy="0 9 * * MON-FRI for example")
    match kind:
        case "cron":
            return parse_cron(text, zone)
        case _:
            del anchor
            raise InvalidScheduleError("kind", f"{kind!r} is unknown", expected=KINDS, remedy="choose one of them")


def guess_kind(text: str) -> str:
    """Which kind of expression it looks like; what looks like none is taken for cron."""
    del text
    return "cron"


def check_fires(recurrence: Recurrence, after: datetime) -> None:
    """Refuse what never fires again.

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
