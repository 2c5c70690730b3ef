"""One server process as our child: it survives the terminal's Ctrl-C, but never us.

The child gets a session of its own, so that Ctrl-C reaches us alone and we stop things in order. That it must not
outlive us (even our SIGKILL) is the work of a *guard*: a shell of a few lines that reads a pipe whose other end only
this process holds. When we die the pipe ends; the guard stops the server and removes its temporary folder.

Why not ``PR_SET_PDEATHSIG``: it exists on Linux only, and it fires when the *thread* that started the server ends, so
a pool thread that goes idle would take the server along. (A child that is forked from this process without exec
holds the pipe too: the guard then waits for the last of them.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from jm_core.errors import JmError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

POLL_S: Final = 0.005

# Arguments: stop signal, folder to remove (or empty), tenths of a second between the polite signal and the other one.
# Input: the server's pid; then a line when it is gone for good. A zombie answers to kill -0 and has no exe: it stays
# one for as long as a container's first process does not collect orphans.
_GUARD: Final = """
alive() { kill -0 "$pid" && { [ ! -d /proc/self ] || [ -e "/proc/$pid/exe" ]; }; }
read -r pid || pid=
if [ -n "$pid" ]; then
    if read -r done; then exit 0; fi
    kill -s "$1" "$pid"; kill -s CONT "$pid"
    n=0; while alive && [ "$n" -lt "$3" ]; do sleep 0.1; n=$((n+1)); done
    kill -s KILL "$pid"
fi
# Again, should a process of the server's own have been writing to its very end.
[ -z "$2" ] || rm -rf -- "$2" || { sleep 1; rm -rf -- "$2"; }
"""


class EmbeddedServerError(JmError):
    """An embedded server could not be found, started or stopped; the message names the remedy."""


class ChildProcess:
    """A running server and its guard. ``temporary`` is removed by the guard if we die before the server. Without a
    ``log_path`` it writes where we do.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        log_path: Path | None,
        lock_fd: int | None = None,
        stop_signal: signal.Signals,
        user: str | None = None,
        env: dict[str, str] | None = None,
        temporary: Path | None = None,
        patience_s: float = 10.0,
    ) -> None:
        self.stop_signal = stop_signal
        self._paused = False
        self._guard, self._pipe = _start_guard(stop_signal, temporary, patience_s)
        try:
            with log_path.open("ab") if log_path else nullcontext() as log:
                self._process = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    user=user,
                    group=user,
                    extra_groups=[] if user else None,
                    # Inherited by all of the server's processes: the lock goes with the last one.
                    pass_fds=[] if lock_fd is None else [lock_fd],
                    start_new_session=True,
                )
        except BaseException:
            self._guard.kill()
            self._dismiss_guard()
            raise
        self._tell_guard(f"{self.pid}\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        code = self._process.poll()
        if code is not None and not self._pipe.closed:
            # At once: from now on the pid may be given to somebody else, whom the guard must not touch.
            self._tell_guard("gone\n")
            self._dismiss_guard()
        return code

    def pause(self) -> None:
        """SIGSTOP to it and everything it started."""
        self._paused = True
        self._signal_family(signal.SIGSTOP)

    def resume(self) -> None:
        self._paused = False
        self._signal_family(signal.SIGCONT)

    def stop(self, timeout_s: float) -> None:
        """Politely, and after ``timeout_s`` not so."""
        if self.exit_code() is None:
            self._process.send_signal(self.stop_signal)
            if self._paused:
                self.resume()
            if not self._exits_within(timeout_s):
                self.kill()

    def kill(self) -> None:
        """SIGKILL to it and everything it started."""
        self._signal_family(signal.SIGKILL)
        self._process.wait()
        self.exit_code()

    def _signal_family(self, number: signal.Signals) -> None:
        if self.exit_code() is not None:
            return
        os.kill(self.pid, signal.SIGSTOP)  # so that it starts nothing while we look
        for pid in [*descendants(self.pid), self.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _exits_within(self, timeout_s: float) -> bool:
        return wait_until(lambda: self.exit_code() is not None, timeout_s)

    def _tell_guard(self, line: str) -> None:
        with suppress(BrokenPipeError):  # somebody killed the guard; the server is still ours to stop
            self._pipe.write(line.encode())

    def _dismiss_guard(self) -> None:
        self._pipe.close()
        self._guard.wait()


def _start_guard(
    stop_signal: signal.Signals, temporary: Path | None, patience_s: float
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    guard = subprocess.Popen(
        [
            "/bin/sh",
            "-c",
            _GUARD,
            "jm-guard",
            stop_signal.name.removeprefix("SIG"),
            str(temporary or ""),
            str(int(10 * patience_s)),
        ],
        bufsize=0,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None
    return guard, guard.stdin


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, as they are at this moment."""
    children: dict[int, list[int]] = {}
    for child, parent in _processes():
        children.setdefault(parent, []).append(child)
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """(pid, parent) of every process."""
    if Path("/proc/self/stat").exists():  # Linux, whose slim images have no ps
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                # The name in brackets may hold anything, brackets too; state and parent follow the last one.
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        return
    for line in subprocess.check_output(["/bin/ps", "-A", "-o", "pid=,ppid="], text=True).splitlines():
        child, parent = line.split()
        yield int(child), int(parent)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether ``condition`` came true in time. For servers that tell nobody: a look costs microseconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
