"""Every log line has a constant for its name, and a row on docs/logs.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.log_events import ROOT, Said, all_said, said_by

PAGE = ROOT / "docs" / "logs.md"
LEVELS = ("debug", "info", "warning", "error", "critical")


def rows() -> dict[str, set[str]]:
    """Event to levels."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) >= 3 and cells[0].startswith("`") and set(cells[1].split("/")) <= set(LEVELS):
            name = cells[0].strip("`")
            assert name not in found, f"{name!r} has two rows"
            found[name] = set(cells[1].split("/"))
    return found


def test_every_message_is_a_constant_at_a_level_that_can_be_read():
    unclear = [said.where for said in all_said() if said.event is None or not said.levels]
    assert not unclear, f"put what changes into extra=...: {unclear}"
    assert len(all_said()) > 150


def test_the_page_names_every_event_and_its_levels_and_no_other():
    said: dict[str, set[str]] = {}
    for one in all_said():
        said.setdefault(str(one.event), set()).update(one.levels)
    assert rows() == said


@pytest.mark.parametrize(
    ("code", "event", "levels"),
    [
        ('log.info("bucket lost", extra={"bucket": b})', "bucket lost", {"info"}),
        ('log.info("bucket %s lost", b)', None, {"info"}),
        ('log.info(f"bucket {b} lost")', None, {"info"}),
        ("log.warning(text)", None, {"warning"}),
        ('log.exception("it failed")', "it failed", {"error"}),
        ('log.log(logging.DEBUG if quiet else logging.INFO, "it")', "it", {"debug", "info"}),
        ('log.log(level, "it")', "it", set()),
        ('trouble(log, "it waits", {})', "it waits", {"warning", "debug"}),
        ('trouble(log, "it is stuck", level=logging.ERROR)', "it is stuck", {"error", "debug"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_found_in_a_call(code, event, levels):
    call = ast.parse(code).body[0].value
    assert said_by(call, Path("x.py")) == Said("x.py:1", event, frozenset(levels))
