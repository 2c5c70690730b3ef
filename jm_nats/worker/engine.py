"""Holds jobs until they are due, starts them when a slot is free, and turns each end into one report.

No NATS in here: jobs come in by ``accept``, reports go out by each bucket's ``Reporter``. All methods run on the event
loop's thread and none awaits, so there is no lock and no state between two steps.
"""

import asyncio
import contextvars
import heapq
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from jm_core import limits, rpc
from jm_core.control import CancelOrder
from jm_core.health import Invariant, InvariantViolatedError
from jm_core.model import Priority, ReturnReason
from jm_core.payload import cut_text
from jm_core.slots import Turns, next_priority
from jm_core.wire import Progress, Quarantined, Returned, Run, Started
from jm_nats import telemetry
from jm_nats.clock import Clock
from jm_nats.handlers import ArgumentsError, Handler
from jm_nats.troubles import trouble
from jm_nats.worker.attempt_report import report_of
from jm_nats.worker.entrance import Entrance
from jm_nats.worker.execution import Ask, Execution, Executors
from jm_nats.worker.held import Held
from jm_nats.worker.lane_queue import LaneQueue
from jm_nats.worker.outcomes import BucketPort, Delivery
from jm_nats.worker.progress import AttemptProgress
from jm_nats.worker.refusals import Refusals

log = logging.getLogger("jobmaster.worker")

KNOWN_MAX: Final = 50_000
STATUS_JOBS_MAX: Final = 100
CLOCK_LOOK_S: Final = 1.0  # a clock that is set, or a machine that slept, is noticed this late at most


