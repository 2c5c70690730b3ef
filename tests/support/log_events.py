"""Every log line that the code can write, found in its syntax trees."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("jm_core", "jm_nats", "jm_master", "cli/jm_cli")
METHODS: Final = {name: name for name in ("debug", "info", "warning", "error", "critical")} | {"exception": "error"}


@dataclass(frozen=True)
class Said:
    """One call. ``event`` is None where its text is no constant."""

    where: str
    event: str | None
    levels: frozenset[str]


def all_said() -> list[Said]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            found += [said for node in ast.walk(tree) if (said := said_by(node, path.relative_to(ROOT))) is not None]
    return found


def said_by(node: ast.AST, path: Path) -> Said | None:
    if not isinstance(node, ast.Call):
        return None
    return _told(node, f"{path}:{node.lineno}") if path.name != "troubles.py" else None


def _told(node: ast.Call, where: str) -> Said | None:
    if isinstance(node.func, ast.Name) and node.func.id == "trouble":
        level = next((_levels(k.value) for k in node.keywords if k.arg == "level"), frozenset({"warning"}))
        return Said(where, _constant(node.args[1]), level | {"debug"})
    if not (isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)):
        return None
    if node.func.value.id != "log" or node.func.attr not in {*METHODS, "log"}:
        return None
    if node.func.attr == "log":
        return Said(where, _constant(node.args[1]), _levels(node.args[0]))
    text = _constant(node.args[0]) if len(node.args) == 1 else None  # more would be arguments for a %
    return Said(where, text, frozenset({METHODS[node.func.attr]}))


def _constant(node: ast.expr) -> str | None:
    return (
        node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) and "%" not in node.value else None
    )


def _levels(node: ast.expr) -> frozenset[str]:
    """``logging.INFO``, or one of two by a condition."""
    if isinstance(node, ast.IfExp):
        return _levels(node.body) | _levels(node.orelse)
    return frozenset({node.attr.lower()}) if isinstance(node, ast.Attribute) else frozenset()
