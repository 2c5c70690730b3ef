"""Real workers in the test's own process, so that the test can hold their handlers and see into them."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from jm_core.model import Priority
from jm_nats import JobContext, JobMaster
from jm_nats.config import NatsConfig
from jm_nats.worker import Worker, WorkerConfig
from tests.support.master import LEASE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Shop:
    """An application whose handlers tell when they started, and wait for ``gate`` where they are told to."""

    def __init__(self, cluster: str, nats_url: str) -> None:
        self.app = JobMaster(cluster, nats=NatsConfig(servers=(nats_url,)))
        self.gate = asyncio.Event()
        self.started: list[tuple[str, float]] = []  # job id, wall clock
        self.ended: list[tuple[str, float]] = []

        @self.app.handler("note")
        async def note(ctx: JobContext, seconds: float = 0.0) -> None:
            self.started.append((ctx.job_id, time.time()))
            if seconds:
                await asyncio.sleep(seconds)
            self.ended.append((ctx.job_id, time.time()))

        @self.app.handler("gated", timeout=600)
        async def gated(ctx: JobContext) -> str:
            self.started.append((ctx.job_id, time.time()))
            await self.gate.wait()
            self.ended.append((ctx.job_id, time.time()))
            return "done"

        self.note, self.gated = note, gated

    @property
    def ran(self) -> list[str]:
        return [job_id for job_id, _ in self.started]


@asynccontextmanager
async def working(app: JobMaster, **config: Any) -> AsyncIterator[Worker]:
    """A worker that is ready when the body runs, and is stopped in a hurry after it."""
    settings = {"lease_s": LEASE_S, "heartbeat_s": 0.3, "priorities": (Priority.MEDIUM,)} | config
    worker = Worker(app, WorkerConfig(**settings))
    stop, hurry = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(worker.run(stop, hurry))
    ready = asyncio.create_task(worker.ready.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    ready.cancel()
    try:
        assert worker.ready.is_set(), running
        yield worker
    finally:
        stop.set()
        hurry.set()
        await asyncio.wait({running}, timeout=20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
