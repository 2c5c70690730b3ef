"""What a pipe brings."""

import sys
from typing import BinaryIO

from jm_cli.exits import UsageError


def piped_in() -> BinaryIO:
    """The bytes of stdin.

    Raises:
        UsageError: this process was started without one (``<&-``).
    """
    if sys.stdin is None:
        raise UsageError("'-' reads stdin, which is closed; pipe something in, or name a file")
    return sys.stdin.buffer
