import logging
import threading

import pytest

from jm_core.errors import InvalidSettingError
from jm_core.health import Health, Invariant
from jm_nats import telemetry
from jm_nats.health import HealthBoard, describe


class Clock:
    now_s = 1_000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def board(clock):
    return HealthBoard("shop", "worker", clock=clock)


def health(board):
    return board.verdict().health


def test_a_trouble_is_cleared_by_the_same_thing_only(board):
    board.trouble("postgres", "no answer")
    board.trouble("nats", "disconnected")
    board.cleared("postgres")
    assert health(board) is Health.DEGRADED
    board.cleared("nats")
    assert health(board) is Health.HEALTHY


def test_a_trouble_keeps_its_beginning_and_shows_its_newest_text(board, clock):
    board.trouble("nats", "first")
    clock.now_s += 3
    board.trouble("nats", "second")
    assert board.verdict().reasons == ("nats: second (for 3 s)",)


def test_a_stall_ends_with_a_success(board, clock):
    board.cycle("leadership", 10)
    clock.now_s += 11
    assert health(board) is Health.UNHEALTHY
    board.cycle("leadership", 10)
    assert health(board) is Health.HEALTHY


def test_nothing_is_expected_of_a_retired_loop(board, clock):
    board.cycle("drain b1", 10)
    board.trouble("drain b1", "no answer")
    board.retired("drain b1")
    clock.now_s += 100
    assert health(board) is Health.HEALTHY


def test_a_halted_loop_is_not_taken_for_a_stalled_one(board, clock):
    board.cycle("rebalance", 10)
    board.loop_halted("rebalance", "KeyError")
    clock.now_s += 100
    assert health(board) is Health.DEGRADED


def test_the_first_reason_to_halt_stays_and_is_logged_once(board, caplog):
    board.halt("first", KeyError("k"))
    board.halt("second")
    board.cycle("beat", 10)
    board.ended()
    assert board.is_halted
    assert board.verdict().reasons == ("halted: first",)
    [record] = caplog.records
    assert (record.levelno, record.reason, record.exc_info[0]) == (logging.ERROR, "first", KeyError)


def test_nothing_is_expected_of_a_group_that_has_ended(board, clock):
    board.cycle("beat", 10)
    board.trouble("nats", "away")
    board.ended()
    clock.now_s += 100
    assert health(board) is Health.HEALTHY


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidSettingError("slots is 0"), "slots is 0"),
        (KeyError("k"), "KeyError: 'k'"),
        (RuntimeError("one\ntwo"), "RuntimeError: one"),
        (RuntimeError(), "RuntimeError: "),
        (ExceptionGroup("g", [ExceptionGroup("h", [ValueError("inner")])]), "ValueError: inner"),
    ],
)
def test_a_reason_is_one_line(error, text):
    assert describe(error) == text


def test_each_violation_is_logged_once_and_counted_each_time(board, caplog, monkeypatch):
    counted = []
    monkeypatch.setattr(
        telemetry, "invariant_violated", lambda name: counted.append((name, telemetry.current_group().role))
    )
    for detail in ("w1", "w2", "w3"):
        board.violated(Invariant.WORKER_ID_TAKEN, detail)
    board.violated(Invariant.TERM_WENT_BACK, "5 to 4")
    logged = [(record.levelno, record.invariant, record.detail) for record in caplog.records]
    assert logged == [(logging.ERROR, "worker_id_taken", "w1"), (logging.ERROR, "term_went_back", "5 to 4")]
    assert board.report().violations == {"worker_id_taken": 3, "term_went_back": 1}
    assert counted == [("worker_id_taken", "worker")] * 3 + [("term_went_back", "worker")]
    assert health(board) is Health.HEALTHY  # to halt is the caller's decision


def test_a_report_has_all_of_it(board, clock):
    assert not board.report().started
    board.started()
    board.cycle("beat", 10)
    clock.now_s += 2.5
    report = board.report()
    assert (report.name, report.kind, report.started, report.halted) == ("shop", "worker", True, False)
    assert report.loop_ages_s == {"beat": 2.5}


def test_threads_may_write_while_others_read(board):
    stop = threading.Event()

    def write():
        while not stop.is_set():
            board.trouble("nats", "away")
            board.cycle("beat", 10)
            board.cleared("nats")
            board.retired("beat")

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for _ in range(2_000):
        board.report()
    stop.set()
    for writer in writers:
        writer.join()
    assert health(board) is Health.HEALTHY
