"""The record path: what workers report, applied to table ``job`` set by set. DESIGN 6.4.

One batch at a time is applied, in the order of the stream: an adopter's ``returned`` must never overtake the
``finished`` that its dead worker had still sent. The next batch is read meanwhile.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import anyio
from msgspec.structs import replace

from jm_core import wire
from jm_core.ends import End, after_abandonment, after_cancel, after_loss, as_end, sort_events, storable
from jm_core.model import JobStatus, ReturnReason
from jm_core.retry import DEFAULT_BACKOFF
from jm_master.in_hand import InHand
from jm_master.pg_errors import RowRefusedError
from jm_master.record_store import Recorded
from jm_master.reports import Batch, decoded, event_refusal
from jm_master.save_store import TermLost
from jm_master.terms import LostTermError
from jm_nats import telemetry
from jm_nats.crashpoints import reach
from jm_nats.pull import ack, meta

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from jm_core.ends import Held
    from jm_core.ids import Term
    from jm_master.cancel_store import CancelStore
    from jm_master.database import Database
    from jm_master.ledger import Ledger
    from jm_master.record_store import RecordStore
    from jm_master.registry_view import RegistryView
    from jm_master.waiters import ResultWaiters
    from jm_master.wake import Wake
    from jm_nats.pull import PullReader

log = logging.getLogger(__name__)
T = TypeVar("T", wire.Finished, End, wire.Started, wire.Progress, wire.Returned)

MESSAGES_MAX = 64  # of one take
FLOOD_EVENTS = 256  # of one batch: only a flood brings so many at once
JOINED_EVENTS_MAX = 2_000
LINGER_S = 0.005
SAMPLE_EVERY = 16  # of the run times that tell how quick a worker is


class Recorder:
    def __init__(
        self,
        reader: PullReader,
        database: Database,
        store: RecordStore,
        ledger: Ledger,
        view: RegistryView,
        *,
        cancels: CancelStore,
        waiters: ResultWaiters,
        assign: Wake,
        term: Term,
        batch_events: int,
    ) -> None:
        self.stale = 0  # events that the fence refused
        self._reader = reader
        self._database = database
        self._store = store
        self._cancels = cancels
        self._ledger = ledger
        self._view = view
        self._waiters = waiters
        self._assign = assign
        self._term = term
        self._batch_events = batch_events
        self._in_hand = InHand(reader)

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LostTermError: somebody else leads.
            ConsumerGoneError: the events stream's consumer was deleted.
        """
        send, receive = anyio.create_memory_object_stream[Batch](1)
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, send)
            tasks.start_soon(self._apply_all, receive)
            tasks.start_soon(self._in_hand.keep_alive)

    async def apply(self, batch: Batch) -> None:
        """One batch, to its ack. Safe to repeat: the fence lets nothing through twice."""
        events = sort_events(batch.reports)
        if events.successes:
            await self._record_successes(batch, events.successes, events.success_batches)
        if events.ends:
            await self._record_ends(batch, events.ends, events.end_batches)
        if events.lost:
            await self._record_lost(batch, events.lost, events.lost_batches)
        if events.started:
            await self._record_started(batch, events.started, events.started_batches)
        if events.progress:
            await self._record_progress(batch, events.progress)
        if batch.refusals:
            await self._database.ride_out(lambda: self._store.reject(batch.refusals))
        _measure(batch)
        telemetry.duty_passed()
        reach("recorder.after_commit")
        for message in batch.messages:
            ack(message)

    # Reading.

    async def _read(self, send: MemoryObjectSendStream[Batch]) -> None:
        while True:
            messages = await self._reader.take(MESSAGES_MAX)
            batches = decoded(messages, self._batch_events)
            for batch in batches:
                self._in_hand.hold(batch.messages)
            for batch in batches:
                await send.send(batch)

    async def _apply_all(self, receive: MemoryObjectReceiveStream[Batch]) -> None:
        async for batch in receive:
            with ExitStack() as held:
                await self._joined(batch, receive, held)
                await self.apply(batch)

    async def _joined(self, batch: Batch, receive: MemoryObjectReceiveStream[Batch], held: ExitStack) -> None:
        """``batch`` takes along what follows it closely. A statement costs about as much as 100 outcomes in it, so in a
        flood, and only then, it is worth a wait that nobody would notice.
        """
        events = batch.events
        held.enter_context(self._in_hand.holding(batch.messages))
        if events < FLOOD_EVENTS:
            return
        with anyio.move_on_after(LINGER_S):
            while events < JOINED_EVENTS_MAX:
                later = await receive.receive()
                held.enter_context(self._in_hand.holding(later.messages))
                batch.add(later)
                events += later.events

    # Recording, kind by kind.

    async def _record_successes(self, batch: Batch, events: Sequence[wire.Finished], places: Sequence[int]) -> None:
        async def refused(event: wire.Finished, place: int, problem: str) -> None:
            await self._record_ends(batch, [storable(as_end(event), problem)], [place], again=False)

        async def apply(some: Sequence[wire.Finished], at: Sequence[int]) -> None:
            answer = await self._ride_out(lambda: self._store.record_successes(some, at, batch.workers))
            await self._settle(batch, some, at, answer)

        await _bisecting(events, places, apply, refused)

    async def _record_ends(
        self, batch: Batch, ends: Sequence[End], places: Sequence[int], *, again: bool = True
    ) -> None:
        async def refused(end: End, place: int, problem: str) -> None:
            if again:
                await self._record_ends(batch, [storable(end, problem)], [place], again=False)
            else:
                batch.refusals.append(event_refusal(end, problem))

        async def apply(some: Sequence[End], at: Sequence[int]) -> None:
            answer = await self._ride_out(lambda: self._store.record_ends(some, at, batch.workers, batch.buckets))
            await self._settle(batch, some, at, answer)
            if any(end.status is JobStatus.ON_MASTER for end in some):
                self._assign.set()

        await _bisecting(ends, places, apply, refused)

    async def _record_lost(self, batch: Batch, events: Sequence[wire.Returned], places: Sequence[int]) -> None:
        """Jobs that their worker left behind, handed back by the adopter: the row decides what follows."""

        async def refused(event: wire.Returned, _: int, problem: str) -> None:
            batch.refusals.append(event_refusal(event, problem))

        async def apply(some: Sequence[wire.Returned], at: Sequence[int]) -> None:
            ends, ends_at = await self._ends_of_left(some, at)
            if ends:
                await self._record_ends(batch, ends, ends_at)

        await _bisecting(events, places, apply, refused)

    async def _ends_of_left(
        self, events: Sequence[wire.Returned], places: Sequence[int]
    ) -> tuple[list[End], list[int]]:
        """Of those that are still out under their dispatch number."""
        returned = {(e.id, e.dispatch): (e, place) for e, place in zip(events, places, strict=True)}
        ids, dispatches = [job_id for job_id, _ in returned], [dispatch for _, dispatch in returned]
        held = await self._database.ride_out(lambda: self._store.load_held(ids, dispatches))
        found = [(row, *returned[row.id, row.dispatch]) for row in held]
        ends = [
            self.end_of_left(_as_reported(row, event), was_lost=event.reason is ReturnReason.LOST)
            for row, event, _ in found
        ]
        return ends, [place for _, _, place in found]

    async def record_apart(self, ends: Sequence[End], *, bucket: str, worker: str) -> None:
        """Ends that no event reported: of a bucket whose worker is gone."""
        report = wire.EventBatch(bucket, 0, worker, [])
        await self._record_ends(Batch([], [report]), ends, [0] * len(ends))

    def end_of_left(self, held: Held, *, was_lost: bool) -> End:
        """Of a job that its worker left behind, dead or gone in order."""
        known = self._view.all_handlers.get(held.handler)
        policy = known.backoff if known else DEFAULT_BACKOFF
        after = after_loss if was_lost else after_abandonment
        return after(held, policy, now_s=time.time(), u=random.random())

    async def _record_started(self, batch: Batch, events: Sequence[wire.Started], places: Sequence[int]) -> None:
        async def refused(event: wire.Started, _: int, problem: str) -> None:
            batch.refusals.append(event_refusal(event, problem))

        async def apply(some: Sequence[wire.Started], at: Sequence[int]) -> None:
            answer = await self._ride_out(lambda: self._store.record_started(some, at, batch.workers))
            self._count_stale(len(some) - answer.count)
            self._waiters.changed(event.id for event in some)

        await _bisecting(events, places, apply, refused)

    async def _record_progress(self, batch: Batch, events: Sequence[wire.Progress]) -> None:
        async def refused(event: wire.Progress, _: int, problem: str) -> None:
            batch.refusals.append(event_refusal(event, problem))

        async def apply(some: Sequence[wire.Progress], _: Sequence[int]) -> None:
            answer = await self._ride_out(lambda: self._store.record_progress(some))
            self._count_stale(len(some) - answer.count)
            self._waiters.changed(event.id for event in some)

        await _bisecting(events, [0] * len(events), apply, refused)

    # Shared.

    async def _ride_out(self, action: Callable[[], Awaitable[Recorded | TermLost]]) -> Recorded:
        """Where an answer was lost, nobody can tell what that try had applied from what the fence refused: all of it
        counts as applied. Credit given back twice is a few jobs too many for a moment; credit never given back would
        be missing for as long as we lead.
        """
        tries = 0

        async def one_try() -> Recorded | TermLost:
            nonlocal tries
            tries += 1
            return await action()

        answer = await self._database.ride_out(one_try)
        if isinstance(answer, TermLost):
            raise LostTermError(self._term)
        return answer if tries == 1 else Recorded(answer.count)

    def _count_stale(self, count: int) -> None:
        self.stale += count
        telemetry.outcomes_stale(count)

    async def _settle(
        self, batch: Batch, ends: Sequence[wire.Finished | End], places: Sequence[int], answer: Recorded
    ) -> None:
        """Give credit back for what was recorded, and wake who waits for it."""
        applied = answer.applied
        if answer.count < len(ends):
            cancelled = await self._end_cancelled(batch, ends, places, but=applied or frozenset())
            applied = None if applied is None else applied | cancelled
        if applied is not None:
            kept = [i for i, end in enumerate(ends) if end.id in applied]
            self._count_stale(len(ends) - len(kept))
            ends, places = [ends[i] for i in kept], [places[i] for i in kept]
        now_s = time.monotonic()
        sample = {place: _run_s(end) for end, place in zip(ends[::SAMPLE_EVERY], places[::SAMPLE_EVERY], strict=True)}
        for place, count in Counter(places).items():
            report = batch.reports[place]
            self._ledger.settle(report.bucket, report.worker, count, run_s=sample.get(place), now_s=now_s)
        self._waiters.ended([end.id for end in ends])

    async def _end_cancelled(
        self, batch: Batch, ends: Sequence[wire.Finished | End], places: Sequence[int], *, but: frozenset[str]
    ) -> frozenset[str]:
        """What the fence refused may be of jobs whose cancel was asked for: they end now, and are never run again."""
        refused = [
            (after_cancel(as_end(end) if isinstance(end, wire.Finished) else end), place)
            for end, place in zip(ends, places, strict=True)
            if end.id not in but
        ]
        some, at = [end for end, _ in refused], [place for _, place in refused]
        answer = await self._ride_out(lambda: self._cancels.end_cancelled(some, at, batch.workers, batch.buckets))
        return frozenset(end.id for end in some) if answer.applied is None else answer.applied


