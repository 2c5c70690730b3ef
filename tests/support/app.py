"""The application that tests run in real workers: handlers that work, fail, wait or misbehave as they are told."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from jm_core.model import Priority
from jm_nats import JobContext, JobMaster, NoRetry, Retry
from tests.support import effects, misbehaviour

RUNS_VARIABLE: Final = "JM_TEST_RUNS"  # the file that `counted` writes to
SHORT_S: Final = 0.05
POLL_S: Final = 0.01

jm = JobMaster(os.environ.get("JM_CLUSTER", "test"))


@jm.handler("noop")
async def noop(**_args: Any) -> None:
    """Takes anything."""


@jm.handler("echo")
async def echo(value: Any = None) -> Any:
    return value


@jm.handler("greet", lane="mail", priority=Priority.HIGH, max_attempts=7, timeout=33, backoff=SHORT_S)
async def greet(name: str, times: int = 1) -> dict[str, str]:
    """The handler of docs/wire-format.md: typed arguments, and no default left as it is."""
    return {"greeting": " ".join([f"hello {name}"] * times)}


@jm.handler("fail_once", backoff=SHORT_S)
async def fail_once(ctx: JobContext) -> int:
    if ctx.attempt == 1:
        raise RuntimeError("the first attempt fails")
    return ctx.attempt


@jm.handler("steps")
async def steps(ctx: JobContext, steps: int) -> int:
    """Reports each step, and takes longer for it than reports are held back."""
    for step in range(1, steps + 1):
        await ctx.progress(step / steps, f"{step} of {steps}")
        await asyncio.sleep(0.6)
    return steps


@jm.handler("always_fails", max_attempts=2, backoff=SHORT_S)
async def always_fails() -> None:
    raise RuntimeError("it always fails")


@jm.handler("counted")
async def counted(ctx: JobContext) -> int:
    """One line a run, in a file: shows what was executed, whatever was recorded. See ``runs_in``."""
    note_run(f"{ctx.job_id} {ctx.dispatch} {ctx.attempt} {time.time()}\n")
    return ctx.dispatch


def note_run(line: str) -> None:
    with Path(os.environ[RUNS_VARIABLE]).open("ab", buffering=0) as file:
        file.write(line.encode())  # a small append is atomic: several workers may share the file


def runs_in(path: Path) -> list[str]:
    """Job ids in the order of their runs, each as often as it ran."""
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


@jm.handler("effect", backoff=SHORT_S)
async def effect(
    ctx: JobContext, seconds: float = 0.0, due: float = 0.0, secret: str = "", *, fail: bool = False
) -> int:
    """Tells of its start and its end; see ``tests.support.effects``.

    Args:
        due: when it was to start; noted.
        secret: one that no log may show.
        fail: at the first attempt, before anything is noted.
    """
    if fail and ctx.attempt == 1:
        raise RuntimeError("the first attempt fails")
    effects.note(effects.START, ctx.job_id, ctx.dispatch, time.time(), due)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        effects.note(effects.CANCELLED, ctx.job_id, ctx.dispatch, time.time(), due)
        raise
    effects.note(effects.END, ctx.job_id, ctx.dispatch, time.time(), due)
    return ctx.dispatch


@jm.handler("thread_effect", executor="thread")
def thread_effect(ctx: JobContext, seconds: float = 0.0, due: float = 0.0) -> int:
    """As ``effect``, in a thread: it cannot be cancelled."""
    effects.note(effects.START, ctx.job_id, ctx.dispatch, time.time(), due)
    time.sleep(seconds)
    effects.note(effects.END, ctx.job_id, ctx.dispatch, time.time(), due)
    return ctx.dispatch


@jm.handler("exclusive_effect", exclusive=True)
async def exclusive_effect(ctx: JobContext, seconds: float = 0.0, due: float = 0.0) -> int:
    return await effect.function(ctx, seconds, due)


@jm.handler("long_at_first", max_attempts=10, timeout=3600)
async def long_at_first(ctx: JobContext, seconds: float, due: float = 0.0) -> int:
    """As ``effect``; only its first attempt takes long."""
    return await effect.function(ctx, seconds if ctx.attempt == 1 else 0.0, due)


@jm.handler("swallows_cancellation")
async def swallows_cancellation(ctx: JobContext) -> None:
    """At its first attempt it never ends, whatever it is asked."""
    effects.note(effects.START, ctx.job_id, ctx.dispatch, time.time())
    while ctx.attempt == 1:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@jm.handler("blocks_the_loop", timeout=3600)
async def blocks_the_loop(ctx: JobContext, seconds: float) -> int:
    """Async, and does not await."""
    effects.note(effects.START, ctx.job_id, ctx.dispatch, time.time())
    time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for
    effects.note(effects.END, ctx.job_id, ctx.dispatch, time.time())
    return ctx.dispatch


@jm.handler("kills_its_process", backoff=SHORT_S)
async def kills_its_process() -> None:
    """As a fault in a C library, or the kernel's memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)


@jm.handler("sleeper")
async def sleeper(seconds: float = 60) -> None:
    await asyncio.sleep(seconds)


@jm.handler("thread_sleeper")
def thread_sleeper(seconds: float = 60) -> None:
    time.sleep(seconds)


@jm.handler("process_sleeper", executor="process")
def process_sleeper(seconds: float = 60) -> None:
    time.sleep(seconds)


@jm.handler("waits_for_file")
async def waits_for_file(ctx: JobContext, path: str) -> None:
    """Runs until the test makes the file; ``<path>.<job id>`` tells the test that it runs."""
    Path(f"{path}.{ctx.job_id}").touch()  # noqa: ASYNC240  (quick, and nothing else is going on)
    while not Path(path).exists():  # noqa: ASYNC240
        await asyncio.sleep(POLL_S)


@jm.handler("returns", max_attempts=2, backoff=SHORT_S)
async def returns(kind: str) -> Any:
    return misbehaviour.RESULTS[kind]()


@jm.handler("raises", max_attempts=2, backoff=SHORT_S)
async def raises(kind: str) -> None:
    misbehaviour.fail(kind)


@jm.handler("thread_raises", max_attempts=2, backoff=SHORT_S)
def thread_raises(kind: str) -> None:
    misbehaviour.fail(kind)


@jm.handler("process_raises", executor="process", max_attempts=2, backoff=SHORT_S)
def process_raises(kind: str) -> None:
    misbehaviour.fail(kind)


@jm.handler("asks_for_retry", max_attempts=3)
async def asks_for_retry(ctx: JobContext) -> int:
    if ctx.attempt < 3:
        raise Retry("not yet", in_=SHORT_S)
    return ctx.attempt


@jm.handler("asks_for_no_retry")
async def asks_for_no_retry() -> None:
    raise NoRetry("never again")
