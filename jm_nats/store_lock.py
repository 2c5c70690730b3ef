"""One server per store: an advisory lock on a file, handed down to the server's processes.

A second server on the same files would destroy them, and NATS itself does not look. The lock belongs to an open file,
not to a process: the server inherits it, we close our copy, and it is free exactly when the last process of the
server is gone. So it also tells when a killed Postgres is gone with all its backends.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class StoreInUseError(Exception):
    """Another process holds the lock."""


@contextmanager
def store_lock(path: Path) -> Iterator[int]:
    """Hold the lock; yields the descriptor to pass on to the server."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreInUseError(path) from None
        yield fd
    finally:
        os.close(fd)


def is_locked(path: Path) -> bool:
    try:
        with store_lock(path):
            return False
    except StoreInUseError:
        return True
