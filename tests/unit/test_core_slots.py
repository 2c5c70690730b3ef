import heapq
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from jm_core.model import WEIGHTS, Priority
from jm_core.slots import Turns, next_priority

NOBODY = dict.fromkeys(Priority, 0)


class Worker:
    """Slots that are always wanted: ``rivals`` never run out of jobs. Time is a number."""

    def __init__(self, slots, rivals=tuple(Priority), run_s=lambda _: 1.0):
        self.slots = slots
        self.waiting = {**NOBODY, **dict.fromkeys(rivals, 10)}
        self.run_s = run_s
        self.turns = Turns()
        self.running = dict(NOBODY)
        self.ends = []
        self.started = []
        self.slot_s = Counter()

    def serve(self, starts):
        now_s = 0.0
        while len(self.started) < starts:
            while sum(self.running.values()) < self.slots:
                priority = next_priority(self.waiting, self.running, self.turns)
                run_s = self.run_s(priority)
                self.running[priority] += 1
                self.started.append(priority)
                self.slot_s[priority] += run_s
                heapq.heappush(self.ends, (now_s + run_s, len(self.started), priority))
            now_s, _, priority = heapq.heappop(self.ends)
            self.running[priority] -= 1
        return self

    def longest_wait(self, priority):
        """Starts of others between two of its own, at most."""
        places = [-1, *(i for i, p in enumerate(self.started) if p is priority), len(self.started)]
        return max(later - earlier - 1 for earlier, later in pairwise(places))


def test_nothing_waits_nothing_starts():
    assert next_priority(NOBODY, NOBODY, Turns()) is None
    assert next_priority({}, {}, Turns()) is None


@pytest.mark.parametrize("priority", Priority)
def test_who_waits_alone_gets_every_slot(priority):
    turns, running = Turns(), {**NOBODY, priority: 99}
    assert next_priority({**NOBODY, priority: 1}, running, turns) is priority


def test_the_first_free_slot_goes_to_the_highest():
    assert next_priority(dict.fromkeys(Priority, 1), NOBODY, Turns()) is Priority.CRITICAL


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 10, 18, 19, 20, 100])
def test_under_overload_starts_and_slots_settle_at_the_weights(slots):
    random = Random(slots)
    worker = Worker(slots, run_s=lambda _: random.uniform(0.5, 1.5)).serve(10_000)
    starts = Counter(worker.started)
    for priority in Priority:
        share = WEIGHTS[priority] / sum(WEIGHTS.values())
        assert starts[priority] / 10_000 == pytest.approx(share, rel=0.15)
        assert worker.slot_s[priority] / worker.slot_s.total() == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize("slots", [1, 2, 5, 10, 18, 19, 100])
def test_nobody_starves_however_few_the_slots(slots):
    worker = Worker(slots).serve(5_000)
    assert worker.longest_wait(Priority.VERY_LOW) <= 2 * 19 + slots


@pytest.mark.parametrize("slots", [1, 4, 10, 100])
def test_a_tenfold_flood_of_critical_jobs_lets_a_very_low_one_through(slots):
    # 10:1 in demand. It gets at least its ninth of the starts, since only two priorities wait.
    worker = Worker(slots, rivals=(Priority.VERY_LOW, Priority.CRITICAL)).serve(5_000)
    assert Counter(worker.started)[Priority.VERY_LOW] / 5_000 == pytest.approx(1 / 9, rel=0.15)


@pytest.mark.parametrize("slots", [19, 38, 100])
def test_long_low_jobs_never_take_more_slots_than_their_share_while_others_wait(slots):
    worker = Worker(slots, run_s=lambda p: 1_000.0 if p is Priority.VERY_LOW else 1.0).serve(5_000)
    assert worker.running[Priority.VERY_LOW] <= slots / 19 + 1


def test_who_comes_back_after_a_pause_has_saved_no_turns():
    worker = Worker(1, rivals=(Priority.HIGH, Priority.CRITICAL)).serve(1_000)
    worker.waiting[Priority.VERY_LOW] = 10
    worker.serve(1_019)
    assert Counter(worker.started[1_000:])[Priority.VERY_LOW] <= 2


def test_the_share_of_those_who_do_not_wait_is_lent_out():
    worker = Worker(30, rivals=(Priority.VERY_LOW, Priority.LOW)).serve(3_000)
    assert sum(worker.running.values()) >= 29
    assert Counter(worker.started)[Priority.LOW] == pytest.approx(2_000, rel=0.05)
