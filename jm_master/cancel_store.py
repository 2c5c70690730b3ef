"""Cancelling as the tables see it (sql/cancel.sql)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from jm_core.agent_names import agent_of
from jm_core.control import CancelOrder, cancel_text
from jm_core.model import JobStatus
from jm_master.queries import named
from jm_master.record_store import Recorded
from jm_master.save_store import TermLost
from jm_master.terms import LostTermError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_core.ends import End
    from jm_core.ids import Term
    from jm_master.database import Connection, Database


class Found(Struct, frozen=True):
    """A job as the cancel found it. ``became`` None: nothing was changed; ``bucket``: of our agent."""

    id: str
    handler: str
    was: JobStatus
    became: JobStatus | None
    asked_before: bool
    bucket: str | None
    worker: str | None
    dispatch: int
    run_at: float


class ToTell(Struct, frozen=True):
    """``owed_run_at``: of a job that another agent's leader has ended, so that ours does not know of its end yet."""

    bucket: str
    order: CancelOrder
    owed_run_at: float | None


class CancelStore:
    """Every method raises what ``SaveStore.save`` does."""

    def __init__(self, database: Database, term: Term) -> None:
        self._database = database
        self._term = term
        self._sql = named("cancel", database.schema)

    async def cancel(
        self, connection: Connection, ids: Sequence[str], *, by: str, reason: str, force: bool
    ) -> list[Found]:
        """Within a transaction of the caller's, or as one of its own. Jobs that are not there are not in the answer.

        Raises:
            LostTermError: nothing was written.
        """
        why, prefix = cancel_text(by, reason), self._database.prefix
        rows = await connection.fetch(self._sql["cancel_jobs"], self._term, ids, by, reason, force, why, prefix)
        if not rows[0]["terms"]:
            raise LostTermError(self._term)
        return [
            Found(
                row["id"],
                row["handler"],
                JobStatus(row["was"]),
                None if row["became"] is None else JobStatus(row["became"]),
                row["asked_before"],
                self._ours(row["bucket_id"]),
                row["worker_id"],
                row["dispatch"],
                row["run_at"],
            )
            for row in rows
            if row["id"] is not None
        ]

    def _ours(self, stored: str | None) -> str | None:
        """The bucket by its own name. None: there is none, or it is another agent's, whose leader sees to it."""
        if stored is None or agent_of(stored) != self._database.agent:
            return None
        return self._database.bare(stored)

    async def orders(self, count_max: int) -> list[ToTell]:
        """Those that are to be sent, or sent again: for our agent's buckets, whoever wrote them."""
        rows = await self._database.fetch(self._sql["load_orders"], count_max, self._database.prefix)
        return [
            ToTell(
                self._database.bare(row["bucket_id"]),
                CancelOrder(row["job_id"], row["dispatch"], row["why"]),
                row["owed_run_at"],
            )
            for row in rows
        ]

    async def mark_told(self, orders: Sequence[CancelOrder]) -> None:
        ids, dispatches = [order.id for order in orders], [order.dispatch for order in orders]
        await self._database.fetch(self._sql["mark_told"], ids, dispatches)

    async def forget_orders(self) -> int:
        """How many are left: of jobs that still run, or that nobody could be told of."""
        return int(await self._database.fetchval(self._sql["forget_orders"], self._database.prefix))

    async def end_cancelled(
        self, ends: Sequence[End], places: Sequence[int], workers: Sequence[str], buckets: Sequence[str]
    ) -> Recorded | TermLost:
        """Of these ends, which the fence has refused: those that end a job whose cancel was asked for."""
        row = await self._database.fetchrow(
            self._sql["end_cancelled"],
            self._term,
            workers,
            [self._database.stored(bucket) for bucket in buckets],
            [end.id for end in ends],
            [end.dispatch for end in ends],
            [end.attempt for end in ends],
            [end.outcome for end in ends],
            [place + 1 for place in places],
            [end.started_at for end in ends],
            [end.finished_at for end in ends],
            [end.error for end in ends],
        )
        assert row is not None
        return Recorded(len(row["ids"]), frozenset(row["ids"])) if row["terms"] else TermLost()
