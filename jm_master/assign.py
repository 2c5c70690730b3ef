"""Due jobs on their way from the master into buckets, as many as the workers' credit allows. DESIGN 6.5."""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from jm_core import limits
from jm_core.model import Priority
from jm_master.dispatch_store import DUE, Window
from jm_master.ledger import LATER_HORIZON_S
from jm_master.save_store import TermLost
from jm_master.terms import LostTermError
from jm_nats import telemetry
from jm_nats.crashpoints import reach
from jm_nats.pace import tick_s

if TYPE_CHECKING:
    from jm_core.ids import Term
    from jm_core.placement import Share
    from jm_master.database import Database
    from jm_master.dispatch_store import Assigned, DispatchStore, Waiting
    from jm_master.ledger import Ledger
    from jm_master.outbox import Outbox
    from jm_master.registry_view import RegistryView
    from jm_master.runs import RunSender
    from jm_master.wake import Wake

QUIET_S: Final = 5.0
RESEED_S: Final = 30.0
PASS_GAP_S: Final = 0.02  # between passes under load: credit that trickles in is worth collecting


class Assigner:
    def __init__(
        self,
        database: Database,
        store: DispatchStore,
        sender: RunSender,
        ledger: Ledger,
        view: RegistryView,
        *,
        outbox: Outbox,
        wake: Wake,
        term: Term,
        threshold_s: float,
        poll_s: float,
    ) -> None:
        self._database = database
        self._store = store
        self._sender = sender
        self._outbox = outbox
        self._ledger = ledger
        self._view = view
        self._wake = wake
        self._term = term
        self._later = Window(limits.SCHEDULE_LEAD_S, threshold_s)
        self._poll_s = poll_s
        self._reseed_at_s = time.monotonic() + RESEED_S
        self._more = False  # a statement moved as much as one may: there may be more, and credit for it

    async def run(self) -> None:
        """Assign until cancelled: at once when woken, every ``poll_s`` otherwise.

        Raises:
            LostTermError: somebody else leads.
        """
        while True:
            await self._reseed_when_quiet()
            left_over = await self.assign_once()
            telemetry.duty_passed()
            if self._more:
                await anyio.lowlevel.checkpoint()
            elif left_over:
                await self._ledger.freed.wait(self._poll_s)
                await anyio.sleep(PASS_GAP_S)
            else:
                await self._wake.wait(tick_s(self._poll_s))

    async def _reseed_when_quiet(self) -> None:
        """The ledger drifts a little with every crash of a worker; when nothing moves, Postgres knows exactly."""
        now_s = time.monotonic()
        if now_s < self._reseed_at_s or not self._ledger.outstanding():
            return
        if self._ledger.progress_age_s(now_s=now_s) > QUIET_S:
            counts = await self._database.ride_out(lambda: self._store.count_in_buckets(later_s=LATER_HORIZON_S))
            if self._ledger.progress_age_s(now_s=time.monotonic()) > QUIET_S:
                self._ledger.seed(counts)
                self._reseed_at_s = now_s + RESEED_S

    async def assign_once(self) -> bool:
        """One pass over everything that waits; True when due jobs are left because credit is short."""
        self._ledger.mature(wall_s=time.time())
        self._more = False
        if not self._view.routes():
            self._ledger.backlogs = set()
            return False  # nobody to give it to: not even a query
        began_s = time.monotonic()
        waiting = await self._database.ride_out(self._store.waiting)
        routes: dict[tuple[str, int], list[Waiting]] = defaultdict(list)
        for kind in waiting:
            if kind.due_in_s <= self._later.until_s and self._view.route(kind.lane, kind.priority):
                routes[kind.lane, kind.priority].append(kind)
        backlogs: set[tuple[str, int]] = set()
        # Higher priorities first; of one priority, the lane whose first job has waited longest.
        for (lane, priority), kinds in sorted(routes.items(), key=lambda item: (-item[0][1], _first(item[1]))):
            if await self._assign_route(lane, Priority(priority), kinds):
                backlogs.add((lane, priority))
        self._ledger.backlogs = backlogs
        telemetry.assign_passed(time.monotonic() - began_s)
        return bool(backlogs)

    async def _assign_route(self, lane: str, priority: Priority, kinds: list[Waiting]) -> bool:
        kinds = sorted(kinds, key=lambda kind: kind.due_in_s)
        due = [kind.handler for kind in kinds if kind.due_in_s <= DUE.until_s]
        left_over = bool(due) and await self._assign_window(lane, priority, due, DUE)
        await self._assign_window(lane, priority, [kind.handler for kind in kinds], self._later)
        return left_over

    async def _assign_window(self, lane: str, priority: Priority, handlers: list[str], window: Window) -> bool:
        """Handlers that the same buckets can run share those buckets' credit; True when it did not suffice."""
        by_buckets: dict[frozenset[str], list[str]] = defaultdict(list)
        for handler in handlers:
            by_buckets[self._ledger.buckets_for(lane, priority, handler)].append(handler)
        by_buckets.pop(frozenset(), None)  # there are only fallback buckets, whose workers do not know the handler
        short = False
        for alike in by_buckets.values():
            short |= await self._assign_alike(lane, priority, alike, window)
        return short

    async def _assign_alike(self, lane: str, priority: Priority, handlers: list[str], window: Window) -> bool:
        later, now_s = window is not DUE, time.monotonic()
        offer = partial(self._ledger.offer, lane, priority, handlers[0], later=later, now_s=now_s)
        credit = sum(share.count for share in offer(limits.ASSIGN_BATCH_MAX))
        if not credit:
            return True
        shares = offer(credit)
        if window is DUE and len(shares) == 1 and (lane, priority) in self._ledger.backlogs:
            # There was more than credit a moment ago, and nobody to share it with: what there is need not be counted.
            moved = await self._fill(lane, priority, handlers, window, shares[0])
            is_short = moved == credit
        else:
            count = await self._database.ride_out(
                lambda: self._store.count_due(lane, priority, handlers, window, credit + 1)
            )
            moved = 0
            for share in offer(min(count, credit)):
                moved += await self._fill(lane, priority, handlers, window, share)
            is_short = count > credit
        # Rows that somebody has locked are counted and not moved: to ask for them again at once would spin.
        self._more |= is_short and moved > 0 and credit >= limits.ASSIGN_BATCH_MAX
        return is_short

    async def _fill(self, lane: str, priority: Priority, handlers: list[str], window: Window, share: Share) -> int:
        """Move what there is for the share; how many jobs moved."""
        bucket, count = share.bucket, share.count
        self._ledger.give(bucket, count, now_s=time.monotonic())
        given = tries = 0

        async def one_try() -> Assigned | TermLost:
            nonlocal tries
            tries += 1
            return await self._store.assign(lane, priority, handlers, window, bucket=bucket, count_max=count)

        try:
            answer = await self._database.ride_out(one_try)
            if isinstance(answer, TermLost):
                raise LostTermError(self._term)
            reach("assign.after_commit")
            for second, jobs in answer.counts:
                self._ledger.give(bucket, jobs, second=second, now_s=time.monotonic())
            given = answer.jobs
        finally:
            self._ledger.take_back(bucket, count)
        if given:
            sent = await self._sender.send_all(answer.messages, now_s=time.time())
            await self._database.ride_out(lambda: self._store.delete_outbox(sent))
        if tries > 1:
            # An earlier try may have been committed and its answer lost: what it moved is known to the outbox alone.
            await self._outbox.sweep_now()
        return given


def _first(kinds: list[Waiting]) -> float:
    return min(kind.due_in_s for kind in kinds)
