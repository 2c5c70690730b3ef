"""What ``jm top`` shows: the records and the counts, looked at again and again, and the speed between heartbeats."""

import asyncio
import time
from collections.abc import Iterable

from msgspec import Struct, structs

from jm_core.api import UnservedKind
from jm_core.errors import JmError
from jm_nats.api_client import NoCoordinatorError
from jm_nats.census import BucketView, Census, GoneWorker, Unreadable, WorkerView, read_census
from jm_nats.client import JobClient
from jm_nats.config import NatsConfig
from jm_nats.connection import NatsLink
from jm_nats.errors import AgentUnavailableError


class TopWorker(WorkerView, frozen=True):
    finished_per_s: float | None = None  # between its last two heartbeats; None: only one was seen


class TopView(Struct, frozen=True):
    """One moment. ``data_age_s`` and ``jobs_age_s``: since the records and the counts were read; None: never."""

    cluster: str
    connected: bool
    problem: str  # why the records are not as of now
    data_age_s: float | None
    jobs: dict[str, int] | None  # by state
    rejected: int | None
    jobs_age_s: float | None
    jobs_problem: str  # why the counts are not as of now
    finished_per_s: float | None
    workers: list[TopWorker]
    gone: list[GoneWorker]
    buckets: list[BucketView]
    unreadable: list[Unreadable]
    unserved: list[UnservedKind] = []  # due jobs that no bucket takes, as old as ``jobs``


class _Beat(Struct, frozen=True):
    incarnation: str
    at: float
    finished: int


class Rates:
    """Ends a second of each worker, from how ``finished`` grew from one heartbeat to the next.

    Heartbeats are rarer than looks may be: the speed stays until the next one comes.
    """

    def __init__(self) -> None:
        self._beats: dict[str, _Beat] = {}
        self._rates: dict[str, float] = {}

    def update(self, workers: Iterable[WorkerView], at: float) -> dict[str, float]:
        """By worker; without those seen once only."""
        beats = {view.worker: _Beat(view.incarnation, at - view.beat_age_s, view.finished) for view in workers}
        rates = {}
        for worker, beat in beats.items():
            last = self._beats.get(worker)
            if last is None or last.incarnation != beat.incarnation:
                continue
            took_s = beat.at - last.at
            if took_s < 0.05:  # the same one: our measure of the server's clock is not exact to the millisecond
                beats[worker] = last
                if worker in self._rates:
                    rates[worker] = self._rates[worker]
            else:
                rates[worker] = max(0, beat.finished - last.finished) / took_s
        self._beats, self._rates = beats, rates
        return rates


class Feed:
    """``run`` looks; ``view`` is what is known at this moment. ``looked`` is set after the first look, good or bad."""

    def __init__(self, cluster: str) -> None:
        self.looked = asyncio.Event()
        self._cluster = cluster
        self._link: NatsLink | None = None
        self._rates = Rates()
        self._rate_of: dict[str, float] = {}
        self._census: Census | None = None
        self._census_s = 0.0
        self._problem = ""
        self._jobs: dict[str, int] | None = None
        self._rejected: int | None = None
        self._unserved: list[UnservedKind] = []
        self._jobs_s = 0.0
        self._jobs_problem = ""

    async def run(self, config: NatsConfig, interval_s: float) -> None:
        """Look until cancelled; a NATS that is away is waited for.

        Raises:
            JmError: waiting does not help.
        """
        while True:
            try:
                async with JobClient(self._cluster, config) as client:
                    while True:
                        await self._try_to_look(client)
                        await asyncio.sleep(interval_s)
            except AgentUnavailableError as error:  # there was no connection yet
                self._failed(error)
                await asyncio.sleep(interval_s)

    async def look(self, client: JobClient) -> None:
        """Once.

        Raises:
            ClusterUnknownError, AgentError.
        """
        self._link = client.link
        census = await read_census(client.link, client.names)
        self._census, self._census_s, self._problem = census, time.monotonic(), ""
        self._rate_of = self._rates.update(census.workers, census.at)
        try:
            counts = await client.api.counts()
            unserved = (await client.api.unserved()).unserved
        except JmError as error:
            self._jobs_problem = "no coordinator answers" if isinstance(error, NoCoordinatorError) else str(error)
        else:
            self._jobs, self._rejected = counts.by_status, counts.rejected
            self._unserved, self._jobs_s, self._jobs_problem = unserved, time.monotonic(), ""
        self.looked.set()

    def view(self) -> TopView:
        census, now_s = self._census, time.monotonic()
        connected = self._link is not None and self._link.connected
        age_s = now_s - self._census_s
        rates = self._rate_of
        return TopView(
            cluster=self._cluster,
            connected=connected,
            problem=self._problem or ("" if connected else "no connection to NATS"),
            data_age_s=age_s if census else None,
            jobs=self._jobs,
            rejected=self._rejected,
            jobs_age_s=None if self._jobs is None else now_s - self._jobs_s,
            jobs_problem=self._jobs_problem,
            finished_per_s=sum(rates.values()) if rates else None,
            workers=[_aged(view, rates.get(view.worker), age_s) for view in census.workers] if census else [],
            gone=census.gone if census else [],
            buckets=census.buckets if census else [],
            unreadable=census.unreadable if census else [],
            unserved=self._unserved,
        )

    async def _try_to_look(self, client: JobClient) -> None:
        try:
            await self.look(client)
        except AgentUnavailableError as error:
            self._failed(error)

    def _failed(self, error: AgentUnavailableError) -> None:
        self._problem = str(error)
        self.looked.set()


def _aged(view: WorkerView, rate: float | None, age_s: float) -> TopWorker:
    """Its heartbeat has grown older since we looked."""
    fields = structs.asdict(view) | {"beat_age_s": view.beat_age_s + age_s}
    return TopWorker(**fields, finished_per_s=rate)
