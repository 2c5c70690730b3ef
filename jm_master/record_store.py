"""Table ``job`` as the recorder sees it: outcomes applied set-wise, each behind the dispatch fence."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, Struct

from jm_core.ends import End, Held
from jm_core.model import JobStatus
from jm_master.literals import array_literal
from jm_master.queries import named
from jm_master.save_store import TermLost, optional

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jm_core import wire
    from jm_core.ids import Term
    from jm_master.database import Database
    from jm_master.save_store import Refusal

log = logging.getLogger(__name__)

_NULL = b"null"
# Set by tests only: without the fence, what a worker reports counts that was taken for dead long ago. It shows that the
# tests of the fence would notice if it were gone.
WITHOUT_FENCE: Final = "JM_TEST_WITHOUT_FENCE"
_FENCE: Final = "j.dispatch = u.dispatch AND j.status BETWEEN 2 AND 3"


class Recorded(Struct, frozen=True):
    """Committed. ``applied`` is None when the fence let every event through; else the ids of those it did."""

    count: int
    applied: frozenset[str] | None = None


class RecordStore:
    """Events come with ``places``: for each, its 0-based place in ``workers`` (and ``buckets``), who reported it.

    Every method raises what ``SaveStore.save`` does, and is as safe to repeat.
    """

    def __init__(self, database: Database, term: Term) -> None:
        self._database = database
        self._term = term
        self._sql = named("record", database.schema)
        if os.environ.get(WITHOUT_FENCE):
            log.critical("the dispatch fence is off: stale outcomes count", extra={"variable": WITHOUT_FENCE})
            self._sql = {name: text.replace(_FENCE, "true") for name, text in self._sql.items()}

    async def record_successes(
        self, events: Sequence[wire.Finished], places: Sequence[int], workers: Sequence[str]
    ) -> Recorded | TermLost:
        results = [event.result for event in events]
        row = await self._database.fetchrow(
            self._sql["record_successes"],
            self._term,
            workers,
            array_literal([event.id for event in events]),
            array_literal([event.dispatch for event in events]),
            array_literal([event.started_at for event in events]),
            array_literal([event.finished_at for event in events]),
            array_literal([place + 1 for place in places]),
            optional(_texts(results)) if any(results) else [],
            len(events),
        )
        return _recorded(row)

    async def record_ends(
        self, ends: Sequence[End], places: Sequence[int], workers: Sequence[str], buckets: Sequence[str]
    ) -> Recorded | TermLost:
        row = await self._database.fetchrow(
            self._sql["record_ends"],
            self._term,
            workers,
            [self._database.stored(bucket) for bucket in buckets],
            [end.id for end in ends],
            [end.dispatch for end in ends],
            [end.attempt for end in ends],
            [end.status for end in ends],
            [end.outcome for end in ends],
            [place + 1 for place in places],
            [end.started_at for end in ends],
            [end.finished_at for end in ends],
            _texts([end.result for end in ends]),
            [end.error for end in ends],
            [end.retry_in_s for end in ends],
            [end.excused for end in ends],
            [end.losses for end in ends],
        )
        return _recorded(row)

    async def record_started(
        self, events: Sequence[wire.Started], places: Sequence[int], workers: Sequence[str]
    ) -> Recorded | TermLost:
        row = await self._database.fetchrow(
            self._sql["record_started"],
            self._term,
            workers,
            [event.id for event in events],
            [event.dispatch for event in events],
            [event.attempt for event in events],
            [event.started_at for event in events],
            [place + 1 for place in places],
        )
        return _recorded(row)

    async def record_progress(self, events: Sequence[wire.Progress]) -> Recorded | TermLost:
        row = await self._database.fetchrow(
            self._sql["record_progress"],
            self._term,
            [event.id for event in events],
            [event.dispatch for event in events],
            [event.fraction for event in events],
            [event.note for event in events],
        )
        return _recorded(row)

    async def load_held(self, ids: Sequence[str], dispatches: Sequence[int]) -> list[Held]:
        """The rows that are still out under these dispatch numbers. ``started_at`` is set when they were started."""
        return [held_of(row) for row in await self._database.fetch(self._sql["load_held"], ids, dispatches)]

    async def reject(self, refusals: Sequence[Refusal]) -> None:
        await self._database.fetch(
            self._sql["reject_events"],
            [refusal.source for refusal in refusals],
            [refusal.raw for refusal in refusals],
            [len(refusal.raw) for refusal in refusals],
            [refusal.reason for refusal in refusals],
        )


def held_of(row: asyncpg.Record) -> Held:
    started = row["status"] == JobStatus.PROCESSING
    return Held(
        row["id"],
        row["handler"],
        row["dispatch"],
        row["attempt"],
        row["max_attempts"],
        row["losses"],
        (row["started_at"] or 0.0) if started else None,
    )


def _recorded(row: asyncpg.Record | None) -> Recorded | TermLost:
    assert row is not None
    if not row["terms"]:
        return TermLost()
    ids: Any = row.get("ids")
    return Recorded(row["updated"], None if ids is None else frozenset(ids))


def _texts(results: Sequence[Raw | None]) -> list[str | None]:
    """JSON text; the value ``null`` is stored as no result. What is not UTF-8 is left for the database to refuse."""
    return [
        None if result is None or bytes(result) == _NULL else bytes(result).decode(errors="surrogateescape")
        for result in results
    ]
