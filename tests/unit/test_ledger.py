from __future__ import annotations

import pytest

from jm_core import limits, wire
from jm_core.model import BucketKind, Priority
from jm_core.wire import BucketRecord, WorkerRecord
from jm_master.ledger import Ledger
from jm_master.registry_view import GONE_MAX, RegistryView

BURST = 10 + int(limits.RATE_PRIOR_PER_S * limits.CREDIT_HORIZON_S)  # of an unknown worker with ten slots


def view_of(*workers: str, handlers=("h",), slots=10, priorities=(Priority.MEDIUM,)):
    view = RegistryView()
    for worker in workers:
        record = WorkerRecord(worker, worker, "host", 1, 0.0, slots, ["default"], list(handlers))
        view.set_worker(worker, wire.encode(record))
        for priority in priorities:
            bucket = BucketRecord(f"{worker}-{priority}", worker, worker, "default", int(priority), 1, "active")
            view.set_bucket(bucket.bucket, wire.encode(bucket), 1)
    return view


def offered(ledger, count=100_000, *, now_s=0.0, later=False, handler="h", priority=Priority.MEDIUM):
    shares = ledger.offer("default", priority, handler, count, later=later, now_s=now_s)
    return {share.bucket: share.count for share in shares}


def test_a_worker_that_is_not_known_yet_gets_a_first_burst():
    assert offered(Ledger(view_of("w"))) == {"w-3": BURST}


def test_what_was_given_is_not_given_again_until_it_has_ended():
    ledger = Ledger(view_of("w"))
    ledger.give("w-3", BURST, now_s=0.0)
    assert offered(ledger) == {}
    ledger.settle("w-3", "w", BURST, run_s=0.001, now_s=0.2)
    assert offered(ledger, now_s=0.2)["w-3"] >= BURST


def test_quick_jobs_open_the_tap_to_its_limit():
    ledger = Ledger(view_of("w"))
    ledger.give("w-3", 1000, now_s=0.0)
    ledger.settle("w-3", "w", 1000, run_s=0.0001, now_s=0.1)
    assert offered(ledger, now_s=0.1) == {"w-3": limits.CREDIT_MAX}


def test_long_jobs_that_end_together_do_not_look_quick():
    ledger = Ledger(view_of("w"))
    ledger.give("w-3", 20, now_s=0.0)
    for n in range(5):
        ledger.settle("w-3", "w", 2, run_s=60.0, now_s=60.0 + n * 0.001)
    assert offered(ledger, now_s=60.01) == {}  # ten slots, ten jobs in them


def test_a_worker_that_falls_silent_is_given_less():
    ledger = Ledger(view_of("w"))
    ledger.give("w-3", 1000, now_s=0.0)
    ledger.settle("w-3", "w", 500, run_s=0.001, now_s=0.1)
    assert offered(ledger, now_s=0.1)["w-3"] > 4_000
    assert offered(ledger, now_s=30.0) == {}


def test_an_idle_worker_keeps_its_reputation():
    ledger = Ledger(view_of("w"))
    ledger.give("w-3", 1000, now_s=0.0)
    ledger.settle("w-3", "w", 1000, run_s=0.0001, now_s=0.1)
    assert offered(ledger, now_s=3600.0) == {"w-3": limits.CREDIT_MAX}


def test_a_flood_in_one_bucket_leaves_the_others_their_share():
    ledger = Ledger(view_of("w", slots=20, priorities=(Priority.LOW, Priority.CRITICAL)))
    ledger.give("w-2", limits.CREDIT_MAX, now_s=0.0)
    assert offered(ledger, priority=Priority.LOW) == {}
    assert offered(ledger, priority=Priority.CRITICAL) == {"w-5": 16}


def test_jobs_for_later_do_not_use_up_the_credit_of_now():
    ledger = Ledger(view_of("w"))
    assert offered(ledger, later=True) == {"w-3": limits.CREDIT_MAX}
    ledger.give("w-3", limits.CREDIT_MAX, second=1_000, now_s=0.0)
    assert offered(ledger, later=True) == {}
    assert offered(ledger) == {"w-3": BURST}


def test_jobs_for_later_count_once_they_are_due():
    ledger = Ledger(view_of("w"))
    ledger.give("w-3", BURST, second=1_000, now_s=0.0)
    ledger.mature(wall_s=900.0)
    assert offered(ledger) == {"w-3": BURST}
    ledger.mature(wall_s=999.0)
    assert offered(ledger) == {}


