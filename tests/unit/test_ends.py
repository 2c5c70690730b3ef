from __future__ import annotations

import pytest
from msgspec import Raw

from jm_core import limits, wire
from jm_core.ends import End, Held, after_abandonment, after_loss, as_end, end_of, sort_events, storable
from jm_core.model import AttemptOutcome, JobStatus, ReturnReason
from jm_core.retry import Fixed

OUTCOMES = {
    AttemptOutcome.SUCCEEDED: JobStatus.SUCCEEDED,
    AttemptOutcome.FAILED: JobStatus.FAILED,
    AttemptOutcome.TIMED_OUT: JobStatus.FAILED,
    AttemptOutcome.CANCELLED: JobStatus.CANCELLED,
    AttemptOutcome.INTERRUPTED: JobStatus.ON_MASTER,
    AttemptOutcome.WORKER_LOST: JobStatus.ON_MASTER,
}


def finished(outcome=AttemptOutcome.SUCCEEDED, *, job="a", attempt=1, **fields):
    return wire.Finished(job, 1, attempt, outcome, 1.0, 2.0, **fields)


def batch(*events):
    return wire.EventBatch("b", 1, "w", list(events))


@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_every_outcome_has_its_status(outcome):
    assert end_of(finished(outcome)).status is OUTCOMES[outcome]


@pytest.mark.parametrize("outcome", [AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT])
def test_a_failure_that_is_to_be_tried_again_goes_back_to_the_master(outcome):
    end = end_of(finished(outcome, retry_in_s=5.0))
    assert (end.status, end.retry_in_s, end.outcome) == (JobStatus.ON_MASTER, 5.0, outcome)


@pytest.mark.parametrize(("asked_s", "kept_s"), [(-1.0, 0.0), (1e12, limits.DELAY_S_MAX)])
def test_a_wait_outside_the_bounds_is_brought_inside(asked_s, kept_s):
    assert end_of(finished(AttemptOutcome.FAILED, retry_in_s=asked_s)).retry_in_s == kept_s


def test_only_first_successes_are_the_common_case():
    events = sort_events([batch(finished(), finished(job="b", attempt=2)), batch(finished(job="c"))])
    assert [(event.id, place) for event, place in zip(events.successes, events.success_batches, strict=True)] == [
        ("a", 0),
        ("c", 1),
    ]
    assert [end.id for end in events.ends] == ["b"]


def test_what_precedes_an_end_of_the_same_dispatch_is_dropped():
    started = [wire.Started(job, 1, 1, 0.5) for job in "abc"]
    progress = [wire.Progress(job, 1, 0.6, fraction, "") for job in "abc" for fraction in (0.1, 0.2)]
    ends = [finished(job="a"), wire.Returned("b", 1, ReturnReason.INTERRUPTED, 2.0, 1, 0.5)]
    events = sort_events([batch(*started, *progress, *ends)])
    assert [event.id for event in events.started] == ["c"]
    assert [(event.id, event.fraction) for event in events.progress] == [("c", 0.2)]


def test_a_start_of_another_dispatch_stays():
    events = sort_events([batch(wire.Returned("a", 1, ReturnReason.DRAINED, 1.0), wire.Started("a", 2, 1, 2.0))])
    assert len(events.started) == 1


def test_what_was_never_started_costs_nothing_when_it_comes_back():
    end = end_of(wire.Returned("a", 1, ReturnReason.DRAINED, 1.0))
    assert (end.status, end.outcome, end.excused, end.attempt) == (JobStatus.ON_MASTER, "", 0, 0)


def test_an_interrupted_start_is_excused():
    end = end_of(wire.Returned("a", 1, ReturnReason.INTERRUPTED, 2.0, 3, 1.0))
    assert (end.outcome, end.excused, end.attempt, end.retry_in_s) == (AttemptOutcome.INTERRUPTED, 1, 3, None)


@pytest.mark.parametrize(("losses", "counted"), [(0, 1), (1, 0), (2, 0), (50, 0)])
def test_a_job_that_was_not_seen_to_start_loses_nothing_and_counts_one_loss_at_most(losses, counted):
    """From its first loss on its start is announced before its handler is called: unseen is then innocent."""
    end = after_loss(Held("a", "h", 1, 0, 4, losses, None), Fixed(1.0), now_s=9.0, u=0.5)
    assert (end.status, end.losses, end.outcome, end.retry_in_s) == (JobStatus.ON_MASTER, counted, "", None)


@pytest.mark.parametrize(
    ("attempt", "losses", "status", "retry_in_s"),
    [(1, 0, JobStatus.ON_MASTER, 0.0), (2, 1, JobStatus.ON_MASTER, 7.0), (4, 0, JobStatus.FAILED, None)],
)
def test_a_lost_start_counts_as_an_attempt_and_the_first_is_made_up_for_at_once(attempt, losses, status, retry_in_s):
    end = after_loss(Held("a", "h", 1, attempt, 4, losses, 5.0), Fixed(7.0), now_s=9.0, u=0.5)
    assert (end.status, end.outcome, end.error, end.losses) == (status, AttemptOutcome.WORKER_LOST, "worker lost", 1)
    assert end.retry_in_s == retry_in_s


def test_what_a_worker_left_that_went_in_order_costs_nothing_unless_it_was_seen_to_start():
    unseen = after_abandonment(Held("a", "h", 1, 0, 4, 0, None), Fixed(7.0), now_s=9.0, u=0.5)
    assert (unseen.status, unseen.losses, unseen.outcome) == (JobStatus.ON_MASTER, 0, "")
    seen = after_abandonment(Held("a", "h", 1, 1, 4, 0, 5.0), Fixed(7.0), now_s=9.0, u=0.5)
    assert (seen.status, seen.outcome) == (JobStatus.ON_MASTER, AttemptOutcome.WORKER_LOST)


def test_a_success_that_cannot_be_stored_is_a_failure_that_says_so():
    end = storable(as_end(finished(result=Raw(b'"x"'))), "invalid byte")
    assert (end.status, end.outcome, end.result) == (JobStatus.FAILED, AttemptOutcome.FAILED, None)
    assert end.error == "the result cannot be stored: invalid byte"


def test_a_failure_that_cannot_be_stored_keeps_its_text_as_far_as_it_can():
    end = storable(End("a", 1, 1, JobStatus.ON_MASTER, "failed", error="a\0b", retry_in_s=3.0), "invalid byte")
    assert (end.status, end.error, end.retry_in_s) == (JobStatus.ON_MASTER, "a\\u0000b", 3.0)


def test_a_start_that_is_seen_together_with_the_loss_counts():
    started = wire.Started("a", 2, 3, 10.5)
    lost = [wire.Returned(name, 2, ReturnReason.LOST, 12.0) for name in ("a", "b")]
    older = wire.Started("b", 1, 1, 9.0)
    found = sort_events([wire.EventBatch("bucket", 1, "w", [started, older, *lost])])
    assert [(event.attempt, event.started_at) for event in found.lost] == [(3, 10.5), (0, None)]
    assert found.started == [older]