def _measure(batch: Batch) -> None:
    if telemetry.Active.metering:
        items = sum(len(report.events) for report in batch.reports) + len(batch.refusals)
        oldest_s = min((meta(message).timestamp_ns / 1e9 for message in batch.messages), default=time.time())
        telemetry.batch_committed("record", items, oldest_s)


def _run_s(end: wire.Finished | End) -> float | None:
    """How long it ran; None when it did not."""
    if end.started_at is None or end.finished_at is None:
        return None
    return max(0.0, end.finished_at - end.started_at)


async def _bisecting(
    items: Sequence[T],
    places: Sequence[int],
    apply: Callable[[Sequence[T], Sequence[int]], Awaitable[None]],
    refused: Callable[[T, int, str], Awaitable[None]],
) -> None:
    """Apply all at once; what Postgres refuses is found by halving, and handled alone."""
    try:
        await apply(items, places)
    except RowRefusedError as error:
        if len(items) == 1:
            await refused(items[0], places[0], error.problem)
            return
        half = len(items) // 2
        await _bisecting(items[:half], places[:half], apply, refused)
        await _bisecting(items[half:], places[half:], apply, refused)


def _as_reported(row: Held, event: wire.Returned) -> Held:
    """The adopter may know of a start that the row has not seen."""
    if event.started_at is None or row.started_at is not None:
        return row
    return replace(row, started_at=event.started_at, attempt=max(row.attempt, event.attempt))
