"""Who waits for the end of which job."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import anyio


class ResultWaiters:
    """The recorder tells of every end; whoever waits looks into Postgres for the rest."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[anyio.Event]] = defaultdict(set)

    @contextmanager
    def waiting(self, job_id: str) -> Iterator[anyio.Event]:
        """An event that is set when the job ends. Register first, then look: no end falls in between."""
        event = anyio.Event()
        self._waiting[job_id].add(event)
        try:
            yield event
        finally:
            self._waiting[job_id].discard(event)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    def ended(self, job_ids: Iterable[str]) -> None:
        if not self._waiting:
            return
        for job_id in self._waiting.keys() & set(job_ids):
            for event in self._waiting[job_id]:
                event.set()
