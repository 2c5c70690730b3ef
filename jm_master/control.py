"""Operator actions, carried out: at once where jobs are named, batch by batch where a filter picks them."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from jm_core.api_control import Change, ControlReply
from jm_core.control import BATCH_JOBS, Action
from jm_core.model import JobStatus
from jm_master.backoff import Backoff
from jm_master.cancel import later_second
from jm_master.control_store import UNKNOWN, Order
from jm_master.pg_errors import RowRefusedError, StoreContentionError, StoreUnavailableError
from jm_master.wake import Wake
from jm_nats import telemetry
from jm_nats.crashpoints import reach
from jm_nats.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from jm_core.api_control import ControlRequest
    from jm_master.ahead import Ahead
    from jm_master.cancel import Canceller
    from jm_master.control_store import Applied, ControlStore, Started
    from jm_master.database import Database
    from jm_master.ledger import Ledger
    from jm_master.recall import Dispatched, Recaller
    from jm_master.registry_view import RegistryView

log = logging.getLogger(__name__)

OPEN_MAX: Final = 20  # actions in bulk that take turns
IDLE_S: Final = 60.0
AHEAD_LOOK_S: Final = 0.5  # at first, and then twice as long each time
OTHERS_LOOK_S: Final = 2.0  # what other agents' leaders remember is known here so late at most
BATCH_GAP_S: Final = 0.01  # what writes and records jobs comes first
KEY_TRIES: Final = 3
CONTENTION_TRIES: Final = 5
THREAD_NOTE: Final = "cancel requested; cannot be forced: it runs in a thread, which has to look at ctx.cancelled"


class Control:
    """One term's. ``run`` is the leader's duty that works off what was started in bulk."""

    def __init__(
        self,
        database: Database,
        store: ControlStore,
        canceller: Canceller,
        recaller: Recaller,
        ahead: Ahead,
        *,
        ledger: Ledger,
        view: RegistryView,
        assign: Wake,
        others: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args: others: whether other agents have a leader, which may be asked for cancels of jobs that come to us."""
        self.store = store
        self._database = database
        self._canceller = canceller
        self._recaller = recaller
        self._ahead = ahead
        self._ledger = ledger
        self._view = view
        self._assign = assign
        self._wake = Wake()
        self._ahead_look_s = AHEAD_LOOK_S
        self._others = others
        self._asked_others_s = -float("inf")

    # Named jobs.

    async def apply(self, order: Order, ids: Sequence[str]) -> ControlReply:
        """In one transaction. Raises as ``ControlStore``, and AgentError."""
        back = await self._recall(order, ids)
        done = await self._retrying(lambda: self.store.apply(order, ids, back))
        self._follow(order, done)
        is_known = any(verdict.status != UNKNOWN for verdict in done.verdicts)
        action = await self.store.action(order.action_id) if is_known else None
        return ControlReply(action=action, jobs=done.verdicts)

    async def _recall(self, order: Order, ids: Sequence[str]) -> list[Dispatched]:
        """What lies with a worker is asked back first. A cancel needs no asking. What was given back must be committed:
        a worker gives the same jobs back again should it be asked again, but starts them no more.
        """
        if order.action not in (Action.RUN_NOW, Action.RESCHEDULE, Action.PRIORITY):
            return []
        lying = await self.store.in_buckets(order.action_id, ids)
        return await self._recaller.recall(lying) if lying else []

    async def _retrying(self, commit: Callable[[], Awaitable[Applied]]) -> Applied:
        """A unique key may be taken between the look and the change; the next look sees who has it. And our own
        statements may have met.
        """
        keys, contention, wait = KEY_TRIES, CONTENTION_TRIES, Backoff(first_s=0.02, cap_s=0.2)
        while True:
            try:
                return await commit()
            except RowRefusedError as error:
                keys -= 1
                if not keys:
                    raise
                log.info("an operator action is tried again", extra={"problem": error.problem})
            except StoreContentionError:
                contention -= 1
                if not contention:
                    raise
                await anyio.sleep(wait.next_s())
            except StoreUnavailableError:
                # It may be committed all the same.
                self._assign.set()
                self._canceller.look()
                raise

    def _follow(self, order: Order, done: Applied) -> None:
        """What follows from a commit."""
        reach("control.after_commit")
        if done.ahead:
            self._ahead.add(done.ahead)
            self._ahead_look_s = AHEAD_LOOK_S
            self._wake.set()
        if done.cancelled:
            self._canceller.committed(done.cancelled)
            self._say_what_cannot_be_forced(done)
        if order.action is Action.CANCEL:  # also of an earlier try, whose answer was lost
            cancelled = JobStatus.CANCELLED.label
            self._canceller.ended([v.id for v in done.verdicts if v.changed and v.status == cancelled])
        now_s = time.time()
        for job in done.recalled:
            self._ledger.take_back(job.bucket, 1, second=later_second(job.run_at, now_s=now_s))
        if done.waiting:
            self._assign.set()

    def _say_what_cannot_be_forced(self, done: Applied) -> None:
        handlers = {job.id: job.handler for job in done.cancelled if job.became is JobStatus.PROCESSING}
        for verdict in done.verdicts:
            known = self._view.all_handlers.get(handlers.get(verdict.id, ""))
            if known is not None and known.executor == "thread":
                verdict.note = THREAD_NOTE

    # By a filter.

    async def start(self, request: ControlRequest, order: Order) -> Started:
        """Raises as ``ControlStore``."""
        started = await self.store.start(request, order)
        self._wake.set()
        return started

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LostTermError: somebody else leads.
        """
        while True:
            orders = await self._database.ride_out(lambda: self.store.open_orders(OPEN_MAX))
            telemetry.duty_passed()
            for order in orders:
                await self._step(order)
                await anyio.sleep(BATCH_GAP_S)
            if self._others() and time.monotonic() - self._asked_others_s >= OTHERS_LOOK_S:
                await self._database.ride_out(self._ahead.load)
                self._asked_others_s = time.monotonic()
            if self._ahead.ids:
                await self._cancel_who_came()
            if not orders:
                pause_s = self._ahead_look_s if self._ahead.ids else IDLE_S
                await self._wake.wait(min(pause_s, OTHERS_LOOK_S) if self._others() else pause_s)
                self._ahead_look_s = min(2 * self._ahead_look_s, IDLE_S)

    async def _cancel_who_came(self) -> None:
        """Jobs that were being saved while their cancel came, or came to a leader that did not know of it yet."""
        for job in await self._database.ride_out(self._ahead.come):
            order = Order(job.action_id, Action.CANCEL, job.by, job.reason, Change())
            try:
                await self.apply(order, [job.id])
            except (StoreUnavailableError, StoreContentionError):
                return  # the next look finds it again
            await self._database.ride_out(partial(self._ahead.settled, [job.id]))

    async def _step(self, order: Order) -> None:
        """One batch of it: the state of the moment decides about each job."""
        ids = await self._database.ride_out(lambda: self.store.targets(order.action_id, BATCH_JOBS))
        if not ids:
            await self._database.ride_out(lambda: self.store.finish(order.action_id))
            return
        try:
            await self._do_batch(order, ids)
        except AgentError as error:
            log.warning("an operator action waits for NATS", extra={"action": order.action_id, "problem": str(error)})
            await anyio.sleep(1.0)
        except RowRefusedError as error:
            await self._one_by_one(order, ids, error)

    async def _do_batch(self, order: Order, ids: Sequence[str]) -> None:
        """Its jobs are asked back once; what is repeated, however often, is the commit."""
        back = await self._database.ride_out(lambda: self._recall(order, ids))
        commit = partial(self.store.apply_batch, order, ids, back)
        self._follow(order, await self._database.ride_out(lambda: self._retrying(commit)))

    async def _one_by_one(self, order: Order, ids: Sequence[str], error: RowRefusedError) -> None:
        """Postgres refuses one of them: the others go on."""
        if len(ids) == 1:
            await self._database.ride_out(lambda: self.store.refuse(order, ids[0], error.problem))
            return
        for job_id in ids:
            try:
                await self._do_batch(order, [job_id])
            except RowRefusedError as refused:
                await self._one_by_one(order, [job_id], refused)
