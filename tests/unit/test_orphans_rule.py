"""Which processes belong to a dead child, and which have been detached from it."""

import os

import pytest

from jm_cli.orphans import Process, is_kin, kin_of
from jm_nats.worker import kin

PID = 100
MINE, OTHERS = "a1", "b2"


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        pytest.param(Process(101, PID), True, id="in its session"),
        pytest.param(Process(101, PID, OTHERS, "7"), True, id="in its session, whatever its mark"),
        pytest.param(Process(101, 101, MINE, kin.POOL), True, id="of its pool"),
        pytest.param(Process(102, 101, MINE, kin.POOL), True, id="forked in its pool"),
        pytest.param(Process(102, 101, MINE, "101"), True, id="started in its pool"),
        pytest.param(Process(103, 103, MINE, str(PID)), False, id="detached by a handler"),
        pytest.param(Process(103, 103, MINE, "101"), False, id="detached in its pool"),
        pytest.param(Process(101, 101, OTHERS, kin.POOL), False, id="of another child's pool"),
        pytest.param(Process(102, 101, OTHERS, "101"), False, id="started in another child's pool"),
        pytest.param(Process(104, 104), False, id="a stranger"),
    ],
)
def test_who_belongs_to_a_dead_child(process: Process, expected: bool) -> None:
    assert is_kin(process, pid=PID, spawn=MINE) is expected


def test_once_its_number_is_somebody_elses_a_session_of_that_number_is_theirs() -> None:
    strangers = [Process(PID, PID), Process(101, PID)]
    pool = Process(102, 102, MINE, kin.POOL)
    assert kin_of([*strangers, pool], pid=PID, spawn=MINE) == [102]
    assert kin_of([strangers[1], pool], pid=PID, spawn=MINE) == [101, 102]


def test_a_child_without_a_mark_has_its_session_only() -> None:
    assert is_kin(Process(101, PID), pid=PID, spawn="")
    assert not is_kin(Process(101, 101), pid=PID, spawn="")


def test_the_mark_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kin.VARIABLE, "")  # so that it is taken back
    home = str(os.getsid(0))
    assert kin.pool_environment() is None, "nobody looks after us"
    kin.enter(MINE)
    assert os.environ[kin.VARIABLE] == f"{MINE}/{home}"
    pool = kin.pool_environment()
    assert pool is not None
    assert pool[kin.VARIABLE] == f"{MINE}/{kin.POOL}"
    monkeypatch.setenv(kin.VARIABLE, pool[kin.VARIABLE])
    kin.enter_pool()
    assert os.environ[kin.VARIABLE] == f"{MINE}/{home}"