class Engine:
    """The worker's slots and everything waiting for one."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        slots: int,
        executors: Executors,
        clock: Clock,
        cancel_grace_s: float,
        on_room: Callable[[], None] = lambda: None,
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self._handlers = handlers
        self._slots = slots
        self.executors = executors
        self.clock = clock
        self._grace_s = cancel_grace_s
        self._on_room = on_room
        self.may_start = may_start
        self._loop = asyncio.get_running_loop()
        # What handlers start with: a slot is often filled by what another one's handler has just left.
        self._context = contextvars.copy_context()
        self._entrance = Entrance(self._context, lambda: self.may_start())  # noqa: PLW0108 - it is replaced
        self._ready: dict[Priority, LaneQueue[Held]] = {p: LaneQueue() for p in Priority}
        self._waiting: dict[Priority, int] = dict.fromkeys(Priority, 0)
        self._ready_now = 0  # their sum
        self._served = Priority.MEDIUM  # the last one that got a slot
        self._turns = Turns()
        self._later: list[tuple[float, int, Held]] = []
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._running: set[Execution] = set()
        self._running_by: dict[Priority, int] = dict.fromkeys(Priority, 0)
        # Highest dispatch seen per job: a message that comes twice, or late, is dropped here (crash table, row 4).
        self._known: dict[str, int] = {}
        self._refusals = Refusals()
        # What is here and not reported yet, by job: its newest dispatch.
        self._open: dict[str, Held] = {}
        # Jobs that may be what killed their workers: started one by one, so that the next death tells which it was.
        self._suspects: deque[Held] = deque()
        self._suspect: Held | None = None  # whom the next one waits for
        self._suspect_since_s = 0.0
        self.paused = False  # the cluster starts nothing: what comes goes back
        self.held = 0  # due or not, and not started
        self.held_bytes = 0
        self.duplicates = 0
        self.finished = 0

    # -- in

    def accept(self, runs: list[Run], port: BucketPort, delivery: Delivery) -> None:
        """Take a message's jobs: start, hold until due, or drop what is already here."""
        now = self.clock.now()
        known = self._known
        loop_now = self._loop.time()
        is_refusing = self._refusals.any
        for run in runs:
            seen = known.get(run.id, 0)
            if seen >= run.dispatch or (is_refusing and self._refusals.refuses(run.id, run.dispatch)):
                if seen < run.dispatch:
                    self.will_not_come(run.id, run.dispatch)
                self._repeated(run, port, delivery)
                continue
            if seen and run.id in self._open:
                self._overtaken(run.id)
            known[run.id] = run.dispatch
            held = self._open[run.id] = Held(run, port, delivery, loop_now)
            self.held += 1
            self.held_bytes += held.size
            if run.run_at > now:
                self._sequence += 1
                heapq.heappush(self._later, (run.run_at, self._sequence, held))
            else:
                self._enqueue(held)
        if len(known) > KNOWN_MAX:
            self._forget()
        if self._later:
            self._arm()
        if port.closed or self.paused:
            self.hand_back(self.held_of(port), ReturnReason.DRAINED)
        self.pump()

    def _repeated(self, run: Run, port: BucketPort, delivery: Delivery) -> None:
        """Drop a copy. Acking it takes the message away for good, so the ack must wait for the job's end: if we died
        before, who adopts our bucket would not find the job there.
        """
        self.duplicates += 1
        held = self._held(run.id, run.dispatch)
        if held is not None:
            held.again += (delivery,)
        else:
            port.reporter.done(delivery)

    def _overtaken(self, job_id: str) -> None:
        """The record has moved on to another dispatch: an older one that waits here still never starts."""
        older = self._open[job_id]
        if all(execution.run is not older.run for execution in self._running):
            self._take_out([older])
            self._close(older)

    def _close(self, held: Held) -> None:
        """Reported: its message needs it no more."""
        if self._open.get(held.run.id) is held:
            del self._open[held.run.id]
        held.port.reporter.done(held.delivery)
        for delivery in held.again:
            held.port.reporter.done(delivery)

    # -- slots

    @property
    def running(self) -> int:
        return len(self._running)

    def pump(self) -> None:
        """Fill the free slots. Called whenever a job came, a slot went, or the lease is sure again."""
        self._entrance.go_on()
        running, waiting = self._running, self._waiting
        while self._ready_now and len(running) < self._slots and not self.paused and self.may_start():
            priority = self._served
            if waiting[priority] != self._ready_now:  # else nothing waits but what is like the last one
                priority = self._served = next_priority(waiting, self._running_by, self._turns) or priority
            waiting[priority] -= 1
            self._ready_now -= 1
            held = self._ready[priority].popleft()
            if held.run.losses < limits.SUSPECT_LOSSES:
                self._start(held)
            elif self._suspect is not None:
                self._suspects.append(held)
            else:
                self._suspect, self._suspect_since_s = held, math.inf
                self._start(held)

    def _enqueue(self, held: Held) -> None:
        priority = held.port.priority
        self._ready[priority].append(held)
        self._waiting[priority] += 1
        self._ready_now += 1

    def waiting_since(self) -> list[Held]:
        """Due jobs without a slot, oldest first within each priority and lane."""
        return [held for queue in self._ready.values() for held in queue] + list(self._suspects)

    def held_of(self, port: BucketPort) -> list[Held]:
        """What of this bucket is here and not started."""
        later = [entry[2] for entry in self._later]
        return [held for held in self.waiting_since() + later if held.port is port]

    def holds(self, jobs: Sequence[tuple[str, int]]) -> list[str]:
        """Of these (job, dispatch), the jobs that are here and not reported yet."""
        return [job_id for job_id, dispatch in jobs if self._held(job_id, dispatch) is not None]

    def _start(self, held: Held) -> None:
        run, port = held.run, held.port
        self.held -= 1
        self.held_bytes -= held.size
        handler = self._handlers.get(run.handler)
        if handler is None:
            known = ", ".join(sorted(self._handlers)[:10]) or "none"
            self._quarantine(held, f"no handler {run.handler!r} on the worker that got it; it knows: {known}")
            return
        try:
            kwargs = handler.decode_args(run.args)
        except ArgumentsError as error:
            self._quarantine(held, str(error))
            return
        announcement = self._announcement(held) if run.losses else None
        progress = None
        if handler.context_parameter is not None:
            progress = AttemptProgress(self._loop, lambda *report: self._report_progress(execution, *report))
        report = progress.report if progress else None
        execution = Execution(handler, kwargs, held, self, self._context.copy(), report, announcement)
        execution.progress = progress
        self._running.add(execution)
        self._running_by[port.priority] += 1
        port.running += 1
        self._entrance.add(execution)
        if self._ticker is None:
            self._ticker = self._loop.call_later(limits.FLUSH_S, self._tick, context=self._context)

    def _announcement(self, held: Held) -> Callable[[], Awaitable[None]]:
        """That a job starts which has lost a worker before: stored first, so that if this worker dies as well it is
        known which jobs ran in it.
        """
        run, reporter = held.run, held.port.reporter

        async def announce() -> None:
            reporter.add(Started(run.id, run.dispatch, run.attempt, self.clock.now()))
            await reporter.stored()
            # NATS was away meanwhile: whose the bucket is has to be asked first.
            while not self.may_start():  # noqa: ASYNC110
                await asyncio.sleep(limits.FLUSH_S)
            if held is self._suspect:
                self._suspect_since_s = self._loop.time()

        return announce

    def _report_progress(self, execution: Execution, fraction: float, note: str) -> None:
        if not execution.announced:
            self._announce(execution)  # a start that is recorded later would wipe out what we report now
        run = execution.run
        # Made fit for the wire: half a surrogate pair would spoil the report of every other job.
        note = cut_text(note, 4 * limits.PROGRESS_NOTE_CHARS_MAX)
        execution.port.reporter.progress(Progress(run.id, run.dispatch, self.clock.now(), fraction, note))

    def _quarantine(self, held: Held, reason: str) -> None:
        run, reporter = held.run, held.port.reporter
        reason = cut_text(reason, limits.ERROR_BYTES_MAX)
        facts = {"job_id": run.id, "attempt": run.attempt, "handler": run.handler, "bucket": held.port.bucket}
        trouble(log, "job quarantined", facts | {"reason": reason}, about=run.handler)
        reporter.add(Quarantined(run.id, run.dispatch, self.clock.now(), reason), size=200 + len(reason))
        telemetry.job_quarantined(held.port.lane, held.port.priority.label)
        self._close(held)
        self._suspect_over(held)

    def loop_time(self) -> float:
        return self._loop.time()

    def ended(self, execution: Execution) -> None:
        """The attempt's outcome is known: report it. The slot may be freed later (a thread that cannot be stopped)."""
        held = execution.held
        if execution.progress is not None:
            execution.progress.close()
        event, size = report_of(execution)
        self.finished += 1
        held.port.reporter.add(event, size=size)
        self._close(held)

    def released(self, execution: Execution) -> None:
        held = execution.held
        self._running.discard(execution)
        self._running_by[held.port.priority] -= 1
        held.port.running -= 1
        if held is self._suspect:
            self._suspect_over(held)
        self.pump()
        self._on_room()

    def _suspect_over(self, held: Held) -> None:
        """It has ended, or has run for long enough not to be what kills at once: the next one's turn."""
        if held is self._suspect:
            self._suspect = None
            if self._suspects:
                following = self._suspects.popleft()
                self._ready[following.port.priority].appendleft(following)
                self._waiting[following.port.priority] += 1
                self._ready_now += 1

    # -- time

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(self._later[0][0] - self.clock.now(), 0.0)
        self._timer = self._loop.call_later(min(wait_s, CLOCK_LOOK_S), self._due, context=self._context)

    def _due(self) -> None:
        self._timer = None
        now = self.clock.now()
        while self._later and self._later[0][0] <= now:
            held = heapq.heappop(self._later)[2]
            held.since_s = self._loop.time()
            self._enqueue(held)
        if self._later:
            self._arm()
        self.pump()

    def _tick(self) -> None:
        """While anything runs: announce the longer attempts, end the overdue ones, name those that will not end."""
        self._ticker = None
        now = self._loop.time()
        if self.may_start():
            self.pump()  # what stopped at a moment of doubt that nobody else saw
        else:
            self.ask(Ask.FENCED, lambda execution: execution.handler.exclusive)
        for execution in list(self._running):
            if not execution.announced and now - execution.started_loop_s >= limits.FLUSH_S:
                self._announce(execution)
            execution.check(now, grace_s=self._grace_s)
        if self._suspect is not None and now - self._suspect_since_s >= limits.SUSPECT_ALONE_S:
            self._suspect_over(self._suspect)
            self.pump()
        if self._running:
            self._ticker = self._loop.call_later(limits.FLUSH_S, self._tick, context=self._context)

    def _announce(self, execution: Execution) -> None:
        execution.announced = True
        run = execution.run
        execution.port.reporter.add(Started(run.id, run.dispatch, run.attempt, execution.started_at))

    def _forget(self) -> None:
        """Drop the oldest half of what was seen; a repeat that old is stopped by the fence in Postgres."""
        for job_id in list(self._known)[: KNOWN_MAX // 2]:
            if job_id not in self._open:
                del self._known[job_id]

    # -- stopping

    def hand_back(self, chosen: list[Held], reason: ReturnReason) -> None:
        """Return unstarted jobs to the master; costs them no attempt."""
        for held in self._take_out(chosen):
            run = held.run
            held.port.reporter.add(Returned(run.id, run.dispatch, reason, self.clock.now()))
            self._close(held)

    def _take_out(self, chosen: list[Held]) -> list[Held]:
        """Nobody will start them."""
        chosen = list({id(held): held for held in chosen}.values())  # an order may name one twice
        if not chosen:
            return chosen
        gone = set(map(id, chosen))
        for priority, queue in self._ready.items():
            queue.without(gone)
            self._waiting[priority] = len(queue)
        self._ready_now = sum(self._waiting.values())
        self._suspects = deque(h for h in self._suspects if id(h) not in gone)
        self._later = [entry for entry in self._later if id(entry[2]) not in gone]
        heapq.heapify(self._later)
        self.held -= len(chosen)
        self.held_bytes -= sum([held.size for held in chosen])
        self._on_room()
        return chosen

    def close(self, port: BucketPort) -> None:
        """Start nothing more of this bucket, and give back what is held and what comes."""
        port.closed = True
        self.hand_back(self.held_of(port), ReturnReason.DRAINED)

    def pause(self, *, on: bool) -> None:
        """Start nothing, and give back what is held and what comes; or go on. What runs is left alone."""
        self.paused = on
        if on:
            later = [entry[2] for entry in self._later]
            self.hand_back(self.waiting_since() + later, ReturnReason.DRAINED)
        self.pump()

    def forget(self, port: BucketPort, why: Ask) -> int:
        """The bucket is somebody else's, or we have halted: end its handlers, drop what is held, report nothing.
        Returns how many handlers were asked to end.
        """
        port.closed = True
        port.reporter.discard()
        for held in self._take_out(self.held_of(port)):
            self._open.pop(held.run.id, None)
        return self.ask(why, lambda execution: execution.port is port)

    def ask(self, why: Ask, which: Callable[[Execution], bool] = lambda _: True) -> int:
        """Ask running handlers to end; how many were asked for the first time."""
        asked = 0
        for execution in list(self._running):
            if execution.asked is None and not execution.reported and which(execution):
                execution.ask(why, self._loop.time())
                asked += 1
        return asked

    def cancel(self, orders: Sequence[CancelOrder]) -> int:
        """Drop or end these dispatches, by an operator's order; how many handlers were asked to end. First what waits
        here, so that none of it starts in a slot that this frees. The record has decided already: what is handed back
        ends there.
        """
        running = {(e.run.id, e.run.dispatch): e for e in self._running if not e.reported}
        ending: list[tuple[Execution, str]] = []
        waiting: list[Held] = []
        for order in orders:
            execution = running.get((order.id, order.dispatch))
            if execution is not None:
                ending.append((execution, order.why))
            elif (held := self._held(order.id, order.dispatch)) is not None:
                waiting.append(held)
            else:
                self._refuse(order.id, order.dispatch)
        self.hand_back(waiting, ReturnReason.DRAINED)
        for execution, why in ending:
            execution.cancel(why, self._loop.time())
        return len(ending)

    def recall(self, jobs: Sequence[tuple[str, int]]) -> list[str]:
        """Of these (job, dispatch), the jobs that will not start here: taken out, or not come yet and to be dropped
        when they do. Whoever asked puts them back in the record; if it does not, it asks again and gets the same
        answer, or the reconciler finds them.
        """
        running = {(execution.run.id, execution.run.dispatch) for execution in self._running}
        now = self._loop.time()
        recalled: list[str] = []
        waiting: list[Held] = []
        for job_id, dispatch in jobs:
            held = self._held(job_id, dispatch)
            if held is not None:
                if (job_id, dispatch) in running:
                    continue
                waiting.append(held)
            elif not (self._refuse(job_id, dispatch) or self._refusals.was_recalled(job_id, dispatch)):
                continue
            recalled.append(job_id)
            self._refusals.recalled(job_id, dispatch, now_s=now)
        for held in self._take_out(waiting):
            self._close(held)
        return recalled

    def will_drop(self, job_id: str, dispatch: int) -> bool:
        """Whether a message of it that is still to come would be dropped."""
        is_done = self._known.get(job_id, 0) >= dispatch or self._refusals.refuses(job_id, dispatch)
        return is_done and self._held(job_id, dispatch) is None

    def will_not_come(self, job_id: str, dispatch: int) -> None:
        """Its message, which would be dropped, is gone."""
        self._known[job_id] = max(dispatch, self._known.get(job_id, 0))
        self._refusals.came(job_id, dispatch)

    def _held(self, job_id: str, dispatch: int) -> Held | None:
        """It is here, under this dispatch, and not reported yet."""
        held = self._open.get(job_id)
        return held if held is not None and held.run.dispatch == dispatch else None

    def _refuse(self, job_id: str, dispatch: int) -> bool:
        """Its message is to be dropped when it comes. False: it has been here."""
        if self._known.get(job_id, 0) >= dispatch:
            return False
        self._refusals.refuse(job_id, dispatch, now_s=self._loop.time())
        return True

    def check_slots(self) -> None:
        """Raises:
        InvariantViolatedError: the counts of running handlers contradict each other, or the number of slots.
        """
        running, counted = len(self._running), sum(self._running_by.values())
        if running != counted or running > self._slots or min(self._running_by.values()) < 0:
            detail = f"{running} run in {self._slots} slots, counted are {counted}"
            raise InvariantViolatedError(Invariant.SLOTS_OVERCOMMITTED, detail)

    def report_unended(self) -> None:
        """Those that ignore their cancellation: say how they end, without them."""
        self.ask(Ask.SHUTDOWN)
        for execution in list(self._running):
            execution.check(math.inf, grace_s=0.0)

    def status(self, state: str) -> rpc.WorkerStatus:
        now = self._loop.time()
        longest = sorted(self._running, key=lambda e: e.started_loop_s)[:STATUS_JOBS_MAX]
        running = [
            rpc.RunningJob(
                e.run.id, e.run.handler, e.port.bucket, e.run.attempt, max(0.0, now - e.started_loop_s), e.asked or ""
            )
            for e in longest
        ]
        return rpc.WorkerStatus(state, running, len(self._running), self.held)

    def running_names(self) -> list[str]:
        return sorted(f"{e.run.handler} {e.run.id}" for e in self._running)

    def exclusive_running(self) -> bool:
        return any(e.handler.exclusive for e in self._running)

    def unreported(self, port: BucketPort | None = None) -> int:
        return sum(1 for e in self._running if not e.reported and (port is None or e.port is port))
