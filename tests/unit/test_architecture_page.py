"""The page that explains the code is held against the code."""

import re
from pathlib import Path

import pytest

from jm_core.lifecycle import BUCKET_MOVES, JOB_MOVES, as_mermaid, diagrams

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_state_diagrams_are_those_of_the_tables() -> None:
    assert as_mermaid(JOB_MOVES) in PAGE
    assert as_mermaid(BUCKET_MOVES) in PAGE


@pytest.mark.parametrize("diagram", diagrams(), ids=["job", "bucket", "attempt"])
def test_the_concepts_show_every_diagram(diagram: str) -> None:
    assert f"```mermaid\n{diagram}\n```" in (ROOT / "docs" / "concepts.md").read_text()


def test_every_module_on_the_map_exists() -> None:
    _, _, after = PAGE.partition("### Map")
    words = re.sub(r"\([^)]*\)", " ", after.partition("```\n")[2].partition("```")[0]).split()
    packages = {"jm_core", "jm_nats", "jm_master", "cli/jm_cli"}
    modules = {path.stem for package in packages for path in (ROOT / package).rglob("*.py")}
    folders = {f"{path.parent.name}/" for package in packages for path in (ROOT / package).rglob("__init__.py")}
    named = [word for word in words if word not in {"·", *packages}]
    assert [word for word in named if word not in modules | folders] == []
    assert len(named) > 100
