"""Servers and processes of one benchmark run, as shipped: embedded servers, defaults, real processes."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.nats_nodes import NatsNodes
from benchmarks.nats_nodes import nats_nodes as clustered
from jm_core import limits
from jm_master.embedded import PostgresServer
from jm_nats import ClusterUnknownError, JobClient, NatsConfig, Receipt, submission
from jm_nats.connection import connect
from jm_nats.embedded import NatsServer
from jm_nats.provision import ensure_cluster

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.02
# As docs/deployment.md asks for where much is written; by default a checkpoint would come every 700,000 jobs or so.
WAL = {"max_wal_size": "8GB", "min_wal_size": "2GB", "checkpoint_timeout": "15min"}


class Cluster:
    """Two servers, and the coordinator and workers that a benchmark asks for."""

    def __init__(self, nats: NatsServer | NatsNodes, postgres: PostgresServer, logs: Path, name: str = "bench") -> None:
        self.nats = nats
        self.postgres = postgres
        self.name = name
        self.dsn = postgres.dsn
        self.nats_urls = nats.urls if isinstance(nats, NatsNodes) else (nats.url,)
        self.replicas = min(3, len(self.nats_urls))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logs = logs

    def environment(self) -> dict[str, str]:
        root = Path(__file__).resolve().parent.parent
        return {
            **os.environ,
            "JM_NATS_URL": ",".join(self.nats_urls),
            "JM_NATS_REPLICAS": str(self.replicas),
            "JM_POSTGRES_DSN": self.dsn,
            "JM_CLUSTER": self.name,
            "PYTHONPATH": os.pathsep.join([str(root), str(root / "cli")]),
        }

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """``jm`` with ``command`` as a process; its log is kept and shown when it dies early."""
        log = (self.logs / f"{name}.log").open("ab")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "jm_cli", *command], env=self.environment(), stdout=log, stderr=subprocess.STDOUT
            )
        self.processes[name] = process
        return process

    def start_coordinator(self, *options: str) -> None:
        self.start("coordinator", "coordinator", *options)

    def start_worker(self, name: str = "worker", *options: str) -> None:
        self.start(name, "worker", "benchmarks.app:jm", *options)

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        for name in sorted(self.processes, key=lambda n: n == "coordinator"):
            self.stop(name)

    def log_of(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text(errors="replace")[-4000:]

    def check_alive(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise SystemExit(f"{name} ended with {process.returncode}:\n{self.log_of(name)}")

    def client(self) -> JobClient:
        return JobClient(self.name, NatsConfig(servers=self.nats_urls))

    def migrate(self) -> None:
        subprocess.run(
            [sys.executable, "-m", "jm_cli", "migrate"], env=self.environment(), check=True, capture_output=True
        )


@contextmanager
def cluster(
    *, coordinator: bool = True, workers: int = 1, options: Sequence[str] = (), nats_nodes: int = 1
) -> Iterator[Cluster]:
    """A running cluster; everything is stopped and deleted on leaving.

    Args:
        nats_nodes: NATS servers; of three or more every stream and KV has three replicas.
    """
    nodes = NatsServer() if nats_nodes == 1 else clustered(nats_nodes)
    with (
        tempfile.TemporaryDirectory(prefix="jm-bench-") as logs,
        nodes as nats,
        PostgresServer(settings=WAL) as postgres,
    ):
        made = Cluster(nats, postgres, Path(logs))
        try:
            made.migrate()
            if coordinator:
                made.start_coordinator()
            for number in range(workers):
                made.start_worker(f"worker{number}", *options)
            yield made
        finally:
            made.stop_all()


async def provision(made: Cluster) -> None:
    """The front door, before anybody stands behind it."""
    client = made.client()
    async with await connect(client.config, client_name="benchmark") as link:
        await ensure_cluster(link, client.names, lease_s=limits.LEASE_S, replicas=made.replicas)


async def until_ready(made: Cluster, db: asyncpg.Connection) -> None:
    """Return when a first job has gone all the way: everything is up, connected and warm."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    async with made.client() as client:
        receipt = await first_receipt(client, deadline)
        while True:
            made.check_alive()
            row = await db.fetchval("select status from jobmaster.job where id = $1", receipt.job_id)
            if row == 4:
                return
            if time.monotonic() > deadline:
                raise SystemExit("the cluster did not get ready:\n" + "\n".join(made.log_of(n) for n in made.processes))
            await _pause()


async def first_receipt(client: JobClient, deadline: float) -> Receipt:
    """Submit one job as soon as the coordinator or a worker has made the front door."""
    while True:
        try:
            return await client.submit(_warm_up())
        except ClusterUnknownError:
            if time.monotonic() > deadline:
                raise
            await _pause()


def _warm_up() -> Any:
    return submission("noop", {})


async def _pause() -> None:
    await asyncio.sleep(POLL_S)
