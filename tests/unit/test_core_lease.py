from jm_core.ids import Term
from jm_core.lease import Seen, is_newer, may_take_over, observe, trusted_until_s

LEASE_S = 10.0


def test_a_key_that_moves_is_never_taken_over():
    seen = None
    for beat in range(100):
        now_s = beat * 2.0
        seen = observe(seen, revision=beat, now_s=now_s)
        assert not may_take_over(seen, now_s=now_s + 1.9, lease_s=LEASE_S)


def test_a_key_that_stands_still_for_one_lease_of_our_watching_may_be_taken_over():
    seen = observe(None, revision=7, now_s=100.0)
    seen = observe(seen, revision=7, now_s=109.9)
    assert not may_take_over(seen, now_s=109.9, lease_s=LEASE_S)
    assert may_take_over(seen, now_s=110.0, lease_s=LEASE_S)


def test_watching_starts_anew_with_every_renewal():
    seen = observe(Seen(revision=7, since_s=0.0), revision=8, now_s=50.0)
    assert seen == Seen(revision=8, since_s=50.0)


def test_a_leader_stops_trusting_itself_before_anybody_may_take_over():
    renewed_s = 100.0
    earliest_takeover_s = renewed_s + LEASE_S  # who saw the renewal at once
    assert trusted_until_s(renewed_s, lease_s=LEASE_S, margin_s=2.0) == earliest_takeover_s - 2.0


def test_a_higher_term_is_the_newer_one():
    assert is_newer(Term(1), Term(2))
    assert not is_newer(Term(2), Term(2))
    assert not is_newer(Term(2), Term(1))
