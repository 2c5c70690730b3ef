"""Tests that a page of the documents names: ``tests/path/test_file.py::test_name``."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_NAMED: Final = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests that a file has; none if there is no such file."""
    path = ROOT / file
    if not path.exists():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text())
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, functions) and n.name.startswith("test_"))


def named_tests(text: str) -> list[tuple[str, str]]:
    """(file, test) in the order of the text; of a file alone the test is empty."""
    return _NAMED.findall(text)


def missing_tests(text: str) -> dict[str, set[str]]:
    """Of the tests that ``text`` names, those that do not exist, by file."""
    missing: dict[str, set[str]] = {}
    for file, name in named_tests(text):
        if (name and name not in names_in(file)) or not (ROOT / file).exists():
            missing.setdefault(file, set()).add(name)
    return missing
