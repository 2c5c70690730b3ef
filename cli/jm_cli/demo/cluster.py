"""The demo's cluster: two embedded servers, and coordinator and workers as real processes that never outlive us.

Starting the servers blocks (a second or two in all), on the event loop all the same: a Ctrl-C then cannot come between
a thing that was made and the note of who takes it away.
"""

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from jm_cli.children import Child, stop_all
from jm_cli.demo.app import jm
from jm_cli.demo.executions import EXECUTIONS_VARIABLE
from jm_cli.exits import UsageError
from jm_core.errors import JmError
from jm_master.embedded import PostgresServer
from jm_nats.config import NatsConfig
from jm_nats.embedded import NatsServer

WORKERS: Final = 2
APP: Final = "jm_cli.demo.app:jm"
WORKER_READY: Final = "worker ready"  # what it says in its log once its buckets are open
STOP_TIMEOUT_S: Final = 10.0
LOG_TAIL_LINES: Final = 15


class ProcessEndedError(JmError):
    """One of the demo's processes ended by itself."""


class DemoCluster:
    """Use as a context manager, then ``start_…`` in order. On leaving all is stopped, and temporary data are removed.

    Args:
        keep: a new folder for data and logs, as ``jm up --data`` has them; None: temporary ones.
        settings: more variables for its processes.
    """

    def __init__(self, keep: Path | None = None, *, settings: dict[str, str] | None = None) -> None:
        if keep is not None and keep.exists() and any(keep.iterdir()):
            raise UsageError(f"the folder {keep} holds something already; give --keep a new one")
        self._stack = ExitStack()
        self._keep = keep
        self._nats = NatsServer(keep / "nats" if keep else None)
        self._stack.callback(self._nats.close)
        self._postgres = PostgresServer(keep / "postgres" if keep else None)
        self._stack.callback(self._postgres.close)
        # Beside NATS' files: a temporary folder that is certain to go when we do, even by SIGKILL.
        self._logs = (keep or self._nats.directory) / "logs"
        self.dsn = ""
        self.processes: list[Child] = []
        self._settings = settings or {}
        self._down: set[str] = set()  # processes that we killed: those may be gone

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        with self._stack:
            if error is not None and self._keep is None:
                for process in self.processes:
                    process.kill()  # what it would save is thrown away
            await stop_all(self.processes, asyncio.Event())

    @property
    def nats_url(self) -> str:
        return self._nats.url

    @property
    def nats_config(self) -> NatsConfig:
        return NatsConfig(servers=(self.nats_url,))

    @property
    def executions(self) -> Path:
        """Where handlers note what they do."""
        return self._logs / "executions.txt"

    @property
    def workers(self) -> list[Child]:
        return [process for process in self.processes if process.name != "coordinator"]

    def start_nats(self) -> None:
        self._nats.start()
        self._logs.mkdir()

    def restart_nats(self) -> None:
        self._nats.restart()

    def start_postgres(self) -> None:
        self._postgres.start()
        self.dsn = self._postgres.create_database(jm.cluster)

    def start_workers(self) -> None:
        """They need NATS only."""
        for number in range(1, WORKERS + 1):
            self._start(f"worker-{number}", "worker", APP)

    def start_coordinator(self) -> None:
        self._start("coordinator", "coordinator")

    @property
    def workers_are_ready(self) -> bool:
        return all(WORKER_READY in _log_of(process) for process in self.workers)

    def kill(self, process: Child) -> None:
        """SIGKILL; ``check`` does not mind until it is started again."""
        self._down.add(process.name)
        process.kill()

    def start_again(self, process: Child) -> None:
        process.start()
        self._down.discard(process.name)

    def check(self) -> None:
        """Raises ProcessEndedError, with its last words, when a process has ended."""
        for process in self.processes:
            if not process.running and process.name not in self._down:
                tail = "\n".join(_log_of(process).splitlines()[-LOG_TAIL_LINES:])
                raise ProcessEndedError(f"the process '{process.name}' has ended; its last words:\n{tail}")

    def _start(self, name: str, *arguments: str) -> None:
        process = Child(name, arguments, env=self._environment(), folder=self._logs, stop_s=STOP_TIMEOUT_S)
        self.processes.append(process)
        process.start()

    def _environment(self) -> dict[str, str]:
        """Ours without any setting of another cluster."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("JM_")}
        postgres = {"JM_POSTGRES_DSN": self.dsn} if self.dsn else {}
        own = {"JM_NATS_URL": self.nats_url, "JM_CLUSTER": jm.cluster, EXECUTIONS_VARIABLE: str(self.executions)}
        return {**inherited, **self._settings, **own, **postgres}


def _log_of(process: Child) -> str:
    return process.log_path.read_text(errors="replace")
