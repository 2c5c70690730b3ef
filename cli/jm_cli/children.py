"""The processes that ``jm up`` runs: started again when they die, stopped in order, and never left behind."""

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jm_cli.exits import CliError, ExitCode
from jm_cli.plain_text import safe
from jm_nats.child_process import ChildProcess

log = logging.getLogger("jobmaster.up")

POLL_S: Final = 0.1
BACKOFF_FIRST_S: Final = 1.0
BACKOFF_CAP_S: Final = 30.0
HEALTHY_AFTER_S: Final = 60.0  # one that lived so long starts anew at the first backoff
LOG_BYTES_MAX: Final = 10 * 1024 * 1024


class Child:
    """One ``jm`` command as our child; dies with us whatever happens (``ChildProcess``)."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        env: dict[str, str],
        folder: Path,
        stop_s: float,
        lock_fd: int | None = None,
    ) -> None:
        self.name = name
        self.stop_s = stop_s
        self.log_path = folder / f"{name}.log"
        # -P: the current folder comes first on the path only once the app is imported, not while we are.
        self._argv = [sys.executable, "-P", "-m", "jm_cli", *arguments]
        self._env = env
        self._lock_fd = lock_fd
        self._process: ChildProcess | None = None
        self._started_at = 0.0
        self._restart_at: float | None = None
        self._failures = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.exit_code() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    def start(self) -> None:
        self._restart_at = None
        self._started_at = asyncio.get_running_loop().time()
        self._process = ChildProcess(
            self._argv,
            cwd=Path.cwd(),
            env=self._env,
            log_path=self.log_path,
            lock_fd=self._lock_fd,
            stop_signal=signal.SIGTERM,
        )

    def tend(self) -> None:
        """Start it again if it has died and its backoff is over.

        Raises:
            CliError: it will not live: its settings cannot be used.
        """
        now = asyncio.get_running_loop().time()
        if self._restart_at is not None:
            if now >= self._restart_at:
                self.start()
            return
        code = self._process.exit_code() if self._process is not None else None
        if code is None:
            return
        if code == ExitCode.USAGE:
            raise CliError(ExitCode.USAGE, f"{self.name} cannot run: {self._last_words()}")
        if now - self._started_at > HEALTHY_AFTER_S:
            self._failures = 0
        wait_s = min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2**self._failures) * random.uniform(0.8, 1.2)  # noqa: S311
        self._failures += 1
        self._restart_at = now + wait_s
        log.error("%s died (%s); it is started again in %.1f s", self.name, _how(code), wait_s)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return lines[-1].removeprefix("error: ") if lines else "it said nothing"


async def stop_all(children: Sequence[Child], hurry: asyncio.Event) -> None:
    """SIGTERM to all, a second one if somebody hurries, SIGKILL to those that outlive their time."""
    loop = asyncio.get_running_loop()
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = loop.time() + max((child.stop_s for child in children), default=0)
    hurried = False
    while any(child.running for child in children):
        if hurry.is_set() and not hurried:
            hurried = True
            for child in children:
                child.signal(signal.SIGTERM)
        if loop.time() >= deadline:
            for child in children:
                if child.running:
                    log.error("%s did not end in %g s; killed", child.name, child.stop_s)
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
