"""What a dead worker process has left running: found, killed, and waited for.

Whoever says that a worker is dead lets others run its jobs. So before the supervisor says it, nothing of that worker
may run any more: neither a process of its pool, which the kernel kills (``PR_SET_PDEATHSIG``), but not at once, nor
what a handler has started. The first is needed for ``exclusive`` handlers, the second is no more than fair: the handler
runs again from its beginning.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from jm_nats.worker.kin import POOL, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

log = logging.getLogger("jobmaster.supervisor")

PROC: Final = Path("/proc")
MARK: Final = f"{VARIABLE}=".encode()
ENDED: Final = "ZX"
CLEAR_LOOKS: Final = 2  # one look may miss who was forked behind its back by one that has ended since
PAUSE_S: Final = 0.01


class Process(Struct, frozen=True):
    """One that runs. ``spawn`` and ``home`` are its mark; empty: it has none, or is somebody else's."""

    pid: int
    session: int
    spawn: str = ""
    home: str = ""


def is_kin(process: Process, *, pid: int, spawn: str) -> bool:
    """Whether it belongs to the child ``pid`` that was our start ``spawn``, and has not been detached from it.

    Of a session alone it is so only as long as nobody else has been given the child's number: see ``kin_of``.
    """
    if process.session == pid:
        return True
    return _is_marked(process, spawn)


def _is_marked(process: Process, spawn: str) -> bool:
    return bool(spawn) and process.spawn == spawn and process.home in (POOL, str(process.session))


def kin_of(running: Sequence[Process], *, pid: int, spawn: str) -> list[int]:
    """The pids of those that belong to the child, which has ended.

    As long as anybody is in its session the child's number is not given away. Once somebody has that number, nobody of
    the session was left, and who is in the session of that number now is a stranger.
    """
    is_reused = any(process.pid == pid and not _is_marked(process, spawn) for process in running)
    return [
        process.pid
        for process in running
        if (_is_marked(process, spawn) if is_reused else is_kin(process, pid=pid, spawn=spawn))
    ]


async def ended(*, pid: int, spawn: str) -> bool:
    """Kill what the dead child ``pid`` has left, and return True once it has gone. False: here nobody can tell.

    It is for the caller to lose patience: what hangs in the kernel cannot be killed.
    """
    if not (PROC / "self" / "stat").exists():
        return False
    killed: set[int] = set()
    clear = 0
    while clear < CLEAR_LOOKS:
        left = kin_of(list(processes()), pid=pid, spawn=spawn)
        clear = 0 if left else clear + 1
        for one in left:
            with suppress(OSError):  # it has ended, or it is root's
                os.kill(one, signal.SIGKILL)
        new = [one for one in left if one not in killed]
        if new:
            killed.update(new)
            log.warning("processes of a dead child killed", extra={"pid": pid, "pids": " ".join(map(str, new))})
        if left:
            await asyncio.sleep(PAUSE_S)
    return True


def processes() -> Iterator[Process]:
    """All that run, threads apart."""
    for entry in PROC.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            # The name in brackets may hold anything, brackets too.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            state, session, threads = fields[0], int(fields[3]), int(fields[17])
            if state not in ENDED or threads > 1:  # a process whose first thread has ended looks like a zombie
                yield Process(int(entry.name), session, *_mark(entry))


def _mark(entry: Path) -> tuple[str, str]:
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:  # another user's
        return "", ""
    found = next((one for one in environment.split(b"\0") if one.startswith(MARK)), b"")
    spawn, _, home = found.removeprefix(MARK).decode(errors="replace").partition("/")
    return spawn, home
