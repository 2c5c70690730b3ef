"""The search for the newest instants, against listing all of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from jm_core.planning import just_before, newest

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


class Every:
    def __init__(self, seconds: float) -> None:
        self._step = timedelta(seconds=seconds)

    def after(self, instant: datetime) -> datetime:
        return T0 + self._step * ((instant - T0) // self._step + 1)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


@given(
    step_s=st.integers(1, 4_000), first_s=st.integers(-100, 50_000), long_s=st.integers(0, 90_000), n=st.integers(0, 40)
)
def test_the_newest_instants_are_the_tail_of_all(step_s: int, first_s: int, long_s: int, n: int) -> None:
    every, first = Every(step_s), T0 + seconds(first_s)
    until = first + seconds(long_s)
    everything: list[datetime] = []
    instant = every.after(just_before(first))
    while instant <= until:
        everything.append(instant)
        instant = every.after(instant)
    assert newest(every, first, until, n) == everything[max(len(everything) - n, 0) :]
