"""Which handler blocks the event loop: asked from another thread, because the loop itself cannot tell."""

import inspect
import sys
import threading
from collections.abc import Mapping
from types import CodeType, FrameType

from jm_nats.handlers import Handler


class Culprit:
    """Finds the handler that is on the stack of the thread that made this one."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._thread = threading.get_ident()
        self._names: dict[CodeType, str] = {}
        for handler in handlers.values():
            code = getattr(inspect.unwrap(handler.function), "__code__", None)
            if code is not None:
                self._names[code] = handler.name

    def find(self) -> tuple[str, str]:
        """(handler, where it is now); empty where no handler is on the stack."""
        innermost = frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - Python's own way to look
        while frame is not None:
            name = self._names.get(frame.f_code)
            if name is not None:
                return name, _place(innermost)
            frame = frame.f_back
        return "", _place(innermost)


def _place(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
