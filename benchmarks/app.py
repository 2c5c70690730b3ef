"""The application that the benchmarks run: handlers that do nothing, wait and compute."""

import asyncio
import os
import time

from jm_nats import JobMaster

jm = JobMaster(os.environ.get("JM_CLUSTER", "bench"))


@jm.handler("noop")
async def noop(to: str = "", n: int = 0) -> None:
    """Accepts the yardstick's arguments and does nothing."""


@jm.handler("sleep5")
async def sleep5() -> None:
    """Waits, as for a service: 5 ms."""
    await asyncio.sleep(0.005)


@jm.handler("spin5")
def spin5() -> None:
    """Computes: 5 ms of CPU, however long a busy machine takes to give them. In a thread, as plain functions are."""
    end_s = time.thread_time() + 0.005
    while time.thread_time() < end_s:
        pass
