"""Follows the jobs in Postgres until all have ended, and tells the display."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from jm_cli.demo import queries
from jm_cli.demo.accounting import Submitted
from jm_cli.demo.display import Display, Snapshot

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]  # generic in the stubs only

POLL_S: Final = 0.25
POLL_SHARE_MAX: Final = 0.1  # counting a million rows takes longer than that: look less often then
STALL_S: Final = 60.0
RATE_OVER_S: Final = 2.0


class Watcher:
    """``check`` is called at every look and raises when there is no point in waiting on."""

    def __init__(
        self, connection: "Connection", display: Display, submitted: Submitted, check: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._display = display
        self._submitted = submitted
        self._check = check
        self._ended: deque[tuple[float, int]] = deque()

    async def until_ended(self, submitting: Coroutine[Any, Any, None]) -> bool:
        """Return when ``submitting`` is done and all that was submitted has ended; False: nothing moves any more."""
        task = asyncio.create_task(submitting)
        try:
            return await self._watch(task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, submitting: "asyncio.Task[None]") -> bool:
        moved_s, last = time.monotonic(), None
        while True:
            began_s = time.monotonic()
            all_submitted = submitting.done()
            snapshot = await self._look()
            self._display.update(snapshot)
            self._check()
            if all_submitted:
                submitting.result()  # raises what it raised
                if snapshot.ended >= self._submitted.jobs:
                    return True
            progress = (snapshot.submitted, snapshot.recorded, snapshot.ended)
            if progress != last:
                moved_s, last = began_s, progress
            elif began_s - moved_s > STALL_S:
                return False
            await asyncio.sleep(max(POLL_S, (time.monotonic() - began_s) / POLL_SHARE_MAX))

    async def _look(self) -> Snapshot:
        row = await self._connection.fetchrow(queries.PROGRESS)
        assert row is not None, "an aggregate without GROUP BY has one row"
        return Snapshot(
            submitted=self._submitted.jobs,
            recorded=row["recorded"],
            ended=row["ended"],
            failed=row["failed"],
            retrying=row["retrying"],
            jobs_per_s=self._rate(row["ended"]),
        )

    def _rate(self, ended: int) -> float:
        """Ends per second over the last moments."""
        now_s = time.monotonic()
        self._ended.append((now_s, ended))
        while now_s - self._ended[0][0] > RATE_OVER_S and len(self._ended) > 2:
            self._ended.popleft()
        first_s, first = self._ended[0]
        return (ended - first) / (now_s - first_s) if now_s > first_s else 0.0
