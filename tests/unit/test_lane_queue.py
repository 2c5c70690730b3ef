"""Within a lane in order, between lanes in turn."""

from collections import Counter
from dataclasses import dataclass

import pytest

from jm_nats.worker.lane_queue import LaneQueue


@dataclass
class Port:
    lane: str


@dataclass(eq=False)
class Item:
    lane: str
    number: int

    @property
    def port(self):
        return Port(self.lane)


def filled(**lanes):
    queue = LaneQueue()
    for lane, count in lanes.items():
        for number in range(count):
            queue.append(Item(lane, number))
    return queue


def taken(queue):
    return [(item.lane, item.number) for item in (queue.popleft() for _ in range(len(queue)))]


def test_one_lane_is_a_plain_queue():
    assert taken(filled(a=3)) == [("a", 0), ("a", 1), ("a", 2)]


def test_lanes_take_turns_and_each_keeps_its_order():
    assert taken(filled(a=4, b=2)) == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("a", 3)]


def test_who_comes_late_into_a_flooded_queue_is_next_but_one_at_most():
    queue = filled(flood=10_000)
    queue.popleft()
    queue.append(Item("late", 0))
    assert "late" in [queue.popleft().lane for _ in range(2)]


def test_who_is_put_back_is_the_first_of_its_lane():
    queue = filled(a=2)
    first = queue.popleft()
    queue.appendleft(first)
    assert queue.popleft() is first


def test_what_is_taken_out_is_gone_and_the_rest_keeps_its_place():
    queue = filled(a=3, b=1)
    queue.without({id(item) for item in queue if item.number == 0})
    assert len(queue) == 2
    assert Counter(item.lane for item in queue) == {"a": 2}
    assert taken(queue) == [("a", 1), ("a", 2)]
    with pytest.raises(StopIteration):
        queue.popleft()
