"""The worker's side loops: what they cannot do at the moment must not end the worker (BR-013)."""

import asyncio
from collections import deque
from datetime import UTC, datetime

import pytest
from msgspec import Raw

from jm_core import limits, wire
from jm_core.model import AttemptOutcome, Priority
from jm_core.wire import Finished, Progress, Run, WorkerRecord
from jm_nats.clock import CorrectedClock
from jm_nats.errors import AgentUnavailableError, PayloadTooLargeError
from jm_nats.kv import Entry
from jm_nats.worker import neighbours, watching
from jm_nats.worker.engine import Held
from jm_nats.worker.outcomes import BucketPort, Reporter

AWAY = AgentUnavailableError("nats://here", "gone for a moment", remedy="wait")
NATS_PAYLOAD_MAX = 1024 * 1024


class Engine:
    """One job has waited for long."""

    def __init__(self):
        run = Run("job-1", "h", Raw(b"{}"), 1, 1, 4, 0.0, 300.0)
        self.waiting = [Held(run, BucketPort("b", "default", Priority.MEDIUM, None), None, float("-inf"))]
        self.handed_back = asyncio.Event()

    def waiting_since(self):
        return self.waiting

    def hand_back(self, chosen, _reason):
        assert chosen == self.waiting
        self.waiting = []
        self.handed_back.set()


class Kv:
    def __init__(self, *answers):
        self.answers = deque(answers)

    async def entries(self):
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return [Entry(key, value, 1, datetime(2026, 1, 1, tzinfo=UTC)) for key, value in answer]


async def test_neighbours_that_cannot_be_read_are_asked_for_again(monkeypatch):
    idle = WorkerRecord("w2", "i", "host", 1, 0.0, 10, ["default"], ["h"])
    kv = Kv(AWAY, [("of-another-version", b"[1]"), ("w2", wire.encode(idle))])
    monkeypatch.setattr(neighbours, "LOOK_S", 0.001)
    engine = Engine()
    rebalancing = asyncio.create_task(neighbours.Neighbours(kv, engine, "w1").run())
    handed_back = asyncio.create_task(engine.handed_back.wait())
    await asyncio.wait({rebalancing, handed_back}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    rebalancing.cancel()
    assert engine.handed_back.is_set()


async def test_a_clock_that_cannot_be_measured_is_measured_again(monkeypatch):
    class Link:
        connected = True

    measured = asyncio.Event()
    answers = deque([AWAY])

    async def measure(_link, _clock):
        if answers:
            raise answers.popleft()
        measured.set()

    monkeypatch.setattr(watching, "CLOCK_CHECK_S", 0.001)
    monkeypatch.setattr(watching, "measure_clock", measure)
    clock_watch = asyncio.create_task(watching.watch_clock(Link(), CorrectedClock()))
    waiting = asyncio.create_task(measured.wait())
    await asyncio.wait({clock_watch, waiting}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    clock_watch.cancel()
    assert measured.is_set()


class Publisher:
    """Refuses what NATS would, and keeps the rest."""

    def __init__(self):
        self.events = []

    async def publish(self, subject, data):
        if len(data) > NATS_PAYLOAD_MAX:
            raise PayloadTooLargeError(subject, len(data), NATS_PAYLOAD_MAX)
        self.events += wire.decode_events(data).events


@pytest.mark.parametrize("what", ["progress of 1,000 jobs", "errors that JSON writes six times as long"])
async def test_reports_that_come_out_larger_than_guessed_leave_all_the_same(what):
    publisher = Publisher()
    reporter = Reporter(publisher, "events", bucket="b", epoch=1, worker="w")
    if what.startswith("progress"):
        for number in range(1_000):
            reporter.progress(
                Progress(f"job-{number}", 1, 0.0, 0.5, "\N{GRINNING FACE}" * limits.PROGRESS_NOTE_CHARS_MAX)
            )
    else:
        error = "\x1b" * (limits.ERROR_BYTES_MAX // 4)
        for number in range(100):
            reporter.add(
                Finished(f"job-{number}", 1, 1, AttemptOutcome.FAILED, 0.0, 1.0, None, error), size=200 + 2 * len(error)
            )
    count = 1_000 if what.startswith("progress") else 100
    running = asyncio.create_task(reporter.run())
    try:
        async with asyncio.timeout(5):
            await reporter.flushed()
    finally:
        running.cancel()
    assert [event.id for event in publisher.events] == [f"job-{number}" for number in range(count)]
