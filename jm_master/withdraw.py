"""Cancelling what a schedule has planned and nobody has started, when it is changed, stopped, or out of the code."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jm_master.cancel import Canceller
    from jm_master.database import Connection

BY_NOBODY: Final = "unknown"


class Withdrawer(Protocol):
    """How planned jobs are cancelled, on the master and in buckets."""

    async def cancel(self, connection: Connection, ids: Sequence[str], *, by: str, why: str) -> Callable[[], None]:
        """In the transaction that changes the schedule; the jobs are locked. ``why``: for their error texts.

        Returns:
            What to do once that transaction is committed.
        """


class TellWorkers:
    """As an operator cancels: the worker that has the job is told, its slot in the ledger is free again."""

    def __init__(self, canceller: Canceller) -> None:
        self._canceller = canceller

    async def cancel(self, connection: Connection, ids: Sequence[str], *, by: str, why: str) -> Callable[[], None]:
        found = await self._canceller.store.cancel(connection, ids, by=by or BY_NOBODY, reason=why, force=False)
        return partial(self._canceller.committed, found)
