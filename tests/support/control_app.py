"""Handlers that take being cancelled each in a way of its own. What they do is noted in a file, line by line."""

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from jm_nats import JobMaster
from jm_nats.context import JobContext

NOTES_VARIABLE = "JM_TEST_NOTES"
STEP_S = 0.01

jm = JobMaster(os.environ.get("JM_CLUSTER", "control"))


def note(what: str, job_id: str) -> None:
    path = os.environ.get(NOTES_VARIABLE)
    if path:
        with Path(path).open("a") as file:
            file.write(f"{what} {job_id} {os.getpid()}\n")


def notes(path: Path, what: str) -> list[str]:
    """Job ids, in the order in which they were noted."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[1] for line in lines if line.split()[0] == what]


@jm.handler("waits", timeout=3600, max_attempts=5)
async def waits(ctx: JobContext, seconds: float = 600.0) -> str:
    note("started", ctx.job_id)
    await asyncio.sleep(seconds)
    note("ended", ctx.job_id)
    return "done"


@jm.handler("ignores", timeout=3600, max_attempts=5)
async def ignores(ctx: JobContext, path: str) -> dict[str, Any]:
    """Takes no notice of being cancelled, until there is such a file."""
    note("started", ctx.job_id)
    while not Path(path).exists():  # noqa: ASYNC240 - a test's own disk
        try:
            await asyncio.sleep(STEP_S)
        except asyncio.CancelledError:
            note("cancelled", ctx.job_id)
    return {"late": True}


@jm.handler("raises_when_cancelled", timeout=3600, max_attempts=6)
async def raises_when_cancelled(ctx: JobContext) -> None:
    note("started", ctx.job_id)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        raise ValueError("cleaning up went wrong") from None


@jm.handler("thread_looks", executor="thread", timeout=3600)
def thread_looks(ctx: JobContext) -> str:
    note("started", ctx.job_id)
    while not ctx.cancelled:
        time.sleep(STEP_S)
    note("saw", ctx.job_id)
    return "stopped"


@jm.handler("thread_until_file", executor="thread", timeout=3600)
def thread_until_file(ctx: JobContext, path: str) -> str:
    note("started", ctx.job_id)
    while not Path(path).exists():
        time.sleep(STEP_S)
    return "went on"


@jm.handler("spawns", executor="process", timeout=3600)
def spawns(ctx: JobContext, pids: str) -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(pids).write_text(f"{os.getpid()} {child.pid}")
    note("started", ctx.job_id)
    child.wait()


@jm.handler("quick", timeout=60)
async def quick(ctx: JobContext, seconds: float = 0.0) -> str:
    note("started", ctx.job_id)
    if seconds:
        await asyncio.sleep(seconds)
    return "done"
