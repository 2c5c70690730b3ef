"""The application that compose.yaml's workers serve: something that is seen running. Put your own in its place.

Only ``jm_nats`` is needed: a worker has no access to Postgres.
"""

import asyncio
import logging

from jm_nats import JobContext, JobMaster, Priority

jm = JobMaster("demo")
log = logging.getLogger("demo")


@jm.schedule(every="5s", overlap="skip")
@jm.handler("tick", lane="clock", priority=Priority.HIGH, timeout=10)
async def tick(ctx: JobContext) -> str:
    """Made and run by itself, from the moment the first worker is there."""
    log.info("tick, job %s", ctx.job_id)
    return "tock"


@jm.handler("greet", max_attempts=3)
async def greet(name: str = "you") -> str:
    log.info("hello %s", name)
    return f"hello {name}"


@jm.handler("work", lane="work", priority=Priority.LOW, timeout=60, max_attempts=10, backoff=[1, 2])
async def work(seconds: float = 0.0) -> float:
    """Takes its time, so that a fault finds it at work."""
    await asyncio.sleep(seconds)
    return seconds


@jm.handler("flaky", lane="work", max_attempts=5, backoff=[0.5])
async def flaky(ctx: JobContext) -> int:
    """Fails the first time, to show a retry."""
    if ctx.attempt == 1:
        raise RuntimeError("the first attempt was made to fail")
    return ctx.attempt
