"""Cancels that came before their job: it lies in NATS still, behind others. It is saved as cancelled, and never starts.

The leader is both who is asked to cancel and who saves; so it knows, in memory, whom to look for. Table
``cancel_ahead`` is for the next leader. What was being saved just when the cancel came is found by ``Control``'s sweep.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from jm_core.model import OnConflict
from jm_master.queries import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_core.ids import Term
    from jm_core.intake import NewJob
    from jm_core.save_plan import Part
    from jm_master.database import Connection, Database

IDS_MAX: Final = 10_000
KEPT_S: Final = 3_600.0


class Come(Struct, frozen=True):
    """A job that is there by now, and who wanted it cancelled."""

    id: str
    action_id: str
    by: str
    reason: str


class Ahead:
    """Every method but the plain ones raises the errors of ``pg_errors``."""

    def __init__(self, database: Database, term: Term) -> None:
        self.ids: set[str] = set()
        self._database = database
        self._term = term
        self._sql = named("ahead", database.schema)

    def split(self, jobs: list[list[NewJob]]) -> tuple[list[list[NewJob]], list[list[NewJob]]]:
        """(those to save as ever, those that are cancelled already), each still by message. The latter take nobody's
        place: both would be gone.
        """
        ids = self.ids
        early = [[job for job in of_message if job.id in ids] for of_message in jobs]
        if not any(early):
            return jobs, early
        for job in chain.from_iterable(early):
            if job.on_conflict == OnConflict.REPLACE:
                job.on_conflict = OnConflict.RETURN_EXISTING  # in place: its refusal, if any, is found by identity
        return [[job for job in of_message if job.id not in ids] for of_message in jobs], early

    def among(self, parts: Sequence[Part]) -> list[str]:
        """Of jobs that stay on the master."""
        if not self.ids:
            return []
        waiting = [part for part in parts if part.bucket is None]
        return [job.id for part in waiting for job in part.group.jobs[part.lo : part.hi] if job.id in self.ids]

    async def load(self) -> None:
        """What any agent's leader was asked; at the start of a term, and now and then where there are others."""
        before = frozenset(self.ids)
        rows = await self._database.fetch(self._sql["load_ahead"], IDS_MAX)
        self.ids = {row["id"] for row in rows} | (self.ids - before)

    async def remember(
        self, connection: Connection, ids: Sequence[str], *, action_id: str, by: str, reason: str
    ) -> list[str]:
        """Which of them are remembered: none once there are too many. Once that is committed, ``add`` them."""
        if len(self.ids) + len(ids) > IDS_MAX:
            return []
        await connection.execute(self._sql["remember"], ids, action_id, by, reason)
        return list(ids)

    def add(self, ids: Sequence[str]) -> None:
        self.ids.update(ids)

    async def cancel_saved(self, connection: Connection, ids: Sequence[str]) -> list[str]:
        """In the transaction that has just saved them; with its audit. Returns those that were: once that is committed,
        they are ``over``.
        """
        rows = await connection.fetch(self._sql["cancel_saved"], self._term, ids)
        return [row["id"] for row in rows]

    def over(self, ids: Sequence[str]) -> None:
        """They have come, and are cancelled."""
        self.ids.difference_update(ids)

    async def come(self) -> list[Come]:
        """Jobs that are there although a cancel came before them; and forget the cancels whose jobs never came."""
        rows = await self._database.fetch(self._sql["forget_ahead"], KEPT_S)
        self.ids -= {row["id"] for row in rows}
        # Where the answer to a save was lost, or another leader saw to it. What comes meanwhile is not asked for.
        gone = await self._database.fetch(self._sql["forgotten_ahead"], list(self.ids))
        self.ids -= {row["id"] for row in gone}
        found = await self._database.fetch(self._sql["come"])
        return [Come(row["id"], row["action_id"], row["actor"], row["reason"]) for row in found]

    async def settled(self, ids: Sequence[str]) -> None:
        await self._database.fetch(self._sql["settle_ahead"], ids)
        self.over(ids)
