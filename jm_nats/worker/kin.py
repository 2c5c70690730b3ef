"""What tells the processes of a supervised worker, so that its parent knows when nothing of it can run any more.

A worker process may start others: the pool of ``executor="process"``, and whatever handlers start. When it is killed,
those go on for a moment, or for ever. Its parent (``jm worker --processes``) finds them by a mark in their environment,
``<spawn>/<session>``: which start of the child they come from, and in which session they are at home. Who has left that
session has been detached on purpose, as a daemon, and is nobody's handler.
"""

import os
from typing import Final

VARIABLE: Final = "JM_KIN"
POOL: Final = "pool"  # for a session: a process of the pool, which has one of its own


def enter(spawn: str) -> None:
    """In the worker's process, before it starts anything."""
    os.environ[VARIABLE] = f"{spawn}/{os.getsid(0)}"


def pool_environment() -> dict[str, str] | None:
    """For a process of the pool; None: as ours is."""
    spawn, found, _ = os.environ.get(VARIABLE, "").partition("/")
    return {**os.environ, VARIABLE: f"{spawn}/{POOL}"} if found else None


def enter_pool() -> None:
    """In a process of the pool, before it runs anything."""
    spawn, found, session = os.environ.get(VARIABLE, "").partition("/")
    if found and session == POOL:
        enter(spawn)
