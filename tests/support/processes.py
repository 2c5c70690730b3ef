"""Our own processes as a test needs them: real, watched, and gone at the end of the test whatever happened in it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import uuid
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from jm_core.model import JobStatus
from jm_nats import JobClient, NatsConfig
from jm_nats.child_process import ChildProcess
from jm_nats.config import parse_servers
from tests.support import oracles
from tests.support.sql import Sql
from tests.support.streams import delete_streams
from tests.support.waiting import TIMEOUT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from jm_master.embedded import PostgresServer
    from jm_nats.embedded import NatsServer

ROOT: Final = Path(__file__).resolve().parents[2]
APP: Final = "tests.support.app:jm"
STOP_TIMEOUT_S: Final = 45.0  # a worker's drain timeout and more
LOG_TAIL_LINES: Final = 40

# What each says, at level INFO, once it does its work.
WORKER_READY: Final = ": worker ready"
COORDINATOR_READY: Final = ": leading"
STANDBY_READY: Final = ": coordinator ready"  # the one that leads says so, too, before it leads
TROUBLE: Final = re.compile(r"^.*(?:\bERROR\b|\bCRITICAL\b|Traceback \(most recent call last\)).*$", re.MULTILINE)


class JmProcess:
    """One process, its log, and what was read of it so far. Ended by ``Processes``; it never outlives the test run."""

    def __init__(self, name: str, argv: list[str], env: Mapping[str, str], folder: Path, ready: str) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self.log_path.touch()
        self._ready = ready
        self._log = self.log_path.open("rb")
        self._read = b""
        self._child = ChildProcess(argv, cwd=ROOT, env=dict(env), log_path=self.log_path, stop_signal=signal.SIGTERM)
        self.pid = self._child.pid

    def __repr__(self) -> str:
        return f"<{self.name} pid={self.pid} exit={self.exit_code()}>"

    @property
    def running(self) -> bool:
        return self.exit_code() is None

    def exit_code(self) -> int | None:
        """None while it runs; -9 for SIGKILL."""
        return self._child.exit_code()

    def log(self) -> str:
        """All that it has written so far."""
        self._read += self._log.read()
        return self._read.decode(errors="replace")

    def trouble(self) -> list[str]:
        """The lines of its log that no healthy run has: errors and tracebacks."""
        return TROUBLE.findall(self.log())

    def log_tail(self) -> str:
        lines = self.log().splitlines()[-LOG_TAIL_LINES:]
        return f"--- the end of {self.name}'s log (exit {self.exit_code()})\n" + "\n".join(lines)

    async def wait_ready(self, timeout_s: float = TIMEOUT_S) -> Self:
        """Return when it says that it does its work.

        Raises:
            AssertionError: it ended, or did not say so in time; with its last words.
        """
        await self.wait_for_log(self._ready, timeout_s)
        return self

    async def wait_for_log(self, text: str, timeout_s: float = TIMEOUT_S) -> None:
        """Return when ``text`` is in its log."""
        await wait_until(
            lambda: text in self.log() or not self.running,
            timeout_s,
            what=f"{text!r} in the log of {self.name}",
            shown=self.log_tail,
        )
        assert text in self.log(), f"{self.name} ended without {text!r}\n{self.log_tail()}"

    async def wait_exit(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Its exit code, once it has ended by itself, by a signal or by a crash hook."""
        await wait_until(lambda: not self.running, timeout_s, what=f"the end of {self.name}", shown=self.log_tail)
        code = self.exit_code()
        assert code is not None
        return code

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait_exit(timeout_s)

    def kill(self) -> None:
        """SIGKILL to it and everything it started; gone on return."""
        self._child.kill()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and does nothing."""
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)

    def close(self) -> None:
        """Once it has ended."""
        self._log.close()


class Processes:
    """Starts ``jm`` commands. On leaving all are killed by pid, and their last words printed: pytest shows them when
    the test has failed.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = dict(env)
        self.all: list[JmProcess] = []
        self._stack = ExitStack()
        self._folder = Path()

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="jm-test-")))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.all:
            process.kill()
        for process in self.all:
            print(process.log_tail())  # noqa: T201
            process.close()
        self._stack.close()

    def start(self, name: str, *command: str, ready: str, env: Mapping[str, str] | None = None) -> JmProcess:
        """``jm`` with ``command``; ``env`` on top of what all get, e.g. ``{"JM_TEST_CRASH_AT": "…"}``."""
        unique = f"{name}-{len(self.all)}"
        argv = [sys.executable, "-m", "jm_cli", *command]
        process = JmProcess(unique, argv, {**self.env, **(env or {})}, self._folder, ready)
        self.all.append(process)
        return process


