"""Whose a bucket is: the owner's rule, the leader's rule, and what a change of hands writes."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from jm_core import limits
from jm_core.errors import IllegalMoveError
from jm_core.lifecycle import BUCKET_MOVES
from jm_core.model import BucketEvent, BucketStatus
from jm_core.ownership import (
    ADOPTABLE,
    OWNED,
    CarryOut,
    DrainBySelf,
    MarkLost,
    Silence,
    Standing,
    adopted,
    care_for,
    is_gone,
    lost,
    moved,
    standing,
)
from jm_core.wire import BucketRecord, WorkerRecord

T0_S = 1_900_000_000.0
LEASE_S = 10.0
SILENT_S = limits.SILENCE_SHARE * LEASE_S


def bucket(status=BucketStatus.ACTIVE, **more):
    fields = {"worker": "w-1", "incarnation": "i-1", "lane": "default", "priority": 3, "epoch": 1}
    return BucketRecord("b", status=status.value, **(fields | more))


def beat(incarnation="i-1", worker="w-1"):
    return WorkerRecord(worker, incarnation, "host", 1, T0_S, 4, ["default"], ["h"])


ALIVE = Silence(beat(), 0.0)
DEAD = Silence(None, SILENT_S)


def care(record, owner=ALIVE, *, waited_s=0.0, adopters=True, may_judge=True):
    return care_for(record, owner, waited_s=waited_s, adopters=adopters, may_judge=may_judge, lease_s=LEASE_S)


# What its owner makes of the registry.


@pytest.mark.parametrize("status", sorted(set(BucketStatus) - {BucketStatus.LOST}))
def test_a_record_of_our_epoch_and_incarnation_is_ours_whatever_we_had_moved_it_to(status):
    assert standing(bucket(), bucket(status)) is Standing.OURS


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (None, Standing.MISSING),
        (bucket(epoch=4), Standing.OVERTAKEN),
        (bucket(epoch=4, worker="w-2", incarnation="i-2"), Standing.OVERTAKEN),
        (bucket(epoch=3, incarnation="i-2"), Standing.OVERTAKEN),
        (bucket(BucketStatus.LOST, epoch=3), Standing.OVERTAKEN),
        (bucket(epoch=2), Standing.WENT_BACK),
        (bucket(BucketStatus.LOST, epoch=2, incarnation="i-2"), Standing.WENT_BACK),
    ],
    ids=["missing", "newer epoch", "adopted", "another process", "lost", "older epoch", "older epoch of another"],
)
def test_what_the_registry_says_of_a_bucket_that_we_believe_to_be_ours(seen, expected):
    assert standing(bucket(epoch=3), seen) is expected


def test_another_process_of_our_own_name_is_somebody_else():
    assert standing(bucket(), bucket(worker="w-1", incarnation="i-2")) is Standing.OVERTAKEN


# Whether its owner is dead.


@pytest.mark.parametrize("silent_s", [0.0, SILENT_S, 1e6])
def test_an_owner_whose_key_is_there_lives_however_long_we_have_not_heard_of_it(silent_s):
    assert not is_gone(bucket(), Silence(beat(), silent_s), lease_s=LEASE_S)


def test_an_owner_that_was_started_anew_is_gone_at_once():
    assert is_gone(bucket(), Silence(beat("i-2"), 0.0), lease_s=LEASE_S)


@pytest.mark.parametrize(("silent_s", "gone"), [(0.0, False), (SILENT_S - 0.1, False), (SILENT_S, True), (1e6, True)])
def test_a_missing_key_counts_only_with_silence(silent_s, gone):
    assert is_gone(bucket(), Silence(None, silent_s), lease_s=LEASE_S) is gone


def test_an_owner_that_took_its_key_away_is_gone_without_any_silence():
    assert is_gone(bucket(), Silence(None, 0.0, resigned=True), lease_s=LEASE_S)


def test_an_owner_that_beats_again_after_it_resigned_lives():
    assert not is_gone(bucket(), Silence(beat(), 0.0, resigned=True), lease_s=LEASE_S)


# What the leader does.


@pytest.mark.parametrize("status", sorted(OWNED))
def test_what_a_dead_owner_has_is_taken_from_it(status):
    assert care(bucket(status), DEAD) == MarkLost("b")


@pytest.mark.parametrize("status", sorted(OWNED))
def test_a_living_owner_keeps_its_bucket_for_ever(status):
    assert care(bucket(status), waited_s=1e6, adopters=False) is None


@pytest.mark.parametrize("status", sorted(OWNED))
def test_nobody_is_called_dead_by_who_was_blind(status):
    assert care(bucket(status), DEAD, waited_s=1e6, may_judge=False) is None


@pytest.mark.parametrize("status", sorted(ADOPTABLE))
@pytest.mark.parametrize("owner", [ALIVE, DEAD], ids=["alive", "dead"])
@pytest.mark.parametrize("may_judge", [True, False])
def test_what_is_to_be_adopted_is_left_to_the_workers_for_one_lease(status, owner, may_judge):
    assert care(bucket(status), owner, waited_s=LEASE_S - 0.1, may_judge=may_judge) is None
    assert care(bucket(status), owner, waited_s=LEASE_S, may_judge=may_judge) == DrainBySelf("b")


@pytest.mark.parametrize("status", sorted(ADOPTABLE))
def test_where_nobody_could_adopt_the_leader_does_not_wait(status):
    assert care(bucket(status), waited_s=0.0, adopters=False) == DrainBySelf("b")


@pytest.mark.parametrize("owner", [ALIVE, DEAD], ids=["alive", "dead"])
@pytest.mark.parametrize("may_judge", [True, False])
def test_what_is_empty_is_carried_out_whoever_lives(owner, may_judge):
    assert care(bucket(BucketStatus.READY_TO_DELETE), owner, may_judge=may_judge) == CarryOut("b")


def test_every_status_but_the_last_can_be_left_with_everybody_dead():
    for status in set(BucketStatus) - {BucketStatus.DELETED}:
        assert care(bucket(status), DEAD, waited_s=LEASE_S, adopters=False) is not None, status
    assert care(bucket(BucketStatus.DELETED), DEAD, waited_s=1e6, adopters=False) is None


def test_what_is_taken_by_the_rule_can_be_taken_by_the_table():
    assert {status for status, event in BUCKET_MOVES if event is BucketEvent.LEASE_LOST} == OWNED
    assert {status for status, event in BUCKET_MOVES if event is BucketEvent.ADOPT} == ADOPTABLE


# What a change of hands writes.


def test_a_lost_bucket_keeps_its_owner_and_its_epoch_so_that_the_record_names_who_died():
    found = bucket(BucketStatus.COMPLETING, epoch=3, returned=7)
    taken = lost(found, reason="silent", now_s=T0_S)
    assert taken == replace(found, status="lost", reason="silent", was_lost=True, origin="w-1", changed_at=T0_S)


def test_who_adopts_gets_the_next_epoch_and_leaves_the_opener_in_the_record():
    found = lost(bucket(epoch=3), reason="silent", now_s=T0_S)
    mine = adopted(found, worker="w-2", incarnation="i-2", now_s=T0_S + 1)
    assert (mine.worker, mine.incarnation, mine.epoch, mine.status) == ("w-2", "i-2", 4, "draining")
    assert (mine.opener, mine.was_lost, mine.reason, mine.changed_at) == ("w-1", True, "silent", T0_S + 1)
    assert standing(bucket(epoch=3), mine) is Standing.OVERTAKEN


def test_through_any_number_of_dead_adopters_the_opener_stays_and_the_epoch_grows():
    record = lost(bucket(), reason="first", now_s=T0_S)
    for number in range(2, 6):
        record = adopted(record, worker=f"w-{number}", incarnation=f"i-{number}", now_s=T0_S)
        record = lost(record, reason="next", now_s=T0_S)
    assert (record.opener, record.epoch, record.was_lost) == ("w-1", 5, True)


def test_a_bucket_that_was_left_in_order_is_adopted_without_a_loss():
    record = moved(bucket(), BucketEvent.RETIRE, now_s=T0_S, reason="its worker stops")
    record = moved(record, BucketEvent.HANDED_BACK, now_s=T0_S)
    record = adopted(record, worker="w-2", incarnation="i-2", now_s=T0_S)
    record = moved(record, BucketEvent.EMPTIED, now_s=T0_S, returned=3)
    assert (record.was_lost, record.opener, record.epoch) == (False, "w-1", 2)
    assert (record.status, record.reason, record.returned) == ("ready_to_delete", "its worker stops", 3)


def test_what_several_adopters_returned_adds_up():
    record = moved(bucket(BucketStatus.DRAINING, returned=3), BucketEvent.EMPTIED, now_s=T0_S, returned=4)
    assert record.returned == 7


@pytest.mark.parametrize("status", sorted(set(BucketStatus) - OWNED))
def test_what_nobody_owns_cannot_be_lost(status):
    with pytest.raises(IllegalMoveError):
        lost(bucket(status), reason="", now_s=T0_S)


@pytest.mark.parametrize("status", sorted(set(BucketStatus) - ADOPTABLE))
def test_what_is_not_left_behind_cannot_be_adopted(status):
    with pytest.raises(IllegalMoveError):
        adopted(bucket(status), worker="w-2", incarnation="i-2", now_s=T0_S)


@pytest.mark.parametrize(("status", "event"), sorted(set(itertools.product(BucketStatus, BucketEvent))))
def test_every_move_is_that_of_the_table_and_every_other_pair_is_refused(status, event):
    if (status, event) in BUCKET_MOVES:
        assert moved(bucket(status), event, now_s=T0_S).status == BUCKET_MOVES[status, event]
    else:
        with pytest.raises(IllegalMoveError):
            moved(bucket(status), event, now_s=T0_S)


@pytest.mark.parametrize("status", sorted(OWNED))
def test_what_is_no_silence_needs_no_lease_of_listening(status):
    """A coordinator that has only just come knows that a key was taken away, or that another process has the name."""
    anew = Silence(beat("another process"), 0.0)
    for owner in (anew, Silence(None, 0.0, resigned=True)):
        assert care(bucket(status), owner, may_judge=False) == MarkLost("b")
    assert care(bucket(status), Silence(None, 1e6), may_judge=False) is None
