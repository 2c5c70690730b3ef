"""The site of docs/ builds without a warning, and has every page in its navigation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text()
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """In a copy: nothing of it shows up in the working tree, and a page can be spoilt."""
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


def test_the_site_builds_with_warnings_as_errors_and_asks_nobody_for_anything(copy: Path):
    done = build(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    html = {path.name: path.read_text() for path in (copy / "site").glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == {Path(name).stem for name in html} - {"404"}
    fetched = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="?(https?:)?//')
    assert [name for name, text in html.items() if fetched.search(text)] == []


@pytest.mark.parametrize(
    "spoilt",
    [
        "[gone](no-such-page.md)",
        "[gone](concepts.md#no-such-heading)",
        "[gone](#no-such-heading)",
        "[out](../README.md)",
    ],
    ids=["page", "anchor", "own anchor", "outside"],
)
def test_a_broken_link_ends_the_build(copy: Path, spoilt: str):
    with (copy / "docs" / "faq.md").open("a") as page:
        page.write(f"\n{spoilt}\n")
    done = build(copy)
    assert done.returncode != 0
    assert "faq.md" in done.stdout + done.stderr


def test_every_page_is_in_the_navigation_once():
    named = re.findall(r": ([\w/-]+\.md)$", CONFIG, re.MULTILINE)
    assert sorted(named) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_what_other_pages_link_to_is_there(page: str):
    """They are no part of the site, whose links its build checks."""
    links = LINK.findall((ROOT / page).read_text())
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
