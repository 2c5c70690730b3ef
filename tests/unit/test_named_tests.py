"""Every test that README.md or a page of docs/ names exists, and each promise names some."""

from __future__ import annotations

import re

import pytest

from tests.support.doc_blocks import ROOT, pages
from tests.support.named_tests import missing_tests, named_tests, names_in

PROMISE = re.compile(r"^\| (P\d+) \| (.+?) \| ([^|]+) \|$", re.MULTILINE)
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
PROMISES = PROMISE.findall(GUARANTEES)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page):
    assert missing_tests(page.read_text()) == {}


def test_a_test_that_does_not_exist_is_missed():
    assert missing_tests("`tests/unit/test_named_tests.py::test_nothing`") == {
        "tests/unit/test_named_tests.py": {"test_nothing"}
    }
    assert missing_tests("see `tests/unit/test_nothing.py`") == {"tests/unit/test_nothing.py": {""}}
    assert "test_a_test_that_does_not_exist_is_missed" in names_in("tests/unit/test_named_tests.py")


def test_the_promises_are_those_of_the_contract_and_the_newer_ones():
    contract = re.findall(r"^\| (P\d+) \| \*\*(.+?)\*\*", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert len(contract) == 8
    titles = {number: text for number, text, _ in PROMISES}
    assert list(titles) == [f"P{n}" for n in range(1, len(PROMISES) + 1)]
    assert all(titles[number].startswith(f"**{title}**") for number, title in contract)
    assert len(PROMISES) == GUARANTEES.count("\n| P")


@pytest.mark.parametrize("row", PROMISES, ids=[number for number, _, _ in PROMISES])
def test_a_promise_names_the_tests_that_show_it(row):
    assert [name for _, name in named_tests(row[2]) if name]


def test_every_question_is_answered_with_a_test_or_a_page():
    """But for those whose answer is that something does not exist."""
    questions = re.split(r"^### ", (ROOT / "docs" / "faq.md").read_text(), flags=re.MULTILINE)[1:]
    without = [q.splitlines()[0] for q in questions if not named_tests(q) and not re.search(r"\]\([\w-]+\.md", q)]
    assert without == ['Is "exactly once" possible, then?', "Does it run on Windows?"]
    assert len(questions) > 20
