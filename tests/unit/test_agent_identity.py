import pytest

from jm_core.agent_identity import Verdict, judge


@pytest.mark.parametrize(
    ("recorded", "found", "verdict"),
    [
        (None, None, Verdict.NEW),
        (None, "a", Verdict.ADOPT),
        ("a", "a", Verdict.SAME),
        ("a", None, Verdict.LOST),
        ("a", "b", Verdict.OTHER),
    ],
)
def test_the_two_fingerprints_say_whether_the_stores_belong_together(recorded, found, verdict):
    assert judge(recorded, found) is verdict


@pytest.mark.parametrize("verdict", Verdict)
def test_only_a_recorded_fingerprint_that_nats_does_not_have_is_a_change(verdict):
    assert verdict.is_changed is (verdict in {Verdict.LOST, Verdict.OTHER})
