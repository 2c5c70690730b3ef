"""Handlers that start processes, for tests of what a dead worker leaves behind.

Each writes, at its first attempt, the pids of what it has started into a file, and stays; at a later attempt it says
which of them still run.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Final

from jm_nats import JobContext, JobMaster

jm = JobMaster(os.environ.get("JM_CLUSTER", "test"))
LONG_S: Final = "600"


def runs(pid: int) -> bool:
    """A zombie does not: it has no executable any more."""
    try:
        return bool(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return False


def _family(ctx: JobContext, note: str) -> list[int]:
    path = Path(note)
    if ctx.attempt > 1:
        return [pid for pid in map(int, path.read_text().split()) if runs(pid)]
    helper = subprocess.Popen(["sleep", LONG_S])
    path.with_suffix(".part").write_text(f"{os.getpid()} {helper.pid}")
    path.with_suffix(".part").rename(path)
    time.sleep(float(LONG_S))
    return []


@jm.handler("in_the_pool", executor="process", exclusive=True, timeout=900)
def in_the_pool(ctx: JobContext, note: str) -> list[int]:
    return _family(ctx, note)


@jm.handler("in_a_thread", executor="thread", timeout=900)
def in_a_thread(ctx: JobContext, note: str) -> list[int]:
    return _family(ctx, note)
