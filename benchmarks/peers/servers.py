"""The servers of all peers, and for each cell a state that nobody has used before."""

import contextlib
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers.roster import APPS, Peer
from jm_master.embedded import PostgresServer
from jm_nats.embedded import NatsServer

START_S: Final = 10.0
ROOT: Final = Path(__file__).resolve().parent.parent.parent


class Redis:
    """Debian's ``redis-server`` with its own defaults: snapshots, no append-only file."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="jm-peers-redis-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process = subprocess.Popen(
            ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", self._folder.name],  # noqa: S607
            stdout=subprocess.DEVNULL,
        )
        until_s = time.monotonic() + START_S
        while True:
            try:
                self.command("PING")
            except OSError:
                if time.monotonic() > until_s:
                    self.close()
                    raise
                time.sleep(0.02)
            else:
                return

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def command(self, text: str) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(f"{text}\r\n".encode())
            return connection.recv(65_536).decode()

    def version(self) -> str:
        found = re.search(r"redis_version:(\S+)", self.command("INFO server"))
        return found.group(1) if found else "unknown"

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


class Servers:
    """Postgres and Redis run all the time and are idle when nobody asks; NATS is made anew with each cell."""

    def __init__(self, postgres: PostgresServer | None, redis: Redis | None) -> None:
        self.postgres = postgres
        self.redis = redis
        self._cells = 0

    @contextmanager
    def cell(self, peer: Peer, **settings: str) -> Iterator[dict[str, str]]:
        """The environment of a cell's processes; whatever it left is deleted afterwards."""
        self._cells += 1
        path = os.pathsep.join([str(APPS), str(ROOT), str(ROOT / "cli")])
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="jm-peers-"))
            environment = {**os.environ, "PYTHONPATH": path, "BENCH_OUT": out, **settings}
            if "postgres" in peer.servers:
                assert self.postgres is not None
                environment["BENCH_DSN"] = stack.enter_context(_database(self.postgres, f"bench_{self._cells}"))
            if "redis" in peer.servers:
                assert self.redis is not None
                self.redis.command("FLUSHALL")
                environment["BENCH_REDIS"] = self.redis.url
            if "nats" in peer.servers:
                environment["BENCH_NATS"] = stack.enter_context(NatsServer()).url
            environment |= {
                "JM_CLUSTER": "bench",
                "JM_NATS_URL": environment.get("BENCH_NATS", ""),
                "JM_POSTGRES_DSN": environment.get("BENCH_DSN", ""),
            }
            yield environment


@contextmanager
def _database(postgres: PostgresServer, name: str) -> Iterator[str]:
    dsn = postgres.create_database(name)
    try:
        yield dsn
    finally:
        postgres.drop_database(name)


@contextmanager
def servers(needed: set[str]) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer()) if "postgres" in needed else None
        redis = stack.enter_context(contextlib.closing(Redis())) if "redis" in needed else None
        yield Servers(postgres, redis)
