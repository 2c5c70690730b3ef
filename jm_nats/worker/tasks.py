"""Background tasks whose end somebody notices."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, Self

log = logging.getLogger("jobmaster.worker")


class Tasks:
    """Background tasks that end with the block, and whose failure somebody waits for: a loop that died in silence
    behind a process that looks alive is the worst fault of all (BR-203).
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None], name: str, *, ends: bool = False) -> "asyncio.Task[None]":
        """Args: ends: it is work that is done some time; else its end is a failure, too."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._done(task, ends=ends))
        return task

    async def failed(self) -> None:
        """Raises what ended the first task that failed."""
        await asyncio.shield(self._failure)

    def _done(self, task: "asyncio.Task[None]", *, ends: bool) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._failure.done():
            return
        error = task.exception()
        if error is None and ends:
            return
        error = error or RuntimeError(f"{task.get_name()} ended by itself")
        log.error("loop ended", extra={"loop": task.get_name()}, exc_info=error)
        self._failure.set_exception(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure.done():
            self._failure.exception()  # seen by whoever waited; must not warn again
        else:
            self._failure.cancel()


async def cancelled(tasks: "list[asyncio.Task[None]]") -> None:
    """Cancel them, and return when they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def all_done(work: Iterable[Awaitable[object]]) -> None:
    """Return when all have ended, raising what the first of them raised."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def first(*waits: Awaitable[object]) -> None:
    """Return when the first of ``waits`` does, raising what it raises."""
    tasks = [asyncio.ensure_future(w) for w in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
