import pytest
from msgspec import structs

from jm_core import limits
from jm_core.ids import BucketId, Lane, WorkerId
from jm_core.model import WEIGHTS, Priority
from jm_core.placement import (
    RATE_HALF_LIFE_S,
    BucketLoad,
    Share,
    WorkerLoad,
    bucket_credit,
    credit_wait_s,
    eligible,
    shared_out,
    smoothed_rate,
    split,
    worker_credit,
)

ALL_WEIGHTS = sum(WEIGHTS.values())


def worker(*, slots=100, rate_per_s=0.0, outstanding=0):
    return WorkerLoad(WorkerId("w"), slots, rate_per_s, outstanding)


def bucket(name="b", *, lane="default", priority=Priority.MEDIUM, outstanding=0, handlers=("mail",)):
    return BucketLoad(BucketId(name), WorkerId("w"), Lane(lane), priority, outstanding, frozenset(handlers))


def counts(shares):
    return {share.bucket: share.count for share in shares}


@pytest.mark.parametrize(
    ("load", "credit"),
    [
        (worker(), 100),
        (worker(outstanding=40), 60),
        (worker(outstanding=100), 0),
        (worker(outstanding=500), 0),
        (worker(rate_per_s=50.0), 200),
        (worker(rate_per_s=1e9), limits.CREDIT_MAX),
        (worker(rate_per_s=1e9, outstanding=4_000), limits.CREDIT_MAX - 4_000),
        (worker(slots=1), 1),
    ],
    ids=str,
)
def test_a_worker_is_given_its_free_slots_and_two_seconds_of_its_rate(load, credit):
    assert worker_credit(load) == credit


def test_an_idle_bucket_may_use_all_of_its_workers_credit():
    assert bucket_credit(bucket(priority=Priority.VERY_LOW), worker(), ALL_WEIGHTS) == 100


def test_a_flood_in_a_low_bucket_leaves_the_high_one_its_share():
    full = worker(outstanding=100)
    assert bucket_credit(bucket(priority=Priority.VERY_LOW, outstanding=100), full, ALL_WEIGHTS) == 0
    assert bucket_credit(bucket(priority=Priority.CRITICAL), full, ALL_WEIGHTS) == 100 * 8 // 19


@pytest.mark.parametrize("slots", [1, 4, 18, 19, 100])
@pytest.mark.parametrize("priority", Priority)
def test_every_bucket_keeps_room_for_one_job_however_small_the_worker(slots, priority):
    flooded = worker(slots=slots, outstanding=10_000)
    assert bucket_credit(bucket(priority=priority), flooded, ALL_WEIGHTS) >= 1
    assert bucket_credit(bucket(priority=priority, outstanding=slots), flooded, ALL_WEIGHTS) == 0


def test_only_buckets_of_the_lane_and_priority_are_eligible():
    fitting = bucket("a")
    others = [bucket("b", lane="bulk"), bucket("c", priority=Priority.HIGH)]
    assert eligible([fitting, *others], Lane("default"), Priority.MEDIUM, "mail") == [fitting]


def test_workers_that_know_the_handler_come_first():
    knows, does_not = bucket("a", handlers=("mail", "report")), bucket("b", handlers=("mail",))
    assert eligible([does_not, knows], Lane("default"), Priority.MEDIUM, "report") == [knows]


def test_a_handler_that_nobody_knows_goes_to_anybody_to_be_quarantined_in_sight():
    buckets = [bucket("a"), bucket("b")]
    assert eligible(buckets, Lane("default"), Priority.MEDIUM, "typo") == buckets


@pytest.mark.parametrize(
    ("count", "credits", "expected"),
    [
        (0, {"a": 10}, {}),
        (5, {}, {}),
        (5, {"a": 0, "b": -3}, {}),
        (5, {"a": 10}, {"a": 5}),
        (50, {"a": 10, "b": 5}, {"a": 10, "b": 5}),
        (10, {"a": 10, "b": 10}, {"a": 5, "b": 5}),
        (9, {"a": 20, "b": 10}, {"a": 6, "b": 3}),
        (1, {"a": 1, "b": 100}, {"b": 1}),
        (3, {"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_jobs_are_shared_in_proportion_to_the_credit(count, credits, expected):
    assert counts(split(count, credits)) == expected


def test_a_handful_of_jobs_spreads_over_idle_workers_instead_of_piling_on_one():
    credits = {f"b{n:02}": 100 for n in range(20)}
    assert counts(split(19, credits)) == {f"b{n:02}": 1 for n in range(19)}


def test_shares_come_in_bucket_order():
    assert split(4, {"b": 2, "a": 2}) == [Share(BucketId("a"), 2), Share(BucketId("b"), 2)]


@pytest.mark.parametrize(
    ("short_of", "age_s", "waits"),
    [(0, 0.0, False), (-1, 0.0, False), (5, 0.0, True), (5, 2 * limits.CREDIT_WAIT_S, True), (5, 10.0, False)],
)
def test_a_batch_waits_for_credit_only_while_something_moves(short_of, age_s, waits):
    assert credit_wait_s(short_of=short_of, progress_age_s=age_s) == (limits.CREDIT_WAIT_S if waits else 0.0)


@pytest.mark.parametrize(("rate_per_s", "waits"), [(0.0, False), (1.0, False), (1_999.0, False), (2_000.0, True)])
def test_a_batch_does_not_wait_for_what_cannot_come_in_time(rate_per_s, waits):
    short_of = int(2_000 * limits.CREDIT_WAIT_S)
    wait_s = credit_wait_s(short_of=short_of, progress_age_s=0.0, rate_per_s=rate_per_s)
    assert wait_s == (limits.CREDIT_WAIT_S if waits else 0.0)


def test_a_rate_rises_at_once():
    assert smoothed_rate(10.0, finished=50, elapsed_s=0.1) == 500.0


def test_a_rate_decays_by_its_half_life():
    assert smoothed_rate(1_000.0, finished=0, elapsed_s=RATE_HALF_LIFE_S) == 500.0


def test_a_rate_over_no_time_at_all_is_no_division_by_zero():
    assert smoothed_rate(0.0, finished=1, elapsed_s=0.0) == 1_000.0


def test_a_fallback_bucket_takes_only_what_its_worker_knows():
    standing_in = structs.replace(bucket("a"), is_fallback=True)
    assert eligible([standing_in], Lane("default"), Priority.MEDIUM, "mail") == [standing_in]
    assert eligible([standing_in], Lane("default"), Priority.MEDIUM, "typo") == []
    assert eligible([standing_in, bucket("b")], Lane("default"), Priority.MEDIUM, "typo") == [bucket("b")]


def test_buckets_of_one_worker_share_what_it_may_be_given_and_others_keep_theirs():
    names = {name: BucketId(name) for name in "abcd"}
    workers = {BucketId("a"): WorkerId("v"), **{BucketId(name): WorkerId("w") for name in "bcd"}}
    credits = dict.fromkeys(names.values(), 10)
    shared = shared_out(credits, workers)
    assert shared["a"] == 10
    assert sorted(shared[name] for name in "bcd") == [3, 3, 4]
    assert shared_out({BucketId("a"): 7, BucketId("b"): 5}, workers) == {"a": 7, "b": 5}
    assert shared_out({}, {}) == {}
