"""The judges of the chaos tests themselves: each is tripped by a sabotage of its own (O5, O7, O9)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.effects import CANCELLED, EFFECTS_VARIABLE, END, START, Effects, made_at_s, note, percentile
from tests.support.oracles import LOOP_BLOCKED, PLANTED, blocked_loops, leaks
from tests.support.processes import with_secret

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "effects"
    monkeypatch.setenv(EFFECTS_VARIABLE, str(path))
    return path


def test_nothing_was_noted_and_nothing_ran(path: Path) -> None:
    assert Effects(path).runs == []


def test_a_run_has_a_start_and_an_end_and_its_token(path: Path) -> None:
    note(START, "a", 3, 10.0, due_s=9.5)
    assert [run.job_id for run in Effects(path).running()] == ["a"]
    note(END, "a", 3, 12.0)
    (run,) = Effects(path).runs
    assert (run.dispatch, run.start_s, run.end_s, run.cancelled) == (3, 10.0, 12.0, False)
    assert run.late_s == pytest.approx(0.5)
    assert Effects(path).running() == []


def test_a_job_that_ran_twice_is_found(path: Path) -> None:
    for dispatch in (1, 2):
        note(START, "a", dispatch, 10.0 * dispatch)
        note(END, "a", dispatch, 10.0 * dispatch + 1)
    assert Effects(path).repeated() == {"a": 2}
    assert Effects(path).overlaps() == []


@pytest.mark.parametrize("end_s", [25.0, None])
def test_two_runs_at_the_same_time_are_found(path: Path, end_s: float | None) -> None:
    note(START, "a", 1, 10.0)
    note(START, "a", 2, 20.0)
    if end_s:
        note(CANCELLED, "a", 1, end_s)
    assert [(one.dispatch, other.dispatch) for one, other in Effects(path).overlaps()] == [(1, 2)]


def test_the_time_in_an_id_is_read() -> None:
    job_id = str(uuid.UUID(int=(1_700_000_000_123 << 80) | (7 << 76)))
    assert made_at_s(job_id) == pytest.approx(1_700_000_000.123)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3, 1, 2], 0.99) == 3
    assert percentile(range(100), 0.5) == 50


@pytest.mark.parametrize("form", [PLANTED, quote(PLANTED, safe=""), PLANTED.replace("/", "\\/")])
def test_a_secret_in_a_log_is_found_in_every_form(form: str) -> None:
    assert leaks({"worker-1": f"connecting to postgresql://jm:{form}@db", "worker-2": "well"}) == [
        "O9: the planted secret is in the log of worker-1"
    ]


def test_a_dsn_gets_the_secret_in_a_form_that_can_be_read() -> None:
    assert with_secret("postgresql://postgres@127.0.0.1:5432/d") == (
        f"postgresql://postgres:{quote(PLANTED, safe='')}@127.0.0.1:5432/d"
    )


def test_a_loop_that_was_blocked_is_found() -> None:
    assert blocked_loops({"worker-1": f"WARNING {LOOP_BLOCKED}: 3 s"}) == ["O7: the event loop of worker-1 was blocked"]
    assert blocked_loops({"worker-1": "well"}) == []
