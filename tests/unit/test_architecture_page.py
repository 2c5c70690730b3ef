"""The page that explains the code is held against the code."""

from pathlib import Path

from jm_core.lifecycle import BUCKET_MOVES, JOB_MOVES, as_mermaid

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()


def test_the_state_diagrams_are_those_of_the_tables() -> None:
    assert as_mermaid(JOB_MOVES) in PAGE
    assert as_mermaid(BUCKET_MOVES) in PAGE
