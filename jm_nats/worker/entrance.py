"""Takes the first step of one attempt after the other, all in one task for as long as none of them has to wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from jm_nats.worker.execution import Execution
    from jm_nats.worker.rest import Rest

LOOP_SHARE_S: Final = 0.002  # of first steps at a stretch; then whatever else the loop has to do has its turn


class Entrance:
    """A task costs a third of what a job that does nothing costs, so it is made when an attempt turns out to wait: the
    task that found out is that attempt's from then on, and the next attempts get another one. Handlers that waited the
    last time get one at once.

    Args:
        context: the context variables of the shared task; handlers have their own.
        may_enter: asked before each stretch; what may not begin now waits for ``go_on``.
    """

    def __init__(self, context: Context, may_enter: Callable[[], bool]) -> None:
        self._context = context
        self._may_enter = may_enter
        self._loop = asyncio.get_running_loop()
        self._next: deque[Execution] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, execution: Execution) -> None:
        """Its first step follows in a moment."""
        if execution.handler.waits:
            self._loop.create_task(self._alone(execution), context=execution.variables)
            return
        self._queue(execution)

    async def _alone(self, execution: Execution) -> None:
        if self._may_enter():
            await execution.run_whole()
        else:
            self._queue(execution)

    def _queue(self, execution: Execution) -> None:
        self._next.append(execution)
        if self._task is None:
            self._open()

    def _open(self) -> None:
        self._task = self._loop.create_task(self._enter_all(), context=self._context)

    async def _enter_all(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while self._next and self._may_enter():
                rest = self._enter_some(task)
                if rest is not None:
                    execution, what = rest
                    self._pass_on()
                    await execution.finish(what)
                    return
                if task.cancelling():
                    return  # a handler has cancelled its own task: nobody else shall pay for it
                if self._next:
                    await asyncio.sleep(0)
        finally:
            if self._task is task:
                self._pass_on()

    def _enter_some(self, task: asyncio.Task[None]) -> tuple[Execution, Rest] | None:
        """Until one of them waits: then that one, and what is left of it."""
        until_s = time.monotonic() + LOOP_SHARE_S
        while self._next:
            execution = self._next.popleft()
            if execution.reported:
                continue  # asked to end before it began
            rest = execution.enter(task)
            if rest is not None:
                execution.handler.waits = True
                return execution, rest
            if task.cancelling() or time.monotonic() >= until_s:
                break
        return None

    def _pass_on(self) -> None:
        """The others go on in a task of their own."""
        self._task = None
        self.go_on()

    def go_on(self) -> None:
        """Those that could not begin may begin now, or one that has ended lets the next one in."""
        if self._next and self._task is None and self._may_enter():
            self._open()
