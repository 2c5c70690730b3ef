"""The application that the benchmarks run: one handler that does nothing."""

import os

from jm_nats import JobMaster

jm = JobMaster(os.environ.get("JM_CLUSTER", "bench"))


@jm.handler("noop")
async def noop(to: str = "", n: int = 0) -> None:
    """Accepts the yardstick's arguments and does nothing."""
