"""The application that ``jm up`` runs when it is given none: something to submit at once, and to copy from."""

import asyncio

from jm_nats import JobContext, JobMaster, NoRetry, Priority

jm = JobMaster("example")


@jm.handler("hello")
async def hello(name: str = "you") -> str:
    return f"hello {name}"


@jm.handler("add")
def add(a: int, b: int) -> int:
    """No coroutine: it runs in a thread."""
    return a + b


@jm.handler("nap", priority=Priority.LOW)
async def nap(ctx: JobContext, seconds: float = 5.0) -> str:
    """Reports progress on its way; see ``jm job show``."""
    steps = 10
    for step in range(steps):
        await ctx.progress(step / steps, f"{step} of {steps}")
        await asyncio.sleep(seconds / steps)
    return f"slept {seconds:g} s"


@jm.handler("flaky", max_attempts=3, backoff=[1, 2])
async def flaky(ctx: JobContext, failures: int = 1) -> str:
    """Fails so many times first; see ``jm job attempts``."""
    if ctx.attempt <= failures:
        raise RuntimeError(f"attempt {ctx.attempt} was made to fail")
    return f"succeeded at attempt {ctx.attempt}"


@jm.handler("hopeless")
async def hopeless(reason: str = "there is no point in trying again") -> None:
    raise NoRetry(reason)
