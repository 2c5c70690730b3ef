"""The engine without NATS: jobs in by ``accept``, reports out by a reporter that writes them down."""

import asyncio
import functools
import itertools
from typing import ClassVar

import msgspec
from msgspec import Raw

from jm_core.model import Priority
from jm_core.wire import EventBatch, Finished, Quarantined, Returned, Run
from jm_nats.worker.engine import Engine
from jm_nats.worker.execution import Ask, Executors
from jm_nats.worker.outcomes import BucketPort, Delivery
from tests.support.virtual_time import VirtualLoop, WallClock, on_loop

LONG_S = 7 * 86_400.0  # for what runs on real threads: virtual time runs while they do
ENDS = (Finished, Quarantined, Returned)


class Reporter:
    """Writes down what it is told; also checks that it could be sent."""

    def __init__(self):
        self.events = []
        self.ends = []
        self.reports = []
        self.reports_s = []
        self.on_progress = lambda: None
        self.acked = []
        self.changed = asyncio.Event()

    def add(self, event, *, size=200):
        assert len(msgspec.json.encode(EventBatch("b", 1, "w", [event]))) <= size + 400
        self.events.append(event)
        if isinstance(event, ENDS):
            self.ends.append(event)
        self.changed.set()

    async def stored(self):
        pass

    def discard(self):
        self.add = lambda *_, **__: None

    def progress(self, event):
        msgspec.json.encode(event)
        self.reports.append(event)
        self.reports_s.append(asyncio.get_running_loop().time())
        self.on_progress()

    def done(self, delivery):
        delivery.left -= 1
        assert delivery.left >= 0, "acked twice"
        if not delivery.left:
            self.acked.append(delivery)


class Bench:
    """An engine, a port for every priority, and short words for what tests do with them."""

    used: ClassVar[list["Bench"]] = []

    def __init__(self, app, *, slots=10, grace_s=5.0, process_slots=2):
        self.clock = WallClock()
        self.reporter = Reporter()
        self.executors = Executors(process_slots)
        self.rooms = 0
        self.trusted = True
        self.engine = Engine(
            app.handlers,
            slots=slots,
            executors=self.executors,
            clock=self.clock,
            cancel_grace_s=grace_s,
            on_room=self._count_room,
            may_start=lambda: self.trusted,
        )
        self.ports = {p: BucketPort(f"b-{p.label}", "default", p, self.reporter) for p in Priority}
        self.numbers = itertools.count(1)
        self.used.append(self)

    async def leave(self):
        """End what a test left running."""
        self.close()
        self.engine.ask(Ask.SHUTDOWN)
        await self.until_idle()
        self.executors.close()

    def close(self):
        for port in self.ports.values():
            self.engine.close(port)

    def _count_room(self):
        self.rooms += 1

    def run(self, handler, args=None, *, job_id=None, in_s=0.0, timeout_s=300.0, attempt=1, max_attempts=4, **fields):
        raw = args if isinstance(args, bytes) else msgspec.json.encode(args or {})
        due = self.clock.now() + in_s
        name = job_id or f"job-{next(self.numbers)}"
        return Run(name, handler, Raw(raw), fields.pop("dispatch", 1), attempt, max_attempts, due, timeout_s, **fields)

    def accept(self, *runs, priority=Priority.MEDIUM):
        delivery = Delivery(None, len(runs))
        self.engine.accept(list(runs), self.ports[priority], delivery)
        return delivery

    def start(self, handler, args=None, **how):
        priority = how.pop("priority", Priority.MEDIUM)
        run = self.run(handler, args, **how)
        self.accept(run, priority=priority)
        return run

    @property
    def ends(self):
        return self.reporter.ends

    async def until_ended(self, count=1):
        while len(self.ends) < count:
            self.reporter.changed.clear()
            await self.reporter.changed.wait()
        return self.ends

    async def only_end(self):
        [event] = await self.until_ended()
        return event

    async def outcome_of(self, handler, args=None, **how):
        how.setdefault("timeout_s", LONG_S)
        self.start(handler, args, **how)
        return await self.only_end()

    async def until_idle(self):
        while self.engine.running:
            await asyncio.sleep(0.01)

    def assert_empty(self):
        engine = self.engine
        assert (engine.held, engine.running, engine.held_bytes, engine.unreported()) == (0, 0, 0, 0)
        assert set(engine._running_by.values()) == {0}
        assert set(engine._waiting.values()) == {0}
        assert not any(engine._ready.values())
        assert not engine._later
        assert not engine._open
        assert asyncio.all_tasks() == {asyncio.current_task()}


def left_tidy(test):
    """A test after which nothing of its benches is left running."""

    @functools.wraps(test)
    async def run(*args, **kwargs):
        Bench.used.clear()
        try:
            await test(*args, **kwargs)
        finally:
            for bench in Bench.used:
                await bench.leave()

    return run


def scenario(test):
    return on_loop(VirtualLoop, left_tidy(test))


def in_real_time(test):
    """For child processes: anyio gives them some seconds of the loop's time to start."""
    return on_loop(asyncio.SelectorEventLoop, left_tidy(test))
