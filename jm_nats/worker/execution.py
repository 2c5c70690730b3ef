"""One attempt: call the handler the way it wants to be called, and say how it ended."""

import asyncio
import contextvars
import functools
import logging
import math
import random
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final

import anyio
from msgspec import Raw

from jm_core import limits, retry
from jm_core.control import late_note
from jm_core.errors import InvalidJobError
from jm_core.model import AttemptOutcome, ReturnReason
from jm_core.payload import cut_text
from jm_core.retry import GiveUp, RetryIn
from jm_core.wire import Event, Finished, Returned, Run
from jm_nats import telemetry
from jm_nats.clock import Clock
from jm_nats.context import JobContext, NoRetry, Retry
from jm_nats.handlers import Handler
from jm_nats.log_context import current_group, current_job
from jm_nats.worker import failures
from jm_nats.worker.outcomes import BucketPort
from jm_nats.worker.processes import ChildFailed, ContextData, encode_result, run_in_child
from jm_nats.worker.threads import DaemonPool, Raised

log = logging.getLogger("jobmaster.worker")
NULL: Final = b"null"


class Ask(StrEnum):
    """Why we asked a running handler to end. The ask decides the outcome, whatever the handler makes of it."""

    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    FENCED = "lease in doubt"  # an exclusive handler: nobody may overlap it, and from now on somebody could
    OVERTAKEN = "bucket overtaken"  # somebody took it: whatever comes of this attempt cannot count
    HALTED = "worker halted"
    CANCELLED = "cancelled"  # by an operator, for good: no retry, whatever the handler makes of it


class Executors:
    """The ways to run a handler that is not a coroutine."""

    def __init__(self, process_slots: int) -> None:
        self.threads = DaemonPool()
        self.processes = anyio.CapacityLimiter(process_slots)

    def close(self) -> None:
        self.threads.close()


