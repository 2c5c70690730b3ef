"""Who waits for the end, or for any news, of which job."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import anyio

_Events = defaultdict[str, set[anyio.Event]]


class ResultWaiters:
    """The recorder tells of every end, start and progress; whoever waits looks into Postgres for the rest.

    An event may be set for nothing: it means "look", not "it has ended".
    """

    def __init__(self) -> None:
        self._for_ends: _Events = defaultdict(set)
        self._for_news: _Events = defaultdict(set)

    @contextmanager
    def waiting(self, *job_ids: str) -> Iterator[anyio.Event]:
        """An event that is set when one of the jobs ends. Register first, then look: no end falls in between."""
        with _registered(self._for_ends, job_ids) as event:
            yield event

    @contextmanager
    def watching(self, *job_ids: str) -> Iterator[anyio.Event]:
        """As ``waiting``, set also when one of them starts or reports progress."""
        with _registered(self._for_news, job_ids) as event:
            yield event

    def ended(self, job_ids: Iterable[str]) -> None:
        if self._for_ends or self._for_news:
            ids = set(job_ids)
            _set(self._for_ends, ids)
            _set(self._for_news, ids)

    def changed(self, job_ids: Iterable[str]) -> None:
        if self._for_news:
            _set(self._for_news, set(job_ids))

    def awaited(self) -> list[str]:
        """Jobs whose end somebody waits for."""
        return list(self._for_ends)

    @property
    def count(self) -> int:
        """Jobs that somebody waits for."""
        return len(self._for_ends) + len(self._for_news)


@contextmanager
def _registered(waiting: _Events, job_ids: Iterable[str]) -> Iterator[anyio.Event]:
    event = anyio.Event()
    ids = set(job_ids)
    for job_id in ids:
        waiting[job_id].add(event)
    try:
        yield event
    finally:
        for job_id in ids:
            waiting[job_id].discard(event)
            if not waiting[job_id]:
                del waiting[job_id]


def _set(waiting: _Events, ids: set[str]) -> None:
    for job_id in waiting.keys() & ids:
        for event in waiting[job_id]:
            event.set()
