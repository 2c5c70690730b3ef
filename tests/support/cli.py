"""The command line as a test needs it: real processes of ``jm``, and its command tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import typer

from jm_cli.app import app

ROOT: Final = Path(__file__).resolve().parents[2]
JM: Final = [sys.executable, "-P", "-m", "jm_cli"]


def environment(**variables: str) -> dict[str, str]:
    """This process's, with no setting of ours but ``variables``."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("JM_", "OTEL_"))}
    return inherited | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli")])} | variables


def jm(
    *arguments: str, cwd: Path | None = None, stdin: str | bytes = b"", timeout_s: float = 60, **variables: str
) -> subprocess.CompletedProcess[str]:
    """``jm`` run to its end."""
    done = subprocess.run(
        [*JM, *arguments],
        cwd=cwd,
        env=environment(**variables),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def start_jm(*arguments: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """``jm`` as a process that the test ends itself, with its output in pipes; in a session of its own."""
    return subprocess.Popen(
        [*JM, *arguments],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def commands() -> list[tuple[tuple[str, ...], Any]]:
    """The leaves of the command tree, each with its path."""
    return _leaves(typer.main.get_command(app), ())


def _leaves(command: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        return [(path, command)]
    return [leaf for name, child in children.items() for leaf in _leaves(child, (*path, name))]
