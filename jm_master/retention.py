"""Removes what has ended long enough ago. A duty of one leader at a time, in small steps with rests."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import anyio

from jm_core.api_retention import RetentionCount, RetentionView
from jm_core.errors import JmError
from jm_core.retention import CHUNK_BLOCKS, RESIZE_S_MAX, REST_S_MAX, SIDE_KINDS, Sweep, resize_s, rest_s
from jm_master.pg_errors import StoreContentionError, StoreUnavailableError
from jm_master.terms import LostTermError
from jm_master.wake import Wake
from jm_nats import telemetry
from jm_nats.crashpoints import reach
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from jm_core.retention import Retention
    from jm_master.retention_store import RetentionStore, SweepRow

log = logging.getLogger(__name__)

TIDY_S: Final = 600.0  # between two looks at the other tables
SAVE_S: Final = 5.0  # the position is kept so often, for the next leader
STAND_BY_S: Final = 1.0  # between two looks whether another agent's leader still does it
TROUBLE_S: Final = 60.0  # after a step that failed
COUNT_S: Final = 0.5  # of one answer to a dry run


class Retainer:
    """One term's. What it cannot do it says (log, ``jm retention show``) and tries again: nothing of it ends a term."""

    def __init__(
        self, store: RetentionStore, retention: Retention, *, elsewhere: Callable[[], str | None] = lambda: None
    ) -> None:
        """Args: elsewhere: the agent whose leader does it instead; None: ours does."""
        self._store = store
        self._retention = retention
        self._elsewhere = elsewhere
        self._wake = Wake()
        self._sweep: Sweep | None = None
        self._row: SweepRow | None = None
        self._problem: str | None = None
        self._looked_at: datetime | None = None
        self._resized_s = self._tidied_s = self._saved_s = -float("inf")
        self._counting = anyio.Lock()
        self._asked = False
        self._passing = True  # what is due has not all been visited yet

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LostTermError: somebody else leads.
        """
        while True:
            if self._elsewhere() is not None:
                self._stand_by()
                await anyio.sleep(STAND_BY_S)
                continue
            began_s = time.monotonic()
            try:
                pause_s = await self.step_once()
                self._problem = None
                self._looked_at = datetime.now(UTC)
                telemetry.duty_passed()
            except LostTermError:
                raise
            except (StoreUnavailableError, StoreContentionError) as error:
                pause_s = self._note(error, rest_s(time.monotonic() - began_s))
            except Exception as error:  # noqa: BLE001 - whatever it is, jobs go on without retention
                pause_s = self._note(error, TROUBLE_S)
            if pause_s <= REST_S_MAX:
                await anyio.sleep(pause_s)
            else:
                await self._wake.wait(pause_s)

    async def step_once(self) -> float:
        """The next step, and for how many seconds to rest after it."""
        now_s = time.monotonic()
        if self._row is None:
            self._row = await self._store.load_sweep()
        if self._asked:
            self._begin_pass()
        if now_s - self._tidied_s >= TIDY_S:
            await self._tidy()
            self._tidied_s = now_s
        shortest_s = self._retention.shortest_s
        if shortest_s is None:
            return await self._rest_of_pass(0, None)
        if self._sweep is None:
            self._sweep = Sweep(shortest_s, position=self._row.chunk)
        if now_s - self._resized_s >= resize_s(shortest_s):
            self._sweep.resize(await self._store.table_blocks(), now_s=now_s)
            self._resized_s = now_s
        chunk = self._sweep.next_chunk(now_s=now_s)
        if chunk is None:
            return await self._rest_of_pass(self._sweep.position, self._sweep.idle_s(now_s=now_s))
        self._passing = True
        return await self._visit(self._sweep, chunk)

    def _stand_by(self) -> None:
        """Where to go on is read again, once it is our turn."""
        self._row = self._sweep = self._problem = self._looked_at = None
        self._asked = False

    def begin_pass(self) -> None:
        """Look at everything now, whenever it would be due."""
        self._asked = True
        self._wake.set()

    async def view(self) -> RetentionView:
        row = await self._store.load_sweep()
        sweep = self._sweep
        position, chunks = (sweep.position, sweep.chunks) if sweep is not None else (0, 0)
        return RetentionView(
            kinds=await self._store.kinds(),
            passes=row.passes,
            passed_at=row.passed_at,
            looked_at=self._looked_at,
            chunk=position,
            chunks=chunks,
            problem=self._problem,
            agent=self._elsewhere(),
        )

    async def count(self, chunk: int) -> RetentionCount:
        """What would go, for a while from ``chunk`` on. Reads only."""
        async with self._counting:
            return await self._count(chunk)

    async def _count(self, chunk: int) -> RetentionCount:
        until_s = time.monotonic() + COUNT_S
        chunks = -(-await self._store.table_blocks() // CHUNK_BLOCKS)
        counts = await self._store.count_side() if chunk == 0 else {}
        while chunk < chunks and time.monotonic() < until_s:
            for kind, jobs in (await self._store.count_jobs(chunk)).items():
                counts[kind] = counts.get(kind, 0) + jobs
            chunk += 1
        return RetentionCount(counts, chunks, chunk if chunk < chunks else None)

    async def _visit(self, sweep: Sweep, chunk: int) -> float:
        began_s = time.monotonic()
        step = await self._store.remove_jobs(chunk)
        reach("retention.after_commit")
        now_s = time.monotonic()
        sweep.visited(chunk, first_due_in_s=step.first_due_in_s, is_done=step.is_done, now_s=now_s)
        telemetry.jobs_removed(step.removed)
        if now_s - self._saved_s >= SAVE_S:
            self._row = await self._store.save_sweep(sweep.position, ends_pass=False)
            self._saved_s = now_s
        return rest_s(now_s - began_s, sweep.work_share(now_s=now_s))

    async def _rest_of_pass(self, position: int, idle_s: float | None) -> float:
        """Nothing is due: note that, and wait for the first that will be."""
        if self._passing:
            self._passing = False
            self._row = await self._store.save_sweep(position, ends_pass=True)
        # The table may have grown, or been emptied, meanwhile.
        shortest_s = self._retention.shortest_s
        look_s = RESIZE_S_MAX if shortest_s is None else resize_s(shortest_s)
        return look_s if idle_s is None else min(look_s, idle_s)

    async def _tidy(self) -> None:
        """The other tables."""
        for kind in SIDE_KINDS:
            keep_s = self._retention.keep_s[kind]
            while keep_s is not None:
                began_s = time.monotonic()
                removed = await self._store.remove_side(kind, keep_s)
                if not removed:
                    break
                await anyio.sleep(rest_s(time.monotonic() - began_s))

    def _begin_pass(self) -> None:
        self._asked = False
        self._passing = True
        self._tidied_s = self._resized_s = -float("inf")
        self._sweep = None  # to a new one everything is due that is there

    def _note(self, error: Exception, pause_s: float) -> float:
        self._problem = str(error) if isinstance(error, JmError) else f"{type(error).__name__}: {error}"
        trouble(log, "retention is tried again", {"problem": self._problem, "in_s": round(pause_s, 1)})
        return pause_s
