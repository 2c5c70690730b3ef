"""Jobs that wait here while a neighbour idles go back, to be given to it (DESIGN 6.5)."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from jm_core.kv_records import worker_at
from jm_core.model import ReturnReason
from jm_core.rebalance import Waiting, jobs_to_return
from jm_core.wire import WorkerRecord
from jm_nats.errors import AgentError
from jm_nats.kv import CasKv, Entry
from jm_nats.pace import tick
from jm_nats.worker.engine import Engine

log = logging.getLogger("jobmaster.worker")

LOOK_S: Final = 1.0


class Neighbours:
    """Args: workers: the KV of the heartbeats."""

    def __init__(self, workers: CasKv, engine: Engine, worker: str) -> None:
        self._workers = workers
        self._engine = engine
        self._worker = worker

    async def run(self) -> None:
        """Look until cancelled. NATS being away costs passes, not the running handlers."""
        while True:
            await tick(LOOK_S)
            try:
                await self.look_once()
            except AgentError as error:
                log.debug("neighbours unknown, nothing is handed back", extra={"error": str(error)})

    async def look_once(self) -> None:
        """The neighbours are read only when something does wait."""
        held = self._engine.waiting_since()
        now = asyncio.get_running_loop().time()
        waiting = [Waiting(i, h.run.handler, h.port.lane, now - h.since_s) for i, h in enumerate(held)]
        if not jobs_to_return(waiting, [_anybody(waiting)]):
            return
        others = _records(entry for entry in await self._workers.entries() if entry.key != self._worker)
        # `held` may have moved on while we asked: take only what still waits.
        still = set(map(id, self._engine.waiting_since()))
        chosen = [held[i] for i in jobs_to_return(waiting, others) if id(held[i]) in still]
        if chosen:
            self._engine.hand_back(chosen, ReturnReason.REBALANCED)
            log.info("jobs handed back to an idle neighbour", extra={"jobs": len(chosen)})


def _anybody(waiting: list[Waiting]) -> WorkerRecord:
    """A neighbour that could take everything: is there anything at all to ask about?"""
    return WorkerRecord(
        "", "", "", 0, 0.0, len(waiting), sorted({w.lane for w in waiting}), sorted({w.handler for w in waiting})
    )


def _records(entries: Iterable[Entry]) -> list[WorkerRecord]:
    """Of the neighbours that can be read: one of another version may not be."""
    return [record for entry in entries if (record := worker_at(entry.key, entry.value)) is not None]
