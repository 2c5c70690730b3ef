"""The demo's application, as small as a real one: ``jm worker jm_cli.demo.app:jm`` serves it."""

import asyncio
import sysconfig
import warnings
from pathlib import Path
from typing import Final

from jm_cli.demo.executions import END, START, note
from jm_cli.demo.source_facts import SourceFacts, source_facts
from jm_nats import JobContext, JobMaster, NoRetry, Priority

STDLIB: Final = Path(sysconfig.get_path("stdlib"))

# An invalid escape and the like are between a file and its authors.
warnings.filterwarnings("ignore", category=SyntaxWarning)

jm = JobMaster("demo")


# No coroutine, so it runs in a thread of the worker: two workers keep two cores busy that way. executor="process" would
# add a third to the CPU it takes in all (measured: 18 s instead of 13 s).
@jm.handler("parse", lane="parse", priority=Priority.LOW, timeout=60, backoff=[0.5])
def parse(ctx: JobContext, path: str, fail_first: bool = False) -> SourceFacts:  # noqa: FBT001, FBT002 (by name only)
    """Count what one file of the standard library holds; ``path`` is relative to the library's folder."""
    if fail_first and ctx.attempt == 1:
        raise RuntimeError("the demo asked this one to fail once")
    try:
        return source_facts((STDLIB / path).read_bytes())
    except (SyntaxError, ValueError) as error:
        raise NoRetry(f"this Python cannot parse {path}: {error}") from None


@jm.handler("reminder", priority=Priority.HIGH)
async def reminder(number: int) -> str:
    """Due at an instant of its own; when it really started is in its record."""
    return f"reminder {number}"


@jm.handler("ping", priority=Priority.CRITICAL)
async def ping(number: int) -> int:
    """What somebody waits for while the machine is busy with other things."""
    return number


@jm.handler("step", priority=Priority.MEDIUM, timeout=60, max_attempts=10, backoff=[0.5])
async def step(ctx: JobContext, seconds: float) -> float:
    """Takes its time, so that a fault finds it at work (--chaos); notes its start and its end beside the record."""
    note(START, ctx.job_id, ctx.dispatch)
    await asyncio.sleep(seconds)
    note(END, ctx.job_id, ctx.dispatch)
    return seconds


@jm.handler("no-op")
async def no_op() -> None:
    """Nothing: what is measured is everything around it."""
