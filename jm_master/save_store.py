"""Table ``job`` as the writer sees it: one batch, one statement."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from jm_core import limits
from jm_core.model import JobStatus
from jm_core.save_plan import Part
from jm_core.unique import Clash
from jm_master.literals import array_literal
from jm_master.pg_errors import RowExistsError
from jm_master.queries import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jm_core.ids import Term
    from jm_master.ahead import Ahead
    from jm_master.database import Connection, Database

_json = msgspec.json.Encoder().encode

# Nearly every batch is new from end to end. Postgres inserts what may meet no conflict for a fifth less CPU and a tenth
# less write-ahead log than what may (it need not look before each row, nor confirm it after); a row that is there
# after all fails the statement, nothing is written, and the batch goes again the other way. Postgres logs each such
# failure, hence the time afterwards in which it is not tried.
_ON_CONFLICT: Final = """
    ON CONFLICT DO NOTHING
    RETURNING id"""
_NO_CONFLICT: Final = """
    RETURNING id"""
CAREFUL_S: Final = 60.0


class Refusal(Struct, frozen=True):
    """A row for table ``rejected``. ``source`` names the place in the stream, so that a redelivery adds no second."""

    source: str
    raw: bytes
    reason: str
    job_id: str = ""
    handler: str = ""
    field: str = ""


class Outgoing(Struct, frozen=True):
    """A message that leaves after the commit. ``deliver_at``: epoch seconds of a scheduled one."""

    part: Part
    outbox_id: str
    deliver_at: float | None


class SaveBatch(Struct, frozen=True):
    """What one transaction writes.

    Args:
        parts: the jobs, in the order in which they become rows.
        queued_at: for each message of the batch, when NATS stored it (epoch seconds).
        outgoing: for each part that has a bucket.
        sent: outbox ids of earlier batches that NATS has by now.
    """

    parts: list[Part]
    queued_at: list[float]
    outgoing: list[Outgoing]
    refusals: list[Refusal]
    sent: list[str]


class Saved(Struct, frozen=True):
    """Committed. ``inserted`` is None when every job is new, which is the rule; else the ids of those that are."""

    inserted: frozenset[str] | None
    cancelled: list[str] = []  # saved as cancelled: their cancel came before them


class TermLost(Struct, frozen=True):
    """Somebody else leads; nothing was written."""


class SaveStore:
    def __init__(self, database: Database, term: Term, ahead: Ahead | None = None) -> None:
        """Args: ahead: jobs that were cancelled before they came; where they stay on the master they are, too."""
        self._database = database
        self._term = term
        self._ahead = ahead
        self._sql = named("save", database.schema)
        self._save = self._sql["save_jobs"]
        self._save_new = self._save.replace(_ON_CONFLICT, _NO_CONFLICT)
        assert self._save_new.count("ON CONFLICT") == self._save.count("ON CONFLICT") - 1
        self._save_lone = self._sql["save_lone_job"]
        self._careful_until_s = 0.0  # monotonic

    async def save(self, batch: SaveBatch) -> Saved | TermLost:
        """One round trip, one transaction; safe to repeat.

        Raises:
            RowRefusedError: one of the rows can never be stored; nothing was written.
            StoreContentionError: nothing was written, try again.
            StoreUnavailableError: it may or may not have been written; repeating it is harmless.
        """
        early = self._ahead.among(batch.parts) if self._ahead is not None else []
        if self._ahead is not None and early:
            arguments = _arguments(batch, self._database.prefix)
            async with self._database.connection() as connection, connection.transaction():
                row = await connection.fetchrow(self._save, self._term, *arguments)
                cancelled = await self._ahead.cancel_saved(connection, early)
        else:
            cancelled = list[str]()
            row = await self._save_rows(batch)
        assert row is not None
        if not row["terms"]:
            return TermLost()
        ids = row["ids"]
        return Saved(None if ids is None else frozenset(ids), cancelled)

    async def _save_rows(self, batch: SaveBatch) -> asyncpg.Record | None:
        is_careful = time.monotonic() < self._careful_until_s
        prefix = self._database.prefix
        try:
            if not is_careful and (lone := _lone_arguments(batch, prefix)) is not None:
                return await self._database.fetchrow(self._save_lone, self._term, *lone)
            arguments = _arguments(batch, prefix)
            if not is_careful and not arguments[_UNIQUE_KEYS]:  # keys are there to be taken
                return await self._database.fetchrow(self._save_new, self._term, *arguments)
        except RowExistsError:
            self._careful_until_s = time.monotonic() + CAREFUL_S
            arguments = _arguments(batch, prefix)
        return await self._database.fetchrow(self._save, self._term, *arguments)

    async def find_clashes(self, ids: Sequence[str], unique_keys: Sequence[str | None]) -> dict[str, Clash]:
        rows = await self._database.fetch(self._sql["find_clashes"], ids, unique_keys)
        return {row["id"]: _clash(row) for row in rows}

    async def release_keys(self, ids: Sequence[str], queued_at: Sequence[float]) -> TermLost | None:
        """Note that the windows of these jobs, which have ended, had passed at ``queued_at``. Safe to repeat."""
        row = await self._database.fetchrow(self._sql["release_keys"], self._term, ids, queued_at)
        assert row is not None
        return None if row["terms"] else TermLost()

    async def give_way(self, connection: Connection, job_id: str, *, margin_s: float) -> bool:
        """Within a transaction: whether the job still waits, and is not due for ``margin_s`` if a worker has it."""
        return await connection.fetchval(self._sql["give_way"], job_id, margin_s) is not None


_UNIQUE_KEYS: Final = 13  # their place in what `_arguments` returns


def outgoing_of(parts: Sequence[Part]) -> list[Outgoing]:
    return [Outgoing(part, str(uuid.uuid4()), deliver_at_s(part.group.second)) for part in parts if part.bucket]


def deliver_at_s(second: int | None) -> float | None:
    """When the server should move a scheduled message: early, because it is late by itself (DESIGN 6.2)."""
    return second - limits.SCHEDULE_LEAD_S if second else None


def _arguments(batch: SaveBatch, prefix: str) -> tuple[Any, ...]:
    """The columns, in the order of ``sql/save.sql``. Comprehensions only: this runs for every job of the system."""
    parts = batch.parts
    if len(parts) == 1 and parts[0].lo == 0 and parts[0].hi == len(parts[0].group.jobs):
        jobs, messages = parts[0].group.jobs, parts[0].group.messages
    else:
        jobs = [job for part in parts for job in part.group.jobs[part.lo : part.hi]]
        messages = [place for part in parts for place in part.group.messages[part.lo : part.hi]]
    starts, ends = _bounds(parts)
    place_of = {id(part): place for place, part in enumerate(parts)}
    outgoing, refusals = batch.outgoing, batch.refusals
    places = [place_of[id(message.part)] for message in outgoing]
    return (
        batch.queued_at,
        starts,
        ends,
        [part.group.handler for part in parts],
        [part.group.lane for part in parts],
        [part.group.priority for part in parts],
        [part.group.max_attempts for part in parts],
        [part.group.timeout_s for part in parts],
        [part.bucket and prefix + part.bucket for part in parts],
        array_literal([job.id for job in jobs]),
        [job.args.decode(errors="surrogateescape") for job in jobs],
        array_literal(messages),
        array_literal(optional([job.run_at and job.run_at.timestamp() for job in jobs])),
        optional([job.unique_key for job in jobs]),
        optional([_json(job.metadata).decode() if job.metadata else None for job in jobs]),
        optional([job.trace for job in jobs]),
        [message.outbox_id for message in outgoing],
        [prefix + (message.part.bucket or "") for message in outgoing],
        [message.deliver_at for message in outgoing],
        [starts[place] for place in places],
        [ends[place] for place in places],
        batch.sent,
        [refusal.source for refusal in refusals],
        [refusal.raw[: limits.RAW_KEPT_BYTES_MAX] for refusal in refusals],
        [len(refusal.raw) for refusal in refusals],
        [refusal.reason for refusal in refusals],
        [refusal.job_id for refusal in refusals],
        [refusal.handler for refusal in refusals],
        [refusal.field for refusal in refusals],
        len(jobs),
        optional([job.unique_for_s for job in jobs]),
    )


def _lone_arguments(batch: SaveBatch, prefix: str) -> tuple[Any, ...] | None:
    """Those of ``save_lone_job``; None when that is not all there is to write."""
    if batch.refusals or len(batch.parts) != 1 or batch.parts[0].hi - batch.parts[0].lo != 1:
        return None
    part = batch.parts[0]
    group = part.group
    job, queued_at = group.jobs[part.lo], batch.queued_at[group.messages[part.lo] - 1]
    if job.unique_key is not None:
        return None
    outgoing = batch.outgoing[0] if batch.outgoing else None
    return (
        job.id,
        group.handler,
        job.args.decode(errors="surrogateescape"),
        part.bucket and prefix + part.bucket,
        group.priority,
        group.lane,
        job.run_at and job.run_at.timestamp(),
        group.max_attempts,
        group.timeout_s,
        queued_at,
        _json(job.metadata).decode() if job.metadata else None,
        job.trace,
        outgoing and outgoing.outbox_id,
        outgoing and outgoing.deliver_at,
        batch.sent,
    )


def _clash(row: asyncpg.Record) -> Clash:
    status = row["status"]
    return Clash(
        row["existing_id"],
        row["same_queued_at"],
        None if status is None else JobStatus(status),
        row["queued_at"] or 0.0,
        row["held_until"],
        row["due_in_s"] or 0.0,
    )


def _bounds(parts: Sequence[Part]) -> tuple[list[int], list[int]]:
    """Where each part begins and ends in the columns: Postgres counts from 1 and includes the end."""
    starts, ends, end = [], [], 0
    for part in parts:
        starts.append(end + 1)
        end += part.hi - part.lo
        ends.append(end)
    return starts, ends


def optional(column: list[Any]) -> list[Any]:
    """Nothing at all when no row has a value: unnest fills up with NULL."""
    return column if any(column) else []
