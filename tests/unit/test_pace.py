"""Loops of one process look at common moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jm_core.pace import until_tick_s

INSTANTS = st.floats(0, 1e7)
PERIODS = st.sampled_from([0.05, 0.2, 0.5, 1.0, 1.25, 2.0, 5.0, 30.0])


@given(now_s=INSTANTS, period_s=PERIODS, phase_s=st.floats(0, 1))
def test_a_sleep_is_half_to_one_and_a_half_of_its_period(now_s: float, period_s: float, phase_s: float) -> None:
    wait_s = until_tick_s(now_s, period_s, phase_s=phase_s)
    assert period_s / 2 <= wait_s <= 1.5 * period_s


@given(now_s=INSTANTS, later_s=st.floats(0, 0.4), phase_s=st.floats(0, 1))
def test_two_loops_of_one_period_wake_together(now_s: float, later_s: float, phase_s: float) -> None:
    """Two that began at different moments of one period are together from their second look on."""
    first_s = now_s + until_tick_s(now_s, 1.0, phase_s=phase_s)
    second_s = now_s + later_s + until_tick_s(now_s + later_s, 1.0, phase_s=phase_s)
    apart_s = abs(first_s - second_s)
    assert min(apart_s, abs(apart_s - 1.0)) < 1e-6


@pytest.mark.parametrize(("period_s", "moments"), [(1.0, [101.25, 102.25, 103.25]), (2.0, [102.25, 104.25, 106.25])])
def test_longer_periods_meet_the_shorter_ones(period_s: float, moments: list[float]) -> None:
    now_s, seen = 100.3, []
    for _ in range(3):
        now_s += until_tick_s(now_s, period_s, phase_s=0.25)
        seen.append(now_s)
        now_s += 0.01  # what the look itself takes
    assert seen == pytest.approx(moments)
