"""Reports of one bucket: events leave in batches, and a run message is acked only after its events are stored."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from nats.aio.msg import Msg

from jm_core import limits, wire
from jm_core.model import Priority
from jm_core.wire import Event, EventBatch, Progress
from jm_nats import telemetry
from jm_nats.errors import AgentError
from jm_nats.publisher import JetPublisher
from jm_nats.pull import ack
from jm_nats.troubles import trouble

log = logging.getLogger("jobmaster.worker")

EVENTS_PER_MESSAGE: Final = 500
EVENT_BYTES_MAX: Final = 480 * 1024  # the message limit less its envelope
LINGER_S: Final = 0.005
RETRY_PAUSE_S: Final = 0.5


class Delivery:
    """One run message and how many of its jobs are still under way."""

    __slots__ = ("left", "message")

    def __init__(self, message: Msg, jobs: int) -> None:
        self.message = message
        self.left = jobs


class Reporter:
    """Collects the events of one bucket and carries them to the events stream, in order, at least once."""

    def __init__(self, publisher: JetPublisher, subject: str, *, bucket: str, epoch: int, worker: str) -> None:
        self._publisher = publisher
        self._subject = subject
        self._envelope = (bucket, epoch, worker)
        self._events: list[Event] = []
        self._progress: dict[str, Progress] = {}
        self._sizes: list[int] = []  # of each event, about
        self._size = 0  # their sum
        self._acks: list[Delivery] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._added = 0
        self._stored = 0
        self._progressed = asyncio.Event()
        self._discards = False

    @property
    def waiting(self) -> int:
        """Events not yet stored."""
        return 0 if self._discards else self._added - self._stored

    def add(self, event: Event, *, size: int = 200) -> None:
        """Queue one event; ``size`` is a rough count of its bytes."""
        if self._discards:
            return
        self._added += 1
        self._sizes.append(size)
        self._size += size
        if not self._events:  # else whoever sends them knows
            self._idle.clear()
            self._wake.set()
        self._events.append(event)

    def progress(self, event: Progress) -> None:
        """Queue progress; only the newest of a job is kept until the next flush."""
        if self._discards:
            return
        self._progress[event.id] = event
        self._idle.clear()
        self._wake.set()

    def done(self, delivery: Delivery) -> None:
        """One job of ``delivery`` needs no more; with the last one the message is acked after the next flush."""
        delivery.left -= 1
        if not delivery.left and not self._discards:
            self._acks.append(delivery)
            self._idle.clear()
            self._wake.set()

    async def flushed(self) -> None:
        """Return when everything queued so far is stored and acked."""
        await self._idle.wait()

    async def stored(self) -> None:
        """Return when every event queued so far is in NATS (or is to be discarded)."""
        target = self._added
        while self._stored < target and not self._discards:
            await self._progressed.wait()

    def discard(self) -> None:
        """From now on nothing is reported and nothing acked: the bucket is somebody else's, or we have halted."""
        self._discards = True
        self._events, self._sizes, self._size = [], [], 0
        self._acks, self._progress = [], {}
        self._progressed.set()
        self._idle.set()

    async def run(self) -> None:
        """Flush until cancelled. The first event after a pause leaves at once; under load batches fill for 5 ms."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush()
            if self._events or self._acks or self._progress:
                self._wake.set()
                if len(self._events) < EVENTS_PER_MESSAGE:
                    await asyncio.sleep(LINGER_S)
            else:
                self._idle.set()

    async def _flush(self) -> None:
        before = len(self._events)
        events, acks = self._take()
        taken = before - len(self._events)  # progress is not counted
        for data in self._messages(events):
            await self._store(data)
        self._stored += taken
        self._progressed.set()
        self._progressed = asyncio.Event()
        if not self._discards:
            for delivery in acks:
                ack(delivery.message)

    def _take(self) -> tuple[list[Event], list[Delivery]]:
        """The next message's events, and the acks that need nothing beyond them."""
        if len(self._events) <= EVENTS_PER_MESSAGE and self._size <= EVENT_BYTES_MAX:
            events: list[Event] = [*self._events, *self._progress.values()]
            acks = self._acks
            self._events, self._sizes, self._size, self._acks, self._progress = [], [], 0, [], {}
            return events, acks
        # Too much for one message: acks wait for the last part, so none is early.
        count, size = 1, self._sizes[0]
        for more in self._sizes[1:EVENTS_PER_MESSAGE]:
            if size + more > EVENT_BYTES_MAX:
                break
            count += 1
            size += more
        events = self._events[:count]
        del self._events[:count], self._sizes[:count]
        self._size -= size
        return events, []

    def _messages(self, events: list[Event]) -> Iterator[bytes]:
        """One message; or several where the sizes were guessed too low (progress is not counted, JSON escapes): NATS
        refuses what is too large however often it is sent.
        """
        if not events:
            return
        data = wire.encode(EventBatch(*self._envelope, events))
        if len(data) <= limits.MESSAGE_BYTES_MAX or len(events) == 1:
            yield data
            return
        half = len(events) // 2
        yield from self._messages(events[:half])
        yield from self._messages(events[half:])

    async def _store(self, data: bytes) -> None:
        while not self._discards:
            try:
                await self._publisher.publish(self._subject, data)
            except AgentError as error:
                # NATS is away. Outcomes are the one thing that must not be dropped: keep and try again, for ever.
                trouble(log, "events wait for NATS", {"subject": self._subject, "problem": str(error)})
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return


class BucketPort:
    """What an attempt knows of its bucket: who it is, and where its reports go."""

    __slots__ = ("bucket", "closed", "lane", "measures", "priority", "reporter", "running")

    def __init__(self, bucket: str, lane: str, priority: Priority, reporter: Reporter) -> None:
        self.bucket = bucket
        self.lane = lane
        self.priority = priority
        self.reporter = reporter
        self.measures = telemetry.RouteMeasures(lane, priority.label)
        self.closed = False  # nothing more is started: what comes goes back
        self.running = 0
