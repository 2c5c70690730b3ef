"""One attempt: call the handler the way it wants to be called, and say how it ended."""

import asyncio
import contextvars
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from typing import Any, Final, Protocol

import anyio

from jm_core import limits
from jm_core.errors import InvalidJobError
from jm_core.model import AttemptOutcome
from jm_core.payload import cut_text
from jm_nats import telemetry
from jm_nats.clock import Clock
from jm_nats.context import JobContext, NoRetry, Retry
from jm_nats.handlers import Handler
from jm_nats.log_context import current_group, current_job
from jm_nats.worker import failures
from jm_nats.worker.held import Held
from jm_nats.worker.processes import ChildFailed, ContextData, encode_result, run_in_child
from jm_nats.worker.progress import AttemptProgress
from jm_nats.worker.rest import Rest
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


class Owner(Protocol):
    """Who has started an attempt."""

    @property
    def clock(self) -> Clock: ...

    @property
    def executors(self) -> Executors: ...

    def loop_time(self) -> float:
        """Seconds by the event loop's clock."""

    def ended(self, execution: "Execution") -> None:
        """Its outcome is known. Called once."""

    def released(self, execution: "Execution") -> None:
        """Its slot is free again: at once, unless the handler cannot be stopped. Called once."""


class Execution:
    """A running attempt."""

    # What few attempts ever change costs the others nothing.
    announced = False
    asked: Ask | None = None
    context: JobContext | None = None
    progress: AttemptProgress | None = None
    reported = False
    started_at = finished_at = 0.0
    started_loop_s = math.inf
    _announcement: Callable[[], Awaitable[None]] | None = None
    _asked_s = 0.0
    asked_why = ""
    _coroutine: Coroutine[Any, Any, Any] | None = None
    _deadline_s = math.inf
    error: str | None = None
    error_type = ""  # for metrics and spans
    has_begun = False
    has_entered = False
    is_over = False
    _is_plain = False  # nothing but to await the handler
    _is_released = False
    may_retry = True
    _outcome = AttemptOutcome.SUCCEEDED
    raw: bytes = NULL
    retry_asked_s: float | None = None
    _task: asyncio.Task[None] | None = None

    def __init__(  # noqa: PLR0917 - its parts, made in one place
        self,
        handler: Handler,
        kwargs: dict[str, Any],
        held: Held,
        owner: Owner,
        variables: contextvars.Context,
        report: Callable[[float, str], None] | None = None,
        announcement: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Args:
        variables: what the handler's context variables are; never those that another handler has set.
        report: takes its progress.
        announcement: stores that it starts, to be awaited before the handler is called.
        """
        self.handler = handler
        self.held = held
        self.run = held.run
        self.port = held.port
        self._kwargs = kwargs
        self._owner = owner
        self.variables = variables
        if announcement is not None:
            self._announcement = announcement
            self.announced = True
        if handler.context_parameter is not None and handler.executor != "process":
            self.context = kwargs[handler.context_parameter] = self._make_context(report)

    def _begin(self) -> None:
        self.has_begun = True
        self.started_at = self._owner.clock.now()
        self.started_loop_s = self._owner.loop_time()
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
            deadline_s=math.inf,  # until it begins
            report=report,
        )

    def enter(self, task: "asyncio.Task[None]") -> Rest | None:
        """Take the first step, in ``task``. Nothing raised in a handler leaves here: KeyboardInterrupt and SystemExit
        would tear down the loop, and with it every other job of this worker (BR-118, BR-119).

        Returns:
            What ``task`` has to hand to ``finish``, and then to do nothing else any more: an order to end this attempt
            cancels it. None when the attempt is over.
        """
        try:
            waits_for = self.variables.run(self._first_step)
        except StopIteration as end:
            self._over(end.value)
        except BaseException as error:  # noqa: BLE001
            self._failed(error)
            self._over(None)
        else:
            self._task = task
            if self.asked is not None:  # while it took that step
                task.cancel()
            assert self._coroutine is not None
            return Rest(self._coroutine, waits_for, self.variables)
        return None

    async def finish(self, rest: Rest) -> None:
        """To its end, in the task of the first step."""
        value = None
        try:
            value = await rest
        except BaseException as error:  # noqa: BLE001
            self._failed(error)
        self._over(value)

    async def run_whole(self) -> None:
        """From its first step to its end, in a task of its own, whose context is ``variables``."""
        if self.reported:
            return  # asked to end before it began
        self._task = asyncio.current_task()
        value = None
        try:
            value = await self._begun()
        except BaseException as error:  # noqa: BLE001
            self._failed(error)
        current_job.set(None)  # what is done from here on, starting others among it, is not this job's
        self._over(value)
        self.handler.took(self.finished_at - self.started_at)

    def _first_step(self) -> Any:
        self._coroutine = self._begun()
        return self._coroutine.send(None)

    def _begun(self) -> Coroutine[Any, Any, Any]:
        """What is to be awaited; none of the handler's own code has run."""
        self.has_entered = True
        current_job.set(self.run)
        handler = self.handler
        if self._announcement is not None:
            return self._guided()
        if handler.executor != "process":
            self._begin()  # of the others the time starts once a child is free, or it is out
        if handler.is_plain and not telemetry.Active.tracing:
            self._is_plain = True
            coroutine: Coroutine[Any, Any, Any] = handler.function(**self._kwargs)
            return coroutine
        return self._guided()

    def _over(self, value: Any) -> None:
        """Args: value: the result of a plain handler; else the future that still holds the slot, or None."""
        held_slot: asyncio.Future[Any] | None = None
        if not self._is_plain:
            held_slot = value
        elif value is not None:
            self._keep(value)
        self.is_over = held_slot is None
        try:
            self._end()
        finally:
            if held_slot is not None and not held_slot.done():
                held_slot.add_done_callback(lambda _: self._release())
            else:
                self._release()

    async def _guided(self) -> asyncio.Future[Any] | None:
        """Whatever is more than to await the handler."""
        kwargs, executors = self._kwargs, self._owner.executors
        if self._announcement is not None:
            await self._announcement()
            self._begin()
        if telemetry.Active.tracing:
            return await self._traced(kwargs, executors)
        return await self._call(kwargs, executors)

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
            self.error = None
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
                self.error = f"the child process died while it ran the handler ({failures.headline(error)})"
                self.error_type = "child_died"
                return
        if isinstance(answer, ChildFailed):
            self._outcome = AttemptOutcome.FAILED
            self.error, self.may_retry = answer.error, answer.may_retry
            self.error_type = answer.kind
            self.retry_asked_s = answer.retry_in_s
        else:
            self.raw = answer

    def _keep(self, result: Any) -> None:
        try:
            self._returned(result)
        except BaseException as error:  # noqa: BLE001 - its own code may run while it is encoded
            self._failed(error)

    def _returned(self, result: Any) -> None:
        if result is None:
            return
        try:
            self.raw = encode_result(result)
        except (InvalidJobError, TypeError, ValueError, RecursionError, OverflowError) as error:
            # It ran, but what it returned cannot be kept. Running it again would not change that.
            self._outcome = AttemptOutcome.FAILED
            problem = f"the handler returned something that cannot be stored: {failures.headline(error)}"
            self.error = cut_text(problem, limits.ERROR_BYTES_MAX)
            self.error_type = "result_unstorable"
            self.may_retry = False

    def _failed(self, error: BaseException) -> None:
        self._outcome = AttemptOutcome.FAILED
        if self.asked is Ask.CANCELLED and isinstance(error, asyncio.CancelledError):
            self.error = ""  # it ended as it was asked to: there is nothing to add
            return
        if isinstance(error, Retry):
            asked_s = getattr(error, "in_s", None)  # a subclass may have made it anything, or nothing
            self.retry_asked_s = asked_s if isinstance(asked_s, int | float) else None
        elif isinstance(error, NoRetry):
            self.may_retry = False
        self.error = failures.describe(error)
        self.error_type = type(error).__qualname__

    # -- being asked to end

    def cancel(self, why: str, now_s: float) -> None:
        """By an operator's order. Of what was asked to end before, for another reason, the record knows better."""
        if self.asked is None:
            self.asked_why = why
        self.ask(Ask.CANCELLED, now_s)

    def ask(self, why: Ask, now_s: float) -> None:
        """Cancel the handler; the first ask decides."""
        if self.asked is not None or self.reported:
            return
        self.asked = why
        self._asked_s = now_s
        if self.context is not None:
            self.context._cancelled = True  # noqa: SLF001  (ours: the handler sees it as a property)
        if not self.has_entered:
            self._end()
            self._release()
        elif self._task is not None:
            self._task.cancel()

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
        self.finished_at = self._owner.clock.now()
        if not self.has_begun:
            self.started_at = self.finished_at
        if telemetry.Active.metering:
            self._measure()
        self._owner.ended(self)

    def _kind_of_failure(self, outcome: AttemptOutcome) -> str:
        """Never the error's text, which may hold what it was called with; nothing if it did not fail."""
        if outcome is AttemptOutcome.TIMED_OUT:
            return outcome.value
        return self.error_type if outcome is AttemptOutcome.FAILED else ""

    def _measure(self) -> None:
        if not self.has_begun:
            return  # it goes back without having been an attempt
        outcome = self.outcome
        error_type = self._kind_of_failure(outcome)
        self.port.measures.ended(self.run.handler, outcome.value, error_type, self.finished_at - self.started_at)

    def _release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._owner.released(self)

    # -- what to report

    @property
    def outcome(self) -> AttemptOutcome:
        if self.asked is None:
            return self._outcome
        match self.asked:
            case Ask.TIMEOUT:
                return AttemptOutcome.TIMED_OUT
            case Ask.SHUTDOWN | Ask.FENCED | Ask.OVERTAKEN | Ask.HALTED:
                return AttemptOutcome.INTERRUPTED
            case Ask.CANCELLED:
                return AttemptOutcome.CANCELLED
