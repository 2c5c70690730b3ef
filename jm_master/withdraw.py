"""Cancelling what a schedule has planned and nobody has started, when it is changed, stopped, or out of the code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from jm_master.queries import named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jm_master.database import Connection


class Withdrawer(Protocol):
    """How planned jobs are cancelled, on the master and in buckets."""

    async def cancel(self, connection: Connection, ids: Sequence[str], *, by: str, why: str) -> Callable[[], None]:
        """In the transaction that changes the schedule; the jobs are locked. ``why``: for their error texts.

        Returns:
            What to do once that transaction is committed.
        """


class RecordOnly:
    """The record says cancelled, and an outcome that comes is refused by it; no worker is told."""

    def __init__(self, schema: str) -> None:
        self._sql = named("schedule", schema)

    async def cancel(self, connection: Connection, ids: Sequence[str], *, by: str, why: str) -> Callable[[], None]:  # noqa: ARG002
        await connection.execute(self._sql["cancel_planned"], ids, why)
        return _nobody


def _nobody() -> None:
    """Nobody need be told."""
