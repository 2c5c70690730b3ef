"""The application of ``benchmarks.recovery``: handlers that note when they start and end, in a file."""

import asyncio
import os
import time
from pathlib import Path
from typing import Final

from jm_nats import JobContext, JobMaster

NOTES_VARIABLE: Final = "JM_BENCH_NOTES"
POLL_S: Final = 0.05

jm = JobMaster(os.environ.get("JM_CLUSTER", "bench"))
_releases: dict[str, asyncio.Task[None]] = {}


def _note(kind: str, ctx: JobContext) -> None:
    with Path(os.environ[NOTES_VARIABLE]).open("ab", buffering=0) as file:  # a small append is atomic
        file.write(f"{kind} {ctx.job_id} {os.getpid()} {time.time():.6f}\n".encode())


@jm.handler("noop")
async def noop() -> None:
    """For the warm-up."""


@jm.handler("short")
async def short(ctx: JobContext) -> None:
    _note("S", ctx)
    await asyncio.sleep(0.005)
    _note("E", ctx)


@jm.handler("held")
async def held(ctx: JobContext, release: str) -> None:
    """At its first attempt it runs until the file is there."""
    _note("S", ctx)
    if ctx.attempt == 1:
        if release not in _releases:
            _releases[release] = asyncio.create_task(_appears(Path(release)))  # one look for all
        await asyncio.shield(_releases[release])
    _note("E", ctx)


async def _appears(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240 - of another process
        await asyncio.sleep(POLL_S)
