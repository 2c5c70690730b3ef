"""Every page of the documents does what it shows: its blocks are run from top to bottom, against a real cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.cli import environment
from tests.support.doc_blocks import ROOT, blocks_of, pages, read
from tests.support.doc_page import CLOSED_PIPE, BlockError, opened
from tests.support.forked_jm import ForkedJm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # a page has up to 25 commands

RUN = [page for page in pages() if any(block.runs or block.note("parsed") for block in blocks_of(page))]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
async def test_a_page_does_what_it_shows(page):
    ran = 0
    async with opened(page.stem) as reader:
        for block in blocks_of(page):
            await reader.run(block)
            ran += block.runs or block.note("parsed") is not None
    assert ran


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert 1 + 1 == 3\n```\n",
        "```python\nawait nothing()\n```\n",
        "```python\ndef broken(:\n```\n",
        "```console\n$ jm job show\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "<!-- exit `false`: 7 -->\n```console\n$ false\n```\n",
        "```json\n{\n```\n",
        "```python\n# shop.py\ndef broken(:\n```\n",
        "```console\n$ jm nonsense | head -3\n```\n",
        "```console\n$ jm job lst; echo ok\n```\n",
        "```console\n$ false | head -3\n```\n",
        "```console\n$ jm job show nonsense | head -3\n```\n",
        "```console\n```\n",
    ],
    ids=[
        *("assert", "await", "syntax", "usage", "output", "exit", "json", "file"),
        *("piped-nonsense", "joined", "piped-false", "piped-failure", "empty"),
    ],
)
async def test_a_sabotaged_block_fails(text):
    async with opened("no-such-page") as reader:
        with pytest.raises((BlockError, SyntaxError)):
            await reader.run(*read("page.md", text))


async def test_whoever_is_cut_off_by_head_has_not_failed():
    async with opened("no-such-page") as reader:
        endless = "sh -c 'while echo y; do :; done' | head"
        assert (await reader.in_a_shell(endless)).code == CLOSED_PIPE
        await reader.run(*read("page.md", f"```console\n$ {endless}\n```\n"))
        with pytest.raises(BlockError, match="141"):
            await reader.run(*read("page.md", f"```console\n$ {endless} | wc -l\n```\n"))


def test_the_first_program_of_a_reader_says_in_one_line_what_is_wrong(nats_server, tmp_path):
    """Another NATS is at the usual port: no cluster of the page's name is there."""
    blocks = blocks_of(ROOT / "docs" / "getting-started.md")
    for name in ("shop.py", "submit.py"):
        (text,) = [block.text for block in blocks if block.text.startswith(f"# {name}\n")]
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "submit.py"],
        cwd=tmp_path,
        env=environment(JM_NATS_URL=nats_server.url),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: NATS at ")
    assert "knows no cluster 'shop'; check the name, or start its coordinator" in line


async def test_a_command_of_jm_is_run_as_it_is_in_a_shell():
    """By a prepared process (``ForkedJm``): same output, same exit code."""
    async with opened("no-such-page") as reader:
        for command in ("jm --version", "jm schedule preview 'every day at 9:00' --count 1", "jm job show nonsense"):
            words = ForkedJm.words_of(command)
            assert words is not None
            forked, shell = await reader.jm.run(words, reader.env, 30), await reader.in_a_shell(command)
            assert forked == shell
    assert ForkedJm.words_of("jm job list | head") is None
    assert ForkedJm.words_of("python submit.py") is None


async def test_what_a_page_starts_ends_with_it():
    text = "<!-- background `sleep`: started -->\n```console\n$ sh -c 'echo started $$; exec sleep 600'\n```\n"
    (block,) = read("page.md", text.replace("`sleep`", "`sh`"))
    async with opened("no-such-page") as reader:
        await reader.run(block)
        (process,) = reader.started
        assert process.returncode is None
        folder = reader.folder
    assert process.returncode is not None
    assert not folder.exists()
