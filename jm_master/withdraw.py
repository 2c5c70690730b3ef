"""Taking back jobs in buckets that a schedule has planned: after pause, edit, delete, or when its code is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from jm_master.queries import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_master.database import Connection


class InBucket(Struct, frozen=True):
    """A job that its bucket's worker has, or will get."""

    id: str
    bucket: str
    dispatch: int


class Withdrawer(Protocol):
    """How jobs in buckets are cancelled."""

    async def mark(self, connection: Connection, jobs: Sequence[InBucket], *, by: str, why: str) -> None:
        """In the transaction that changes the schedule. ``why``: for the jobs' error text."""

    def told(self, jobs: Sequence[InBucket]) -> None:
        """That transaction is committed."""


class RecordOnly:
    """The record says cancelled, and an outcome that comes is refused by it; no worker is told."""

    def __init__(self, schema: str) -> None:
        self._sql = named("schedule", schema)

    async def mark(self, connection: Connection, jobs: Sequence[InBucket], *, by: str, why: str) -> None:  # noqa: ARG002
        await connection.execute(self._sql["cancel_in_bucket"], [job.id for job in jobs], why)

    def told(self, jobs: Sequence[InBucket]) -> None:
        """Nobody."""
