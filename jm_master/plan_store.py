"""Tables ``schedule``, ``schedule_skip`` and the jobs of schedules as the planner sees them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from jm_core.ids import JobId
from jm_core.intake import NewJob
from jm_core.planning import Plan
from jm_master.queries import named
from jm_master.save_store import TermLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jm_core.ids import Term
    from jm_master.database import Connection, Database

ERROR_CHARS_MAX: Final = 2_000


class Planned(Struct, frozen=True):
    """The plan of one schedule, with what its jobs have in common, and in the order of ``plan.instants`` their
    ids and due times.

    ``plan_no`` and ``generation`` are those of the row that it was made from.
    """

    name: str
    plan_no: int
    generation: int
    plan: Plan
    job: NewJob
    ids: list[JobId]
    due: list[datetime]


class NextLook(Struct, frozen=True):
    """When there is something to do: in so many seconds (None: never, as far as is known)."""

    in_s: float | None
    has_queued: bool


class Committed(Struct, frozen=True):
    """``made`` of the jobs were new; plans of schedules that had changed meanwhile were dropped."""

    applied: list[int]  # places in the batch, from 0
    made: frozenset[str]


class PlanStore:
    """Every method raises what ``SaveStore.save`` does."""

    def __init__(self, database: Database, term: Term) -> None:
        self._database = database
        self._term = term
        self._sql = named("plan", database.schema)

    async def load_due(self, limit: int) -> list[asyncpg.Record]:
        return await self._database.fetch(self._sql["load_due"], limit)

    async def next_look(self) -> NextLook:
        row = await self._database.fetchrow(self._sql["next_look"])
        assert row is not None
        return NextLook(row["in_s"], row["queued"])

    async def commit(self, batch: Sequence[Planned]) -> Committed | TermLost:
        """One statement, or, where jobs have unique keys, a few in one transaction. Safe to repeat."""
        arguments = (self._term, *_plan_columns(batch), *_job_columns(batch), *_skip_columns(batch))
        keys = sorted({key for planned in batch if planned.ids and (key := planned.job.unique_key) is not None})
        if not keys:
            row = await self._database.fetchrow(self._sql["commit_plans"], *arguments)
            return _committed(row)
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(self._sql["free_keys"], keys)
            answer = _committed(await connection.fetchrow(self._sql["commit_plans"], *arguments))
            if isinstance(answer, Committed):
                await self._record_duplicates(connection, [batch[place] for place in answer.applied], answer.made)
            return answer

    async def _record_duplicates(self, connection: Connection, batch: Sequence[Planned], made: frozenset[str]) -> None:
        missed = [
            (planned.name, job_id, instant)
            for planned in batch
            if planned.job.unique_key is not None
            for job_id, instant in zip(planned.ids, planned.plan.instants, strict=True)
            if job_id not in made
        ]
        if missed:
            await connection.execute(self._sql["record_duplicates"], *map(list, zip(*missed, strict=True)))

    async def disable(self, name: str, plan_no: int, error: str) -> bool:
        """False: the term is over."""
        terms = await self._database.fetchval(
            self._sql["disable"], self._term, name, plan_no, error.replace("\0", "")[:ERROR_CHARS_MAX]
        )
        return bool(terms)


def _committed(row: asyncpg.Record | None) -> Committed | TermLost:
    assert row is not None
    if not row["terms"]:
        return TermLost()
    return Committed([place - 1 for place in row["applied"]], frozenset(row["made"]))


def _plan_columns(batch: Sequence[Planned]) -> tuple[list[Any], ...]:
    plans = [planned.plan for planned in batch]
    jobs_lo, jobs_hi = _bounds([len(plan.instants) for plan in plans])
    skips_lo, skips_hi = _bounds([len(plan.skips) for plan in plans])
    return (
        [planned.name for planned in batch],
        [planned.plan_no for planned in batch],
        [planned.generation for planned in batch],
        [plan.next_at for plan in plans],
        [plan.plan_at for plan in plans],
        [max(plan.instants, default=None) for plan in plans],
        [plan.queued for plan in plans],
        [plan.is_done for plan in plans],
        [len(plan.instants) for plan in plans],
        [sum(skip.count for skip in plan.skips) for plan in plans],
        [any(skip.more for skip in plan.skips) for plan in plans],
        [planned.job.lane for planned in batch],
        [int(planned.job.priority) for planned in batch],
        [planned.job.max_attempts for planned in batch],
        [planned.job.timeout_s for planned in batch],
        jobs_lo,
        jobs_hi,
        skips_lo,
        skips_hi,
    )


def _job_columns(batch: Sequence[Planned]) -> tuple[list[Any], ...]:
    ids: list[str] = []
    instants: list[datetime] = []
    due: list[datetime] = []
    for planned in batch:
        ids += planned.ids
        instants += planned.plan.instants
        due += planned.due
    return ids, instants, due


def _skip_columns(batch: Sequence[Planned]) -> tuple[list[Any], ...]:
    skips = [skip for planned in batch for skip in planned.plan.skips]
    return (
        [skip.reason.value for skip in skips],
        [skip.detail for skip in skips],
        [skip.first_at for skip in skips],
        [skip.last_at for skip in skips],
        [skip.count for skip in skips],
        [skip.more for skip in skips],
    )


def _bounds(counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Where each slice begins and ends: Postgres counts from 1 and includes the end."""
    starts, ends, end = [], [], 0
    for count in counts:
        starts.append(end + 1)
        end += count
        ends.append(end)
    return starts, ends
