"""What is said of peers is computed from what was seen."""

import json

import pytest

from benchmarks.peers import table
from benchmarks.peers.cells import CellError, per_s
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


def test_the_first_of_each_row_is_bold_by_the_median_and_what_is_missing_stays_empty():
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
    assert row_of(text, "submit one by one") == ["200", "**300**\\*".replace("\\", "")]
    assert row_of(text, "submit in bulk") == ["-", "**5***"]
    assert row_of(text, "submit to start, at rest, p50") == ["**2.0**", "3.0"]
    assert row_of(text, "5 ms of waiting") == ["-", "-"]
    assert row_of(text, "`kill -9`") == ["-", "-"]
    assert row_of(text, "lost after a minute") == ["**3**", "-"]


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
