"""Times as people type them. One rule everywhere: an instant has an offset, or it is refused (BR-070)."""

from datetime import datetime

from jm_core.errors import InvalidJobError, InvalidScheduleError
from jm_core.lengths import length_s


def parse_delay(text: str, option: str) -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``1h30m`` or ``1d``, as in a schedule's interval.

    Raises:
        InvalidJobError.
    """
    try:
        return float(length_s(text))
    except InvalidScheduleError:
        remedy = "write 90, 90s, 10m, 1h30m or 1d"
        raise InvalidJobError(option, f"{text[:40]!r} is no delay", remedy=remedy) from None


def parse_instant(text: str, option: str = "--at") -> datetime:
    """An RFC 3339 time with an offset.

    Raises:
        InvalidJobError: unreadable, or without an offset; then with what it would be in local time.
    """
    try:
        at = datetime.fromisoformat(text.strip().upper())
    except ValueError:
        remedy = "write it like 2030-01-01T09:00:00+01:00, or with Z for UTC"
        raise InvalidJobError(option, f"{text[:40]!r} is no time", remedy=remedy) from None
    if at.tzinfo is None:
        raise InvalidJobError(option, f"{text!r} has no UTC offset", remedy=f"write {_with_offset(at)}")
    return at


def _with_offset(at: datetime) -> str:
    utc = f"{at.isoformat()}Z for UTC"
    try:
        local = at.astimezone().isoformat()
    except (OverflowError, ValueError, OSError):  # the years 1 and 9999
        return utc
    return f"{local} if you mean this machine's time, or {utc}"
