"""When a schedule is due: cron, interval, RFC 5545 and plain-language expressions in a zone (docs/schedules.md)."""

from jm_core.errors import InvalidScheduleError
from jm_core.recurrence.base import KINDS, Recurrence
from jm_core.recurrence.parsing import check_fires, guess_kind, next_times, parse_recurrence
from jm_core.recurrence.zones import load_zone

__all__ = [
    "KINDS",
    "InvalidScheduleError",
    "Recurrence",
    "check_fires",
    "guess_kind",
    "load_zone",
    "next_times",
    "parse_recurrence",
]
