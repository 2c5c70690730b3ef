"""The leader's duty of planning schedules: turns what ``jm_core.planning`` decides into jobs, a batch at a time.

How far ahead, and which schedules are decided at their instant only: docs/architecture.md, "How schedules are planned".
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.lowlevel

from jm_core import limits
from jm_core.api_schedules import SkipReason
from jm_core.ids import occurrence_id
from jm_core.intake import ClusterDefaults
from jm_core.planning import COUNT_MAX, Reach, decide, due_at, reach_for
from jm_core.schedule_rules import check_numbers, check_schedule_name, job_of, recurrence_of, rules_of
from jm_master.pg_errors import RowRefusedError
from jm_master.plan_store import Planned
from jm_master.save_store import TermLost
from jm_master.schedule_rows import progress_of, spec_of
from jm_master.terms import LostTermError
from jm_nats import telemetry
from jm_nats.crashpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import asyncpg

    from jm_core.ids import Term
    from jm_core.wire import HandlerDefaults
    from jm_master.database import Database
    from jm_master.plan_store import PlanStore
    from jm_master.wake import Wake

log = logging.getLogger(__name__)

BATCH_MAX: Final = 500  # schedules a pass
JOBS_MAX: Final = 5_000  # jobs a pass, shared out evenly over its schedules; the rest comes with the next
JOBS_EACH_MAX: Final = 1_000
STEPS_MAX: Final = 20_000  # missed instants counted one by one in a pass, about 0.5 s; then each schedule counts
STEPS_EACH_MIN: Final = 120  # so many, and says "at least"
YIELD_STEPS: Final = 500
IDLE_POLLS: Final = 2  # a row that plain SQL inserted is seen after so many times the polling interval at most
QUEUED_S: Final = 0.5  # how often we look whether the predecessor of a queued instant has ended
GAP_S: Final = 0.05  # between passes: what falls due meanwhile goes along in one


class Handlers(Protocol):
    """The part of ``RegistryView`` that is needed here."""

    @property
    def all_handlers(self) -> Mapping[str, HandlerDefaults]: ...


class Planner:
    """One term's. Holds nothing that is not in Postgres.

    Args:
        assign: woken when a job is due at once.
        wake: set by whoever changes a schedule.
        may_plan: whether the cluster takes new jobs; an archived one does not.
        zone: of schedules that have none of their own.
        threshold_s: jobs due within it may lie in buckets; what is planned ahead reaches beyond it.
    """

    def __init__(
        self,
        database: Database,
        store: PlanStore,
        view: Handlers,
        *,
        assign: Wake,
        wake: Wake,
        may_plan: Callable[[], bool] = lambda: True,
        term: Term,
        cluster: str,
        zone: str,
        threshold_s: float,
        poll_s: float,
    ) -> None:
        self._database = database
        self._store = store
        self._view = view
        self._assign = assign
        self._wake = wake
        self._may_plan = may_plan
        self._term = term
        self._cluster = cluster
        self._zone = zone
        self._idle_s = IDLE_POLLS * poll_s
        self._threshold_s = threshold_s
        self._soon = datetime.min.replace(tzinfo=UTC)  # what is due by then need not wait for the assigner's next look

    async def run(self) -> None:
        """Plan until cancelled; sleeps until the next schedule is to be looked at, or somebody changes one.

        Raises:
            LostTermError: somebody else leads.
        """
        while True:
            if not self._may_plan():  # what is missed meanwhile each schedule's misfire policy decides about
                telemetry.duty_passed()
                await self._wake.wait(self._idle_s)
                continue
            looked_at = await self.plan_once()
            telemetry.duty_passed()
            if looked_at:
                await anyio.sleep(GAP_S if looked_at < BATCH_MAX else 0)
                continue
            look = await self._database.ride_out(self._store.next_look)
            wait_s = self._idle_s if look.in_s is None else min(max(look.in_s, GAP_S), self._idle_s)
            await self._wake.wait(min(wait_s, QUEUED_S) if look.has_queued else wait_s)

    async def plan_once(self) -> int:
        """One pass over what is due; how many schedules that were."""
        rows = await self._database.ride_out(lambda: self._store.load_due(BATCH_MAX))
        if rows:
            self._soon = rows[0]["now"] + timedelta(seconds=limits.SCHEDULE_LEAD_S)
            await self._commit(await self._decide_all(rows))
        return len(rows)

    async def _decide_all(self, rows: Sequence[asyncpg.Record]) -> list[Planned]:
        batch: list[Planned] = []
        jobs_each = max(1, min(JOBS_EACH_MAX, JOBS_MAX // len(rows)))
        steps = unyielded = 0
        for row in rows:
            count_max = min(max(STEPS_MAX - steps, STEPS_EACH_MIN), COUNT_MAX)
            try:
                reach_ = reach_for(self._threshold_s, jobs_max=jobs_each, count_max=count_max)
                planned = self._decide(row, reach_)
            except Exception as error:  # noqa: BLE001 - whatever it is, it costs this schedule and no other
                await self._disable(row["name"], row["plan_no"], error)
                continue
            batch.append(planned)
            if row["late_s"] is not None:
                telemetry.planner_late(max(row["late_s"], 0.0))
            steps += planned.plan.steps
            unyielded += planned.plan.steps
            if unyielded > YIELD_STEPS:
                unyielded = 0
                await anyio.lowlevel.checkpoint()  # the other duties have their turn
        return batch

    def _decide(self, row: asyncpg.Record, reach_: Reach) -> Planned:
        spec = spec_of(row)
        check_schedule_name(spec.name)
        check_numbers(spec)
        id_of = partial(occurrence_id, self._cluster, row["schedule_id"], row["generation"])
        recurrence = recurrence_of(spec, row["created_at"], self._zone)
        plan = decide(rules_of(spec), progress_of(row), recurrence, now=row["now"], reach=reach_, id_of=id_of)
        job = job_of(spec, self._view.all_handlers, ClusterDefaults())
        ids = [id_of(instant) for instant in plan.instants]
        due = [due_at(instant, job_id, spec.jitter_s) for instant, job_id in zip(plan.instants, ids, strict=True)]
        return Planned(spec.name, row["plan_no"], row["generation"], plan, job, ids, due)

    async def _commit(self, batch: Sequence[Planned]) -> None:
        if not batch:
            return
        reach("plan.before_commit")
        try:
            answer = await self._database.ride_out(lambda: self._store.commit(batch))
        except RowRefusedError as refused:
            await self._commit_apart(batch, refused)
            return
        if isinstance(answer, TermLost):
            raise LostTermError(self._term)
        reach("plan.after_commit")
        telemetry.jobs_planned(len(answer.made))
        count_skips([batch[place] for place in answer.applied], answer.made)
        if any(planned.due and min(planned.due) <= self._soon for planned in batch):
            self._assign.set()

    async def _commit_apart(self, batch: Sequence[Planned], refused: RowRefusedError) -> None:
        """Something in the batch can never be stored: find whose it is, by halves, and disable that one alone."""
        if len(batch) == 1:
            await self._disable(batch[0].name, batch[0].plan_no, refused)
            return
        half = len(batch) // 2
        await self._commit(batch[:half])
        await self._commit(batch[half:])

    async def _disable(self, name: str, plan_no: int, error: Exception) -> None:
        text = str(error) or type(error).__name__
        log.error("schedule disabled", extra={"schedule": name, "problem": text}, exc_info=error)
        telemetry.schedule_disabled()
        if not await self._database.ride_out(lambda: self._store.disable(name, plan_no, text)):
            raise LostTermError(self._term)


def count_skips(applied: Sequence[Planned], made: frozenset[str]) -> None:
    """By plan; an instant that met a job with its unique key was planned, and is a skip all the same."""
    for planned in applied:
        for skip in planned.plan.skips:
            telemetry.instants_skipped(planned.name, skip.reason.value, skip.count)
        if planned.job.unique_key is not None and (missed := len(set(planned.ids) - made)):
            telemetry.instants_skipped(planned.name, SkipReason.DUPLICATE.value, missed)
