"""Tables ``job`` and ``outbox`` as the assigner and the outbox see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from jm_core import limits
from jm_master.queries import named
from jm_master.runs import RunMessage
from jm_master.save_store import TermLost, deliver_at_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_core.ids import Term
    from jm_master.database import Database

LONG_AGO_S: Final = -1e9


class Window(Struct, frozen=True):
    """Due times, in seconds from now: later than ``after_s``, until ``until_s``."""

    after_s: float
    until_s: float


DUE: Final = Window(LONG_AGO_S, limits.SCHEDULE_LEAD_S)


class Waiting(Struct, frozen=True):
    """Jobs of one kind wait on the master; the first of them is due in ``due_in_s`` (negative: since)."""

    lane: str
    priority: int
    handler: str
    due_in_s: float


class Assigned(Struct, frozen=True):
    """Run messages of one bucket, committed to the outbox and not yet sent. ``second`` 0: at once."""

    messages: list[RunMessage]
    counts: list[tuple[int, int]]  # (second, jobs)

    @property
    def jobs(self) -> int:
        return sum(count for _, count in self.counts)


class DispatchStore:
    """Every method raises what ``SaveStore.save`` does."""

    def __init__(self, database: Database, term: Term) -> None:
        self._database = database
        self._term = term
        self._sql = named("dispatch", database.schema)

    async def waiting(self) -> list[Waiting]:
        rows = await self._database.fetch(self._sql["waiting"])
        return [Waiting(row["lane"], row["priority"], row["handler"], row["due_in_s"]) for row in rows]

    async def count_due(self, lane: str, priority: int, handlers: Sequence[str], window: Window, count_max: int) -> int:
        """At most ``count_max``: more need not be counted."""
        return int(
            await self._database.fetchval(
                self._sql["count_due"], lane, priority, handlers, count_max, window.after_s, window.until_s
            )
        )

    async def assign(
        self, lane: str, priority: int, handlers: Sequence[str], window: Window, *, bucket: str, count_max: int
    ) -> Assigned | TermLost:
        """Move jobs into ``bucket``, oldest first. Not to be repeated blindly: each call moves others."""
        rows = await self._database.fetch(
            self._sql["assign"],
            self._term,
            lane,
            priority,
            handlers,
            self._database.stored(bucket),
            count_max,
            window.after_s,
            window.until_s,
            limits.SCHEDULE_LEAD_S,
        )
        if not rows[0]["terms"]:
            return TermLost()
        found = [row for row in rows if row["outbox_id"] is not None]
        return Assigned(
            [
                RunMessage(row["outbox_id"], bucket, deliver_at_s(row["second"]), row["body"].encode(), row["jobs"])
                for row in found
            ],
            [(row["second"], row["jobs"]) for row in found],
        )

    async def load_outbox(
        self, *, age_s: float, ids: Sequence[str] | None = None, but: Sequence[str] = ()
    ) -> list[tuple[RunMessage, bool]]:
        """Some of the messages left over (or of ``ids``), oldest first, each with whether any job still needs it."""
        rows = await self._database.fetch(self._sql["load_outbox"], age_s, ids, but, self._database.prefix)
        bare = self._database.bare
        return [
            (
                RunMessage(row["outbox_id"], bare(row["bucket_id"]), row["deliver_at"], (row["body"] or "").encode()),
                row["body"] is not None,
            )
            for row in rows
        ]

    async def delete_outbox(self, ids: Sequence[str]) -> None:
        await self._database.fetch(self._sql["delete_outbox"], ids)

    async def count_in_buckets(self, *, later_s: float) -> list[tuple[str, int, int]]:
        """(bucket, due second or 0, jobs) of everything that is out; due within ``later_s`` counts as due."""
        rows = await self._database.fetch(self._sql["count_in_buckets"], later_s, self._database.prefix)
        return [(self._database.bare(row["bucket_id"]), row["second"], row["jobs"]) for row in rows]
