"""What is said of peers is computed from what was seen."""

import json
import subprocess
import sys

import pytest

from benchmarks.peers import table
from benchmarks.peers.apps import peer_process
from benchmarks.peers.cells import WARM, CellError, after_kill, first_of, parse, per_s
from benchmarks.peers.roster import APPS, ROSTER, Peer, UnavailableError, python_of


def test_a_rate_is_of_the_starts_between_the_first_and_the_last():
    assert per_s([10.0, 10.5, 11.0]) == pytest.approx(2.0)
    with pytest.raises(CellError, match="only 1 jobs ran"):
        per_s([10.0])


def result(**cells):
    return {"peers": {"a": {}, "b": {}}, "cells": {key.replace("__", "/"): cell for key, cell in cells.items()}}


def row_of(text, title):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {title}")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_first_of_each_row_is_bold_by_the_median_if_it_is_whole_and_what_is_missing_stays_empty():
    made = result(
        a__submit__0={"one_per_s": 100.0, "complete": True},
        a__submit__1={"one_per_s": 900.0, "complete": True},
        a__submit__2={"one_per_s": 200.0, "complete": True},
        b__submit__0={"one_per_s": 300.0, "bulk_per_s": 5.0, "complete": False},
        a__lifecycle__0={"idle_p50_ms": 2.0, "complete": True},
        b__lifecycle__0={"idle_p50_ms": 3.0, "complete": True},
        b__sleepers__0={"error": "CellError: no"},
        a__recovery__0={"recovery_s": None, "lost": 3, "duplicates": 1, "complete": False},
    )
    text = table.of(made)
    assert row_of(text, "submit one by one") == ["**200**", "300*"]
    assert row_of(text, "submit in bulk") == ["-", "5*"]
    assert row_of(text, "submit to start, at rest, p50") == ["**2.0**", "3.0"]
    assert row_of(text, "5 ms of waiting") == ["-", "-†"]
    assert row_of(text, "`kill -9`") == ["-*", "-"]
    assert row_of(text, "not run after two minutes") == ["3*", "-"]
    assert table.INCOMPLETE in text
    assert f"{table.FAILED}: b/sleepers/0." in text


def test_a_figure_with_a_failed_round_is_marked_and_not_the_best():
    made = result(
        a__sleepers__0={"sleep_per_s": 900.0, "complete": True},
        a__sleepers__1={"error": "CellError: no"},
        b__sleepers__0={"sleep_per_s": 100.0, "complete": True},
    )
    assert row_of(table.of(made), "5 ms of waiting") == ["900†", "**100**"]


def test_a_whole_table_explains_no_marks():
    text = table.of(result(a__sleepers__0={"sleep_per_s": 900.0, "complete": True}))
    assert table.INCOMPLETE not in text
    assert table.FAILED not in text


def test_who_is_there_now_is_not_left_out_any_more_and_the_others_of_a_file_stay():
    before = {"peers": {"b": {"x": 1}, "c": {"x": 1}}, "skipped": {"a": "not installed", "d": "no server"}}
    table.add_peers(before, {"a": {"x": 2}, "c": {"x": 2}}, {"b": "not installed"}, ["a", "b", "c", "d"])
    assert list(before["peers"].items()) == [("a", {"x": 2}), ("b", {"x": 1}), ("c", {"x": 2})]
    assert before["skipped"] == {"d": "no server"}


def test_starts_and_ends_are_told_apart_and_the_warm_up_is_neither():
    text = f"7 1.5\nE 7 1.6\n{WARM} 1.0\nE {WARM} 1.1\n7 1.4\n"
    starts, ends = parse(text)
    assert (starts, ends) == ([(7, 1.5), (7, 1.4)], [(7, 1.6)])
    assert first_of(starts) == {7: 1.4}


def test_a_job_that_was_begun_and_never_ended_is_not_done():
    starts = [(1, 10.0), (2, 10.0), (3, 10.1)]
    found = after_kill(starts, [(1, 10.5), (2, 10.5)], 3, killed_at=10.2)
    assert (found["recovery_s"], found["lost"], found["complete"]) == (None, 1, False)


def test_recovered_is_when_the_last_job_ended_first_and_only_ends_count_as_run_twice():
    starts = [(1, 10.0), (2, 10.0), (2, 14.0), (1, 15.0), (1, 16.0)]
    found = after_kill(starts, [(1, 10.1), (2, 14.1), (1, 15.1), (1, 16.1)], 2, killed_at=10.2)
    assert found["recovery_s"] == pytest.approx(3.9)
    assert (found["lost"], found["duplicates"], found["started_again"], found["complete"]) == (0, 1, 3, True)


@pytest.mark.parametrize("per_s", [20, 100])
def test_singly_each_job_has_an_instant_of_its_own(per_s):
    assert [peer_process.due_after(per_s, n) for n in range(3)] == [0, 1 / per_s, 2 / per_s]


def test_in_bulk_the_jobs_of_a_tick_are_due_on_it():
    due = [peer_process.due_after(1_000, n) for n in range(30)]
    assert due == pytest.approx([0.0] * 10 + [0.01] * 10 + [0.02] * 10)


FIRST_USE = """
import os, sys, threading
sys.setswitchinterval(1e-6)
import peer_process
def many(first):
    go.wait()
    for number in range(first, first + 100):
        peer_process.mark(number)
        peer_process.mark_end(number)
def all_at_once(first):
    global go
    go = threading.Barrier(16)
    threads = [threading.Thread(target=many, args=(first + 100 * n,)) for n in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
all_at_once(0)
peer_process._marks._lock.acquire()  # held by the flusher while the pool is forked
child = os.fork()
if child == 0:
    all_at_once(10_000)
    peer_process._marks._flush()
    os._exit(0)
peer_process._marks._lock.release()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("sync", ["0", "1"])
def test_no_mark_is_lost_when_many_threads_of_a_fresh_or_forked_process_begin_at_once(tmp_path, sync):
    environment = {"PYTHONPATH": str(APPS), "BENCH_OUT": str(tmp_path), "BENCH_SYNC": sync}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE], check=False, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    files = sorted(tmp_path.glob("marks-*.log"))
    assert len(files) == 2
    starts, ends = parse("".join(path.read_text() for path in files))
    expected = [*range(1_600), *range(10_000, 11_600)]
    assert sorted(number for number, _ in starts) == expected
    assert sorted(number for number, _ in ends) == expected


def test_who_was_left_out_is_named_with_the_reason():
    text = table.of({**result(), "skipped": {"celery": "celery not installed"}})
    assert "Left out: celery, celery not installed." in text


def test_what_is_not_installed_is_left_out_and_said(tmp_path):
    with pytest.raises(UnavailableError, match="no-such-queue not installed"):
        python_of(Peer("nobody", ("no-such-queue[redis]",), ()), tmp_path)


@pytest.mark.parametrize("peer", ROSTER, ids=lambda peer: peer.name)
def test_every_peer_says_what_it_is_set_to_and_the_page_names_it(peer):
    source = (APPS / f"{peer.module}.py").read_text()
    for name in ("SETTINGS", "KEEPS", "BULK", "RECOVERY"):
        (line,) = [line for line in source.splitlines() if line.startswith(f"{name} = ")]
        assert json.loads(line.partition(" = ")[2])
    page = (APPS.parent.parent.parent / "docs" / "peers.md").read_text()
    assert f"| {peer.name} |" in page
