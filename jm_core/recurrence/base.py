"""What every kind of expression has in common."""

from datetime import UTC, datetime
from typing import Final, Protocol

from jm_core import limits

KINDS: Final = ("cron", "every", "rrule", "plain")
TEXT_CHARS_MAX: Final = 1_000
HORIZON_YEARS: Final = 50  # what does not come within it counts as "never again"; February 29 on a Monday takes 40


class Recurrence(Protocol):
    """An expression, read once. Frozen and picklable; equal when kind, text, zone and anchor are."""

    @property
    def kind(self) -> str:
        """One of ``KINDS``."""
        ...

    @property
    def text(self) -> str:
        """As it was given."""
        ...

    @property
    def zone(self) -> str:
        """IANA name."""
        ...

    def after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly after ``instant``, in UTC; None: never again.

        "Never" is what does not come within ``HORIZON_YEARS``: the work is bounded for every expression.

        Args:
            instant: aware, in any zone.

        Raises:
            ValueError: ``instant`` has no offset.
        """
        ...

    def describe(self) -> str:
        """In words; says OR where the days of the month and of the week are both set and either suffices."""
        ...


def in_utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"{instant} has no offset; occurrences are instants, pass an aware datetime")
    return instant.astimezone(UTC)


def within_range(instant: datetime | None) -> datetime | None:
    """None for an occurrence in a year that no job can be due in."""
    return instant if instant is not None and instant.year <= limits.RUN_AT_YEAR_MAX else None
