"""The same work on the same machine, in the same run, by what people would pick instead.

    python -m benchmarks.peers --install envs          # once: an environment for each peer
    python -m benchmarks.peers --envs envs --out peers.json
    python -m benchmarks.peers --table peers.json

Peers in turn within each round, medians of the rounds. What is not installed is left out, with the reason. The result
is written after every cell, so ``--resume`` goes on where a run ended.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import report
from benchmarks.peers import table
from benchmarks.peers.cells import WORKLOADS, CellError
from benchmarks.peers.roster import APPS, ROSTER, Peer, UnavailableError, install, python_of, versions_of
from benchmarks.peers.servers import Servers, servers

RECOVERY_ROUNDS = 1  # two minutes' wait each for whoever does not recover


def main() -> None:
    options = _options()
    if options.table:
        print(table.of(json.loads(options.table.read_text())))
        return
    chosen = tuple(peer for peer in ROSTER if not options.only or peer.name in options.only)
    if options.install:
        install(options.install, chosen)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # everything is cleaned up on the way out
    result = json.loads(options.out.read_text()) if options.resume and options.out.exists() else {}
    pythons: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for peer in chosen:
        try:
            pythons[peer.name] = python_of(peer, options.envs)
        except UnavailableError as reason:
            skipped[peer.name] = str(reason)
            print(f"{peer.name}: left out: {reason}", file=sys.stderr)
    present = [peer for peer in chosen if peer.name in pythons]
    facts = {peer.name: _facts(peer, pythons[peer.name]) for peer in present}
    table.add_peers(result, facts, skipped, [peer.name for peer in ROSTER])
    result["jobs"], result["rounds"] = options.jobs, options.rounds
    with servers({server for peer in present for server in peer.servers}) as running:
        result["machine"] = report.machine()
        result["redis"] = running.redis.version() if running.redis else result.get("redis")
        _measure(running, present, pythons, options, result)
    _write(options.out, result)
    print(table.of(result))
    print(json.dumps(result))


def _measure(
    running: Servers, present: list[Peer], pythons: dict[str, str], options: argparse.Namespace, result: dict[str, Any]
) -> None:
    cells: dict[str, Any] = result.setdefault("cells", {})
    began_s = time.monotonic()
    for round_ in range(options.rounds):
        for workload in options.workloads:
            if workload == "recovery" and round_ >= RECOVERY_ROUNDS:
                continue
            for peer in present:
                key = f"{peer.name}/{workload}/{round_}"
                if key in cells:
                    continue
                try:
                    cell = WORKLOADS[workload](running, peer, pythons[peer.name], options.jobs)
                except (CellError, OSError, ValueError, KeyError) as error:
                    cell = {"error": f"{type(error).__name__}: {error}"[:400]}
                cells[key] = cell
                _write(options.out, result)
                facts = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in cell.items())
                print(f"{time.monotonic() - began_s:6.0f} s  {key}: {facts}", file=sys.stderr, flush=True)


def _facts(peer: Peer, python: str) -> dict[str, Any]:
    """What it runs with, in its own module's words; read, not imported: it may not be importable here."""
    source = (APPS / f"{peer.module}.py").read_text()
    words = {}
    for name in ("SETTINGS", "KEEPS", "BULK", "RECOVERY"):
        line = next(line for line in source.splitlines() if line.startswith(f"{name} = "))
        words[name.lower()] = json.loads(line.partition(" = ")[2])
    names = [requirement.partition("[")[0] for requirement in peer.requirements] or ["jobmaster-nats"]
    return words | {"versions": {name: versions_of(python).get(name, "unknown") for name in names}}


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
        part.replace(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [peer.name for peer in ROSTER]
    listed = lambda allowed: lambda text: _listed(text, allowed)  # noqa: E731
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs of a cell at most (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=listed(names), default=[], help=f"of {','.join(names)}")
    parser.add_argument("--workloads", type=listed(list(WORKLOADS)), default=list(WORKLOADS))
    parser.add_argument("--envs", type=Path, help="folder of --install; else this Python must have the peers")
    parser.add_argument("--install", type=Path, metavar="FOLDER", help="make an environment for each peer, and end")
    parser.add_argument("--out", type=Path, help="write the result there after every cell")
    parser.add_argument("--resume", action="store_true", help="go on with what is in --out")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of a result, and end")
    options = parser.parse_args()
    if options.resume and options.out is None:
        parser.error("--resume needs --out: it goes on with what is in that file")
    if options.jobs < 100 or options.rounds < 1:
        parser.error("--jobs must be 100 or more, --rounds 1 or more")
    return options


def _listed(text: str, allowed: list[str]) -> list[str]:
    chosen = text.split(",")
    if unknown := sorted(set(chosen) - set(allowed)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} unknown; use some of {', '.join(allowed)}")
    return chosen


if __name__ == "__main__":
    main()
