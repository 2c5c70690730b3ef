import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = {"jm_core": ROOT / "jm_core", "jm_nats": ROOT / "jm_nats", "jm_master": ROOT / "jm_master"}
LAYERS["jm_cli"] = ROOT / "cli" / "jm_cli"
ORDER = list(LAYERS)
IMPURE = {"asyncio", "time", "random", "logging", "nats", "asyncpg", "anyio"}


def imported_by(package: str) -> set[tuple[str, str]]:
    """(file, top-level name) of every import, also of those inside functions and TYPE_CHECKING blocks."""
    found = set()
    for path in sorted(LAYERS[package].rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {(str(path.relative_to(ROOT)), name.split(".")[0]) for name in names}
    return found


def test_imports_run_from_the_cli_to_the_core_and_never_back():
    forbidden = {package: set(ORDER[ORDER.index(package) + 1 :]) for package in ORDER}
    against = [(file, name) for package in ORDER for file, name in imported_by(package) if name in forbidden[package]]
    assert against == []


def test_the_core_has_no_clock_no_randomness_and_no_io():
    assert [(file, name) for file, name in imported_by("jm_core") if name in IMPURE] == []


def test_the_walk_sees_what_it_judges():
    assert ("jm_master/embedded.py", "jm_nats") in imported_by("jm_master")
