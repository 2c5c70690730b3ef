from __future__ import annotations

import pytest

from jm_core import reconcile
from jm_core.ends import End, Held
from jm_core.model import AttemptOutcome, JobStatus
from jm_core.reconcile import GONE, Out, StreamLook


def out(name="a", *, dispatch=1, due_for_s=60.0, unsent=False, started_at=None, attempt=0):
    return Out(Held(name, "h", dispatch, attempt, 4, 0, started_at), due_for_s, is_unsent=unsent)


def suspected(rows, seen_s, *, now_s=100.0, patience_s=30.0):
    return [row.held.id for row in reconcile.suspects(rows, seen_s, now_s=now_s, patience_s=patience_s)]


def test_a_row_is_remembered_from_its_first_look_and_forgotten_when_it_moves_on():
    first = reconcile.first_seen({}, [out("a"), out("b")], now_s=1.0)
    assert reconcile.first_seen(first, [out("b"), out("c")], now_s=9.0) == {("b", 1): 1.0, ("c", 1): 9.0}


def test_a_new_dispatch_is_a_new_row():
    first = reconcile.first_seen({}, [out("a", dispatch=1)], now_s=1.0)
    assert reconcile.first_seen(first, [out("a", dispatch=2)], now_s=9.0) == {("a", 2): 9.0}


@pytest.mark.parametrize(("seen_s", "expected"), [(70.0, ["a"]), (70.1, []), (100.0, [])])
def test_a_suspect_was_seen_a_whole_patience_ago(seen_s, expected):
    assert suspected([out("a")], {("a", 1): seen_s}) == expected


def test_one_look_is_never_enough():
    assert suspected([out("a")], {("a", 1): 100.0}, patience_s=0.0) == []


@pytest.mark.parametrize("row", [out("a", unsent=True), out("a", due_for_s=-1.0)], ids=["unsent", "due later"])
def test_what_is_still_to_be_sent_or_due_is_no_suspect(row):
    assert suspected([row], {("a", 1): 0.0}) == []


def test_in_an_empty_new_stream_everything_that_was_sent_is_a_suspect_due_or_not():
    rows = [out("now"), out("later", due_for_s=-500.0), out("unsent", unsent=True)]
    assert [row.held.id for row in reconcile.suspects_after_loss(rows, GONE)] == ["now", "later"]


def test_a_new_stream_with_messages_in_it_makes_nothing_suspect():
    assert reconcile.suspects_after_loss([out()], StreamLook(1, 0)) == []


@pytest.mark.parametrize(("look", "allowed"), [(GONE, True), (StreamLook(9, 0), True), (StreamLook(9, 1), False)])
def test_nothing_is_decided_while_messages_wait_to_be_delivered(look, allowed):
    assert reconcile.may_decide(look) is allowed


def test_what_the_worker_holds_is_left_alone_and_the_rest_goes_back_at_no_cost():
    ends = reconcile.hand_back([out("held"), out("waiting")], {"held"}, now_s=5.0)
    assert ends == [End("waiting", 1, 0, JobStatus.ON_MASTER)]


def test_a_started_one_gets_an_attempt_that_is_excused():
    (end,) = reconcile.hand_back([out("a", started_at=2.0, attempt=3, dispatch=7)], set(), now_s=5.0)
    assert (end.status, end.outcome, end.excused, end.losses) == (JobStatus.ON_MASTER, AttemptOutcome.INTERRUPTED, 1, 0)
    assert (end.dispatch, end.attempt, end.started_at, end.finished_at) == (7, 3, 2.0, 5.0)
    assert end.error == "its worker does not hold it any more"
