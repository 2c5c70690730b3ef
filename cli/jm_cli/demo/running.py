"""The demo from start to report, and what a signal does to it."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
from msgspec import Struct
from rich.console import Console

from jm_cli.demo.accounting import Submitted
from jm_cli.demo.app import jm
from jm_cli.demo.chaos import HEARTBEAT_S, LEASE_S, Chaos
from jm_cli.demo.chaos_report import read_chaos
from jm_cli.demo.cluster import APP, WORKERS, DemoCluster
from jm_cli.demo.display import Display
from jm_cli.demo.report import Report, add_chaos, read_report
from jm_cli.demo.submitting import submit_no_ops, submit_slowly, submit_work
from jm_cli.demo.watching import Watcher
from jm_cli.demo.workload import Workload, stdlib_files, workload
from jm_cli.exits import CliError, ExitCode
from jm_master.migrate import migrate
from jm_nats.api_client import NoCoordinatorError
from jm_nats.client import JobClient

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]  # generic in the stubs only

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
READY_WITHIN_S: Final = 30.0
READY_POLL_S: Final = 0.02
CHAOS_SETTINGS: Final = {"JM_LEASE_S": str(LEASE_S), "JM_HEARTBEAT_S": str(HEARTBEAT_S)}

# Runs beside the work, once all processes are ready: ``--chaos`` hurts the cluster here.
Companion = Callable[[DemoCluster], Awaitable[None]]


class DemoSettings(Struct, frozen=True):
    """``files``: how many of the standard library's; None: all. ``no_ops``: jobs that do nothing, afterwards.
    ``chaos``: with faults beside the work, and a lease that is short enough to watch.
    """

    files: int | None = None
    no_ops: int = 0
    keep: Path | None = None
    chaos: bool = False


class Stopwatch:
    """Seconds per step, and in all."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = self._lap_s = time.monotonic()
        self.steps_s: dict[str, float] = {}

    @property
    def wall_s(self) -> float:
        return round(time.monotonic() - self._began_s, 2)

    def lap(self, step: str, text: str) -> None:
        """``step`` took since the last one; said as ``text``."""
        now_s = time.monotonic()
        took_s = self.steps_s[step] = round(now_s - self._lap_s, 2)
        self._lap_s = now_s
        self._console.print(f"{text} [dim]({took_s:.1f} s)[/dim]")


async def run_demo(settings: DemoSettings, console: Console, *, companion: Companion | None = None) -> Report:
    """The whole demo; returns when everything it started is gone.

    Raises:
        CliError: interrupted by one of ``SIGNALS``.
        JmError: it could not be carried out; the message says why.
    """
    main = asyncio.ensure_future(_run(settings, console, companion))
    with _cancelled_by_signals(main, console):
        try:
            return await main
        except asyncio.CancelledError:
            raise CliError(ExitCode.INTERRUPTED, "interrupted; nothing of the demo is left running") from None


async def _run(settings: DemoSettings, console: Console, companion: Companion | None) -> Report:
    stopwatch = Stopwatch(console)
    work = workload(stdlib_files(settings.files), no_ops=settings.no_ops)
    chaos = Chaos(console) if settings.chaos else None
    if chaos:
        companion = chaos.run
        console.print(f"With faults: leases of {LEASE_S:g} s instead of 10 s, so that it is over in about a minute.")
    async with DemoCluster(settings.keep, settings=CHAOS_SETTINGS if chaos else None) as cluster:
        await _start(cluster, stopwatch)
        async with JobClient(jm.cluster, cluster.nats_config) as client, _connected(cluster.dsn) as connection:
            await _until_ready(cluster, client)
            stopwatch.lap("processes", f"a coordinator and {WORKERS} workers, each a process of its own")
            async with _beside(companion, cluster):
                submitted = await _work(cluster, client, connection, work, console, chaos=chaos)
            stopwatch.lap("work", f"{submitted.jobs:,} jobs")
            report = await read_report(connection, submitted)
            if chaos:
                found = await read_chaos(connection, chaos, submitted, cluster.executions, lease_s=LEASE_S)
                add_chaos(report, found, chaos.trouble)
        stopwatch.lap("report", "report read by SQL")
    stopwatch.lap("stop", "everything stopped")
    if settings.keep:
        console.print(f"data and logs are in {settings.keep}; to look: jm up --data {settings.keep} --app {APP}")
    report.steps_s, report.wall_s = stopwatch.steps_s, stopwatch.wall_s
    return report


async def _start(cluster: DemoCluster, stopwatch: Stopwatch) -> None:
    """Workers come up while Postgres does. Each ``await`` is a place where a Ctrl-C takes effect."""
    cluster.start_nats()
    stopwatch.lap("nats", f"NATS at {cluster.nats_url}")
    await asyncio.sleep(0)
    cluster.start_workers()
    cluster.start_postgres()
    stopwatch.lap("postgres", f"Postgres at {cluster.dsn}")
    await migrate(cluster.dsn)
    stopwatch.lap("migrate", "schema migrated")
    cluster.start_coordinator()


async def _until_ready(cluster: DemoCluster, client: JobClient) -> None:
    """Return when the workers have opened their buckets and a coordinator leads.

    Raises:
        ProcessEndedError: one of them never will.
        TimeoutError: they should have, long ago.
    """
    async with asyncio.timeout(READY_WITHIN_S):
        while not (cluster.workers_are_ready and await _is_led(client)):
            cluster.check()
            await asyncio.sleep(READY_POLL_S)


async def _is_led(client: JobClient) -> bool:
    try:
        await client.api.counts()
    except NoCoordinatorError:
        return False
    return True


async def _work(
    cluster: DemoCluster,
    client: JobClient,
    connection: "Connection",
    work: Workload,
    console: Console,
    *,
    chaos: Chaos | None,
) -> Submitted:
    """Submit, and return when all has ended or nothing moves any more."""
    submitted = Submitted()
    if chaos:
        phases = {"work": submit_slowly(client, cluster.nats_url, work, submitted, chaos.done)}
    else:
        phases = {"work": submit_work(client, cluster.nats_url, work, submitted)}
    if work.no_ops:
        phases["no_ops"] = submit_no_ops(client, work.no_ops, submitted)
    with Display(console, work.jobs) as display:
        watcher = Watcher(connection, display, submitted, cluster.check)
        for submitting in phases.values():
            await watcher.until_ended(submitting)
    return submitted


@asynccontextmanager
async def _beside(companion: Companion | None, cluster: DemoCluster) -> AsyncIterator[None]:
    task = asyncio.ensure_future(companion(cluster)) if companion else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _connected(dsn: str) -> "AsyncIterator[Connection]":
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        connection.terminate()  # it has nothing to say any more, and the server may be gone already


@contextmanager
def _cancelled_by_signals(main: "asyncio.Task[Report]", console: Console) -> Iterator[None]:
    """The first signal cancels; further ones change nothing, the way out is short."""
    loop = asyncio.get_running_loop()

    def received() -> None:
        if not main.cancelling():
            main.cancel()  # first: the terminal may be gone, which is what SIGHUP says
            console.print("\nstopping ...")

    for number in SIGNALS:
        loop.add_signal_handler(number, received)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
