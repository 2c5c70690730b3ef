"""Handlers that tell which span is current in them, each in another kind of place; and that log lines of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading

from opentelemetry import trace

from jm_nats import JobContext, JobMaster

jm = JobMaster(os.environ.get("JM_CLUSTER", "traced"))
log = logging.getLogger("shop.handlers")


def span_now() -> dict[str, str]:
    context = trace.get_current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}", "by": str(os.getpid())}


@jm.handler("in_task")
async def in_task() -> dict[str, str]:
    log.info("in a task")
    with trace.get_tracer("shop").start_as_current_span("charge card"):
        await asyncio.sleep(0)
    return await asyncio.create_task(_told())


async def _told() -> dict[str, str]:
    return span_now()


@jm.handler("in_thread")
def in_thread() -> dict[str, str]:
    log.info("in a thread of %s", threading.current_thread().name)
    return span_now()


@jm.handler("in_process", executor="process")
def in_process(ctx: JobContext) -> dict[str, str]:
    log.info("in a process", extra={"key": ctx.idempotency_key})
    return span_now()


@jm.handler("fails_at_first", max_attempts=3, backoff=0.05)
async def fails_at_first(ctx: JobContext, secret: str = "") -> int:
    if ctx.attempt == 1:
        raise ValueError(f"cannot charge {secret}")
    return ctx.attempt


@jm.handler("raises_with_args")
async def raises_with_args(secret: str) -> None:
    raise KeyError(secret)


@jm.handler("raises_in_thread")
def raises_in_thread(secret: str) -> None:
    raise RuntimeError(f"refused: {secret}") from ValueError(secret)


@jm.handler("raises_in_process", executor="process")
def raises_in_process(secret: str) -> None:
    raise RuntimeError(secret)


@jm.handler("returns_what_cannot_be_stored")
async def returns_what_cannot_be_stored(secret: str) -> object:
    return {secret: object()}


@jm.handler("takes_a_number")
async def takes_a_number(number: int) -> int:
    return number
