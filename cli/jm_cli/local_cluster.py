"""NATS and Postgres in a folder, and the lock that lets one ``jm up`` at a time have it."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from jm_cli.exits import CliError, ExitCode
from jm_cli.local_env import FILE_NAME, LocalEnv
from jm_cli.plain_text import one_line
from jm_master.embedded import PostgresServer
from jm_nats.child_process import EmbeddedServerError
from jm_nats.config import DEFAULT_PORT
from jm_nats.embedded import NatsServer
from jm_nats.local_server import LocalServer
from jm_nats.store_lock import StoreInUseError, is_locked, store_lock

log = logging.getLogger("jobmaster.up")

LEFTOVER_TIMEOUT_S: Final = 25.0  # the guards of a killed `jm up` give its processes ten seconds, then kill them
LEFTOVER_POLL_S: Final = 0.1
RESTART_PAUSE_S: Final = 5.0


@contextmanager
def exclusive(data: Path) -> Iterator[None]:
    """Hold the folder ``data``; made when missing, with a note to git that it is not its business.

    Raises:
        CliError: another ``jm up`` has it, or it cannot be written to.
    """
    pid_file = data / "pid"
    try:
        data.mkdir(parents=True, exist_ok=True)
        (data / ".gitignore").write_text("*\n")
        with store_lock(data / "up.lock"):
            pid_file.write_text(f"{os.getpid()}\n")
            try:
                yield
            finally:
                pid_file.unlink(missing_ok=True)
    except StoreInUseError:
        raise CliError(ExitCode.ALREADY_RUNNING, _already(data, pid_file)) from None
    except OSError as error:
        raise CliError(
            ExitCode.USAGE, f"cannot use the folder {data}: {error.strerror}; choose another --data"
        ) from None


def _already(data: Path, pid_file: Path) -> str:
    pid = ""
    with suppress(OSError):
        pid = pid_file.read_text().strip()
    stop = f"stop it (kill {pid})" if pid else "stop it"
    return f"'jm up' runs already on {data} (pid {pid or 'unknown'}); use it, {stop}, or give another --data"


async def leftovers_gone(data: Path) -> None:
    """Return when no process of an earlier run is left. One that was killed leaves them for a few seconds.

    Raises:
        CliError: they do not end.
    """
    locks = [lock for lock in (data / "processes.lock", data / "nats/lock", data / "postgres/lock") if lock.exists()]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LEFTOVER_TIMEOUT_S
    said = False
    while held := [lock for lock in locks if is_locked(lock)]:
        if not said:
            said = True
            log.warning("an earlier 'jm up' was killed; waiting for its processes to end")
        if loop.time() >= deadline:
            raise CliError(ExitCode.ALREADY_RUNNING, f"a process still holds {held[0]}; see `lsof {held[0]}`, end it")
        await asyncio.sleep(LEFTOVER_POLL_S)


class LocalServers:
    """The two servers over ``data``. Their calls block, so they run in threads."""

    def __init__(self, data: Path, *, nats_port: int = 0, postgres_port: int = 0) -> None:
        self.data = data
        if not nats_port:
            _prefer(data / "nats", DEFAULT_PORT)
        self.nats = NatsServer(data / "nats", port=nats_port)
        self.postgres = PostgresServer(data / "postgres", port=postgres_port)
        self._restart_at: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        results = await asyncio.gather(
            start(self.nats, ExitCode.NATS), start(self.postgres, ExitCode.POSTGRES), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                await self._close()
                raise result
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        """NATS first: what it still holds is on disk, and Postgres has nobody left to wait for."""
        try:
            await asyncio.to_thread(self.nats.close)
        finally:
            await asyncio.to_thread(self.postgres.close)

    async def tend(self) -> None:
        """Start again what has died, on the same port; what does not start is tried again later."""
        now = asyncio.get_running_loop().time()
        for server in (self.nats, self.postgres):
            if server.running or now < self._restart_at.get(server.name, 0):
                continue
            log.error("server died; it is started again", extra={"server": server.name})
            try:
                await asyncio.to_thread(_start_anew, server)
            except EmbeddedServerError as error:
                facts = {"server": server.name, "problem": one_line(str(error)), "again_in_s": RESTART_PAUSE_S}
                log.error("server does not start", extra=facts)  # noqa: TRY400 - no bug
                self._restart_at[server.name] = now + RESTART_PAUSE_S

    async def environment(self, cluster: str) -> LocalEnv:
        """Where the cluster is, its database made when missing: one each, so that two apps can use one folder."""
        dsn = await ensure_database(self.postgres, cluster)
        return LocalEnv(path=self.data / FILE_NAME, nats_url=self.nats.url, postgres_dsn=dsn, cluster=cluster)


async def start(server: LocalServer, code: ExitCode) -> None:
    """Start it in a thread.

    Raises:
        CliError: with the server's own words.
    """
    try:
        await asyncio.to_thread(server.start)
    except EmbeddedServerError as error:
        raise CliError(code, str(error)) from error


def _prefer(folder: Path, port: int) -> None:
    """Let a first run try ``port`` before any other, as if it had been the last one's: programs that are told nothing
    look for NATS there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "port").exists():
        (folder / "port").write_text(f"{port}\n")


def _start_anew(server: LocalServer) -> None:
    server.stop()  # dead it is, but processes of its own may not have noticed yet
    server.start()


async def ensure_database(postgres: PostgresServer, name: str) -> str:
    """The DSN of the database ``name``."""
    import asyncpg  # noqa: PLC0415

    connection = await asyncpg.connect(postgres.dsn)
    try:
        found = await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name)
    finally:
        await connection.close()
    if not found:
        await asyncio.to_thread(postgres.create_database, name)
    return postgres.dsn_of(name)


@asynccontextmanager
async def running_servers(data: Path, *, nats_port: int, postgres_port: int) -> AsyncIterator[LocalServers]:
    """The servers of ``data``, once nothing of an earlier run is left there."""
    await leftovers_gone(data)
    async with LocalServers(data, nats_port=nats_port, postgres_port=postgres_port) as servers:
        yield servers
