"""``jm demo --chaos``: hurts the running cluster, one fault after the other, and watches until it has recovered.

What a fault hits is read from Postgres: the jobs in the buckets of the worker that is hurt, each with its dispatch
number. It has recovered when every one of them has ended, or runs under a later dispatch: elsewhere, that is.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg
from msgspec import Struct, field
from rich.console import Console

from jm_cli.children import Child
from jm_cli.demo import queries
from jm_cli.demo.app import jm
from jm_cli.demo.cluster import DemoCluster
from jm_core.model import JobStatus
from jm_nats.census import Census, WorkerView, read_census
from jm_nats.client import JobClient
from jm_nats.errors import AgentError

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]  # generic in the stubs only

T = TypeVar("T")

LEASE_S: Final = 3.0
HEARTBEAT_S: Final = 0.75
PROMISED_S: Final = LEASE_S + 2.0  # from a worker's death to the last of its jobs running elsewhere (DESIGN 1, P4)
WARM_UP_S: Final = 4.0
FROZEN_S: Final = LEASE_S + 3.0
RESTART_AFTER_S: Final = 1.0  # a process manager takes a moment, too
CALM_S: Final = 1.0  # between two faults
GIVE_UP_S: Final = 45.0
POLL_S: Final = 0.1
HITS_MIN: Final = 3  # a fault that hits no job shows nothing

assert LEASE_S >= 3 * HEARTBEAT_S


class Fault(Struct):
    """``hit``: jobs that it had in its hands, by id with the dispatch number; ``promised_s``: None where none is."""

    name: str
    process: str
    at: float  # seconds since the epoch
    promised_s: float | None
    hit: dict[str, int] = field(default_factory=dict)
    over_at: float | None = None  # when the process was back; what it did before cannot count


class Chaos:
    """A companion of the demo. ``done`` is set at its end, however it ends; ``trouble`` says why it did not finish."""

    def __init__(self, console: Console) -> None:
        self.faults: list[Fault] = []
        self.done = asyncio.Event()
        self.trouble = "the faults were not all carried out"
        self._console = console

    async def run(self, cluster: DemoCluster) -> None:
        try:
            async with JobClient(jm.cluster, cluster.nats_config) as client, _connected(cluster.dsn) as connection:
                await _Faults(self, cluster, client, connection).carry_out()
            self.trouble = ""
        except Exception as error:  # noqa: BLE001 - whatever it is, the demo goes on to its end and says so
            self.trouble += f": {error!r}"
        finally:
            self.done.set()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)


class _Faults:
    """The faults in order, with what they need."""

    def __init__(self, chaos: Chaos, cluster: DemoCluster, client: JobClient, connection: "Connection") -> None:
        self._chaos = chaos
        self._cluster = cluster
        self._client = client
        self._connection = connection

    async def carry_out(self) -> None:
        await asyncio.sleep(WARM_UP_S)
        await self._calm(await self._kill(*await self._busiest()))
        await self._calm(await self._freeze(*await self._busiest()))
        await self._restart_nats()

    async def _calm(self, fault: Fault) -> None:
        """Until all that it hit has ended: a job that two workers died with is suspected of it, and waits its turn."""

        async def ended() -> bool:
            return bool(await self._connection.fetchval(queries.ALL_ENDED, list(fault.hit)))

        await self._until(ended, f"what {fault.name} {fault.process} hit has ended")
        await asyncio.sleep(CALM_S)

    async def _kill(self, child: Child, worker: WorkerView) -> Fault:
        self._cluster.kill(child)
        fault = self._begin("kill -9", child.name, PROMISED_S)
        restarting = asyncio.create_task(self._start_again(child, fault))
        try:
            await self._until_elsewhere(fault, worker.buckets)
            await restarting
        finally:
            restarting.cancel()
        return fault

    async def _freeze(self, child: Child, worker: WorkerView) -> Fault:
        """Long enough to be taken for dead; then it goes on as if nothing had been."""
        child.signal(signal.SIGSTOP)
        fault = self._begin("kill -STOP", child.name, PROMISED_S)
        thaws_s = time.monotonic() + FROZEN_S
        try:
            await self._until_elsewhere(fault, worker.buckets)
            await asyncio.sleep(max(0.0, thaws_s - time.monotonic()))
        finally:
            child.signal(signal.SIGCONT)
        fault.over_at = time.time()
        self._chaos.say(f"  {child.name} goes on, {fault.over_at - fault.at:.1f} s later")
        await self._until(lambda: self._serves(child, without=worker.buckets), f"{child.name} serves again")
        return fault

    async def _restart_nats(self) -> None:
        """Blocks the event loop for a moment: no signal can come between stop and start."""
        fault = self._begin("restart", "nats", None)
        await self._note_unstarted(fault)
        self._cluster.restart_nats()
        fault.over_at = time.time()
        await self._until(lambda: self._all_started(fault), "the jobs that were in NATS have started")

    # -- parts of a fault

    def _begin(self, name: str, process: str, promised_s: float | None) -> Fault:
        fault = Fault(name, process, time.time(), promised_s)
        self._chaos.faults.append(fault)
        self._chaos.say(f"chaos: {name} {process}")
        return fault

    async def _busiest(self) -> tuple[Child, WorkerView]:
        """The process that runs most jobs, once one runs some.

        Raises:
            TimeoutError: none ever does.
        """

        async def busiest() -> tuple[Child, WorkerView] | None:
            counted = [(await self._running_jobs(worker), (child, worker)) for child, worker in await self._pairs()]
            count, pair = max(counted, key=lambda one: one[0], default=(0, None))
            return pair if count >= HITS_MIN else None

        return await self._until(busiest, "a worker runs jobs")

    async def _running_jobs(self, worker: WorkerView) -> int:
        rows = await self._connection.fetch(queries.IN_BUCKETS, worker.buckets)
        return sum(row["status"] == JobStatus.PROCESSING for row in rows)

    async def _pairs(self) -> list[tuple[Child, WorkerView]]:
        seen = [(child, await self._worker(child)) for child in self._cluster.workers]
        return [(child, worker) for child, worker in seen if worker is not None]

    async def _until_elsewhere(self, fault: Fault, buckets: list[str]) -> None:
        """Return when all that was in ``buckets`` has ended or runs elsewhere, and nobody puts more into them."""

        async def elsewhere() -> bool:
            rows = await self._connection.fetch(queries.IN_BUCKETS, buckets)
            fault.hit |= {row["id"]: row["dispatch"] for row in rows}
            if rows:
                return False
            ids, dispatches = list(fault.hit), list(fault.hit.values())
            return bool(await self._connection.fetchval(queries.ALL_ELSEWHERE, ids, dispatches))

        await self._until(elsewhere, f"what {fault.process} held runs elsewhere")

    async def _start_again(self, child: Child, fault: Fault) -> None:
        await asyncio.sleep(RESTART_AFTER_S)
        self._cluster.start_again(child)
        await self._until(lambda: self._serves(child, without=[]), f"{child.name} serves again")
        fault.over_at = time.time()
        self._chaos.say(f"  {child.name} is back")

    async def _serves(self, child: Child, *, without: list[str]) -> bool:
        worker = await self._worker(child)
        return worker is not None and bool(set(worker.buckets) - set(without))

    async def _worker(self, child: Child) -> WorkerView | None:
        """By its pid: ids are made anew with every start."""
        census = await self._census()
        return next((view for view in census.workers if view.pid == child.pid), None) if census else None

    async def _census(self) -> Census | None:
        try:
            return await read_census(self._client.link, self._client.names)
        except AgentError:
            return None

    async def _note_unstarted(self, fault: Fault) -> None:
        rows = await self._connection.fetch(queries.UNSTARTED_IN_NATS)
        fault.hit = {row["id"]: row["dispatch"] for row in rows}

    async def _all_started(self, fault: Fault) -> bool:
        """Also those submitted while it was away."""
        assert fault.over_at is not None
        rows = await self._connection.fetch(queries.QUEUED_BETWEEN, fault.at, fault.over_at + 1)
        fault.hit |= {row["id"]: 0 for row in rows if row["id"] not in fault.hit}
        if not fault.hit or time.time() < fault.over_at + LEASE_S:  # what came in then is still being saved
            return False
        return bool(await self._connection.fetchval(queries.ALL_STARTED, list(fault.hit)))

    async def _until(self, condition: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Its first true value.

        Raises:
            TimeoutError: not within ``GIVE_UP_S``; says ``what``.
        """
        deadline = time.monotonic() + GIVE_UP_S
        while not (value := await condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {GIVE_UP_S:g} s: {what}")
            await asyncio.sleep(POLL_S)
        return value


@asynccontextmanager
async def _connected(dsn: str) -> "AsyncIterator[Connection]":
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        connection.terminate()
