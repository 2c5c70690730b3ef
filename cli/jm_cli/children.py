"""Processes of ``jm`` that we run, for ``jm up`` and ``jm worker --processes``: started again when they die, stopped in
order, and never left behind.
"""

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import uuid_utils

from jm_cli.exits import CliError, ExitCode
from jm_cli.plain_text import safe
from jm_nats.child_process import ChildProcess

log = logging.getLogger("jobmaster.children")

POLL_S: Final = 0.1
BACKOFF_FIRST_S: Final = 1.0
BACKOFF_CAP_S: Final = 30.0
HEALTHY_AFTER_S: Final = 60.0  # one that lived so long starts anew at the first backoff
LIVED_S: Final = 5.0
HURRY_AFTER_S: Final = 0.5  # a second signal sooner than that could be taken for an echo of the first
LOG_BYTES_MAX: Final = 10 * 1024 * 1024


class Death(NamedTuple):
    """A child has died, and will be started again."""

    pid: int
    spawn: str


class Child:
    """One ``jm`` command as our child; dies with us whatever happens (``ChildProcess``).

    Args:
        folder: of its log file; None: it writes to our own stdout and stderr.
        may_end: exit code 0 is its end, and not a death.
        spawn_variable: in its environment, what tells this start of it from all others (``spawn``).
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        env: dict[str, str],
        folder: Path | None,
        stop_s: float,
        lock_fd: int | None = None,
        backoff_first_s: float = BACKOFF_FIRST_S,
        may_end: bool = False,
        spawn_variable: str = "",
    ) -> None:
        self.name = name
        self.spawn = ""  # of the last start
        self._spawn_variable = spawn_variable
        self.stop_s = stop_s
        self._log_path = folder / f"{name}.log" if folder else None
        # -P: the current folder comes first on the path only once the app is imported, not while we are.
        self._argv = [sys.executable, "-P", "-m", "jm_cli", *arguments]
        self._env = env
        self._lock_fd = lock_fd
        self._process: ChildProcess | None = None
        self._started_at = 0.0
        self._restart_at: float | None = None
        self._backoff_first_s = backoff_first_s
        self._may_end = may_end
        self._failures = 0
        self._end_is_said = False
        self._has_lived = False  # then its settings can be used, whatever it says at another start

    @property
    def log_path(self) -> Path:
        assert self._log_path is not None, "it has no log file"
        return self._log_path

    @property
    def exit_code(self) -> int | None:
        """Of the last process; None while it runs, and before the first."""
        return self._process.exit_code() if self._process is not None else None

    @property
    def has_ended(self) -> bool:
        """It was told to end, by somebody else than us, and has."""
        return self._may_end and self.exit_code == ExitCode.OK

    @property
    def lived_s(self) -> float:
        """Since it was last started."""
        return time.monotonic() - self._started_at

    @property
    def failures(self) -> int:
        """Deaths in a row; one that has lived long enough since has made up for them."""
        return 0 if self.running and self.lived_s > HEALTHY_AFTER_S else self._failures

    @property
    def last_pid(self) -> int | None:
        """Of the last process, whether it runs or not."""
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.exit_code() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def is_due(self) -> bool:
        """Whether it waits for its next start."""
        return self._restart_at is not None

    def start(self) -> None:
        self._restart_at = None
        self._started_at = time.monotonic()
        self.spawn = uuid_utils.uuid7().hex
        self._process = ChildProcess(
            self._argv,
            cwd=Path.cwd(),
            env=self._env | ({self._spawn_variable: self.spawn} if self._spawn_variable else {}),
            log_path=self._log_path,
            lock_fd=self._lock_fd,
            stop_signal=signal.SIGTERM,
            patience_s=self.stop_s,  # also when it is our end that ends it
        )

    def tend(self) -> Death | None:
        """Start it again if it has died and its backoff is over; a death is told once, when it is found.

        Raises:
            CliError: it will not live: its settings cannot be used.
        """
        now_s = time.monotonic()
        if self._restart_at is not None:
            if now_s >= self._restart_at:
                self.start()
            return None
        code = self.exit_code
        if code is None:
            return None
        if self.has_ended:
            if not self._end_is_said:
                self._end_is_said = True
                log.info("process has ended as it was told to; it is not started again", extra={"child": self.name})
            return None
        self._has_lived = self._has_lived or self.lived_s > LIVED_S
        if code == ExitCode.USAGE and not self._has_lived:
            raise CliError(ExitCode.USAGE, f"{self.name} cannot run: {self._last_words()}")
        if self.lived_s > HEALTHY_AFTER_S:
            self._failures = 0
        wait_s = min(BACKOFF_CAP_S, self._backoff_first_s * 2**self._failures) * random.uniform(0.8, 1.2)  # noqa: S311
        self._failures += 1
        self._restart_at = now_s + wait_s
        facts = {"child": self.name, "how": _how(code), "again_in_s": round(wait_s, 1)}
        log.error("process died; it is started again", extra=facts)
        assert self._process is not None
        return Death(self._process.pid, self.spawn)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _last_words(self) -> str:
        if self._log_path is None:
            return "its own error is above"
        lines = self.log_path.read_text(errors="replace").splitlines()
        return lines[-1].removeprefix("error: ") if lines else "it said nothing"


async def stop_all(children: Sequence[Child], hurry: asyncio.Event) -> None:
    """SIGTERM to all, a second one if somebody hurries, SIGKILL to those that outlive their time."""
    loop = asyncio.get_running_loop()
    for child in children:
        child.signal(signal.SIGTERM)
    began = loop.time()
    deadline = began + max((child.stop_s for child in children), default=0)
    hurried = False
    while any(child.running for child in children):
        if hurry.is_set() and not hurried and loop.time() - began >= HURRY_AFTER_S:
            hurried = True
            for child in children:
                child.signal(signal.SIGTERM)
        if loop.time() >= deadline:
            for child in children:
                if child.running:
                    log.error("process did not end; killed", extra={"child": child.name, "waited_s": child.stop_s})
                    child.kill()
        await asyncio.sleep(POLL_S)


class LogFollower:
    """Repeats on our stderr what a child writes to its log file.

    A file and no pipe: if our terminal is stopped (Ctrl-Z, a full pager), the child must go on, and not wait for us.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        path.write_bytes(b"")  # the last run's is of no use to this one
        self._path = path
        self._prefix = prefix
        self._file = path.open("rb")
        self._rest = b""

    def pump(self) -> None:
        """What was written since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            sys.stderr.write(f"{self._prefix}{safe(line.decode(errors='replace'))}\n")
        if self._file.tell() > LOG_BYTES_MAX:
            os.truncate(self._path, 0)  # the child appends: its next line is the first
            self._file.seek(0)

    def close(self) -> None:
        self.pump()
        self._file.close()


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
