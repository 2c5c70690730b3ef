"""Cancelling jobs: the row decides, its worker is told, and what is lost on the way is told again (docs/control.md)."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import anyio

from jm_core import wire
from jm_core.control import Orders
from jm_core.model import JobStatus
from jm_master.ledger import LATER_HORIZON_S
from jm_master.pg_errors import StoreUnavailableError
from jm_master.wake import Wake
from jm_nats import telemetry
from jm_nats.crashpoints import reach
from jm_nats.errors import AgentError, NoSuchStreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_core.control import CancelOrder
    from jm_master.cancel_store import CancelStore, Found, Waiting
    from jm_master.database import Database
    from jm_master.ledger import Ledger
    from jm_master.waiters import ResultWaiters
    from jm_nats.publisher import JetPublisher
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

ORDERS_MAX: Final = 2_000  # of a pass
ORDERS_PER_MESSAGE: Final = 500
TELL_S: Final = 5.0  # for one bucket's stream to take the message
# Looked at however sure we are that there is none: the answer of a COMMIT may have been lost, and leaders of other
# agents write orders for our workers. The table is all but empty.
RETELL_S: Final = 2.0


class Canceller:
    """One term's. ``run`` is the leader's duty that tells the workers."""

    def __init__(
        self,
        database: Database,
        store: CancelStore,
        publisher: JetPublisher,
        names: Names,
        *,
        ledger: Ledger,
        waiters: ResultWaiters,
    ) -> None:
        self._database = database
        self.store = store
        self._publisher = publisher
        self._names = names
        self._ledger = ledger
        self._waiters = waiters
        self._wake = Wake()
        self._left = 1  # orders that were there at the last look
        self._has_looked = False
        self._followed: set[tuple[str, int]] = set()  # not told yet; `committed` has seen to what follows

    async def cancel(self, ids: Sequence[str], *, by: str, reason: str, force: bool = False) -> list[Found]:
        """Cancel jobs in one transaction: unstarted ones at once; running ones are asked to end, and end cancelled
        whatever they make of it. Idempotent; jobs that have ended, or are not there, are left alone.

        Args:
            ids: canonical job ids, at most some thousands.
            force: running ones, too, are cancelled at once; what their workers report is fenced off.

        Returns:
            The jobs that are there, as they were found and what became of them.

        Raises:
            LostTermError, StoreUnavailableError, StoreContentionError: nothing was done, or (unavailable) nobody knows;
                asking again is safe.
        """
        try:
            async with self._database.connection() as connection:
                found = await self.store.cancel(connection, ids, by=by, reason=reason, force=force)
        except StoreUnavailableError:
            self.look()  # it may be committed all the same
            raise
        self.committed(found)
        return found

    def committed(self, found: Sequence[Found]) -> None:
        """What follows from a cancel once it is committed."""
        reach("cancel.after_commit")
        changed = [job for job in found if job.became is not None]
        ended = [job for job in changed if job.became is JobStatus.CANCELLED]
        for job in ended:
            if job.bucket is not None and job.was in (JobStatus.IN_BUCKET, JobStatus.PROCESSING):
                self._give_back(job.bucket, job.run_at)
        # Of what runs on nothing follows before its end is recorded.
        self._followed.update((job.id, job.dispatch) for job in changed if job.bucket is not None)
        self.ended([job.id for job in ended])
        if any(job.bucket is not None for job in changed):
            self._wake.set()

    def ended(self, ids: Sequence[str]) -> None:
        """These are cancelled, and it is committed: who waits for them is told."""
        self._waiters.ended(ids)

    def look(self) -> None:
        """There may be orders to send."""
        self._wake.set()

    def _give_back(self, bucket: str, run_at_s: float) -> None:
        self._ledger.take_back(bucket, 1, second=later_second(run_at_s, now_s=time.time()))

    # Telling the workers.

    async def run(self) -> None:
        """Until cancelled: send what is to be sent, at once when there is something new."""
        while True:
            has_more = await self.tell_once()
            telemetry.duty_passed()
            if not has_more:
                await self._wake.wait(RETELL_S)

    async def tell_once(self) -> bool:
        """One pass; whether there is more to be sent at once."""
        orders = await self._database.ride_out(lambda: self.store.orders(ORDERS_MAX))
        if not orders and not self._left:
            self._has_looked = True
            return False
        by_bucket: defaultdict[str, list[CancelOrder]] = defaultdict(list)
        for waiting in orders:
            by_bucket[waiting.bucket].append(waiting.order)
        told: list[CancelOrder] = []
        async with anyio.create_task_group() as tasks:
            for bucket, of_bucket in by_bucket.items():
                for start in range(0, len(of_bucket), ORDERS_PER_MESSAGE):
                    tasks.start_soon(self._tell, bucket, of_bucket[start : start + ORDERS_PER_MESSAGE], told)
        if told:
            await self._database.ride_out(lambda: self.store.mark_told(told))
            self._follow_up(orders, {(order.id, order.dispatch) for order in told})
        self._has_looked = True
        self._left = await self._database.ride_out(self.store.forget_orders)
        return len(orders) == ORDERS_MAX and bool(told)

    def _follow_up(self, orders: Sequence[Waiting], told: set[tuple[str, int]]) -> None:
        """Of what was told just now for the first time: what follows from a cancel that ``committed`` was not told of,
        because its answer was lost or another agent's leader did it. Not in the first pass of a term: the ledger was
        filled from the table just before.
        """
        for waiting in orders:
            key = (waiting.order.id, waiting.order.dispatch)
            if key not in told or waiting.told:
                continue
            if key in self._followed:
                self._followed.discard(key)
            elif waiting.cancelled_run_at is not None and self._has_looked:
                self._give_back(waiting.bucket, waiting.cancelled_run_at)
                self.ended([waiting.order.id])

    async def _tell(self, bucket: str, orders: list[CancelOrder], told: list[CancelOrder]) -> None:
        try:
            with anyio.fail_after(TELL_S):
                await self._publisher.publish(self._names.ctl(bucket), wire.encode(Orders(cancel=orders)))
        except NoSuchStreamError:
            told += orders  # the bucket is gone, and its jobs with it: whoever took them back ends them
        except (AgentError, TimeoutError) as error:
            log.warning("a worker cannot be told of a cancel yet", extra={"bucket": bucket, "problem": str(error)})
        else:
            told += orders


def later_second(run_at_s: float, *, now_s: float) -> int:
    """How the ledger counts a job that lies in a bucket: by its second, or 0 when it is (nearly) due."""
    return int(run_at_s) if run_at_s > now_s + LATER_HORIZON_S + 1 else 0
