"""What the benchmarks compute: percentiles, the plan of a steady load, use of slots, shares, the command to repeat."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import report
from benchmarks.enqueue import shares
from benchmarks.openloop import TICK_S, bursts
from benchmarks.report import command_of, percentile
from benchmarks.slot_usage import usage


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)], ids=["least", "median", "p99", "most"]
)
def test_a_percentile_is_the_value_that_the_yardstick_takes(share: float, expected: float):
    values = [float(n) for n in range(1, 101)]
    assert percentile(values[::-1], share) == expected == sorted(values)[min(99, int(100 * share))]


@pytest.mark.parametrize("per_s", [3, 199.5, 200, 7_333.3, 20_000], ids=str)
def test_a_steady_load_submits_its_rate_over_any_stretch(per_s: float):
    sent = 0
    for offset_s, count in bursts(per_s, 2.0):
        assert count >= 1
        sent += count
        assert abs(sent - per_s * (offset_s + TICK_S)) < 1 + 1e-6
    assert sent == int(per_s * 2 + 1e-6)


def test_the_instants_of_a_steady_load_lie_on_its_ticks_and_within_its_length():
    offsets = [offset_s for offset_s, _ in bursts(1_000, 1.0)]
    assert offsets == pytest.approx([number * TICK_S for number in range(200)])


def test_a_load_slower_than_its_ticks_leaves_most_of_them_empty():
    assert [count for _, count in bursts(10, 1.0)] == [1] * 10


def test_slots_that_are_always_in_use_are_all_used():
    spans = [(start, start + 1.0) for start in range(10) for _ in range(2)]
    assert usage(spans, slots=2) == pytest.approx(1.0)


def test_a_slot_that_idles_while_jobs_wait_is_seen():
    spans = [(0.0, 1.0), (0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]  # the second slot does nothing from 1 to 2
    assert usage(spans, slots=2) == pytest.approx(0.75)


def test_after_the_last_start_slots_may_idle():
    assert usage([(0.0, 1.0), (1.0, 100.0)], slots=1) == pytest.approx(1.0)


def test_jobs_that_all_start_at_once_wait_for_no_slot():
    assert usage([(5.0, 6.0), (5.0, 9.0)], slots=8) == 1.0


@pytest.mark.parametrize("callers", [1, 3, 7, 100], ids=str)
def test_shares_are_even_and_lose_nothing(callers: int):
    dealt = shares(50, callers)
    assert sum(dealt) == 50
    assert max(dealt) - min(dealt) <= 1


def test_the_command_says_what_was_measured_and_not_what_became_of_the_result():
    given = ["--json", "--rounds", "2", "--save", "--check"]
    assert command_of("benchmarks.lifecycle", given) == "python -m benchmarks.lifecycle --rounds 2"


@pytest.mark.parametrize("option", ["--jobs", "--rounds", "--nats-nodes"])
def test_a_benchmark_of_nothing_is_refused_before_anything_is_started(option, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lifecycle", option, "0"])
    parser = argparse.ArgumentParser()
    parser.add_argument(option, type=int, default=3)
    with pytest.raises(SystemExit) as refused:
        report.arguments(parser)
    assert refused.value.code == 2
    assert f"{option} 0: must be 1 or more" in capsys.readouterr().err
