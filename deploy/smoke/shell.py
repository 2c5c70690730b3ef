"""Commands, and what is said meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STARTED_S = time.monotonic()
TIMEOUT_S = 600.0
TAIL_LINES = 15


class SmokeError(Exception):
    """The test cannot go on, or has found something; the message is for a person."""


def say(text: str) -> None:
    """To stderr, with the seconds since the start: stdout is for --json."""
    sys.stderr.write(f"{time.monotonic() - STARTED_S:7.1f} s  {text}\n")
    sys.stderr.flush()


def output_of(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    given: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """What the command prints on stdout.

    Raises:
        SmokeError: it failed or did not end in time, with the end of what it said.
    """
    try:
        done = subprocess.run(
            command,
            env=env,
            cwd=cwd,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SmokeError(f"not done within {timeout_s:g} s: {' '.join(command)}") from None
    except OSError as error:
        raise SmokeError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = "\n    ".join((done.stdout + done.stderr).splitlines()[-TAIL_LINES:])
        raise SmokeError(f"exit code {done.returncode} of: {' '.join(command)}\n    {said}")
    return done.stdout


def succeeds(command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> bool:
    try:
        output_of(command, env=env, timeout_s=timeout_s)
    except SmokeError:
        return False
    return True
