"""A Docker daemon of the test's own, started by hand as root, for machines where none runs.

By hand, the same is (as root, with Debian's docker.io or Docker's own packages)::

    dockerd --data-root /tmp/d/data --exec-root /tmp/d/exec --pidfile /tmp/d/pid --host unix:///tmp/d/docker.sock &
    export DOCKER_HOST=unix:///tmp/d/docker.sock
    docker-compose up --build

``--iptables=false --bridge=none`` leaves no rule and no bridge behind; the containers of one network see each other all
the same, and published ports work, unless an earlier daemon has left its rules behind (`iptables -S FORWARD`: DROP):
then leave --iptables=false out. Where overlayfs cannot be used: ``--storage-driver vfs``, which copies everything.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.smoke.shell import TAIL_LINES, SmokeError, output_of, say, succeeds

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
OPTIONS = ("--bridge=none",)
NO_RULES = "--iptables=false"


def can_start() -> bool:
    return os.geteuid() == 0 and shutil.which("dockerd") is not None and shutil.which("docker") is not None


@contextmanager
def own_daemon() -> Iterator[str]:
    """Its address, for DOCKER_HOST. In the end it is stopped, and all it had is removed.

    Raises:
        SmokeError: it does not start, or another one runs.
    """
    if not can_start():
        raise SmokeError("--start-dockerd needs root and dockerd on the PATH (Debian: apt-get install docker.io)")
    if succeeds(["docker", "version"]):  # --bridge=none would take its docker0 away
        raise SmokeError("a Docker daemon runs already: leave out --start-dockerd")
    folder = Path(tempfile.mkdtemp(prefix="jm-dockerd-"))
    host = f"unix://{folder}/docker.sock"
    where = ("--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid")
    try:
        with (folder / "log").open("wb") as log:
            # In a session of its own: a Ctrl-C is for us, who stop the containers first.
            daemon = subprocess.Popen(
                [str(shutil.which("dockerd")), *map(str, where), "--host", host, *_options()],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            _wait_ready(daemon, host, folder / "log")
            say(f"dockerd runs: DOCKER_HOST={host}")
            yield host
        finally:
            _stop(daemon)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options() -> list[str]:
    """Without rules, unless those that an earlier daemon left behind drop what containers say to one another."""
    left_behind = shutil.which("iptables") and "-P FORWARD DROP" in output_of(["iptables", "-S", "FORWARD"])
    return [*OPTIONS] if left_behind else [*OPTIONS, NO_RULES]


def _wait_ready(daemon: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not succeeds(["docker", "--host", host, "version"]):
        if daemon.poll() is not None or time.monotonic() > deadline:
            tail = "\n    ".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            raise SmokeError(f"dockerd did not start:\n    {tail}")
        time.sleep(0.2)


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
