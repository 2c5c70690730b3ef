"""Operator actions as the tables see them: each batch of an action, its verdicts and its audit in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from msgspec import Struct, field

from jm_core.agent_names import agent_of
from jm_core.api_control import ActionView, AuditList, Change, JobVerdict, Refusal
from jm_core.control import MATCHED_MAX, Action, refusal
from jm_core.control_checks import priority_number, statuses_of
from jm_core.model import JobStatus
from jm_master.agents import LIVE_S
from jm_master.cancel_store import Found
from jm_master.queries import named
from jm_master.terms import LostTermError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jm_core.api_control import AuditQuery, ControlRequest, JobFilter
    from jm_core.ids import Term
    from jm_master.ahead import Ahead
    from jm_master.cancel_store import CancelStore
    from jm_master.database import Connection, Database
    from jm_master.recall import Dispatched

PAGE_MAX: Final = 500
UNKNOWN: Final = "unknown"
CANCEL_SENT: Final = "cancel requested; it ends as soon as its handler does"
NOT_BACK: Final = "it lies with its worker, which has started it or does not answer; ask again"
NOT_OURS: Final = "it lies in a bucket of agent"
AHEAD: Final = "not on the master; should it still be queued, it will be saved as cancelled"
_json = msgspec.json.Encoder().encode


class Order(Struct, frozen=True):
    """An action, but for the jobs that it is about."""

    action_id: str
    action: Action
    by: str
    reason: str
    change: Change


class Recalled(Struct, frozen=True):
    """A job that was given back by its worker, and changed."""

    bucket: str
    run_at: float


class Applied(Struct):
    """A committed batch, and what follows from it."""

    verdicts: list[JobVerdict] = field(default_factory=list)
    cancelled: list[Found] = field(default_factory=list)
    recalled: list[Recalled] = field(default_factory=list)
    waiting: bool = False  # something waits on the master that did not
    ahead: list[str] = field(default_factory=list)  # not there yet, to be cancelled when they come


class Started(Struct, frozen=True):
    """``matched`` jobs; ``started`` unless there is such an action already, or not as many as expected."""

    matched: int
    started: bool


class _NotStartedError(Exception):
    """Rolls back what was picked, so that it leaves no targets."""

    def __init__(self, matched: int) -> None:
        super().__init__()
        self.matched = matched


class ControlStore:
    """Every writing method raises LostTermError and the errors of ``pg_errors``; then nothing was written (or, with
    StoreUnavailableError, nobody knows: doing it again under the same action id is safe).
    """

    def __init__(self, database: Database, term: Term, cancels: CancelStore, ahead: Ahead) -> None:
        self._database = database
        self._term = term
        self._cancels = cancels
        self._ahead = ahead
        self._sql = named("control", database.schema)
        self._picking = anyio.Semaphore(1)  # a filter may take long: what is asked by ids must not wait for it

    # Changing.

    async def apply(self, order: Order, ids: Sequence[str], back: Sequence[Dispatched]) -> Applied:
        """Of jobs that were named by their ids."""
        async with self._database.connection() as connection, connection.transaction():
            done, known = await self._apply(connection, order, ids, back)
            if known:
                changed = sum(verdict.changed for verdict in known)
                await connection.execute(
                    self._sql["note_action"],
                    order.action_id,
                    order.by,
                    order.action.value,
                    order.reason,
                    _text({"ids": list(ids)}),
                    _text(order.change),
                    len(known),
                    changed,
                    len(known) - changed,
                )
        return done

    async def apply_batch(self, order: Order, ids: Sequence[str], back: Sequence[Dispatched]) -> Applied:
        """Of an action in bulk that was started: its next targets."""
        async with self._database.connection() as connection, connection.transaction():
            done, known = await self._apply(connection, order, ids, back)
            changed = [verdict.id for verdict in known if verdict.changed]
            # Refused is also what is gone by now.
            await connection.execute(self._sql["progress_action"], order.action_id, ids, changed)
        return done

    async def _apply(
        self, connection: Connection, order: Order, ids: Sequence[str], back: Sequence[Dispatched]
    ) -> tuple[Applied, list[JobVerdict]]:
        """What was done, and the verdicts that are new: a request that comes twice finds those of the first."""
        before = {
            row["job_id"]: JobVerdict(row["job_id"], _label(row["status"]), row["changed"], row["note"])
            for row in await connection.fetch(self._sql["done_before"], order.action_id, ids)
        }
        new = [job_id for job_id in ids if job_id not in before]
        done = await self._change(connection, order, new, back)
        known = [verdict for verdict in done.verdicts if verdict.status != UNKNOWN]
        if known:
            await connection.execute(
                self._sql["note_jobs"],
                order.action_id,
                [verdict.id for verdict in known],
                [verdict.changed for verdict in known],
                [verdict.note for verdict in known],
            )
        verdicts = before | {verdict.id: verdict for verdict in done.verdicts}
        done.verdicts = [verdicts.get(job_id) or _missing(order.action, job_id) for job_id in ids]
        absent = [verdict for verdict in done.verdicts if verdict.status == UNKNOWN]
        if order.action is Action.CANCEL and absent:
            done.ahead = await self._ahead.remember(
                connection, [v.id for v in absent], action_id=order.action_id, by=order.by, reason=order.reason
            )
            for verdict in absent if done.ahead else []:
                verdict.note = AHEAD
        return done, known

    async def _change(
        self, connection: Connection, order: Order, ids: Sequence[str], back: Sequence[Dispatched]
    ) -> Applied:
        match order.action:
            case Action.CANCEL:
                found = await self._cancels.cancel(
                    connection, ids, by=order.by, reason=order.reason, force=order.change.force
                )
                return Applied([_cancel_verdict(job) for job in found], cancelled=found)
            case Action.REQUEUE:
                return await self._requeue(connection, order, ids)
            case _:
                return await self._alter(connection, order, ids, back)

    async def _requeue(self, connection: Connection, order: Order, ids: Sequence[str]) -> Applied:
        change = order.change
        await connection.fetch(self._sql["free_keys"], ids)
        rows = await self._fetch(
            connection,
            "requeue_jobs",
            ids,
            change.run_at,
            None if change.args is None else bytes(change.args).decode(),
            priority_number(change.priority),
            change.lane,
            change.max_attempts,
        )
        verdicts = [_verdict(order.action, row, _key_taken(row)) for row in rows]
        return Applied(verdicts, waiting=any(verdict.changed for verdict in verdicts))

    async def _alter(
        self, connection: Connection, order: Order, ids: Sequence[str], back: Sequence[Dispatched]
    ) -> Applied:
        change = order.change
        rows = await self._fetch(
            connection,
            "change_jobs",
            ids,
            [job_id for job_id, _ in back],
            [dispatch for _, dispatch in back],
            order.action is Action.RUN_NOW,
            change.run_at,
            priority_number(change.priority),
            change.lane,
        )
        recalled = [
            Recalled(self._database.bare(row["bucket_id"]), row["run_at"])
            for row in rows
            if row["changed"] and row["was"] == JobStatus.IN_BUCKET
        ]
        verdicts = [_verdict(order.action, row, self._not_back(row["bucket_id"])) for row in rows]
        return Applied(verdicts, recalled=recalled, waiting=any(verdict.changed for verdict in verdicts))

    def _not_back(self, bucket: str | None) -> str:
        """Why a job that lies in a bucket was left there. Only its own agent's leader reaches its worker."""
        agent = self._database.agent if bucket is None else agent_of(bucket)
        return NOT_BACK if agent == self._database.agent else f"{NOT_OURS} {agent!r}: ask a coordinator of that agent"

    async def _fetch(self, connection: Connection, name: str, *args: Any) -> list[asyncpg.Record]:
        rows = await connection.fetch(self._sql[name], self._term, *args)
        if not rows[0]["terms"]:
            raise LostTermError(self._term)
        return [row for row in rows if row["id"] is not None]

    # In bulk.

    async def count(self, action: Action, wanted: JobFilter | None) -> dict[str, int]:
        """How many jobs match by now, by state."""
        async with self._picking:
            rows = await self._database.fetch(self._sql["count_jobs_like"], *_like(action, wanted))
        return {JobStatus(row["status"]).label: row["jobs"] for row in rows}

    async def start(self, request: ControlRequest, order: Order) -> Started:
        """Pick the targets of an action in bulk, and write its row."""
        async with self._picking, self._database.connection() as connection:
            try:
                async with connection.transaction():
                    return Started(await self._start(connection, request, order), started=True)
            except _NotStartedError as refused:
                return Started(refused.matched, started=False)

    async def _start(self, connection: Connection, request: ControlRequest, order: Order) -> int:
        """How many jobs it is about."""
        if await connection.fetchval(self._sql["is_there"], order.action_id):
            raise _NotStartedError(0)
        like = _like(order.action, request.filter)
        jobs = await connection.fetchval(self._sql["pick_targets"], order.action_id, *like, MATCHED_MAX + 1)
        if jobs > MATCHED_MAX or request.expect not in (None, jobs):
            raise _NotStartedError(jobs)
        row = await connection.fetchrow(
            self._sql["start_action"],
            self._term,
            order.action_id,
            order.by,
            order.action.value,
            order.reason,
            _text({"filter": request.filter} if request.filter is not None else {"all": True}),
            _text(order.change),
            jobs,
            self._database.agent,
        )
        assert row is not None
        if not row["terms"]:
            raise LostTermError(self._term)
        if not row["started"]:
            raise _NotStartedError(jobs)
        return int(jobs)

    async def open_orders(self, count_max: int) -> list[Order]:
        """Actions in bulk that are not finished, the oldest first: our agent's, and those of agents that are gone."""
        agent = self._database.agent
        await self._database.fetch(self._sql["take_over_actions"], self._term, agent, LIVE_S)
        rows = await self._database.fetch(self._sql["open_actions"], count_max, agent)
        return [
            Order(
                row["action_id"],
                Action(row["action"]),
                row["actor"],
                row["reason"],
                msgspec.json.decode(row["parameters"], type=Change),
            )
            for row in rows
        ]

    async def targets(self, action_id: str, count_max: int) -> list[str]:
        rows = await self._database.fetch(self._sql["next_targets"], action_id, count_max)
        return [row["job_id"] for row in rows]

    async def refuse(self, order: Order, job_id: str, why: str) -> None:
        """A target that Postgres does not take."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(self._sql["note_jobs"], order.action_id, [job_id], [False], [why])
            await connection.execute(self._sql["progress_action"], order.action_id, [job_id], [])

    async def finish(self, action_id: str) -> None:
        await self._database.fetch(self._sql["finish_action"], action_id)

    # Looking.

    async def in_buckets(self, action_id: str, ids: Sequence[str]) -> list[tuple[str, int, str]]:
        """Of these jobs, those that lie in one of our agent's and are to be dealt with still: id, dispatch, bucket."""
        rows = await self._database.fetch(self._sql["load_in_buckets"], ids, self._database.prefix, action_id)
        return [(row["id"], row["dispatch"], self._database.bare(row["bucket_id"])) for row in rows]

    async def would_do(self, action: Action, ids: Sequence[str]) -> list[JobVerdict]:
        """The verdicts of the moment, without doing anything."""
        rows = await self._database.fetch(self._sql["load_states"], ids)
        statuses = {row["id"]: JobStatus(row["status"]) for row in rows}
        notes = [(job_id, refusal(action, statuses.get(job_id))) for job_id in ids]
        return [JobVerdict(job_id, _label(statuses.get(job_id)), changed=not note, note=note) for job_id, note in notes]

    async def action(self, action_id: str) -> ActionView | None:
        row = await self._database.fetchrow(self._sql["get_action"], action_id)
        if row is None:
            return None
        view = _action(row)
        refusals = await self._database.fetch(self._sql["get_refusals"], action_id)
        view.refusals = [Refusal(row["note"], row["jobs"], row["example"]) for row in refusals]
        return view

    async def actions(self, query: AuditQuery) -> AuditList:
        limit = min(max(query.limit, 1), PAGE_MAX)
        rows = await self._database.fetch(self._sql["list_actions"], query.before, query.actor, query.action, limit + 1)
        return AuditList([_action(row) for row in rows[:limit]], more=len(rows) > limit)

    async def actions_of_job(self, job_id: str) -> list[asyncpg.Record]:
        return await self._database.fetch(self._sql["actions_of_job"], job_id)


