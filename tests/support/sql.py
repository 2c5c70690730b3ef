"""Looking at the master with plain SQL, past all code of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import asyncpg

from jm_core.model import JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterable


class Sql:
    """One connection that is opened when needed, and again after Postgres was away. One query at a time."""

    def __init__(self, dsn: str, schema: str = "jobmaster") -> None:
        self.dsn = dsn
        self._schema = schema
        self._connection: asyncpg.Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None and not self._connection.is_closed():
            await self._connection.close()

    async def rows(self, query: str, *args: Any) -> list[asyncpg.Record]:
        return await (await self._open()).fetch(query, *args)

    async def row(self, query: str, *args: Any) -> asyncpg.Record:
        """The only row."""
        (found,) = await self.rows(query, *args)
        return found

    async def value(self, query: str, *args: Any) -> Any:
        return await (await self._open()).fetchval(query, *args)

    async def job(self, job_id: str) -> asyncpg.Record:
        return await self.row("SELECT * FROM job WHERE id = $1", job_id)

    async def counts(self, ids: Iterable[str] | None = None) -> dict[str, int]:
        """Jobs by state, ``{"succeeded": 7}``: all, or those of ``ids``. A state without a job is not in it."""
        query = "SELECT status, count(*) AS jobs FROM job WHERE $1::uuid[] IS NULL OR id = ANY($1) GROUP BY 1"
        found = await self.rows(query, None if ids is None else list(ids))
        return {JobStatus(row["status"]).label: row["jobs"] for row in found}

    async def outcomes(self, job_id: str) -> list[str]:
        """Of the attempts that have a row (all but a clean first success), in the order of their dispatches."""
        query = "SELECT outcome FROM attempt WHERE job_id = $1 ORDER BY dispatch"
        return [row["outcome"] for row in await self.rows(query, job_id)]

    async def rejected(self) -> list[asyncpg.Record]:
        return await self.rows("SELECT * FROM rejected ORDER BY rejected_id")

    async def _open(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            settings = {"search_path": self._schema}
            self._connection = await asyncpg.connect(self.dsn, server_settings=settings)
        return self._connection
