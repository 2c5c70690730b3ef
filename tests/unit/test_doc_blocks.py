"""Every code block of README.md and docs/ is checked by somebody; tests/integration/test_doc_pages.py runs them."""

from __future__ import annotations

import re

import pytest

from tests.support.cli import is_command
from tests.support.doc_blocks import LANGUAGES, Block, blocks_of, pages, read, troubles
from tests.support.doc_page import BlockError, check_diagram, matches, parse_commands, parse_data
from tests.support.named_tests import missing_tests

BLOCKS = [block for page in pages() for block in blocks_of(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=[block.name for block in BLOCKS])
def test_a_block_says_what_becomes_of_it(block: Block):
    assert troubles(block) == []
    assert missing_tests(block.note("checked by") or "") == {}
    if named := block.note("checked by"):
        assert re.fullmatch(r"tests/[\w/]+\.py::\w+(, tests/[\w/]+\.py::\w+)*", named)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_fence_of_a_page_escapes(page):
    """One that is indented, or opened with more marks, would be shown and not found."""
    fences = re.findall(r"^[ \t]*(?:`{3,}|~{3,})", page.read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of(page))
    assert all(fence == "```" for fence in fences)


def test_the_documents_have_blocks_of_most_languages():
    assert len(BLOCKS) > 50
    assert {block.language for block in BLOCKS} <= LANGUAGES
    assert {"python", "console", "sql", "mermaid", "json", "js"} <= {block.language for block in BLOCKS}


def one(text: str) -> Block:
    (block,) = read("page.md", text)
    return block


# The harness itself: each kind of damage is seen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```cobol\nDISPLAY 1\n```\n", "language 'cobol' is unknown"),
        ("```\na drawing\n```\n", "text is not run"),
        ("```js\n1\n```\n", "js is not run"),
        ("<!-- not runn: so -->\n```\na\n```\n", "unknown note 'not runn'"),
        ("<!-- not run:  -->\n```\na\n```\n", "without a reason"),
        ("```console\n$ pip install x\n```\n", "'pip' is not run for a page"),
        ("```console\n$ A=1 kill 1\n```\n", "'kill' is not run for a page"),
        ("<!-- exit `jm job`: 7 -->\n```console\n$ jm top\n```\n", "no command begins with 'jm job'"),
    ],
    ids=["language", "drawing", "js", "key", "reason", "pip", "kill", "prefix"],
)
def test_a_block_that_would_escape_is_seen(text: str, said: str):
    assert any(said in trouble for trouble in troubles(one(text)))


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("json", '{"a": 1,}'),
        ("yaml", "a: [1"),
        ("toml", "a = "),
        ("ini", "[section\n"),
    ],
    ids=["json", "yaml", "toml", "ini"],
)
def test_data_that_cannot_be_read_fails(language: str, text: str):
    with pytest.raises(BlockError, match=r"page\.md:1"):
        parse_data(one(f"```{language}\n{text}\n```\n"))


def test_a_diagram_that_is_not_of_the_tables_fails():
    with pytest.raises(BlockError, match="none of those"):
        check_diagram(one("```mermaid\nstateDiagram-v2\n    succeeded --> processing: again\n```\n"))


@pytest.mark.parametrize(
    "command",
    ["jm job lst", "jm submit x --prioritty high", "jm up --workers many", "rm -rf /", "jm schedule add x"],
)
def test_a_command_that_is_none_is_seen(command: str):
    assert is_command(command)
    with pytest.raises(BlockError):
        parse_commands(one(f"```console\n$ {command}\n```\n"))


@pytest.mark.parametrize(
    "command",
    [
        "jm job list --status failed  # a comment",
        "JM_CLUSTER=shop jm top --once | head",
        "jm submit x '{\"a\": 1}' --in 10m",
    ],
)
def test_a_command_that_is_one_passes(command: str):
    assert is_command(command) == ""


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a … c"], "a b c\n", True),
        (["a"], "a\nb\n", False),
        (["a", "…", "d"], "a\nb\nc\nd\n", True),
        (["a.c"], "abc\n", False),
        (["a  ", ""], "a\n", True),
    ],
    ids=["gap", "more", "lines", "literal", "blanks"],
)
def test_what_a_page_shows_is_compared(shown: list[str], printed: str, same: bool):
    assert matches(shown, printed) is same
