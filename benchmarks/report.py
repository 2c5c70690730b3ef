"""What every benchmark prints last: one JSON object, stamped with machine and versions."""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.cluster import WAL, Cluster
from benchmarks.table import RESULTS


async def stamp(made: Cluster) -> dict[str, Any]:
    """Where and with what it was measured."""
    db = await asyncpg.connect(made.dsn)
    postgres = str(await db.fetchval("show server_version"))
    await db.close()
    async with made.client() as client:
        nats = str(client.link.nc.connected_server_version)
    packages = ("jobmaster-nats", "nats-py", "asyncpg", "msgspec", "uvloop")
    return {
        "versions": {
            "python": platform.python_version(),
            "postgres": postgres,
            "nats": nats,
            **{name: _version(name) for name in packages},
        },
        "machine": machine(),
        "postgres_settings": WAL,
        "at": _today(),
    }


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "system": platform.platform(), "processor": platform.machine()}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _today() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def progress(found: object) -> None:
    """How far a long run is, for who waits; not part of the result."""
    print(f"{datetime.now(UTC):%H:%M:%S} {found}", file=sys.stderr, flush=True)


def ratio(value: float, yardstick: float | None) -> float | None:
    return None if not yardstick else round(value / yardstick, 3)


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least ``share`` of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, int(len(ordered) * share)))]


AT_LEAST_ONE = frozenset({"jobs", "rounds", "kills", "nats_nodes", "seconds", "rows", "waiting", "lone", "callers"})


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options that all benchmarks have, and those of ``parser``."""
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    parser.add_argument("--check", action="store_true", help="exit 1 when a promised figure is not reached")
    parser.add_argument("--save", action="store_true", help="keep the result for `python -m benchmarks.table`")
    parser.set_defaults(measure=(parser.description or "").strip().partition("\n")[0])
    options = parser.parse_args()
    for name in AT_LEAST_ONE & vars(options).keys():
        value = getattr(options, name)
        if isinstance(value, int | float) and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value:g}: must be 1 or more; leave it out for the default")
    return options


def command_of(module: str, arguments: Sequence[str]) -> str:
    """The command line to repeat it with; without the options that say what becomes of the result."""
    kept = [argument for argument in arguments if argument not in ("--json", "--check", "--save")]
    return " ".join(["python -m", module, *kept])


def save(title: str, result: dict[str, Any], measure: str, folder: Path = RESULTS) -> None:
    """What ``benchmarks.table`` reads."""
    command = command_of(f"benchmarks.{Path(sys.argv[0]).stem}", sys.argv[1:])
    kept = {"measure": measure.rstrip(".,:"), "command": command, **result}
    folder.mkdir(exist_ok=True)
    (folder / f"{title}.json").write_text(json.dumps(kept, indent=1) + "\n")


def show(
    title: str,
    result: dict[str, Any],
    options: argparse.Namespace,
    *,
    at_least: dict[str, float] | None = None,
    at_most: dict[str, float] | None = None,
) -> None:
    """A line for people unless only JSON is wanted; the JSON object is always the last line.

    Args:
        at_least: what is promised, by key of ``result``; a key whose value is None (no yardstick) cannot be judged.
        at_most: the same for what must stay small.
    """
    kept = {f"{key} >= {bound:g}": _holds(result[key], bound, 1) for key, bound in (at_least or {}).items()}
    kept |= {f"{key} <= {bound:g}": _holds(result[key], bound, -1) for key, bound in (at_most or {}).items()}
    result = {**result, "promised": kept}
    if not options.json:
        facts = {k: v for k, v in result.items() if k not in ("versions", "machine")}
        print(f"{title}: " + ", ".join(f"{k}={v}" for k, v in facts.items()))
    print(json.dumps(result))
    if options.save:
        save(title, result, options.measure)
    if options.check and not all(held is True for held in kept.values()):
        raise SystemExit(1)


def _holds(value: float | None, bound: float, sign: int) -> bool | None:
    return None if value is None else sign * (value - bound) >= 0
