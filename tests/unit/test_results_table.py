"""The table of docs/performance.md is what the saved results say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import report, table

if TYPE_CHECKING:
    from pathlib import Path


def result(**changed: Any) -> dict[str, Any]:
    made = {
        "measure": "Submit to recorded outcome",
        "command": "python -m benchmarks.lifecycle",
        "value": 14_817,
        "unit": "jobs/s",
        "yardstick": 18_103.0,
        "ratio": 0.818,
        "promised": {"ratio >= 0.85": False, "ratio <= 2": True},
        "versions": {"python": "3.11.7", "nats": "<nats server v2.15.1>"},
        "machine": {"cores": 2, "processor": "x86_64"},
        "at": "2026-12-01T01:12:02+00:00",
    }
    return {**made, **changed}


def test_the_page_has_the_table_that_the_saved_results_give():
    assert table.between_markers(table.PAGE.read_text()) == table.table(table.load()), (
        "run `python -m benchmarks.table --write`"
    )


def test_a_page_that_differs_from_the_results_is_told_apart():
    page = table.with_table(table.PAGE.read_text(), table.table({"lifecycle": result()}))
    assert table.between_markers(page) == table.table({"lifecycle": result()})
    assert table.between_markers(page) != table.table({"lifecycle": result(value=14_818)})


def test_writing_the_table_changes_nothing_else_of_the_page():
    page = f"before\n{table.BEGIN}\nold\n{table.END}\nafter"
    assert table.with_table(page, "new") == f"before\n{table.BEGIN}\n\nnew\n\n{table.END}\nafter"


@pytest.mark.parametrize(
    "page",
    ["", table.BEGIN, f"{table.END}{table.BEGIN}", f"{table.BEGIN}{table.END}" * 2],
    ids=["none", "begin only", "wrong order", "twice"],
)
def test_a_page_without_one_pair_of_markers_is_refused(page: str):
    with pytest.raises(ValueError, match="once each"):
        table.with_table(page, "new")


def test_a_row_says_value_yardstick_ratio_and_each_promise_with_what_was_reached():
    row = table.table({"lifecycle": result()}).splitlines()[2]
    assert row == (
        "| Submit to recorded outcome | `python -m benchmarks.lifecycle` | 14,817 jobs/s | 18,103 | 0.818 "
        "| ratio ≥ 0.85: 0.818<br>ratio ≤ 2: 0.818 | **no**<br>yes |"
    )


def test_without_a_yardstick_cells_stay_empty_and_nothing_is_called_met():
    bare = result(yardstick=None, ratio=None, promised={"ratio >= 0.85": None})
    row = table.table({"lifecycle": bare}).splitlines()[2]
    assert row.endswith("| 14,817 jobs/s |  |  | ratio ≥ 0.85:  | not judged |")


def test_a_yardstick_of_several_figures_is_shown_in_full():
    assert table.shown({"p50_ms": 2.2, "p99_ms": 4.27}) == "p50_ms 2.2, p99_ms 4.27"


def test_what_results_were_measured_with_is_said_once():
    text = table.table({"a": result(), "b": result()})
    assert text.splitlines()[-1] == "Measured on 2026-12-01, 2 cores (x86_64): python 3.11.7, nats v2.15.1."
    assert text.count("Measured on") == 1


def test_results_come_in_the_order_of_the_table_and_then_by_name(tmp_path: Path):
    for name in ("zebra", "enqueue", "backlog", "lifecycle"):
        (tmp_path / f"{name}.json").write_text(json.dumps(result()))
    assert list(table.load(tmp_path)) == ["lifecycle", "enqueue", "backlog", "zebra"]


def test_an_empty_folder_is_no_error(tmp_path: Path):
    assert table.table(table.load(tmp_path)) == table.NOTHING


def test_what_a_benchmark_saves_is_a_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/enqueue.py", "--rounds", "3", "--save"])
    printed = {key: value for key, value in result().items() if key not in ("measure", "command")}
    report.save("enqueue", printed, "Submitting: in bulk.", tmp_path)
    saved = table.load(tmp_path)["enqueue"]
    assert saved == printed | {"measure": "Submitting: in bulk", "command": "python -m benchmarks.enqueue --rounds 3"}
    assert "`python -m benchmarks.enqueue --rounds 3`" in table.table({"enqueue": saved})
