"""docs/schedules.md: its examples are what it says they are."""

import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from jm_core.recurrence import check_fires, guess_kind, next_times, parse_recurrence

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schedules.md").read_text()
EXAMPLES = re.findall(r"^\| `(cron|every|rrule|plain): ([^`]+)` \|", PAGE, re.MULTILINE)
CHANGES = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) \|$", PAGE.partition("| 10 March |")[2], re.MULTILINE)
NEW_YORK = ZoneInfo("America/New_York")


def test_the_page_has_examples_of_every_kind():
    assert {kind for kind, _ in EXAMPLES} == {"cron", "every", "rrule", "plain"}
    assert len(CHANGES) == 4


@pytest.mark.parametrize(("kind", "text"), EXAMPLES, ids=[text for _, text in EXAMPLES])
def test_an_example_is_read_as_its_kind_and_fires(kind: str, text: str):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert check_fires(parse_recurrence(kind, text, "Europe/Berlin", anchor=now), now) is None
    assert guess_kind(text) == kind


@pytest.mark.parametrize("row", CHANGES, ids=[row[0] for row in CHANGES])
def test_what_the_page_says_of_a_change_of_clocks_is_so(row: tuple[str, str, str]):
    expression, *said = row
    for day, words in zip((datetime(2024, 3, 10), datetime(2024, 11, 3)), said, strict=True):  # noqa: DTZ001
        begin = day.replace(hour=1, tzinfo=NEW_YORK).astimezone(UTC)
        found = [
            at.astimezone(NEW_YORK)
            for at in next_times(parse_recurrence("cron", expression, "America/New_York"), begin, 4)
        ]
        that_day = [at for at in found if at.day == day.day]
        for time in re.findall(r"\d\d:\d\d-\d\d:\d\d", words):
            assert time in [at.isoformat()[11:16] + at.isoformat()[19:] for at in that_day]
        if "once" in words:
            assert len(that_day) == 1
        if "not at all" in words:
            assert that_day == []
        if "four times" in words:
            assert len(that_day) == 4
