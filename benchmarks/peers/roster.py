"""Who takes part, what it needs, and by which Python its processes run."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

APPS: Final = Path(__file__).resolve().parent / "apps"


@dataclass(frozen=True)
class Peer:
    """Args:
    requirements: its distributions.
    servers: of postgres, nats, redis.
    beside: what else runs, by Python's arguments.
    """

    name: str
    requirements: tuple[str, ...]
    servers: tuple[str, ...]
    beside: tuple[tuple[str, ...], ...] = ()

    @property
    def module(self) -> str:
        return f"peer_{self.name}"


ROSTER: Final = (
    Peer("jobmaster", (), ("postgres", "nats"), (("-m", "jm_cli", "coordinator"),)),
    Peer("procrastinate", ("procrastinate", "psycopg[binary]"), ("postgres",)),
    Peer("pgqueuer", ("pgqueuer", "asyncpg", "uvloop"), ("postgres",)),
    Peer("awa", ("awa-pg",), ("postgres",)),
    Peer("taskiq", ("taskiq-nats", "taskiq", "nats-py", "uvloop"), ("nats",)),
    Peer("celery", ("celery[redis]",), ("redis",)),
    Peer("dramatiq", ("dramatiq[redis]",), ("redis",)),
    Peer("arq", ("arq", "hiredis"), ("redis",)),
    Peer("saq", ("saq[redis,hiredis]", "typing-extensions"), ("redis",)),
    Peer("streaq", ("streaq", "hiredis", "uvloop"), ("redis",)),
)


class UnavailableError(Exception):
    """Why a peer is left out."""


def python_of(peer: Peer, environments: Path | None) -> str:
    """The interpreter that has the peer.

    Raises:
        UnavailableError: it is not installed, or a server that it needs is not.
    """
    if "redis" in peer.servers and shutil.which("redis-server") is None:
        raise UnavailableError("redis-server is not installed (Debian: apt-get install redis-server)")
    if not peer.requirements:
        return sys.executable
    own = environments / peer.name / "bin" / "python" if environments is not None else None
    python = str(own) if own is not None and own.exists() else sys.executable
    missing = [name for name in map(_bare, peer.requirements) if name not in versions_of(python)]
    if missing:
        raise UnavailableError(f"{', '.join(missing)} not installed (python -m benchmarks.peers --install FOLDER)")
    return python


_known: dict[str, dict[str, str]] = {}


def versions_of(python: str) -> dict[str, str]:
    """Every distribution of an environment."""
    if python not in _known:
        if python == sys.executable:
            found = {_bare(d.name): d.version for d in importlib.metadata.distributions()}
        else:
            code = "import importlib.metadata as m, json; print(json.dumps([[d.name, d.version] for d in m.distributions()]))"  # noqa: E501
            done = subprocess.run([python, "-c", code], capture_output=True, check=True, text=True)
            found = {_bare(name): version for name, version in json.loads(done.stdout)}
        _known[python] = found
    return _known[python]


def _bare(requirement: str) -> str:
    return requirement.partition("[")[0].lower().replace("_", "-")


def install(folder: Path, peers: tuple[Peer, ...]) -> None:
    """An environment for each peer: what one of them asks for may be what another cannot have."""
    uv = shutil.which("uv")
    for peer in peers:
        if not peer.requirements:
            continue
        print(f"{peer.name}: {' '.join(peer.requirements)}", file=sys.stderr)
        target = folder / peer.name
        if uv is not None:
            subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(target)], check=True)
            command = [uv, "pip", "install", "--quiet", "--python", str(target / "bin" / "python")]
        else:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(target)], check=True)
            command = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*command, *peer.requirements], check=True)
