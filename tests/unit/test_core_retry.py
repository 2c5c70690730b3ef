import math
from collections import Counter
from random import Random

import msgspec
import pytest

from jm_core import limits
from jm_core.retry import (
    DEFAULT_BACKOFF,
    Backoff,
    Delays,
    Exponential,
    Fixed,
    GiveUp,
    RetryIn,
    after_failure,
    delay_s,
    problem_of,
)

NO_JITTER = 0.5


@pytest.mark.parametrize(("failures", "expected_s"), [(1, 10), (2, 20), (3, 40), (9, 2560), (10, 3600), (50, 3600)])
def test_the_default_backoff_doubles_up_to_its_cap(failures, expected_s):
    assert delay_s(DEFAULT_BACKOFF, failures, u=NO_JITTER) == expected_s


@pytest.mark.parametrize("failures", [47, 1_100, 100_000, 10**6])
@pytest.mark.parametrize("base_s", [1.0, 5.0])
@pytest.mark.parametrize("factor", [2.0, 16.0, 1e300])
def test_the_delay_is_the_cap_exactly_where_the_power_overflows(failures, base_s, factor):
    policy = Exponential(base_s=base_s, factor=factor, cap_s=3600.0, jitter=0.0)
    assert delay_s(policy, failures, u=0.9) == 3600.0


def test_factor_one_never_grows():
    assert {delay_s(Exponential(base_s=7.0, factor=1.0, jitter=0.0), n, u=0.1) for n in range(1, 100)} == {7.0}


@pytest.mark.parametrize(("u", "expected_s"), [(0.0, 16.0), (0.25, 18.0), (NO_JITTER, 20.0), (0.75, 22.0)])
def test_jitter_spreads_evenly_around_the_delay(u, expected_s):
    assert delay_s(DEFAULT_BACKOFF, 2, u=u) == pytest.approx(expected_s)


@pytest.mark.parametrize(("u", "expected_s"), [(0.0, 2880.0), (NO_JITTER, 3600.0), (0.75, 3240.0)])
def test_jitter_at_the_cap_is_mirrored_below_it(u, expected_s):
    assert delay_s(DEFAULT_BACKOFF, 30, u=u) == pytest.approx(expected_s)


@pytest.mark.parametrize("failures", [3, 5, 9, 10, 40])
def test_jobs_that_failed_together_do_not_come_back_together(failures):
    random = Random(failures)
    bins = Counter(int(delay_s(DEFAULT_BACKOFF, failures, u=random.random())) for _ in range(1_000))
    assert max(bins.values()) <= 100  # of 1,000 in any second (BR-171)


def test_the_first_two_retries_are_spread_over_their_jitter():
    # 8 to 12 s and 16 to 24 s: too short to keep every second below a tenth of the jobs, so the bound is the range.
    for failures, low, high in [(1, 8, 12), (2, 16, 24)]:
        random = Random(failures)
        bins = Counter(int(delay_s(DEFAULT_BACKOFF, failures, u=random.random())) for _ in range(1_000))
        assert set(bins) == set(range(low, high))
        assert max(bins.values()) < 1.25 * 1_000 / (high - low)


def test_listed_delays_go_in_order_and_the_last_one_repeats():
    policy = Delays((1.0, 5.0, 60.0))
    assert [delay_s(policy, n, u=0.0) for n in (1, 2, 3, 4, 10**6)] == [1.0, 5.0, 60.0, 60.0, 60.0]


def test_a_fixed_delay_is_always_the_same():
    assert {delay_s(Fixed(3.5), n, u=u) for n in (1, 2, 10**6) for u in (0.0, 0.99)} == {3.5}


def test_a_failure_with_attempts_left_is_retried():
    assert after_failure(Fixed(3.0), attempt=3, max_attempts=4, u=0.0) == RetryIn(3.0)


@pytest.mark.parametrize("attempt", [4, 5])
def test_the_last_attempt_gives_up_and_says_which_it_was(attempt):
    assert after_failure(Fixed(3.0), attempt=attempt, max_attempts=4, u=0.0) == GiveUp(f"attempt {attempt} of 4")


def test_a_million_attempts_are_allowed():
    assert after_failure(DEFAULT_BACKOFF, attempt=999_999, max_attempts=10**6, u=NO_JITTER) == RetryIn(3600.0)


def test_no_retry_wins_over_attempts_left_and_over_an_asked_delay():
    verdict = after_failure(Fixed(3.0), attempt=1, max_attempts=4, u=0.0, asked_s=1.0, may_retry=False)
    assert isinstance(verdict, GiveUp)


@pytest.mark.parametrize(("asked_s", "given_s"), [(0.0, 0.0), (77.0, 77.0), (-5.0, 0.0), (1e300, limits.DELAY_S_MAX)])
def test_an_asked_delay_replaces_the_policys_within_bounds(asked_s, given_s):
    assert after_failure(Fixed(3.0), attempt=1, max_attempts=4, u=0.0, asked_s=asked_s) == RetryIn(given_s)


def test_an_asked_delay_does_not_buy_attempts():
    assert isinstance(after_failure(Fixed(3.0), attempt=4, max_attempts=4, u=0.0, asked_s=1.0), GiveUp)


@pytest.mark.parametrize(
    "policy",
    [
        Fixed(-1.0),
        Fixed(math.nan),
        Fixed(math.inf),
        Delays(()),
        Delays((1.0, -1.0)),
        Delays((1.0, math.nan)),
        Exponential(base_s=0.0),
        Exponential(base_s=math.nan),
        Exponential(base_s=10.0, cap_s=5.0),
        Exponential(cap_s=math.inf),
        Exponential(factor=0.5),
        Exponential(factor=math.nan),
        Exponential(jitter=1.1),
        Exponential(jitter=-0.1),
        Exponential(jitter=math.nan),
    ],
    ids=str,
)
def test_an_unusable_policy_is_named_where_it_is_declared(policy):
    assert problem_of(policy)


@pytest.mark.parametrize(
    "policy", [Fixed(0.0), Delays((0.0,)), DEFAULT_BACKOFF, Exponential(factor=1.0, jitter=1.0)], ids=str
)
def test_a_usable_policy_has_no_problem(policy):
    assert problem_of(policy) is None


@pytest.mark.parametrize("policy", [Fixed(1.5), Delays((1.0, 2.0)), DEFAULT_BACKOFF], ids=str)
def test_a_policy_survives_the_wire(policy):
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Backoff) == policy
