"""Somebody who submits all the while, and knows afterwards what was accepted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from jm_nats.errors import AgentUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from jm_core.wire import Submission
    from jm_nats import JobClient

SLOW_S: Final = 0.2
QUICK_S: Final = 0.02


class Load:
    """``more`` jobs come quickly, then a trickle, so that a slow machine is not buried in them.

    Args:
        accepted: gets the id of every job for which there is a receipt.
        make: the jobs of one message.
    """

    def __init__(self, client: JobClient, accepted: list[str], make: Callable[[], Sequence[Submission]]) -> None:
        self._client = client
        self._accepted = accepted
        self._make = make
        self._allowance = 0
        self.enough = False

    def more(self, jobs: int = 150) -> None:
        self._allowance = len(self._accepted) + jobs

    async def submit(self) -> None:
        while not self.enough:
            jobs = self._make()
            self._accepted += await self._accepted_of(jobs)
            await asyncio.sleep(QUICK_S if len(self._accepted) < self._allowance else SLOW_S)

    async def _accepted_of(self, jobs: Sequence[Submission]) -> list[str]:
        """Tried until it is known: NATS may be away for longer than a submit waits, and the same id again is safe."""
        while True:
            try:
                return [receipt.job_id for receipt in await self._client.submit_many(jobs)]
            except AgentUnavailableError:
                await asyncio.sleep(SLOW_S)


@asynccontextmanager
async def load(client: JobClient, accepted: list[str], make: Callable[[], Sequence[Submission]]) -> AsyncIterator[Load]:
    made = Load(client, accepted, make)
    task = asyncio.create_task(made.submit())
    try:
        yield made
    finally:
        # Not cancelled: a submit that is cut off may have stored jobs whose ids nobody has noted.
        made.enough = True
        await task


def mix(*handlers: Any, each: int = 5, **options: Any) -> Callable[[], list[Submission]]:
    """``each`` jobs of every handler, without arguments."""
    return lambda: [handler.job({}, **options) for handler in handlers for _ in range(each)]
