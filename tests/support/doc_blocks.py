"""The fenced blocks of README.md and docs/: what each is, and what the comments above it say of how it is checked.

A comment above a block shows on no site. ``<!-- KEY: VALUE -->`` is about the block, ``<!-- KEY `PREFIX`: VALUE -->``
about those of its commands that begin so:

* ``not run: REASON``: neither run nor parsed, and why.
* ``checked by: TEST, ...``: those tests run it; they have to exist.
* ``background `jm up`: TEXT``: goes on beside what follows, which waits until it has said TEXT; stopped with the page.
* ``exit `jm job wait`: 7``: the code that the command ends with, where it is not 0.
* ``kind: submit``: which message a JSON block is (docs/wire-format.md).
* ``parsed: REASON``: commands whose options are looked up and which are not called.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
# What is done with each is in doc_page.py. Another language has to be taught first, or it would be there unchecked.
LANGUAGES: Final = {
    *("python", "console", "sql", "mermaid"),
    *("json", "yaml", "toml", "ini"),
    *("js", "transcript", "ebnf", "text"),
}
KEYS: Final = {"not run", "checked by", "background", "exit", "parsed", "kind"}
# What a page may have a test do to the machine. Others (pip, docker, kubectl, kill) want a note, or a word here.
PROGRAMS: Final = {"jm", "uv", "python", "export", "cat", "echo", "false", "sh"}
# Only a test of their own knows what these say.
NEVER_RUN: Final = {"js", "transcript", "ebnf", "text"}
PROMPT: Final = re.compile(r"^(?:\w*\$|#) ")  # "site1$ ", and "# " for root
_ASSIGNMENT: Final = re.compile(r"\w+=\S*")
_FENCE: Final = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE: Final = re.compile(r"<!-- ([a-z ]+?)(?: `([^`]+)`)?: (.*?) -->")


class Note(NamedTuple):
    key: str
    prefix: str
    value: str


class Step(NamedTuple):
    """A command of a console block, and the lines that the page shows below it."""

    command: str
    shown: list[str]


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    notes: list[Note]

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    def note(self, key: str, command: str = "") -> str | None:
        """What is said about the block, or about this command of it."""
        found = [note.value for note in self.notes if note.key == key and command.startswith(note.prefix)]
        return found[0] if found else None

    @property
    def about_all(self) -> set[str]:
        return {note.key for note in self.notes if not note.prefix}

    @property
    def runs(self) -> bool:
        return not self.about_all & {"not run", "checked by", "parsed"}

    @property
    def steps(self) -> list[Step]:
        """Its commands; one that ends in a backslash goes on in the next line."""
        steps: list[Step] = []
        for line in self.text.splitlines():
            if prompt := PROMPT.match(line):
                steps.append(Step(line[prompt.end() :], []))
            elif steps and steps[-1].command.endswith("\\") and not steps[-1].shown:
                steps[-1] = Step(f"{steps[-1].command}\n{line.removeprefix('> ')}", [])
            else:
                assert steps, f"{self.name}: a console block begins with a prompt, '$ '"
                steps[-1].shown.append(line)
        return steps


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    return read(page.relative_to(ROOT).as_posix(), page.read_text())


def read(page: str, text: str) -> list[Block]:
    """In the order of the page."""
    found = []
    for match in _FENCE.finditer(text):
        above = text[: match.start()]
        found.append(Block(page, above.count("\n") + 1, match[1] or "text", match[2], _notes(above.splitlines())))
    return found


def _notes(above: list[str]) -> list[Note]:
    notes: list[Note] = []
    while above and above[-1].startswith("<!--"):
        line = above.pop()
        parsed = _NOTE.fullmatch(line.strip())
        assert parsed, f"no note that could be read: {line}"
        notes.insert(0, Note(parsed[1], parsed[2] or "", parsed[3]))
    return notes


def troubles(block: Block) -> list[str]:
    """What keeps a block from being checked as it should be."""
    said = []
    if block.language not in LANGUAGES:
        said.append(f"language {block.language!r} is unknown; use one of {', '.join(sorted(LANGUAGES))}")
    said += [f"unknown note {note.key!r}" for note in block.notes if note.key not in KEYS]
    said += [f"{note.key!r} without a reason" for note in block.notes if not note.value.strip()]
    if block.language in NEVER_RUN and block.runs:
        said.append(
            f"{block.language} is not run: say so above it, <!-- not run: REASON --> or <!-- checked by: TEST -->"
        )
    commands = [step.command for step in block.steps] if block.language == "console" else []
    said += [
        f"{program!r} is not run for a page: say '<!-- not run `{program}`: REASON -->', or '<!-- checked by: TEST -->'"
        for command in commands
        if block.runs and not block.note("not run", command) and (program := _program(command)) not in PROGRAMS
    ]
    said += [
        f"no command begins with {note.prefix!r}"
        for note in block.notes
        if note.prefix and not any(command.startswith(note.prefix) for command in commands)
    ]
    return said


def _program(command: str) -> str:
    """The first word that is no variable's value."""
    words = [word for word in command.split() if not _ASSIGNMENT.fullmatch(word)]
    return words[0] if words else ""
