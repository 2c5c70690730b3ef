"""Table ``job`` and its neighbours as people ask for them. Reads only."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from jm_core.api import (
    UNKNOWN,
    AttemptList,
    AttemptView,
    CountReply,
    JobList,
    JobQuery,
    JobView,
    ProgressReply,
    RejectedList,
    RejectedView,
    ResultReply,
    ResultsReply,
)
from jm_core.errors import InvalidJobError
from jm_core.ids import parse_job_id
from jm_core.model import PRIORITY_BY_LABEL, STATUS_BY_LABEL, JobStatus, Priority
from jm_master.queries import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jm_core.api import RejectedQuery
    from jm_master.database import Database

PAGE_MAX: Final = 500
CUT_CHARS: Final = 1024
FRACTION_DIGITS: Final = 6  # Postgres keeps 32 bits of it


class JobStore:
    """Raises InvalidJobError for what cannot be asked, and the errors of ``pg_errors``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = named("job", database.schema)

    async def get(self, job_id: str) -> JobView | None:
        row = await self._database.fetchrow(self._sql["get_job"], parse_job_id(job_id))
        return None if row is None else _job(row)

    async def find(self, query: JobQuery) -> JobList:
        limit = _page(query.limit)
        rows = await self._database.fetch(
            self._sql["list_jobs"],
            [_known("status", label, STATUS_BY_LABEL) for label in query.status] or None,
            query.handler,
            query.lane,
            None if query.priority is None else _known("priority", query.priority, PRIORITY_BY_LABEL),
            None if query.before_id is None else parse_job_id(query.before_id),
            limit + 1,
            CUT_CHARS,
            query.schedule,
        )
        return JobList([_job(row) for row in rows[:limit]], more=len(rows) > limit)

    async def attempts(self, job_id: str) -> AttemptList:
        rows = await self._database.fetch(self._sql["list_attempts"], parse_job_id(job_id))
        return AttemptList(job_id, [_attempt(row) for row in rows])

    async def result(self, job_id: str) -> ResultReply:
        row = await self._database.fetchrow(self._sql["get_result"], parse_job_id(job_id))
        return ResultReply(job_id, UNKNOWN) if row is None else _result(row)

    async def ended_of(self, job_ids: Sequence[str], *, bytes_max: int) -> ResultsReply:
        """Those that have ended, the first to end first; as many as fit, one at least."""
        rows = await self._database.fetch(self._sql["get_ended"], [parse_job_id(one) for one in job_ids], bytes_max)
        return ResultsReply([_result(row) for row in rows])

    async def which_ended(self, job_ids: Sequence[str]) -> list[str]:
        """Of these canonical ids."""
        return [row["id"] for row in await self._database.fetch(self._sql["which_ended"], job_ids)]

    async def progress(self, job_id: str) -> ProgressReply:
        row = await self._database.fetchrow(self._sql["get_progress"], parse_job_id(job_id))
        return ProgressReply(job_id, UNKNOWN) if row is None else _progress(row)

    async def counts(self) -> CountReply:
        rows = await self._database.fetch(self._sql["count_jobs"])
        rejected = await self._database.fetchval(self._sql["count_rejected"])
        return CountReply({JobStatus(row["status"]).label: row["jobs"] for row in rows}, rejected)

    async def rejected(self, query: RejectedQuery) -> RejectedList:
        limit = _page(query.limit)
        rows = await self._database.fetch(self._sql["list_rejected"], query.before, limit + 1)
        return RejectedList([_rejected(row) for row in rows[:limit]], more=len(rows) > limit)

    async def rejected_one(self, rejected_id: int) -> RejectedView | None:
        row = await self._database.fetchrow(self._sql["get_rejected"], rejected_id)
        return None if row is None else _rejected(row)


def _page(limit: int) -> int:
    return min(max(limit, 1), PAGE_MAX)


def _known(field: str, label: str, known: dict[str, Priority] | dict[str, JobStatus]) -> int:
    value = known.get(label)
    if value is None:
        raise InvalidJobError(field, f"{label[:40]!r} is unknown", remedy=f"use one of {', '.join(known)}")
    return int(value)


def _raw(text: str | None) -> Raw | None:
    return None if text is None else Raw(text.encode())


def _job(row: asyncpg.Record) -> JobView:
    args = row["args"]
    status = JobStatus(row["status"])
    return JobView(
        id=row["id"],
        handler=row["handler"],
        status=status.label,
        lane=row["lane"],
        priority=Priority(row["priority"]).label,
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        run_at=row["run_at"],
        queued_at=row["queued_at"],
        recorded_at=row["recorded_at"],
        started_at=row["started_at"] if status.has_worker else None,
        finished_at=row["finished_at"],
        timeout_s=row["timeout_s"],
        bucket=row["bucket_id"],
        worker=row["worker_id"] if status.has_worker else None,
        dispatch=row["dispatch"],
        losses=row["losses"],
        unique_key=row["unique_key"],
        unique_until=row["unique_until"],
        metadata=None if row["metadata"] is None else msgspec.json.decode(row["metadata"]),
        trace=row["trace"],
        progress=None if row["progress"] is None else round(row["progress"], FRACTION_DIGITS),
        progress_note=row["progress_note"],
        # What is cut is no JSON any more: it travels as a text.
        args=Raw(msgspec.json.encode(args)) if row["args_cut"] else _raw(args),
        args_cut=row["args_cut"],
        result=_raw(row["result"]),
        error=row["error"],
        cancel_requested_at=row["cancel_requested_at"],
        cancelled_by=row["cancelled_by"],
        cancel_reason=row["cancel_reason"],
        schedule=row["schedule"],
        occurrence=row["occurrence"],
    )


def _result(row: asyncpg.Record) -> ResultReply:
    return ResultReply(row["id"], JobStatus(row["status"]).label, _raw(row["result"]), row["error"])


def _progress(row: asyncpg.Record) -> ProgressReply:
    fraction, status = row["fraction"], JobStatus(row["status"])
    if fraction is not None:
        fraction = round(fraction, FRACTION_DIGITS)
    error = row["error"] if status.is_terminal else None
    return ProgressReply(row["id"], status.label, row["attempt"], fraction, row["note"], error)


def _attempt(row: asyncpg.Record) -> AttemptView:
    return AttemptView(
        attempt=row["attempt"],
        outcome=row["outcome"],
        dispatch=row["dispatch"],
        worker=row["worker_id"],
        bucket=row["bucket_id"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        error=row["error"],
        retry_in_s=row["retry_in_s"],
    )


def _rejected(row: asyncpg.Record) -> RejectedView:
    view = RejectedView(
        rejected_id=row["rejected_id"],
        rejected_at=row["rejected_at"],
        reason=row["reason"],
        job_id=row["job_id"],
        handler=row["handler"],
        field=row["field"],
        raw_bytes=row["raw_bytes"],
    )
    raw: bytes | None = row["raw"]
    if raw is not None:
        try:
            view.raw = raw.decode()
        except UnicodeDecodeError:
            view.raw, view.raw_base64 = base64.b64encode(raw).decode(), True
    return view
