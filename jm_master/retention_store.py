"""The tables as retention sees them (sql/retention.sql)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from jm_core.api_retention import KindView
from jm_core.model import JobStatus
from jm_core.retention import CHUNK_BLOCKS, JOB_KINDS, KINDS, SIDE_KINDS, STEP_JOBS_MAX
from jm_master.queries import named
from jm_master.terms import LostTermError

if TYPE_CHECKING:
    import asyncpg

    from jm_core.ids import Term
    from jm_core.retention import Retention
    from jm_master.database import Database

SIDE_ROWS_MAX = 500  # of one statement


class Step(Struct, frozen=True):
    """What a visit to a chunk has done. ``first_due_in_s``: of what is left there; None: nothing is, or for ever."""

    removed: int
    first_due_in_s: float | None
    is_done: bool


class SweepRow(Struct, frozen=True):
    chunk: int
    passes: int
    passed_at: datetime | None


class RetentionStore:
    """Every method raises what ``SaveStore.save`` does; those that write, LostTermError: then nothing was written."""

    def __init__(self, database: Database, term: Term, retention: Retention) -> None:
        self._database = database
        self._term = term
        self._retention = retention
        self._sql = named("retention", database.schema)

    async def table_blocks(self) -> int:
        return int(await self._database.fetchval(self._sql["table_blocks"]))

    async def remove_jobs(self, chunk: int) -> Step:
        """One visit: a transaction of at most ``STEP_JOBS_MAX`` jobs. Safe to repeat."""
        args = (*_pages(chunk), self._retention.of_jobs, STEP_JOBS_MAX, JOB_KINDS)
        row = await self._fetch_within_term("remove_jobs", *args)
        removed, due = row["removed"], row["due"]
        first_due_in_s = 0.0 if due > removed else row["first_due_in_s"]
        return Step(removed, first_due_in_s, removed < STEP_JOBS_MAX)

    async def count_jobs(self, chunk: int) -> dict[str, int]:
        rows = await self._database.fetch(self._sql["count_jobs"], *_pages(chunk), self._retention.of_jobs)
        return {JobStatus(row["status"]).label: row["jobs"] for row in rows}

    async def remove_side(self, kind: str, keep_s: float) -> int:
        """Rows of another table, ``SIDE_ROWS_MAX`` at most."""
        removed = int((await self._fetch_within_term(f"remove_{kind}", SIDE_ROWS_MAX, keep_s))["removed"])
        if removed:
            await self._fetch_within_term("note_removed", removed, kind)
        return removed

    async def count_side(self) -> dict[str, int]:
        keep_s = [self._retention.keep_s[kind] for kind in SIDE_KINDS]
        row = await self._database.fetchrow(self._sql["count_side"], *keep_s)
        assert row is not None
        return {kind: row[kind] for kind in SIDE_KINDS}

    async def load_sweep(self) -> SweepRow:
        row = await self._database.fetchrow(self._sql["load_sweep"])
        assert row is not None
        return SweepRow(row["chunk"], row["passes"], row["passed_at"])

    async def save_sweep(self, chunk: int, *, ends_pass: bool) -> SweepRow:
        row = await self._fetch_within_term("save_sweep", chunk, ends_pass)
        return SweepRow(chunk, row["passes"], row["passed_at"])

    async def kinds(self) -> list[KindView]:
        rows = {row["kind"]: row for row in await self._database.fetch(self._sql["load_removed"])}
        keep_s = self._retention.keep_s
        return [
            KindView(kind, keep_s[kind], rows[kind]["removed"], rows[kind]["removed_at"])
            if kind in rows
            else KindView(kind, keep_s[kind])
            for kind in KINDS
        ]

    async def _fetch_within_term(self, name: str, *args: object) -> asyncpg.Record:
        row = await self._database.fetchrow(self._sql[name], self._term, *args)
        assert row is not None
        if not row["terms"]:
            raise LostTermError(self._term)
        return row


def _pages(chunk: int) -> tuple[str, str]:
    return f"({chunk * CHUNK_BLOCKS},0)", f"({(chunk + 1) * CHUNK_BLOCKS},0)"
