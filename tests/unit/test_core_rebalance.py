import pytest

from jm_core import limits
from jm_core.rebalance import Waiting, jobs_to_return
from jm_core.wire import WorkerRecord

LONG_S = limits.REBALANCE_AFTER_S


def neighbour(name="other", *, slots=10, running=0, held=0, lanes=("default",), handlers=("mail",)):
    return WorkerRecord(name, "i", "h", 1, 0.0, slots, list(lanes), list(handlers), running=running, held=held)


def waiting(count, *, handler="mail", lane="default", waited_s=LONG_S):
    return [Waiting(i, handler, lane, waited_s) for i in range(count)]


def test_the_last_in_line_are_returned_first_and_no_more_than_the_neighbour_has_room_for():
    assert jobs_to_return(waiting(5), [neighbour(slots=4, running=1, held=1)]) == [4, 3]


def test_several_neighbours_add_up():
    assert len(jobs_to_return(waiting(10), [neighbour("a", slots=2), neighbour("b", slots=3)])) == 5


def test_a_job_that_waits_too_short_stays():
    assert jobs_to_return(waiting(3, waited_s=LONG_S - 0.1), [neighbour()]) == []


@pytest.mark.parametrize(
    "other",
    [
        neighbour(slots=10, running=10),
        neighbour(slots=10, running=5, held=5),
        neighbour(slots=10, running=12),  # threads that cannot be stopped
        neighbour(lanes=("bulk",)),
        neighbour(handlers=("report",)),
    ],
    ids=["all slots run", "held jobs will take them", "overfull", "other lane", "unknown handler"],
)
def test_nothing_is_returned_for_a_neighbour_that_cannot_take_it(other):
    assert jobs_to_return(waiting(3), [other]) == []


def test_nothing_is_returned_without_neighbours():
    assert jobs_to_return(waiting(3), []) == []


def test_each_job_goes_by_its_own_handler_and_lane():
    jobs = [Waiting(0, "mail", "default", 9.0), Waiting(1, "report", "bulk", 9.0), Waiting(2, "mail", "bulk", 9.0)]
    others = [neighbour("a", handlers=("report",), lanes=("bulk",)), neighbour("b", handlers=("mail",))]
    assert sorted(jobs_to_return(jobs, others)) == [0, 1]
