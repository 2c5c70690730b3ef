"""docs/field-cases.md: every case is answered, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "field-cases.md").read_text()
# The numbers of the collection that the page answers, by kind. It has gaps: weaker reports were taken out of it.
CASES: Final = {
    "LOST": "001 002 003 004 005 006 007 008 009 010 011 013 014 015 016",
    "DUP": "017 018 019 020 021 022 023 024 025 026 027 028 029 031 032 033 035",
    "STUCK": "036 038 039 040 041 042 044 045 046 049 050 051",
    "HB": "052 053 054 056 057 058 059 060 061 062 063 064 065 066",
    "SHUT": "131 132 133 134 136 137 138",
    "NATS": "139 140 141 142 143 144 145 148 149 150 151 152 153 154 155",
    "CANC": "190 191 192 193 194 195 196 197",
    "PG": "156 157 158 159 160 161 162 164 165 166 167 168 169",
    "CLOCK": "068 069 070 071 072 073 074 075 076",
    "CRON": "077 078 079 080 081 083 084 085 086 087 088 089 091 092 093 094 095 096 098 099 100",
    "LOAD": "171 172 173 174 175 176 177",
    "UNIQ": "183 184 186 187 188",
    "SEC": "217 218 219 220 222 223 224 225 226 227",
    "OBS": "198 200 202 203 204 205",
    "CLI": "206 207 208 209 210",
    "MIG": "212 214 215",
}
ANSWERS: Final = ("covered by `tests/", "does not apply because ", "open: issue ")
ROW: Final = re.compile(r"^\| (BR-\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
NAMED: Final = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def section(kind: str) -> str:
    _, _, rest = PAGE.partition(f" ({kind})\n")
    return rest.partition("\n## ")[0]


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name.startswith("test_")}


@pytest.mark.parametrize("kind", CASES)
def test_every_case_of_a_kind_is_listed_once_and_in_order(kind: str) -> None:
    assert [row[0] for row in ROW.findall(section(kind))] == [f"BR-{number}" for number in CASES[kind].split()]


def test_every_case_has_an_answer() -> None:
    unanswered = [case for case, _, answer in ROW.findall(PAGE) if not answer.startswith(ANSWERS)]
    assert unanswered == []


def test_every_line_of_a_table_was_read() -> None:
    """A line that the pattern does not fit would escape every other check here."""
    assert len(ROW.findall(PAGE)) == PAGE.count("\n| BR-")


def test_every_test_that_is_named_exists() -> None:
    by_file: dict[str, set[str]] = {}
    for file, name in NAMED.findall(PAGE):
        by_file.setdefault(file, set()).add(name)
    missing = {
        file: absent
        for file, names in by_file.items()
        if (absent := names - (names_in(ROOT / file) if (ROOT / file).exists() else set()))
    }
    assert missing == {}
    assert sum(len(names) for names in by_file.values()) > 50
