"""Takes the first step of one attempt after the other, all in one task for as long as none of them has to wait."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from contextvars import Context

    from jm_nats.worker.execution import Execution

log = logging.getLogger("jobmaster.worker")

LOOP_SHARE_S: Final = 0.002  # of first steps at a stretch; then whatever else the loop has to do has its turn


class Entrance:
    """A task costs a third of what a job that does nothing costs, so it is made when an attempt turns out to wait: the
    task that found out is that attempt's from then on, and the next attempts get another one.

    Args:
        context: the context variables of the tasks; handlers have their own.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._next: deque[Execution] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, execution: Execution) -> None:
        """Its first step follows in a moment."""
        if execution.handler.waits:
            self._loop.create_task(execution.run_whole(), context=execution.variables)
            return
        self._next.append(execution)
        if self._task is None:
            self._open()

    def _open(self) -> None:
        self._task = self._loop.create_task(self._enter_all(), context=self._context)

    async def _enter_all(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        since_s: float | None = None
        try:
            while self._next:
                execution = self._next.popleft()
                if execution.reported:
                    continue  # asked to end before it began
                rest = execution.enter(task)
                if rest is not None:
                    execution.handler.waits = True
                    self._pass_on()
                    await execution.finish(rest)
                    return
                if task.cancelling():
                    return  # a handler has cancelled its own task: nobody else shall pay for it
                if since_s is None:
                    since_s = execution.started_at
                if not 0.0 <= execution.finished_at - since_s < LOOP_SHARE_S:
                    await asyncio.sleep(0)
                    since_s = None
        finally:
            if self._task is task:
                self._pass_on()

    def _pass_on(self) -> None:
        """The others go on in a task of their own."""
        self._task = None
        if self._next:
            self._open()
