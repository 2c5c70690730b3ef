"""Table ``schedule`` as people and code change it: each change a transaction that holds the term and the row.

What is planned and not started is taken back in the same transaction, and a plan that was being made meanwhile is
refused by its number, so a change is in force when it is answered.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from jm_core.api_schedules import Origin, ScheduleState, SkipReason
from jm_core.payload import cut_text
from jm_core.schedule_rules import changes_between
from jm_master.queries import named
from jm_master.schedule_rows import columns_of, shown_spec_of
from jm_master.terms import LostTermError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from datetime import datetime

    import asyncpg

    from jm_core.api_schedules import ScheduleQuery, ScheduleSpec, SkipQuery
    from jm_core.ids import Term
    from jm_core.intake import NewJob
    from jm_master.database import Connection, Database
    from jm_master.withdraw import Withdrawer

WHY_BYTES_MAX = 500
STOPPED = {
    ScheduleState.PAUSED: SkipReason.PAUSED,
    ScheduleState.DISABLED: SkipReason.DISABLED,
    ScheduleState.INACTIVE: SkipReason.INACTIVE,
}


class ScheduleWrite(Struct, frozen=True):
    """A change, for the record of operator actions; written in its transaction."""

    action: str  # the operation's name, without `schedule-`
    name: str
    by: str
    reason: str = ""
    cancelled: int = 0
    job_id: str | None = None
    changed: dict[str, Any] = {}  # of a definition, by field: as it was and as it is (``changes_between``)


async def no_audit(connection: Connection, write: ScheduleWrite) -> None:
    """Where nobody keeps a record of operator actions."""


class Held:
    """One schedule, locked. What is done to it counts when the block ends without an error."""

    def __init__(
        self, connection: Connection, sql: dict[str, str], row: asyncpg.Record, withdrawer: Withdrawer
    ) -> None:
        self.row = row
        self.now: datetime = row["now"]
        self.committed: Callable[[], None] | None = None  # to be called then
        self.cancelled = 0
        self.changed: dict[str, Any] = {}
        self.wrote = False  # whether anything was done
        self._connection = connection
        self._sql = sql
        self._withdrawer = withdrawer

    @property
    def name(self) -> str:
        return str(self.row["name"])

    @property
    def state(self) -> ScheduleState:
        return ScheduleState(self.row["state"])

    async def pause(self, *, by: str, reason: str) -> None:
        await self._stop(ScheduleState.PAUSED, SkipReason.PAUSED, by, _why(self.name, "paused", reason))

    async def inactivate(self) -> None:
        why = f"schedule {self.name!r} is inactive: no worker declares it any more"
        await self._stop(ScheduleState.INACTIVE, SkipReason.INACTIVE, "code", why)

    async def resume(self, *, by: str) -> None:
        await self._execute("resume", self.name, by, STOPPED[self.state].value)

    async def change(
        self, spec: ScheduleSpec, *, by: str, reason: str = "", digest: str | None = None, same_recurrence: bool
    ) -> None:
        why = _why(self.name, "changed", reason)
        # What came to pass while it was done is no gap to be made up for.
        keep_late = same_recurrence and self.state is not ScheduleState.DONE
        await self._take_back(self.now, by=by, why=why, keep_late=keep_late)
        await self._execute("change_spec", self.name, by, digest, *columns_of(spec))
        self.changed |= changes_between(shown_spec_of(self.row), spec)

    async def drop_queued(self, reason: SkipReason) -> None:
        queued: datetime | None = self.row["queued_at"]
        if queued is not None:
            await self._execute("drop_queued", self.name, reason.value, queued.isoformat())
            self.changed["queued_instant"] = {"from": queued.isoformat(), "to": None}

    async def delete(self, *, by: str, reason: str) -> None:
        await self._take_back(None, by=by, why=_why(self.name, "deleted", reason), keep_late=False)
        await self._execute("delete_schedule", self.name)

    async def run_now(self, job: NewJob, metadata: str) -> bool:
        """False: its id or its unique key is taken."""
        if job.unique_key is not None:
            await self._connection.execute(self._sql["free_key"], job.unique_key)
        made = await self._connection.fetchval(
            self._sql["run_now"],
            self.name,
            job.id,
            job.handler,
            job.args.decode(),
            int(job.priority),
            job.lane,
            job.max_attempts,
            job.timeout_s,
            job.unique_key,
            metadata,
        )
        self.wrote = made is not None
        return self.wrote

    async def find_in_the_way(self, job: NewJob) -> tuple[str | None, str | None]:
        """The schedule of the job with the same id, and the id of the unfinished job with the same unique key."""
        row = await self._connection.fetchrow(self._sql["find_in_the_way"], job.id, job.unique_key)
        assert row is not None
        return row["same_of"], row["holder"]

    async def _stop(self, state: ScheduleState, skip: SkipReason, by: str, why: str) -> None:
        await self.drop_queued(skip)
        await self._take_back(None, by=by, why=why, keep_late=True)
        await self._execute("stop", self.name, state.value, by)

    async def _take_back(self, after: datetime | None, *, by: str, why: str, keep_late: bool) -> None:
        """Cancel what is planned for later than ``after`` and has not started; plan it anew from now on."""
        ids = [row["id"] for row in await self._connection.fetch(self._sql["pick_planned"], self.name, after)]
        self.cancelled = len(ids)
        if ids:
            why = cut_text(why, WHY_BYTES_MAX)
            self.committed = await self._withdrawer.cancel(self._connection, ids, by=by, why=why)
        await self._execute("rewind", self.name, self.now, keep_late, ids)

    async def _execute(self, statement: str, *args: Any) -> None:
        self.wrote = True
        await self._connection.execute(self._sql[statement], *args)


class ScheduleStore:
    """Every method raises what ``SaveStore.save`` does; those that write also LostTermError."""

    def __init__(
        self,
        database: Database,
        term: Term,
        *,
        withdrawer: Withdrawer,
        audit: Callable[[Connection, ScheduleWrite], Awaitable[None]] = no_audit,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._term = term
        self._sql = named("schedule", database.schema)
        self._withdrawer = withdrawer
        self._audit = audit
        self._on_change = on_change

    async def add(
        self,
        spec: ScheduleSpec,
        *,
        by: str,
        reason: str = "",
        state: ScheduleState = ScheduleState.ACTIVE,
        origin: Origin = Origin.DYNAMIC,
        digest: str | None = None,
    ) -> bool:
        """False: the name is taken."""
        async with self._transaction() as connection:
            arguments = (spec.name, state.value, origin.value, by, digest, *columns_of(spec))
            if await connection.fetchval(self._sql["insert_schedule"], *arguments) is None:
                return False
            await self._audit(connection, ScheduleWrite("add", spec.name, by, reason))
        self._on_change()
        return True

    @asynccontextmanager
    async def hold(self, name: str, write: ScheduleWrite) -> AsyncIterator[Held | None]:
        """The schedule, locked until the block ends; None: there is none of this name.

        What the block does is committed when it ends, and recorded as ``write`` unless it was nothing; an error undoes
        all of it.
        """
        async with self._transaction() as connection:
            row = await connection.fetchrow(self._sql["lock_schedule"], name)
            held = None if row is None else Held(connection, self._sql, row, self._withdrawer)
            yield held
            if held is not None and held.wrote:
                done = structs.replace(write, cancelled=held.cancelled, changed=held.changed)
                await self._audit(connection, done)
        if held is not None:
            if held.committed is not None:
                held.committed()
            self._on_change()

    async def get(self, name: str) -> asyncpg.Record | None:
        return await self._database.fetchrow(self._sql["get_schedule"], name)

    async def find(self, query: ScheduleQuery, limit: int) -> list[asyncpg.Record]:
        return await self._database.fetch(
            self._sql["list_schedules"],
            query.state or None,
            query.origin,
            query.handler,
            query.name_prefix,
            query.after_name,
            limit,
        )

    async def skips(self, query: SkipQuery, limit: int) -> list[asyncpg.Record]:
        return await self._database.fetch(self._sql["list_skips"], query.name, query.reason, query.before_id, limit)

    async def now(self) -> datetime:
        """The master's clock."""
        found: datetime = await self._database.fetchval("SELECT clock_timestamp()")
        return found

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        async with self._database.connection() as connection, connection.transaction():
            if await connection.fetchrow(self._sql["hold_term"], self._term) is None:
                raise LostTermError(self._term)
            yield connection


def _why(name: str, what: str, reason: str) -> str:
    return f"schedule {name!r} {what}" + (f": {reason}" if reason else "")
