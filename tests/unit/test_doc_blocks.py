"""Every code block of README.md and docs/ is checked by somebody; tests/integration/test_doc_pages.py runs them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.support.cli import is_command
from tests.support.doc_blocks import LANGUAGES, ROOT, Block, blocks_of, pages, read, troubles, unused_files
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


# By page, how many blocks are not run as they stand: drawings; Docker; a collector; the install; the tests themselves;
# programs that a test runs in a way of its own. README.md lists these kinds.
NOT_RUN = {
    "README.md": 1,
    "docs/architecture.md": 1,
    "docs/compose.md": 4,
    "docs/getting-started.md": 1,
    "docs/operations.md": 1,
    "docs/reliability.md": 1,
    "docs/tracing.md": 1,
}


def test_what_is_not_run_is_what_the_readme_says():
    assert Counter(block.page for block in BLOCKS if "not run" in block.about_all) == NOT_RUN
    commands = [note.prefix for block in BLOCKS for note in block.notes if note.key == "not run" and note.prefix]
    assert sorted(commands) == ["uv run jm demo", "uv run pytest"]
    parsed = {block.page for block in BLOCKS if "parsed" in block.about_all}
    assert parsed == {"docs/cli.md", "docs/clusters.md", "docs/operations.md"}


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
        ("```console\n```\n", "no command is in it"),
        ("```console\n$ jm job list; kill 1\n```\n", "joins commands by ;"),
        ("```console\n$ jm job lst; echo ok\n```\n", "No such command 'lst'"),
        ("```console\n$ jm nonsense | head -3\n```\n", "No such command 'nonsense'"),
        ("```console\n$ jm top --once && rm x\n```\n", "joins commands by &&"),
        ("```console\n$ jm top --once || echo ok\n```\n", "joins commands by ||"),
        ("```console\n$ echo `kill 1`\n```\n", "joins commands by `"),
        ('```console\n$ echo "$(kill 1)"\n```\n', "joins commands by $("),
        ("```console\n$ jm job list | rm -rf x\n```\n", "'rm' is not run for a page"),
        ("```console\n$ jm job list | xargs -n 1 rm\n```\n", "'rm' is not run for a page"),
        ("<!-- not run `jm`: so -->\n```console\n$ jm job lst\n```\n", "No such command 'lst'"),
        ("<!-- not run: so -->\n```console\n$ docker compose run jm job lst\n```\n", "No such command 'lst'"),
        ("<!-- checked by: t -->\n```console\n$ jm job list --limt 3\n```\n", "No such option"),
        ("```python\nasync def main():\n    nothing()\n```\n", "nothing calls main()"),
    ],
    ids=[
        *("language", "drawing", "js", "key", "reason", "pip", "kill", "prefix"),
        *("empty", "semicolon", "joined", "piped", "and", "or", "backtick", "substitution", "pipe", "xargs"),
        *("not-run-command", "not-run-block", "checked-block", "uncalled"),
    ],
)
def test_a_block_that_would_escape_is_seen(text: str, said: str):
    assert any(said in trouble for trouble in troubles(one(text)))


@pytest.mark.parametrize(
    "command",
    [
        'jm submit x \'{"a": "b; c && d `e`"}\'',
        "jm job list --json | jq '.jobs[] | .id'",
        "jm job list | xargs -n 1 jm job show",
        "jm top --once  # live without it; until Ctrl-C",
        "jm job wait <id> --timeout 5",
    ],
    ids=["quoted", "jq", "xargs", "comment", "id"],
)
def test_a_command_that_is_whole_passes(command: str):
    assert troubles(one(f"```console\n$ {command}\n```\n")) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_file_of_a_page_is_used_on_it(page):
    assert unused_files(blocks_of(page)) == []


def test_a_file_that_nothing_uses_is_seen():
    written = "```python\n# submit.py\nprint(1)\n```\n"
    assert unused_files(read("page.md", written)) == ["page.md:1: nothing runs or imports submit.py"]
    assert unused_files(read("page.md", written + "```console\n$ python submit.py\n```\n")) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_path_below_deploy_that_a_page_names_is_there(page):
    assert [path for path in deploy_paths(page.read_text()) if not (ROOT / path).exists()] == []


def test_a_path_that_is_not_there_is_seen():
    text = "see deploy/smoke.py, `deploy/nats`; python3 -m deploy.smok -f deploy/compose/*"
    assert deploy_paths(text) == ["deploy/smoke.py", "deploy/nats", "deploy/compose", "deploy/smok"]
    assert not (ROOT / "deploy" / "smoke.py").exists()


def deploy_paths(text: str) -> list[str]:
    """Also a module that a command starts, as its folder."""
    named = [match.rstrip("./") for match in re.findall(r"\bdeploy/[\w./@-]+", text)]
    return named + [match.replace(".", "/") for match in re.findall(r"-m (deploy[\w.]+)", text)]


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
