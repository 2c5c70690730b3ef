"""The fenced blocks of README.md and docs/: what each is, and what the comments above it say of how it is checked.

A comment above a block shows on no site. ``<!-- KEY: VALUE -->`` is about the block, ``<!-- KEY `PREFIX`: VALUE -->``
about those of its commands that begin so:

* ``not run: REASON``: not run, and why. What it has of ``jm`` is parsed all the same.
* ``checked by: TEST, ...``: those tests run it; they have to exist.
* ``background `jm up`: TEXT``: goes on beside what follows, which waits until it has said TEXT; stopped with the page.
* ``exit `jm job wait`: 7``: the code that the command ends with, where it is not 0.
* ``kind: submit``: which message a JSON block is (docs/wire-format.md).
* ``parsed: REASON``: commands whose options are looked up and which are not called.

A command that is run is one program, or a pipe of them: of ``a; b`` only the end of b would be seen.
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.cli import is_command

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
# And what may stand behind a pipe.
FILTERS: Final = {"head", "tail", "jq", "sort", "wc", "grep", "xargs"}
# In what a shell does, these join commands: the end of the first one would be lost, or one would be hidden in another.
JOINTS: Final = {";", "&&", "||", "&", "`", "$("}
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
    if block.language == "console" and not commands:
        said.append("no command is in it: one begins with '$ '")
    for command in commands:
        said += _troubles_of(block, command)
    if block.language == "python" and block.runs:
        said += _never_called(block.text)
    said += [
        f"no command begins with {note.prefix!r}"
        for note in block.notes
        if note.prefix and not any(command.startswith(note.prefix) for command in commands)
    ]
    return said


def _troubles_of(block: Block, command: str) -> list[str]:
    said = []
    if any(word == "jm" for word in words_of(command)) and block.note("exit", command) != "2":
        # Also of what is not run: an option that is gone would stay on the page.
        said += [f"{command!r}: {trouble}" for trouble in [is_command(command)] if trouble]
    if not block.runs or block.note("not run", command):
        return said
    if joints := joints_of(command):
        return [*said, f"{command!r} joins commands by {', '.join(joints)}: write each behind a prompt of its own"]
    first, *others = [_program(part) for part in pipe_of(command)]
    remedy = "say '<!-- not run `{0}`: REASON -->', or '<!-- checked by: TEST -->'"
    strange = [program for program in [first] if program not in PROGRAMS]
    strange += [program for program in others if program not in PROGRAMS | FILTERS]
    return said + [f"{program!r} is not run for a page: {remedy.format(first)}" for program in strange]


def words_of(command: str) -> list[str]:
    """Operators are words of their own, comments are none; the continuation of a line is nothing."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    return list(lexer)


def joints_of(command: str) -> list[str]:
    """What joins commands in it, other than a pipe."""
    outside = re.sub(r"\s#.*", "", re.sub(r"'[^']*'", "", command))
    unquoted = re.sub(r'"[^"]*"', "", outside)
    operators = {word for word in re.findall(r"[;&|]+", re.sub(r"\d?>&\d", "", unquoted)) if word != "|"}
    return sorted(operators | {mark for mark in ("`", "$(") if mark in outside})


def pipe_of(command: str) -> list[str]:
    parts: list[list[str]] = [[]]
    for word in words_of(command):
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    return [shlex.join(part) for part in parts]


def _program(command: str) -> str:
    """The first word that is no variable's value; of xargs what it starts."""
    words = [word for word in shlex.split(command) if not _ASSIGNMENT.fullmatch(word)]
    if words[:1] == ["xargs"]:
        words = [word for word in words[1:] if not word.startswith("-") and not word.isdigit()]
    return words[0] if words else ""


def _never_called(text: str) -> list[str]:
    """Functions that a snippet only defines: of those no more than the syntax would be checked."""
    if text.startswith("# ") and text.partition("\n")[0].endswith(".py"):
        return []  # a file: see unused_files
    try:
        tree = compile(text, "page", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        return [str(error)]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    defined = [node for node in tree.body if isinstance(node, functions) and not node.decorator_list]
    return [f"nothing calls {node.name}()" for node in defined if node.name not in used]


def unused_files(blocks: list[Block]) -> list[str]:
    """Files that a page has written and that nothing on it runs or imports."""
    unused = []
    for number, block in enumerate(blocks):
        named = re.match(r"# ([\w/]+)\.py\n", block.text)
        if block.language == "python" and block.runs and named:
            module = re.escape(named[1])
            use = re.compile(rf"^(from|import) {module}\b|python {module}\.py|\b{module}:\w|@jm\.handler", re.MULTILINE)
            if not any(use.search(other.text) for other in [*blocks[:number], *blocks[number + 1 :]]):
                unused.append(f"{block.name}: nothing runs or imports {named[1]}.py")
    return unused
