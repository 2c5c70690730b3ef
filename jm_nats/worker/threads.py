"""Daemon threads for sync handlers.

Not ``ThreadPoolExecutor`` or ``anyio.to_thread``: both join their threads at exit, so that one handler that never
returns would keep the process from ever ending (BR-124). A thread cannot be stopped, so it must not be waited for.
"""

import asyncio
import functools
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class DaemonPool:
    """Runs callables on reused daemon threads, as many as are busy at once; bounded by the worker's slots."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = 0
        self._threads = 0
        self._lock = threading.Lock()

    def run(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Start ``function`` on a thread at once; the future is its result or any exception, even ``SystemExit``.

        It sees the caller's context variables: the current span, and whose log lines it writes.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._serve, name=f"jm-handler-{self._threads}", daemon=True).start()
        self._jobs.put((functools.partial(copy_context().run, function), loop, future))
        return future

    def close(self) -> None:
        """Let idle threads go; busy ones are left to themselves."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, future = job
            try:
                result, error = function(), None
            except BaseException as raised:  # noqa: BLE001  (SystemExit in a handler must not end the thread unseen)
                result, error = None, raised
            with self._lock:
                self._idle += 1
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed: the worker has gone, nobody asks any more
            del function, result, error, future, job


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        # StopIteration cannot be set on a future; SystemExit and friends would tear through the loop.
        future.set_result(Raised(error))


class Raised:
    """An exception as a value: some exceptions cannot travel through a future."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error
