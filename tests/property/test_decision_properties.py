"""Retry, placement and slots against what must hold for all numbers."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jm_core import limits
from jm_core.ids import BucketId, Lane, WorkerId
from jm_core.model import WEIGHTS, Priority
from jm_core.placement import BucketLoad, WorkerLoad, bucket_credit, smoothed_rate, split, worker_credit
from jm_core.retry import Delays, Exponential, Fixed, GiveUp, RetryIn, after_failure, delay_s, problem_of
from jm_core.slots import Turns, next_priority

uniform = st.floats(0, 1, exclude_max=True)
failures = st.one_of(st.integers(1, 100), st.integers(1, limits.ATTEMPTS_MAX))
delays = st.floats(0, limits.DELAY_S_MAX)
exponentials = st.builds(
    lambda cap_s, part, factor, jitter: Exponential(cap_s * part, factor, cap_s, jitter),
    st.floats(1e-3, limits.DELAY_S_MAX),
    st.floats(1e-6, 1),
    st.floats(1, 1e300),
    st.floats(0, 1),
).filter(lambda policy: problem_of(policy) is None)
policies = st.one_of(
    exponentials, st.builds(Fixed, delays), st.builds(lambda d: Delays(tuple(d)), st.lists(delays, min_size=1))
)


@given(exponentials, failures, uniform)
def test_a_delay_lies_between_nothing_and_its_cap(policy, count, u):
    assert 0 <= delay_s(policy, count, u=u) <= policy.cap_s


@given(exponentials, failures, uniform)
def test_jitter_moves_a_delay_by_its_part_at_most(policy, count, u):
    middle_s = delay_s(policy, count, u=0.5)
    assert abs(delay_s(policy, count, u=u) - middle_s) <= middle_s * (policy.jitter + 1e-12)


@given(exponentials, st.integers(1, 2_000))
def test_without_jitter_delays_never_shrink(policy, first):
    waits = [delay_s(policy, n, u=0.5) for n in range(first, first + 20)]
    assert all(earlier <= later for earlier, later in pairwise(waits))


@given(policies, st.integers(1, 10**6), st.integers(1, 10**6), uniform, st.none() | st.floats(allow_nan=False))
def test_a_failure_is_retried_exactly_while_attempts_are_left(policy, attempt, max_attempts, u, asked_s):
    verdict = after_failure(policy, attempt=attempt, max_attempts=max_attempts, u=u, asked_s=asked_s)
    assert isinstance(verdict, RetryIn if attempt < max_attempts else GiveUp)
    if isinstance(verdict, RetryIn):
        assert 0 <= verdict.delay_s <= limits.DELAY_S_MAX


buckets = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(-10, 5_000), max_size=30)


@given(st.integers(0, 20_000), buckets)
def test_shares_sum_up_to_what_there_is_to_share(count, credits):
    shares = split(count, credits)
    assert sum(share.count for share in shares) == min(count, sum(c for c in credits.values() if c > 0))
    assert all(0 < share.count <= credits[share.bucket] for share in shares)
    assert [share.bucket for share in shares] == sorted({share.bucket for share in shares})


@given(st.integers(0, 20_000), buckets)
def test_shares_are_proportional_to_the_credit_but_for_one_job(count, credits):
    total = sum(c for c in credits.values() if c > 0)
    for share in split(count, credits):
        assert abs(share.count - min(count, total) * credits[share.bucket] / total) <= 1


@given(st.integers(1, 1_000), st.integers(2, 30))
def test_equal_buckets_get_equal_shares_but_for_one_job(count, many):
    shares = split(count, {f"b{n:02}": 1_000 for n in range(many)})
    given_away = [share.count for share in shares] + [0] * (many - len(shares))
    assert max(given_away) - min(given_away) <= 1


loads = st.builds(WorkerLoad, st.just(WorkerId("w")), st.integers(1, 10_000), st.floats(0, 1e6), st.integers(0, 20_000))


@given(loads)
def test_credit_is_never_negative_and_never_lets_a_worker_hold_more_than_it_may(load):
    credit = worker_credit(load)
    assert 0 <= credit <= limits.CREDIT_MAX
    if credit:
        assert load.outstanding + credit <= load.slots + load.rate_per_s * limits.CREDIT_HORIZON_S


@given(loads, st.sampled_from(Priority), st.sets(st.sampled_from(Priority)), st.integers(0, 20_000))
def test_a_bucket_gets_its_workers_credit_or_the_rest_of_its_own_share(load, priority, others, outstanding):
    weights = sum(WEIGHTS[p] for p in others | {priority})
    bucket = BucketLoad(BucketId("b"), load.worker, Lane("l"), priority, outstanding, frozenset())
    own_share = max(load.slots * WEIGHTS[priority] // weights, 1)
    assert bucket_credit(bucket, load, weights) == max(worker_credit(load), own_share - outstanding, 0)
    assert bucket_credit(bucket, load, weights) <= max(limits.CREDIT_MAX, load.slots)


@given(st.floats(0, 1e6), st.integers(0, 10_000), st.floats(0, 1e6))
def test_a_rate_is_between_the_old_one_and_what_was_just_seen(old_per_s, finished, elapsed_s):
    now_per_s = finished / max(elapsed_s, 1e-3)
    rate = smoothed_rate(old_per_s, finished, elapsed_s)
    assert min(old_per_s, now_per_s) * (1 - 1e-9) <= rate <= max(old_per_s, now_per_s) * (1 + 1e-9)


@given(st.integers(1, 40), st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 5)), max_size=200), st.data())
def test_whoever_waits_gets_a_slot_in_bounded_time(slots, arrivals, data):
    """Random arrivals, random ends, one slot freed at a time; nobody who waits is passed over for ever."""
    waiting, running, turns = dict.fromkeys(Priority, 0), dict.fromkeys(Priority, 0), Turns()
    passed = dict.fromkeys(Priority, 0)
    for priority, count in arrivals:
        waiting[priority] += count
        if sum(running.values()) == slots:
            running[data.draw(st.sampled_from([p for p in Priority if running[p]]))] -= 1
        chosen = next_priority(waiting, running, turns)
        assert chosen is not None, "something waits, so something starts"
        assert waiting[chosen] > 0
        waiting[chosen] -= 1
        running[chosen] += 1
        for p in Priority:
            # One that has no slot at all is always below its share: its turn comes within two rounds.
            passed[p] = passed[p] + 1 if waiting[p] and not running[p] else 0
            assert passed[p] <= 2 * sum(WEIGHTS.values())


@given(st.sets(st.sampled_from(Priority), min_size=2), st.integers(1, 60))
def test_starts_approach_the_weights_of_those_who_wait(rivals, slots):
    waiting, running, turns = {p: int(p in rivals) for p in Priority}, dict.fromkeys(Priority, 0), Turns()
    order, starts = [], dict.fromkeys(Priority, 0)
    for _ in range(1_500):
        if len(order) == slots:
            running[order.pop(0)] -= 1  # all take the same time: first in, first out
        chosen = next_priority(waiting, running, turns)
        order.append(chosen)
        running[chosen] += 1
        starts[chosen] += 1
    weights = sum(WEIGHTS[p] for p in rivals)
    for p in rivals:
        assert math.isclose(starts[p], 1_500 * WEIGHTS[p] / weights, rel_tol=0.25, abs_tol=20)