def _like(action: Action, wanted: JobFilter | None) -> tuple[Any, ...]:
    """The arguments of ``jobs_like``."""
    statuses = statuses_of(action, wanted)
    if wanted is None:
        return statuses, None, None, None, None, None, None, None, None, None
    return (
        statuses,
        wanted.handler,
        wanted.lane,
        priority_number(wanted.priority),
        _text(wanted.metadata) if wanted.metadata else None,
        wanted.queued_from,
        wanted.queued_until,
        wanted.due_from,
        wanted.due_until,
        wanted.schedule,
    )


def _cancel_verdict(job: Found) -> JobVerdict:
    if job.became is not None:
        note = CANCEL_SENT if job.became is JobStatus.PROCESSING else ""
        return JobVerdict(job.id, job.became.label, changed=True, note=note)
    if job.was is JobStatus.PROCESSING:
        return JobVerdict(job.id, job.was.label, changed=False, note=f"asked for before: {CANCEL_SENT}")
    return JobVerdict(job.id, job.was.label, changed=False, note=refusal(Action.CANCEL, job.was))


def _verdict(action: Action, row: asyncpg.Record, otherwise: str) -> JobVerdict:
    was = JobStatus(row["was"])
    if row["changed"]:
        return JobVerdict(row["id"], JobStatus.ON_MASTER.label, changed=True)
    return JobVerdict(row["id"], was.label, changed=False, note=refusal(action, was) or otherwise)


def _key_taken(row: asyncpg.Record) -> str:
    return f"job {row['holder']} holds its unique key: wait for its end, or cancel it"


def _missing(action: Action, job_id: str) -> JobVerdict:
    return JobVerdict(job_id, UNKNOWN, changed=False, note=refusal(action, None))


def _label(status: int | None) -> str:
    return UNKNOWN if status is None else JobStatus(status).label


def _action(row: asyncpg.Record) -> ActionView:
    return ActionView(
        action_id=row["action_id"],
        at=row["at"],
        actor=row["actor"],
        action=row["action"],
        reason=row["reason"],
        matched=row["matched"],
        changed=row["changed"],
        refused=row["refused"],
        scope=row["scope"],
        parameters=row["parameters"],
        finished_at=row["finished_at"],
    )


def _text(value: object) -> str:
    return _json(value).decode()