def test_two_workers_share_and_only_those_who_know_the_handler():
    view = view_of("a", "b")
    stranger = WorkerRecord("c", "c", "host", 1, 0.0, 10, ["default"], ["other"])
    view.set_worker("c", wire.encode(stranger))
    view.set_bucket("c-3", wire.encode(BucketRecord("c-3", "c", "c", "default", 3, 1, "active")), 1)
    ledger = Ledger(view)
    assert offered(ledger, 100) == {"a-3": 50, "b-3": 50}
    assert offered(ledger, 30, handler="nobody") == {"a-3": 10, "b-3": 10, "c-3": 10}


@pytest.mark.parametrize("status", ["completing", "lost", "ready_to_drain", "draining", "ready_to_delete"])
def test_only_active_buckets_are_offered(status):
    view = view_of("w")
    view.set_bucket("w-3", wire.encode(BucketRecord("w-3", "w", "w", "default", 3, 1, status)), 2)
    assert offered(Ledger(view)) == {}


def test_a_bucket_whose_worker_is_gone_or_another_process_is_not_offered():
    view = view_of("w")
    view.set_worker("w", wire.encode(WorkerRecord("w", "reborn", "host", 2, 0.0, 10, ["default"], ["h"])))
    assert offered(Ledger(view)) == {}
    view.set_worker("w", None)
    assert offered(Ledger(view)) == {}


def test_the_ledger_starts_from_what_postgres_says():
    ledger = Ledger(view_of("w"))
    ledger.seed([("w-3", 0, 1_000), ("w-3", 5_000, 7)])
    assert offered(ledger) == {"w-3": BURST - 1_000}
    assert ledger.outstanding() == {"w-3": 1_000}


def test_a_new_job_gets_the_last_free_place_although_others_wait_on_the_master():
    """Half of one place is one: else a small worker's urgent jobs would all go round by the master."""
    ledger = Ledger(view_of("w"))
    ledger.backlogs = {("default", Priority.MEDIUM)}
    ledger.give("w-3", BURST - 1, now_s=0.0)
    (share,) = ledger.offer("default", Priority.MEDIUM, "h", 5, later=False, now_s=0.0, newcomers=True)
    assert share.count == 1


def fallback_bucket(view, worker, *, serves):
    record = BucketRecord(
        f"{worker}-for-{serves}", worker, worker, "default", 5, 1, "active", kind=BucketKind.FALLBACK, serves=serves
    )
    view.set_bucket(record.bucket, wire.encode(record), 1)


def test_a_fallback_bucket_is_offered_what_its_worker_knows_at_the_priority_that_it_serves():
    view = view_of("w", priorities=(Priority.CRITICAL,))
    fallback_bucket(view, "w", serves=1)
    ledger = Ledger(view)
    assert offered(ledger, 5, priority=Priority.VERY_LOW) == {"w-for-1": 5}
    assert offered(ledger, 5, priority=Priority.VERY_LOW, handler="unknown") == {}
    assert offered(ledger, 5, priority=Priority.CRITICAL) == {"w-5": 5}


def test_where_a_proper_bucket_is_the_fallback_one_gets_nothing():
    view = view_of("w")
    fallback_bucket(view, "w", serves=3)
    assert offered(Ledger(view), 5) == {"w-3": 5}


def test_what_is_kept_of_workers_and_buckets_that_are_gone_does_not_grow():
    view = RegistryView()
    ledger = Ledger(view)
    for n in range(GONE_MAX + 100):
        key = f"w{n}"
        view.set_worker(key, wire.encode(WorkerRecord(key, key, "host", 1, 0.0, 10, ["default"], ["h"])))
        view.set_bucket(key, wire.encode(BucketRecord(key, key, key, "default", 3, 1, "active")), n + 1)
        ledger.give(key, 1, now_s=0.0)
        ledger.settle(key, key, 1, run_s=0.1, now_s=0.0)
        view.set_bucket(key, None, n + 2)
        view.set_worker(key, None)
    ledger.mature(wall_s=1e9)
    assert (len(ledger._rates), len(ledger._accounts)) == (0, 0)
    assert len(view.bucket_revisions) == GONE_MAX


def test_a_listing_that_overtook_the_watch_does_not_bring_a_removed_bucket_back():
    view = view_of("w")
    record = wire.encode(view.buckets["w-3"])
    view.set_bucket("w-3", None, 7)
    view.set_bucket("w-3", record, 1)
    assert "w-3" not in view.buckets
