"""Reads docs/wire-format.md for the tests that keep it true: its blocks, its tables, its TCP transcript."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tests.support import doc_blocks

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "wire-format.md"
_CELL: Final = re.compile(r"(?<!\\)\|")
CRLF: Final = "\r\n"


class Block(NamedTuple):
    """A fenced block: ``json`` with a kind, ``js``, ``python`` or ``transcript``."""

    language: str
    kind: str
    text: str


class Sent(NamedTuple):
    """One command of the client with what belongs to it, lines as on the page, without CR LF."""

    lines: list[str]

    @property
    def counts(self) -> list[int]:
        """The numbers that its first line claims."""
        return [int(word) for word in self.lines[0].split() if word.isdecimal()] if self.lines[0][0] in "PH" else []

    @property
    def actual_counts(self) -> list[int]:
        """The numbers that it should claim: bytes of the headers (for HPUB), and of everything."""
        if self.lines[0].startswith("HPUB"):
            empty = self.lines.index("")
            headers = size(CRLF.join(self.lines[1 : empty + 1]) + CRLF)
            return [headers, headers + size(self.lines[empty + 1])]
        return [size(self.lines[1])] if self.lines[0].startswith("PUB") else []


class Received(NamedTuple):
    """A line of the server, and for MSG its payload; ``…`` is anything."""

    line: str
    payload: str | None

    @property
    def subject(self) -> str | None:
        return self.line.split()[1] if self.line.startswith("MSG ") else None


def size(text: str) -> int:
    return len(text.encode())


def text() -> str:
    return PAGE.read_text()


def blocks(language: str, kind: str | None = None) -> list[Block]:
    """In the order of the page."""
    found = [Block(block.language, block.note("kind") or "", block.text) for block in doc_blocks.blocks_of(PAGE)]
    return [block for block in found if block.language == language and kind in (None, block.kind)]


def table(first_header: str, *, after: str = "") -> list[list[str]]:
    """The cells of the first table whose header starts so (behind the text ``after``), without header and rule."""
    page = text()
    lines = page[page.index(after) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_header} |"))
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("\\|", "|") for cell in _CELL.split(line)[1:-1]])
    return rows


def transcript() -> list[Sent | Received]:
    """The conversation, commands and answers in the order of the page."""
    steps: list[Sent | Received] = []
    for line in "".join(block.text for block in blocks("transcript")).splitlines():
        who, said = line[:2], line[3:]
        if who == "C:" and _goes_on(steps):
            steps[-1].lines.append(said)  # type: ignore[union-attr]
        elif who == "C:":
            steps.append(Sent([said]))
        elif steps and isinstance(steps[-1], Received) and steps[-1].subject and steps[-1].payload is None:
            steps[-1] = Received(steps[-1].line, said)
        else:
            steps.append(Received(said, None))
    return steps


def _goes_on(steps: list[Sent | Received]) -> bool:
    """Whether the last command still wants lines: a payload, or headers, the empty line and a payload."""
    if not steps or not isinstance(steps[-1], Sent):
        return False
    lines = steps[-1].lines
    if lines[0].startswith("HPUB"):
        return "" not in lines or lines[-1] == ""
    return lines[0].startswith("PUB") and len(lines) == 1
