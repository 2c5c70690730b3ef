"""What the handlers of ``jm demo --chaos`` really did, told by themselves: a line when a run starts, one when it ends.

A run that was killed has no end. Postgres knows what was recorded; only the two together show what ran twice and was
recorded once.
"""

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

EXECUTIONS_VARIABLE: Final = "JM_DEMO_EXECUTIONS"
START, END = "start", "end"


class Execution(Struct):
    """One run of a handler. ``dispatch`` is its fence token: Postgres takes the outcome of the live one only."""

    job_id: str
    dispatch: int
    pid: int
    started_at: datetime
    ended_at: datetime | None = None

    @property
    def row(self) -> tuple[str, int, int, datetime, datetime | None]:
        return self.job_id, self.dispatch, self.pid, self.started_at, self.ended_at


def note(kind: str, job_id: str, dispatch: int) -> None:
    """Called by a handler. A small append is atomic, so all workers share one file."""
    path = os.environ.get(EXECUTIONS_VARIABLE)
    if path:
        with Path(path).open("ab", buffering=0) as file:
            file.write(f"{kind} {job_id} {dispatch} {os.getpid()} {time.time():.6f}\n".encode())


def read_executions(path: Path) -> list[Execution]:
    """In order of their starts."""
    found: dict[tuple[str, int, int], Execution] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        kind, job_id, dispatch, pid, at = line.split()
        key, moment = (job_id, int(dispatch), int(pid)), datetime.fromtimestamp(float(at), UTC)
        if kind == START:
            found[key] = Execution(*key, moment)
        elif key in found:
            found[key].ended_at = moment
    return list(found.values())