class Cluster:
    """One cluster under test: its servers' addresses, its processes, and a look at what came of it.

    Use as ``async with Cluster(nats_server.url, database, cluster_name) as cluster``. ``settings`` go to all of its
    processes: ``JM_LEASE_S="3", JM_HEARTBEAT_S="1"``.
    """

    def __init__(self, nats_url: str, dsn: str, name: str, **settings: str) -> None:
        self.nats_url = nats_url
        self.dsn = dsn
        self.name = name
        self.sql = Sql(dsn)
        self.processes = Processes(environment(nats_url, dsn, name) | settings)

    async def __aenter__(self) -> Self:
        self.processes.__enter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.processes.__exit__(*error)
        await self.sql.__aexit__(*error)

    # -- processes

    def start_coordinator(self, *options: str, env: Mapping[str, str] | None = None) -> JmProcess:
        return self.processes.start("coordinator", "coordinator", *options, ready=COORDINATOR_READY, env=env)

    def start_standby(self, *options: str, env: Mapping[str, str] | None = None) -> JmProcess:
        """A coordinator beside one that leads."""
        return self.processes.start("coordinator", "coordinator", *options, ready=STANDBY_READY, env=env)

    def start_worker(self, *options: str, app: str = APP, env: Mapping[str, str] | None = None) -> JmProcess:
        return self.processes.start("worker", "worker", app, *options, ready=WORKER_READY, env=env)

    async def start(self, *, workers: int = 1, worker_options: Iterable[str] = ()) -> Self:
        """A coordinator that leads and ``workers`` that serve."""
        started = [self.start_coordinator()] + [self.start_worker(*worker_options) for _ in range(workers)]
        for process in started:
            await process.wait_ready()
        return self

    def pids(self) -> dict[str, int]:
        """Of the processes that are running."""
        return {process.name: process.pid for process in self.processes.all if process.running}

    def trouble(self) -> dict[str, list[str]]:
        """Errors and tracebacks in the logs, by process."""
        return {process.name: lines for process in self.processes.all if (lines := process.trouble())}

    def logs(self) -> dict[str, str]:
        """All that was logged so far, by process, also by those that have ended."""
        return {process.name: process.log() for process in self.processes.all}

    # -- jobs

    def client(self) -> JobClient:
        return JobClient(self.name, NatsConfig(servers=parse_servers(self.nats_url)))

    async def ended(self, job_ids: Iterable[str], timeout_s: float = TIMEOUT_S) -> dict[str, int]:
        """Counts by state, once every one of ``job_ids`` is in a terminal one."""
        ids = list(job_ids)
        query = "SELECT count(*) FROM job WHERE id = ANY($1::uuid[]) AND status >= $2"

        async def all_ended() -> bool:
            return bool(await self.sql.value(query, ids, int(JobStatus.SUCCEEDED)) == len(set(ids)))

        try:
            await wait_until(all_ended, timeout_s, what=f"the end of {len(ids)} jobs")
        except AssertionError as late:
            raise AssertionError(f"{late}\nunfinished: {await self.unfinished(ids)}") from None
        return await self.sql.counts(ids)

    async def unfinished(self, ids: list[str]) -> list[dict[str, Any]]:
        """Which of them have not ended, by where they are; the first of each kind."""
        query = """SELECT status, lane, priority, bucket_id, worker_id, dispatch, attempt, losses, count(*) AS jobs,
                          min(id::text) AS first, min(run_at)::text AS due, now()::text AS now
                     FROM job WHERE id = ANY($1::uuid[]) AND status < $2
                    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY jobs DESC LIMIT 10"""
        return [dict(row) for row in await self.sql.rows(query, ids, int(JobStatus.SUCCEEDED))]

    async def wait_for_counts(self, timeout_s: float = TIMEOUT_S, **expected: int) -> None:
        """Return when there are at least so many jobs in each named state: ``succeeded=100``."""
        seen: dict[str, int] = {}

        async def reached() -> bool:
            nonlocal seen
            seen = await self.sql.counts()
            return all(seen.get(state, 0) >= jobs for state, jobs in expected.items())

        await wait_until(reached, timeout_s, what=f"{expected}", shown=lambda: f"counts {seen}")

    async def assert_oracles(
        self, accepted_ids: Iterable[str], *, may_wait: bool = False, timeout_s: float = TIMEOUT_S
    ) -> None:
        """See ``oracles.assert_oracles``; and O9 in all logs."""
        await oracles.assert_oracles(
            self.dsn, self.nats_url, self.name, accepted_ids, may_wait=may_wait, timeout_s=timeout_s
        )
        leaks = oracles.leaks(self.logs())
        assert not leaks, "\n".join(leaks)

    async def tombstones(self, reason: str | None = None) -> list[str]:
        """Buckets that are gone, of all reasons or of one: nobody was declared lost if there is none for "lost"."""
        query = "SELECT bucket_id FROM bucket WHERE $1::text IS NULL OR reason = $1 ORDER BY deleted_at"
        return [row["bucket_id"] for row in await self.sql.rows(query, reason)]


@asynccontextmanager
async def temporary_cluster(
    nats_server: NatsServer, postgres_server: PostgresServer, database_template: str, **settings: str
) -> AsyncIterator[Cluster]:
    """A cluster with a database of its own, for fixtures that outlive one test; both are removed at the end."""
    name = f"t{uuid.uuid4().hex[:12]}"
    dsn = await asyncio.to_thread(postgres_server.create_database, name, database_template)
    try:
        async with Cluster(nats_server.url, dsn, name, **settings) as cluster:
            yield cluster
        await delete_streams(nats_server.url, name)
    finally:
        await asyncio.to_thread(postgres_server.drop_database, name)


def environment(nats_url: str, dsn: str, cluster: str) -> dict[str, str]:
    """This process's environment without any setting of ours, and the address of the servers under test."""
    inherited: dict[str, Any] = {name: value for name, value in os.environ.items() if not name.startswith("JM_")}
    return inherited | {
        "JM_NATS_URL": nats_url,
        "JM_POSTGRES_DSN": with_secret(dsn),
        "JM_CLUSTER": cluster,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli")]),
    }


def with_secret(dsn: str) -> str:
    """With a password that Postgres does not ask for, and that nobody may show (oracle O9)."""
    return dsn.replace("@", f":{quote(oracles.PLANTED, safe='')}@", 1) if dsn.count("@") == 1 else dsn


def settings(cluster, **more):
    """Variables with which a command finds it."""
    return {"JM_NATS_URL": cluster.nats_url, "JM_POSTGRES_DSN": cluster.dsn, "JM_CLUSTER": cluster.name} | more