class Execution:
    """A running attempt. ``on_end`` is called once, when its outcome is known; ``on_release`` once, when its slot is
    free again: the same moment, unless the handler cannot be stopped.
    """

    __slots__ = (
        "_announcement", "_asked_s", "_asked_why", "_deadline_s", "_error", "_error_type",
        "_has_begun", "_has_entered", "_is_over", "_is_released", "_may_retry",
        "_on_end", "_on_release", "_outcome", "_raw", "_retry_asked_s", "_task", "announced", "asked", "clock",
        "context", "finished_at", "handler", "port", "reported", "run", "started_at", "started_loop_s",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917 - its parts, made in one place
        self,
        handler: Handler,
        run: Run,
        port: BucketPort,
        clock: Clock,
        report: Callable[[float, str], None] | None,
        announcement: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Args: announcement: stores that it starts, to be awaited before the handler is called."""
        self.handler = handler
        self.run = run
        self.port = port
        self.clock = clock
        self.asked: Ask | None = None
        self.announced = False
        self.reported = False
        self.started_at = self.finished_at = clock.now()
        self.started_loop_s = self._deadline_s = math.inf
        self._has_begun = False
        self._has_entered = False
        self._is_over = False
        self.context: JobContext | None = None
        self._announcement = announcement
        if (
            handler.executor != "process" and announcement is None
        ):  # whose time starts once a child is free, or it is out
            self._begin()
        self._asked_s = 0.0
        self._asked_why = ""
        self._outcome = AttemptOutcome.SUCCEEDED
        self._raw: bytes = NULL
        self._error: str | None = None
        self._error_type = ""  # for metrics and spans
        self._may_retry = True
        self._retry_asked_s: float | None = None
        self._is_released = False
        self._task: asyncio.Task[None] | None = None
        if handler.context_parameter is not None and handler.executor != "process":
            self.context = self._make_context(report)

    def _begin(self) -> None:
        self._has_begun = True
        self.started_at = self.clock.now()
        self.started_loop_s = asyncio.get_running_loop().time()
        self._deadline_s = self.started_loop_s + self.run.timeout_s
        if telemetry.Active.metering and not self.run.has_run:
            run = self.run
            is_first = run.due_at_once and run.attempt == 1
            self.port.measures.started(self.started_at - run.run_at, was_due_at_once=is_first)
        if self.context is not None:
            self.context._deadline_s = self.started_at + self.run.timeout_s  # noqa: SLF001 - ours

    def _make_context(self, report: Callable[[float, str], None] | None) -> JobContext:
        run = self.run
        return JobContext(
            job_id=run.id,
            handler=run.handler,
            lane=self.port.lane,
            attempt=run.attempt,
            max_attempts=run.max_attempts,
            dispatch=run.dispatch,
            metadata=run.metadata or {},
            deadline_s=self.started_at + run.timeout_s,
            report=report,
        )

    def start(
        self,
        kwargs: dict[str, Any],
        executors: Executors,
        on_end: Callable[["Execution"], None],
        on_release: Callable[["Execution"], None],
        context: contextvars.Context,
    ) -> None:
        """Args: context: what the handler's context variables are; never those that another handler has set."""
        self._on_end = on_end
        self._on_release = on_release
        if self.context is not None and self.handler.context_parameter is not None:
            kwargs[self.handler.context_parameter] = self.context
        self._task = asyncio.create_task(self._main(kwargs, executors), context=context)

    async def _main(self, kwargs: dict[str, Any], executors: Executors) -> None:
        """The attempt's task. Nothing raised in a handler leaves it: KeyboardInterrupt and SystemExit would tear down
        the loop, and with it every other job of this worker (BR-118, BR-119).
        """
        self._has_entered = True
        held_slot: asyncio.Future[Any] | None = None
        current_job.set(self.run)
        try:
            if self._announcement is not None:
                await self._announcement()
                self._begin()
            if telemetry.Active.tracing:
                held_slot = await self._traced(kwargs, executors)
            else:
                held_slot = await self._call(kwargs, executors)
        except BaseException as error:  # noqa: BLE001
            self._failed(error)
        self._is_over = held_slot is None
        current_job.set(None)  # what is done from here on, starting others among it, is not this job's
        try:
            self._end()
        finally:
            if held_slot is not None and not held_slot.done():
                held_slot.add_done_callback(lambda _: self._release())
            else:
                self._release()

    async def _traced(self, kwargs: dict[str, Any], executors: Executors) -> asyncio.Future[Any] | None:
        port, group = self.port, current_group()
        worker, cluster = (group.name, group.cluster) if group is not None else ("", "")
        with telemetry.processing(
            self.run, lane=port.lane, priority=port.priority.label, bucket=port.bucket, worker=worker, cluster=cluster
        ) as span:
            try:
                thread = await self._call(kwargs, executors)
            except BaseException as error:  # noqa: BLE001
                self._failed(error)
                thread = None
            outcome = self.outcome
            telemetry.attempt_outcome(span, outcome.value, self._kind_of_failure(outcome))
            return thread

    async def _call(self, kwargs: dict[str, Any], executors: Executors) -> asyncio.Future[Any] | None:
        """Run the handler to its end; returns the thread's future when the thread outlives our patience."""
        match self.handler.executor:
            case "async":
                self._returned(await self.handler.function(**kwargs))
            case "thread":
                return await self._call_thread(kwargs, executors.threads)
            case "process":
                await self._call_process(executors.processes)
        return None

    async def _call_thread(self, kwargs: dict[str, Any], pool: DaemonPool) -> asyncio.Future[Any] | None:
        future = pool.run(functools.partial(self.handler.function, **kwargs))
        try:
            result = await asyncio.shield(future)
        except asyncio.CancelledError as error:
            # We stop waiting; the thread cannot be stopped and keeps its slot until it returns by itself.
            self._failed(error)
            if self.asked is not Ask.CANCELLED:
                return future
            # But for an operator, who is told the truth: it runs until it has ended, or its time is over (BR-196).
            await asyncio.wait({future})
            self._error = None
            result = future.result()
        if isinstance(result, Raised):
            self._failed(result.error)
        else:
            self._returned(result)
        return None

    async def _call_process(self, limiter: anyio.CapacityLimiter) -> None:
        run = self.run
        async with limiter:
            self._begin()
            data = ContextData(
                run.id, run.handler, self.port.lane, run.attempt, run.max_attempts, run.dispatch, run.metadata or {},
                self.started_at + run.timeout_s,
            )  # fmt: skip
            try:
                trace = telemetry.current_traceparent() if telemetry.Active.tracing else run.trace
                answer = await run_in_child(self.handler, bytes(run.args), data, trace)
            except anyio.BrokenWorkerProcess as error:
                self._outcome = AttemptOutcome.FAILED
                self._error = f"the child process died while it ran the handler ({failures.headline(error)})"
                self._error_type = "child_died"
                return
        if isinstance(answer, ChildFailed):
            self._outcome = AttemptOutcome.FAILED
            self._error, self._may_retry = answer.error, answer.may_retry
            self._error_type = answer.kind
            self._retry_asked_s = answer.retry_in_s
        else:
            self._raw = answer

    def _returned(self, result: Any) -> None:
        if result is None:
            return
        try:
            self._raw = encode_result(result)
        except (InvalidJobError, TypeError, ValueError, RecursionError, OverflowError) as error:
            # It ran, but what it returned cannot be kept. Running it again would not change that.
            self._outcome = AttemptOutcome.FAILED
            problem = f"the handler returned something that cannot be stored: {failures.headline(error)}"
            self._error = cut_text(problem, limits.ERROR_BYTES_MAX)
            self._error_type = "result_unstorable"
            self._may_retry = False

    def _failed(self, error: BaseException) -> None:
        self._outcome = AttemptOutcome.FAILED
        if self.asked is Ask.CANCELLED and isinstance(error, asyncio.CancelledError):
            self._error = ""  # it ended as it was asked to: there is nothing to add
            return
        if isinstance(error, Retry):
            asked_s = getattr(error, "in_s", None)  # a subclass may have made it anything, or nothing
            self._retry_asked_s = asked_s if isinstance(asked_s, int | float) else None
        elif isinstance(error, NoRetry):
            self._may_retry = False
        self._error = failures.describe(error)
        self._error_type = type(error).__qualname__

    # -- being asked to end

    def cancel(self, why: str, now_s: float) -> None:
        """By an operator's order. Of what was asked to end before, for another reason, the record knows better."""
        if self.asked is None:
            self._asked_why = why
        self.ask(Ask.CANCELLED, now_s)

    def ask(self, why: Ask, now_s: float) -> None:
        """Cancel the handler; the first ask decides."""
        if self.asked is not None or self.reported:
            return
        self.asked = why
        self._asked_s = now_s
        if self.context is not None:
            self.context._cancelled = True  # noqa: SLF001  (ours: the handler sees it as a property)
        if self._task is None:
            return
        self._task.cancel()
        if not self._has_entered:  # cancelled before its first step, a task runs nothing of its code
            self._end()
            self._release()

    def check(self, now_s: float, *, grace_s: float) -> None:
        """Ask for the end at the deadline; report without the handler when it ignores that for ``grace_s``."""
        if self.asked is None:
            if now_s >= self._deadline_s:
                self.ask(Ask.TIMEOUT, now_s)
        elif not self.reported and now_s >= self._patience_until_s(grace_s):
            log.warning(
                "handler ignores cancellation; its outcome is reported, its slot stays taken",
                extra={
                    "handler": self.run.handler,
                    "job_id": self.run.id,
                    "attempt": self.run.attempt,
                    "asked": self.asked.value,
                },
            )
            self._end()

    def _patience_until_s(self, grace_s: float) -> float:
        until_s = self._asked_s + grace_s
        is_thread = self.asked is Ask.CANCELLED and self.handler.executor == "thread"
        return max(until_s, self._deadline_s) if is_thread else until_s

    def _end(self) -> None:
        if self.reported:
            return
        self.reported = True
        self.finished_at = self.clock.now()
        if telemetry.Active.metering:
            self._measure()
        self._on_end(self)

    def _kind_of_failure(self, outcome: AttemptOutcome) -> str:
        """Never the error's text, which may hold what it was called with; nothing if it did not fail."""
        if outcome is AttemptOutcome.TIMED_OUT:
            return outcome.value
        return self._error_type if outcome is AttemptOutcome.FAILED else ""

    def _measure(self) -> None:
        if not self._has_begun:
            return  # it goes back without having been an attempt
        outcome = self.outcome
        error_type = self._kind_of_failure(outcome)
        self.port.measures.ended(self.run.handler, outcome.value, error_type, self.finished_at - self.started_at)

    def _release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._on_release(self)

    # -- what to report

    @property
    def outcome(self) -> AttemptOutcome:
        match self.asked:
            case Ask.TIMEOUT:
                return AttemptOutcome.TIMED_OUT
            case Ask.SHUTDOWN | Ask.FENCED | Ask.OVERTAKEN | Ask.HALTED:
                return AttemptOutcome.INTERRUPTED
            case Ask.CANCELLED:
                return AttemptOutcome.CANCELLED
            case None:
                return self._outcome

    def event(self) -> tuple[Event, int]:
        """The report of this attempt's end and about how many bytes it takes."""
        run, outcome = self.run, self.outcome
        is_ours = outcome in (AttemptOutcome.INTERRUPTED, AttemptOutcome.CANCELLED)
        if is_ours and not (self.announced or (self._has_begun and self._has_entered)):
            return Returned(run.id, run.dispatch, ReturnReason.DRAINED, self.finished_at), 200
        if outcome is AttemptOutcome.INTERRUPTED:
            reason = ReturnReason.INTERRUPTED
            return Returned(run.id, run.dispatch, reason, self.finished_at, run.attempt, self.started_at), 200
        if outcome is AttemptOutcome.SUCCEEDED:
            result = None if self._raw is NULL else Raw(self._raw)
            event = Finished(run.id, run.dispatch, run.attempt, outcome, self.started_at, self.finished_at, result)
            return event, 200 + len(self._raw)
        error = self._error_text(outcome)
        event = Finished(
            run.id,
            run.dispatch,
            run.attempt,
            outcome,
            self.started_at,
            self.finished_at,
            None,
            error,
            self._retry_in_s(),
        )
        return event, 200 + 2 * len(error)

    def _error_text(self, outcome: AttemptOutcome) -> str:
        if outcome is AttemptOutcome.CANCELLED:
            return self._end_text(self._asked_why or "cancelled", late_note(None if self._raw is NULL else self._raw))
        if outcome is not AttemptOutcome.TIMED_OUT:
            return self._error or "no error text"
        return self._end_text(f"timed out after {self.run.timeout_s:g} s", "it took no notice and returned")

    def _end_text(self, text: str, returned: str) -> str:
        """``returned``: what to say of a handler that returned all the same."""
        match self.handler.executor:
            case "process":
                return f"{text}; its process was killed"
            case "thread" if not self._is_over:
                return f"{text}; a thread cannot be stopped, it still holds a slot (use executor='process')"
            case "async" if not self._is_over:
                return f"{text}; the handler ignores cancellation and still holds a slot"
            case _:
                note = returned if self._error is None else self._error
                return cut_text(f"{text}\n{note}".rstrip(), limits.ERROR_BYTES_MAX)

    def _retry_in_s(self) -> float | None:
        if self.asked is Ask.CANCELLED:
            return None
        verdict = retry.after_failure(
            self.handler.backoff,
            attempt=self.run.attempt,
            max_attempts=self.run.max_attempts,
            u=random.random(),
            asked_s=self._retry_asked_s,
            may_retry=self._may_retry,
        )
        match verdict:
            case RetryIn(delay_s=delay_s):
                return delay_s
            case GiveUp():
                return None
