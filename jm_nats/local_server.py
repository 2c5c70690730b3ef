"""What the embedded servers share: a folder, a port that stays, start, stop, kill, and nothing left behind.

All calls block (NATS ~0.1 s, Postgres up to ~1.5 s): in async code use ``asyncio.to_thread``. Any thread will do.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import tempfile
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self

from jm_nats.child_process import ChildProcess, EmbeddedServerError, wait_until
from jm_nats.store_lock import StoreInUseError, is_locked, store_lock

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator

HOST: Final = "127.0.0.1"
# Below the ephemeral ports of Linux (32768) and macOS (49152): out of those, a client that reconnects while the server
# is away can be given the server's own port, be connected to itself, and keep the server from coming back.
PORTS: Final = range(15000, 30000)
PORT_TRIES: Final = 20
LOG_TAIL_LINES: Final = 15


class LocalServer(ABC):
    """A server process over a folder. Use it as a context manager, or call ``close`` at the end.

    Without a ``directory`` it keeps its files in a temporary one, which lives as long as this object: ``stop``,
    ``kill`` and ``start`` leave the data alone, ``close`` (or the end of this process, even by SIGKILL) removes it.
    A port that was picked is remembered in the folder, so that the next run over it has the same address.

    Args:
        directory: where data, log and configuration go; made when missing.
        port: use this one or fail; 0 picks a free one.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    start_timeout_s: ClassVar[float]
    stop_timeout_s: ClassVar[float]

    def __init__(self, directory: Path | str | None = None, *, port: int = 0) -> None:
        self.temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix=f"jm-{self.name}-")).resolve()
        self.log_path = self.directory / "server.log"
        self._given_port = port
        self._port = port
        self._belongings = _Belongings(self.directory if self.temporary else None, self.stop_timeout_s)
        weakref.finalize(self, self._belongings.discard)

    @property
    def port(self) -> int:
        """0 before the first start."""
        return self._port

    @property
    def pid(self) -> int | None:
        """None when it does not run."""
        child = self._belongings.child
        return child.pid if child is not None and child.exit_code() is None else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    def start(self) -> Self:
        """Return when the server takes connections. Starting a running one does nothing.

        Raises:
            EmbeddedServerError: no binary, a taken port, a store in use, or the server gave up; with its last words.
        """
        if self.running:
            return self
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with store_lock(self._lock_path) as lock_fd:
                self._prepare()
                self._start_on_some_port(lock_fd)
        except StoreInUseError:
            message = f"{self.name}: the store {self.directory} is in use by another server; stop that one first"
            raise EmbeddedServerError(message) from None
        except OSError as error:
            raise EmbeddedServerError(f"{self.name} could not be started over {self.directory}: {error}") from error
        return self

    def stop(self) -> None:
        """Shut down in order and keep the data. Stopping a stopped one does nothing."""
        child = self._belongings.child
        if child is not None:
            child.stop(self.stop_timeout_s)
            self._wait_for_the_last_process()

    def kill(self) -> None:
        """SIGKILL, as a power cut: it and all its processes, with no time to tidy up. The data stay."""
        child = self._belongings.child
        if child is not None:
            child.kill()
            self._wait_for_the_last_process()

    def restart(self) -> None:
        """Stop and start on the same port and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        if self._belongings.child is not None:
            self._belongings.child.pause()

    def resume(self) -> None:
        """End a pause."""
        if self._belongings.child is not None:
            self._belongings.child.resume()

    def close(self) -> None:
        """Stop, and remove the folder if it was a temporary one."""
        self._belongings.discard()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_tail(self) -> str:
        """The server's last words."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    @abstractmethod
    def _prepare(self) -> None:
        """Make the store ready, the lock being held."""

    @abstractmethod
    def _spawn(self, lock_fd: int) -> ChildProcess:
        """Start the process on ``self.port``."""

    @abstractmethod
    def _is_ready(self, child: ChildProcess) -> bool:
        """Whether this very process (not another one on our port) takes connections."""

    @property
    def _lock_path(self) -> Path:
        return self.directory / "lock"

    def _start_on_some_port(self, lock_fd: int) -> None:
        for port in self._ports():
            self._port = port
            if port_is_free(port) and self._came_up(lock_fd):
                (self.directory / "port").write_text(f"{port}\n")
                return
            if port_is_free(port):
                raise EmbeddedServerError(f"{self.name} did not start; the end of {self.log_path}:\n{self.log_tail()}")
        raise EmbeddedServerError(f"{self.name}: port {self._port} on {HOST} is taken; free it or choose another one")

    def _ports(self) -> Iterator[int]:
        if self._port:
            yield self._port  # asked for, or known to clients from an earlier start
            return
        with suppress(OSError, ValueError):
            yield int((self.directory / "port").read_text())
        yield from random.sample(PORTS, PORT_TRIES)

    def _came_up(self, lock_fd: int) -> bool:
        """Start the process and wait. A port that somebody takes just now shows as an early end."""
        child = self._spawn(lock_fd)
        self._belongings.child = child
        try:
            wait_until(lambda: child.exit_code() is not None or self._is_ready(child), self.start_timeout_s)
            ready = child.exit_code() is None and self._is_ready(child)
        except BaseException:
            child.kill()
            raise
        if not ready:
            child.kill()
        return ready

    def _wait_for_the_last_process(self) -> None:
        if not wait_until(lambda: not is_locked(self._lock_path), self.stop_timeout_s):
            raise EmbeddedServerError(f"{self.name}: a process of it still holds {self._lock_path}; see `lsof` on it")


class _Belongings:
    """What must not be left behind. Apart from the server object, so that it can outlive it for a moment."""

    def __init__(self, folder: Path | None, stop_timeout_s: float) -> None:
        self.child: ChildProcess | None = None
        self.folder = folder
        self.stop_timeout_s = stop_timeout_s
        self.owner_pid = os.getpid()

    def discard(self) -> None:
        if os.getpid() != self.owner_pid:
            return  # a forked copy of us ends; the server belongs to the original
        if self.child is not None:
            self.child.stop(self.stop_timeout_s)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: the last one's TIME_WAIT is no bar
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
