"""A coroutine whose first step has been taken outside of ``await``.

Most handlers that wait for nothing are done in one step; only of the others something is left, and only they need a
task of their own. Python 3.12 has eager tasks for that; 3.11 has not, and they would share their context variables.
"""

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any


class Rest:
    """What is left of ``coroutine``, to be awaited in the task that took its first step.

    Every step is taken in ``context``: whoever awaits sees nothing of the context variables that are set in there.

    Args:
        waits_for: what the first step yielded; nobody else has seen it.
    """

    __slots__ = ("_context", "_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any, context: Context) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for
        self._context = context

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine, waits_for = self._context.run, self._coroutine, self._waits_for
        self._waits_for = None
        step: Callable[[Any], Any]
        while True:
            try:
                what = yield waits_for
                step = coroutine.send
            except GeneratorExit:
                run(coroutine.close)
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation, or what the future failed with
                step, what = coroutine.throw, error
            try:
                waits_for = run(step, what)
            except StopIteration as end:
                return end.value
            finally:
                del what  # an error holds this frame, and this frame would hold the error
