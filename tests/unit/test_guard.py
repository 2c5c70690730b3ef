"""The self-fence without NATS: a clock that the test moves, and a registry that answers as it is told."""

import pytest

from jm_core.lease import self_fence_margin_s
from jm_nats.errors import AgentUnavailableError
from jm_nats.worker import guard as guard_module
from jm_nats.worker.guard import Guard

LEASE_S = 10.0
TRUST_S = 8.0  # after the last confirmed beat: the lease less the margin
AWAY = AgentUnavailableError("nats://here", "gone for a moment", remedy="wait")


class Scene:
    """One guard with its surroundings; ``asked`` and ``trusted`` count."""

    def __init__(self):
        self.now_s = 1_000.0
        self.acknowledged_s = self.now_s
        self.unbroken_since_s = self.now_s
        self.asked = self.trusted = 0
        self.answer = None  # or what verify raises
        self.takes_s = 0.0  # how long the registry's answer is on its way
        self.doubted_when_asked = False

    def monotonic(self):
        return self.now_s

    def make(self, lease_s=LEASE_S):
        self.lease_s = lease_s
        self.guard = Guard(self, lease_s=lease_s, verify=self.verify, on_trust=self.count_trust)
        return self.guard

    async def verify(self):
        self.asked += 1
        self.doubted_when_asked = not self.guard.holds()
        self.now_s += self.takes_s
        if self.answer is not None:
            raise self.answer

    def count_trust(self):
        assert self.guard.holds(), "who is told to start must be allowed to"
        self.trusted += 1

    def beat(self):
        if self.now_s - self.acknowledged_s >= self.lease_s:
            self.unbroken_since_s = self.now_s
        self.acknowledged_s = self.now_s

    async def fall_in_doubt(self):
        self.now_s += TRUST_S
        await self.guard.look()
        assert not self.guard.holds()


@pytest.fixture
def scene(monkeypatch):
    scene = Scene()
    monkeypatch.setattr(guard_module, "time", scene)
    scene.make()
    return scene


@pytest.mark.parametrize(("lease_s", "margin_s"), [(60.0, 2.0), (10.0, 2.0), (5.0, 1.0), (1.0, 0.2)])
def test_the_margin_is_two_seconds_and_a_fifth_of_a_short_lease(lease_s, margin_s):
    assert self_fence_margin_s(lease_s) == pytest.approx(margin_s)


def test_the_lease_holds_until_the_margin_before_its_end(scene):
    scene.now_s += TRUST_S - 0.001
    assert scene.guard.holds()
    scene.now_s += 0.001
    assert not scene.guard.holds()


async def test_beats_keep_it_and_nobody_is_asked(scene):
    for _ in range(100):
        scene.now_s += 2.0
        scene.beat()
        await scene.guard.look()
        assert scene.guard.holds()
    assert (scene.asked, scene.trusted) == (0, 0)


async def test_the_time_of_the_last_beat_counts_and_not_that_of_the_last_look(scene):
    scene.now_s += 7.0
    await scene.guard.look()  # still holds; the beat is 7 s old
    scene.now_s += 1.0
    assert not scene.guard.holds()


async def test_without_a_beat_nobody_is_asked_for_nothing_could_be_trusted_anyway(scene):
    await scene.fall_in_doubt()
    assert scene.asked == 0


async def test_a_beat_alone_does_not_restore_trust_the_registry_must_have_been_asked(scene):
    await scene.fall_in_doubt()
    scene.now_s += 20.0
    scene.beat()
    assert not scene.guard.holds()
    await scene.guard.look()
    assert scene.guard.holds()
    assert (scene.asked, scene.trusted, scene.doubted_when_asked) == (1, 1, True)


async def test_while_the_registry_does_not_answer_the_doubt_stays_and_it_is_asked_again(scene):
    await scene.fall_in_doubt()
    scene.answer = AWAY
    for _ in range(3):
        scene.beat()
        await scene.guard.look()
        assert not scene.guard.holds()
    scene.answer = None
    await scene.guard.look()
    assert scene.guard.holds()
    assert (scene.asked, scene.trusted) == (4, 1)


async def test_an_answer_that_came_too_late_is_worth_nothing(scene):
    """Frozen again while it was on its way: what it said may be over."""
    await scene.fall_in_doubt()
    scene.beat()
    scene.takes_s = TRUST_S
    await scene.guard.look()
    assert not scene.guard.holds()
    assert (scene.asked, scene.trusted) == (1, 0)


async def test_a_beat_during_the_question_does_not_prolong_what_the_answer_allows(scene):
    """Trust lasts from the beat before the question: the answer is no newer than that."""
    await scene.fall_in_doubt()
    scene.beat()
    asked_s = scene.now_s
    scene.takes_s = 3.0
    await scene.guard.look()
    assert scene.guard.holds()
    scene.now_s = asked_s + TRUST_S
    assert not scene.guard.holds()


async def test_a_bug_in_the_question_is_not_taken_for_an_outage(scene):
    await scene.fall_in_doubt()
    scene.beat()
    scene.answer = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        await scene.guard.look()
    assert not scene.guard.holds()


async def test_the_last_doubt_is_remembered_so_that_a_purge_is_told_from_a_loss(scene):
    assert scene.guard.doubted_s == float("-inf")
    await scene.fall_in_doubt()
    scene.now_s += 5.0
    await scene.guard.look()
    last_s = scene.now_s
    scene.beat()
    scene.now_s += 1.0
    await scene.guard.look()
    assert scene.guard.holds()
    assert last_s <= scene.guard.doubted_s <= scene.now_s
    scene.now_s += 1.0
    scene.beat()
    await scene.guard.look()
    assert scene.guard.doubted_s <= scene.now_s - 1.0, "a look that holds is no doubt"


async def test_every_doubt_is_logged_once_and_every_recovery(scene, caplog):
    caplog.set_level("INFO", logger="jobmaster.worker")
    for _ in range(2):
        await scene.fall_in_doubt()
        await scene.guard.look()
        scene.beat()
        await scene.guard.look()
    words = [record.getMessage() for record in caplog.records]
    assert words == ["the lease is in doubt, nothing is started", "the lease is sure again"] * 2


async def test_a_blocked_loop_is_no_doubt_while_the_heartbeat_goes_on(scene):
    """Its thread beats all the while, nobody can have taken us for dead, and nobody needs to be asked."""
    for _ in range(15):  # the guard itself does not get to look
        scene.now_s += 2.0
        scene.beat()
    assert scene.guard.holds()
    await scene.guard.look()
    assert (scene.asked, scene.trusted) == (0, 0)


async def test_a_frozen_process_is_in_doubt_although_its_first_beat_is_confirmed(scene):
    scene.now_s += 2 * LEASE_S
    scene.beat()
    assert not scene.guard.holds()
    await scene.guard.look()
    assert (scene.asked, scene.trusted) == (1, 1)
    assert scene.guard.holds()
