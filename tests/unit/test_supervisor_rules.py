import signal
from types import SimpleNamespace

import pytest

from jm_cli.exits import ExitCode
from jm_cli.supervisor import ChildState, _code_of, judge_children
from jm_core.health import Health


def child(name="worker 1", *, running=True, lived_s=100.0, failures=0, ended=False):
    return ChildState(name, running, lived_s, failures, ended)


@pytest.mark.parametrize(
    ("states", "health"),
    [
        ([child(), child()], Health.HEALTHY),
        ([child(lived_s=0.1)], Health.HEALTHY),  # the first start is no restart
        ([child(), child(running=False, failures=1)], Health.DEGRADED),
        ([child(), child(lived_s=0.1, failures=1)], Health.DEGRADED),  # it may die at once again
        ([child(lived_s=5.0, failures=1)], Health.HEALTHY),
        ([child(running=False, failures=4)], Health.DEGRADED),
        ([child(running=False, failures=5), child()], Health.UNHEALTHY),
        ([child(lived_s=5.0, failures=5), child(running=False, failures=1)], Health.UNHEALTHY),
        ([child(running=False, ended=True), child()], Health.HEALTHY),
    ],
)
def test_how_well_a_supervisor_is(states, health):
    assert judge_children(states)[0] is health


def test_it_names_the_children_the_worst_first():
    _, reasons = judge_children([child("worker 1", running=False, failures=1), child("worker 2", failures=7)])
    assert reasons == ["worker 2 has failed 7 times in a row", "worker 1 is being started again"]


@pytest.mark.parametrize(
    ("codes", "hurried", "expected"),
    [
        pytest.param([0, 0], False, ExitCode.OK, id="all drained"),
        pytest.param([0, -signal.SIGTERM], False, ExitCode.OK, id="one was told before it could listen"),
        pytest.param([0, ExitCode.INTERRUPTED], False, ExitCode.OK, id="one was told before it was ready"),
        pytest.param([0, ExitCode.INTERRUPTED], True, ExitCode.INTERRUPTED, id="hurried"),
        pytest.param([0, -signal.SIGKILL], False, ExitCode.INTERRUPTED, id="one had to be killed"),
        pytest.param([0, 1], False, ExitCode.UNEXPECTED, id="one has failed"),
        pytest.param([0, -signal.SIGSEGV], False, ExitCode.UNEXPECTED, id="one has crashed"),
    ],
)
def test_the_exit_code_says_whether_all_ended_in_order(codes: list[int], hurried: bool, expected: ExitCode):
    children = [SimpleNamespace(exit_code=code) for code in codes]
    assert _code_of(children, hurried=hurried) is expected
