"""Places where a test can kill this process: ``JM_TEST_CRASH_AT=writer.after_commit:2`` at its second passing.

SIGKILL, as a power cut or the kernel's memory killer would: no handler runs, nothing is flushed. With
``JM_TEST_STOP_AT`` it is SIGSTOP, once: the process is frozen there, until somebody sends SIGCONT.
"""

import os
import signal
from typing import Final

VARIABLE: Final = "JM_TEST_CRASH_AT"
STOP_VARIABLE: Final = "JM_TEST_STOP_AT"

_signal = signal.SIGKILL if os.environ.get(VARIABLE) else signal.SIGSTOP
_name, _, _nth = (os.environ.get(VARIABLE) or os.environ.get(STOP_VARIABLE, "")).partition(":")
_passes = 0


def reach(name: str) -> None:
    """Nothing, unless a test asked for the end just here."""
    if _name and name == _name:
        _pass()


def _pass() -> None:
    global _passes  # noqa: PLW0603 - one process has one end
    _passes += 1
    if _passes == int(_nth or 1):
        os.kill(os.getpid(), _signal)
