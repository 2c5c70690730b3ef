"""The worker's engine without NATS: jobs in by ``accept``, reports out by a reporter that writes them down."""

import asyncio
import dataclasses
import itertools
import json
import logging
import math
import re
import sys
import threading
from collections import Counter
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

import anyio
import msgspec
import pytest
from msgspec import Raw

from jm_core import limits
from jm_core.model import WEIGHTS, AttemptOutcome, Priority, ReturnReason
from jm_core.wire import Finished, Progress, Quarantined, Returned, Started
from jm_nats import JobMaster, log_context, telemetry
from jm_nats.context import JobContext, NoRetry, Retry
from jm_nats.errors import AgentError
from jm_nats.worker import engine as engine_module
from jm_nats.worker.entrance import Entrance
from jm_nats.worker.execution import Ask
from tests.support import process_handlers
from tests.support.engine_bench import LONG_S, Bench, Reporter, in_real_time, scenario
from tests.support.virtual_time import EPOCH_S


@pytest.fixture(params=["in a common task", "in its own"], autouse=True)
def first_step(request, monkeypatch):
    """Where an attempt begins: what its handler did before decides, and nobody may notice."""
    if request.param == "in its own":
        own = lambda entrance, execution: entrance._loop.create_task(execution.run_whole(), context=execution.variables)  # noqa: E731
        monkeypatch.setattr(Entrance, "add", own)


@pytest.fixture
def app():
    return JobMaster("c")


def noop(app, name="noop"):
    @app.handler(name)
    async def function(**_):
        pass

    return function


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


# -- when jobs start


@scenario
async def test_a_job_never_starts_early_and_hardly_late(app):
    started = {}

    @app.handler("note")
    async def note(ctx: JobContext):
        started[ctx.job_id] = bench.clock.now()

    bench = Bench(app, slots=1_000)
    runs = [bench.run("note", in_s=(n * 7919 % 1000) / 7) for n in range(500)]
    for run in runs:
        bench.accept(run)
    await bench.until_ended(500)
    late = [started[run.id] - run.run_at for run in runs]
    assert min(late) >= 0
    assert max(late) < 0.002


@scenario
async def test_what_ran_for_hours_before_it_was_interrupted_is_not_measured_as_late(app, monkeypatch):
    noop(app)
    late_s = []
    monkeypatch.setattr(telemetry.Active, "metering", True)
    note = lambda _, late, *, was_due_at_once: late_s.append((round(late), was_due_at_once))  # noqa: E731
    monkeypatch.setattr(telemetry.RouteMeasures, "started", note)
    bench = Bench(app)
    bench.start("noop", in_s=-10_800, attempt=2, has_run=True, due_at_once=True)
    bench.start("noop", in_s=-30, attempt=2)
    bench.start("noop", in_s=-20, due_at_once=True)
    await bench.until_ended(3)
    assert sorted(late_s) == [(20, True), (30, False)]


@scenario
async def test_a_job_waits_for_a_clock_that_was_set_back(app):
    noop(app)
    bench = Bench(app)
    run = bench.start("noop", in_s=10)
    await asyncio.sleep(9)
    bench.clock.shift_s = -5
    end = await bench.only_end()
    assert end.started_at >= run.run_at
    assert asyncio.get_running_loop().time() >= 15


@scenario
async def test_a_clock_that_jumps_forward_is_noticed_within_a_second(app):
    noop(app)
    bench = Bench(app)
    bench.start("noop", in_s=600)
    await asyncio.sleep(5)
    bench.clock.shift_s = 3_600  # a laptop that slept
    await bench.only_end()
    assert asyncio.get_running_loop().time() <= 6.01


@scenario
async def test_an_earlier_job_that_comes_later_does_not_wait_for_the_later_one(app):
    noop(app)
    bench = Bench(app)
    late = bench.start("noop", in_s=100)
    early = bench.start("noop", in_s=1)
    ends = await bench.until_ended(2)
    assert [end.id for end in ends] == [early.id, late.id]
    assert ends[0].started_at < early.run_at + 0.01


@scenario
async def test_jobs_of_one_priority_start_in_the_order_they_came(app):
    noop(app)
    bench = Bench(app, slots=1)
    runs = [bench.run("noop") for _ in range(50)]
    bench.accept(*runs)
    assert [end.id for end in await bench.until_ended(50)] == [run.id for run in runs]


@scenario
async def test_never_more_jobs_run_than_there_are_slots_and_never_fewer_while_some_wait(app):
    running = Counter()

    @app.handler("count")
    async def count():
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        await asyncio.sleep(1)
        running["now"] -= 1

    bench = Bench(app, slots=7)
    bench.accept(*[bench.run("count") for _ in range(70)])
    await bench.until_ended(70)
    assert running["most"] == 7
    assert asyncio.get_running_loop().time() == pytest.approx(10, abs=0.1)


@scenario
async def test_with_every_priority_waiting_slots_and_starts_settle_at_the_weights(app):
    @app.handler("second")
    async def second():
        await asyncio.sleep(1)

    bench = Bench(app, slots=19)
    started = Counter()
    for priority in Priority:
        runs = [bench.run("second", job_id=f"{priority.label}-{n}") for n in range(400)]
        bench.accept(*runs, priority=priority)
    for event in (await bench.until_ended(19 * 40))[19 * 5 :]:  # the first of them had the slots for themselves
        started[event.id.rpartition("-")[0]] += 1
    for priority in Priority:
        assert started[priority.label] / started.total() == pytest.approx(WEIGHTS[priority] / 19, rel=0.1)


@scenario
async def test_one_slot_serves_every_priority(app):
    noop(app)
    bench = Bench(app, slots=1)
    for priority in Priority:
        bench.accept(*[bench.run("noop", job_id=f"{priority.label}-{n}") for n in range(100)], priority=priority)
    first = {event.id.rpartition("-")[0] for event in (await bench.until_ended(40))[:40]}
    assert first == {priority.label for priority in Priority}


@scenario
async def test_an_idle_share_is_lent_out(app):
    @app.handler("second")
    async def second():
        await asyncio.sleep(1)

    bench = Bench(app, slots=10)
    bench.accept(*[bench.run("second") for _ in range(10)], priority=Priority.VERY_LOW)
    assert bench.engine.running == 10


@scenario
async def test_what_waits_for_a_slot_is_listed_with_since_when(app):
    @app.handler("forever")
    async def forever():
        await asyncio.sleep(10_000)

    bench = Bench(app, slots=1)
    bench.accept(*[bench.run("forever") for _ in range(3)])
    bench.start("forever", in_s=100)
    await asyncio.sleep(50)
    assert [held.since_s for held in bench.engine.waiting_since()] == [0.0, 0.0]
    await asyncio.sleep(51)
    assert [round(held.since_s) for held in bench.engine.waiting_since()] == [0, 0, 100]


# -- one message, several jobs; messages that come twice


@scenario
async def test_a_message_is_acked_when_its_last_job_is_done(app):
    @app.handler("wait")
    async def wait(seconds: float):
        await asyncio.sleep(seconds)

    bench = Bench(app)
    delivery = bench.accept(*[bench.run("wait", {"seconds": n}) for n in (1, 2, 3)])
    await bench.until_ended(2)
    assert bench.reporter.acked == []
    await bench.until_ended(3)
    assert bench.reporter.acked == [delivery]


@scenario
async def test_a_copy_of_a_job_runs_once_and_is_acked_only_when_the_job_has_ended(app):
    noop(app)
    bench = Bench(app)
    for in_s in (0, 10):  # running, and held
        run = bench.run("noop", in_s=in_s)
        first, second = bench.accept(run), bench.accept(run)
        assert bench.reporter.acked == []
        await bench.until_ended()
        await bench.until_idle()
        assert bench.reporter.acked == [first, second]
        assert len(bench.ends) == 1
        third = bench.accept(run)
        assert bench.reporter.acked == [first, second, third], "long over: the copy may go at once"
        bench.reporter.acked.clear()
        bench.reporter.ends.clear()
    assert bench.engine.duplicates == 4
    bench.assert_empty()


@scenario
async def test_copies_of_a_job_that_is_handed_back_or_quarantined_are_acked_with_it(app):
    noop(app)
    bench = Bench(app)
    run = bench.run("noop", in_s=10)
    deliveries = [bench.accept(run), bench.accept(run)]
    bench.close()
    assert bench.reporter.acked == deliveries
    bench.assert_empty()


@scenario
async def test_an_older_dispatch_is_dropped_and_a_newer_one_runs(app):
    noop(app)
    bench = Bench(app)
    bench.start("noop", job_id="j", dispatch=5)
    await bench.until_ended()
    bench.start("noop", job_id="j", dispatch=4)
    bench.start("noop", job_id="j", dispatch=6)
    await bench.until_ended(2)
    await turns()
    assert [end.dispatch for end in bench.ends] == [5, 6]
    assert len(bench.reporter.acked) == 3
    bench.assert_empty()


@scenario
async def test_a_job_may_come_back_under_a_new_dispatch_after_it_was_handed_back(app):
    noop(app)
    bench = Bench(app)
    bench.start("noop", job_id="j", dispatch=1, in_s=100)
    bench.engine.hand_back([entry[2] for entry in bench.engine._later], ReturnReason.REBALANCED)
    bench.start("noop", job_id="j", dispatch=2)
    returned, finished = await bench.until_ended(2)
    assert (returned.reason, finished.outcome) == (ReturnReason.REBALANCED, AttemptOutcome.SUCCEEDED)


# -- how attempts end


@scenario
async def test_a_short_attempt_sends_only_its_end_and_a_longer_one_its_start_too(app):
    @app.handler("wait")
    async def wait(seconds: float):
        await asyncio.sleep(seconds)

    bench = Bench(app)
    bench.start("wait", {"seconds": 0.01}, job_id="short")
    bench.start("wait", {"seconds": 1.0}, job_id="long")
    await bench.until_ended(2)
    assert [(type(e), e.id) for e in bench.reporter.events] == [
        (Finished, "short"),
        (Started, "long"),
        (Finished, "long"),
    ]
    started, finished = bench.reporter.events[1:]
    assert started.started_at == finished.started_at == EPOCH_S
    assert finished.finished_at == pytest.approx(EPOCH_S + 1.0)


@dataclasses.dataclass
class Point:
    x: int


RESULTS = {
    "nothing": (None, b"null"),
    "null in JSON": (Raw(b"null"), b"null"),
    "number": (9007199254740993, b"9007199254740993"),
    "raw": (Raw(b'{"exact":0.1234567890123456789}'), b'{"exact":0.1234567890123456789}'),
    "dataclass": (Point(1), b'{"x":1}'),
    "bytes": (b"\x00\xff", b'"AP8="'),
    "time": (datetime(2030, 1, 1, tzinfo=UTC), b'"2030-01-01T00:00:00Z"'),
    "text": ("ünï\n", '"ünï\\n"'.encode()),
    "tuple": ((1, [None]), b"[1,[null]]"),
}


def both_ways(app, function):
    """The same body as an async handler ``async`` and as a thread's handler ``thread``."""

    @app.handler("async")
    async def as_coroutine(**args):
        return function(**args)

    @app.handler("thread")
    def in_thread(**args):
        return function(**args)


@pytest.mark.parametrize("way", ["async", "thread"])
@pytest.mark.parametrize("name", RESULTS)
@scenario
async def test_a_result_is_stored_as_json(app, way, name):
    value, raw = RESULTS[name]
    both_ways(app, lambda: value)
    end = await Bench(app).outcome_of(way)
    assert end.outcome is AttemptOutcome.SUCCEEDED
    assert (b"null" if end.result is None else bytes(end.result)) == raw
    assert (end.error, end.retry_in_s) == (None, None)


def deep(levels):
    tower = []
    for _ in range(levels):
        tower = [tower]
    return tower


def circle():
    ring = []
    ring.append(ring)
    return ring


UNSTORABLE = {
    "nan": (lambda: {"a": math.nan}, "result.a.*nan is not JSON"),
    "infinity in a dataclass": (lambda: Point(math.inf), "inf is not JSON"),
    "nul": (lambda: ["\0"], "NUL"),
    "object": (object, "object is unsupported"),
    "surrogate": (lambda: "\ud800", "surrogates not allowed"),
    "8 MiB": (lambda: "x" * 8_388_608, "8388610 bytes, the limit is 65536"),
    "deep": (lambda: deep(500), "nested deeper than 100"),
    "circular": (circle, "recursion"),
    "raw garbage": (lambda: Raw(b"garbage"), "malformed"),
    "5,000 digits": (lambda: 10**5_000, "digits"),
    "key": (lambda: {(1, 2): 3}, "keys"),
    "exception": (lambda: ValueError("returned, not raised"), "ValueError is unsupported"),
}


@pytest.mark.parametrize("way", ["async", "thread"])
@pytest.mark.parametrize("name", UNSTORABLE)
@scenario
async def test_a_result_that_cannot_be_stored_fails_the_job_for_good(app, way, name):
    make, words = UNSTORABLE[name]
    both_ways(app, make)
    end = await Bench(app).outcome_of(way)
    assert end.outcome is AttemptOutcome.FAILED
    assert end.retry_in_s is None, "running it again would not change that"
    assert end.error.startswith("the handler returned something that cannot be stored")
    assert re.search(words, end.error)
    assert end.result is None


class MyBase(BaseException):
    pass


RAISED = [
    BaseException("x"),
    MyBase("x"),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    SystemExit(0),
    SystemExit(1),
    SystemExit("msg"),
    StopIteration(1),
    StopAsyncIteration(),
    MemoryError(),
    RecursionError("deep"),
    AgentError("the handler's own NATS is away"),
    ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
    BaseExceptionGroup("several", [KeyboardInterrupt(), SystemExit()]),
]


@pytest.mark.parametrize("way", ["async", "thread"])
@pytest.mark.parametrize("error", RAISED, ids=repr)
@scenario
async def test_whatever_a_handler_raises_fails_its_job_and_nothing_else(app, way, error):
    def explode():
        raise error.with_traceback(None)

    both_ways(app, explode)
    noop(app)
    bench = Bench(app)
    end = await bench.outcome_of(way)
    assert end.outcome is AttemptOutcome.FAILED
    assert type(error).__name__ in end.error
    assert "explode" in end.error, "the traceback names the function"
    assert end.retry_in_s == pytest.approx(10, abs=2)
    following = bench.start("noop")
    assert (await bench.until_ended(2))[1].id == following.id
    await bench.until_idle()
    bench.assert_empty()


@scenario
async def test_a_handler_that_raises_on_every_attempt_gives_up_at_the_last(app):
    both_ways(app, lambda: 1 / 0)
    bench = Bench(app)
    for attempt in (1, 2, 3, 4):
        bench.start("async", attempt=attempt, max_attempts=4)
    waits = [end.retry_in_s for end in await bench.until_ended(4)]
    assert [wait is not None for wait in waits] == [True, True, True, False]
    assert [round(wait / 10, 1) for wait in waits[:3]] == pytest.approx([1, 2, 4], rel=0.21)


class Careless(Retry):
    def __init__(self):
        pass  # no super().__init__()


class Wild(Retry):
    def __init__(self):
        super().__init__("wild")
        self.in_s = "soon"


@pytest.mark.parametrize("way", ["async", "thread"])
@pytest.mark.parametrize(
    ("error", "attempt", "retry_in_s"),
    [
        (Retry(in_=77), 1, 77.0),
        (Retry("later", in_=timedelta(minutes=2)), 3, 120.0),
        (Retry(in_=0), 1, 0.0),
        (Retry(in_=77), 4, None),
        (Retry(), 1, 10.0),
        (Careless(), 1, 10.0),
        (Wild(), 1, 10.0),
        (NoRetry("never"), 1, None),
    ],
    ids=repr,
)
@scenario
async def test_a_handler_may_ask_for_its_own_retry_or_for_none(app, way, error, attempt, retry_in_s):
    def ask():
        raise error

    both_ways(app, ask)
    end = await Bench(app).outcome_of(way, attempt=attempt)
    assert end.outcome is AttemptOutcome.FAILED
    assert end.retry_in_s == (None if retry_in_s is None else pytest.approx(retry_in_s, rel=0.2))


@pytest.mark.parametrize("in_", [-1, math.nan, 1e300])
@scenario
async def test_a_retry_that_makes_no_sense_fails_the_attempt_and_says_so(app, in_):
    def ask():
        raise Retry(in_=in_)

    both_ways(app, ask)
    end = await Bench(app).outcome_of("async")
    assert end.error.startswith("InvalidJobError: field 'in_'")
    assert end.retry_in_s is not None


# -- jobs that cannot run


@scenario
async def test_an_unknown_handler_is_quarantined_naming_those_that_are_known(app):
    noop(app, "mail")
    noop(app, "report")
    bench = Bench(app, slots=1)
    for name in ("typo", "os.system", "builtins.eval"):
        bench.start(name)
    bench.start("mail")
    *quarantined, finished = await bench.until_ended(4)
    for event, name in zip(quarantined, ("typo", "os.system", "builtins.eval"), strict=True):
        assert type(event) is Quarantined
        assert event.reason == f"no handler {name!r} on the worker that got it; it knows: mail, report"
    assert finished.outcome is AttemptOutcome.SUCCEEDED
    assert len(bench.reporter.acked) == 4
    bench.assert_empty()


class Explosive(msgspec.Struct):
    number: int

    def __post_init__(self):
        raise ZeroDivisionError("in an annotated type")


@pytest.mark.parametrize(
    "args",
    [{}, {"to": 5}, {"to": "a", "x" * 100_000: 1}, b"[]", b"null", b"{", b"\xff", {"to": "a", "box": {"number": 1}}],
    ids=lambda args: str(args)[:30],
)
@scenario
async def test_arguments_that_do_not_fit_are_quarantined_with_a_short_reason(app, args):
    @app.handler("mail")
    async def mail(to: str, box: Explosive | None = None):
        pass

    bench = Bench(app)
    event = await bench.outcome_of("mail", args)
    assert type(event) is Quarantined
    assert "handler 'mail'" in event.reason
    assert len(event.reason) < 600
    bench.assert_empty()


# -- timeouts


@scenario
async def test_an_async_handler_is_cancelled_at_its_timeout(app):
    seen = []

    @app.handler("forever")
    async def forever(ctx: JobContext):
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            seen.append(ctx.cancelled)
            raise

    bench = Bench(app)
    end = await bench.outcome_of("forever", timeout_s=2.0)
    assert seen == [True]
    assert end.outcome is AttemptOutcome.TIMED_OUT
    assert end.error.startswith("timed out after 2 s\nCancelledError")
    assert "forever" in end.error, "the traceback shows where it hung"
    assert 2.0 <= end.finished_at - end.started_at <= 2.1
    assert end.retry_in_s is not None
    await bench.until_idle()
    bench.assert_empty()


@scenario
async def test_the_last_attempts_timeout_is_final(app):
    @app.handler("forever")
    async def forever():
        await asyncio.sleep(10_000)

    end = await Bench(app).outcome_of("forever", timeout_s=2.0, attempt=4)
    assert (end.outcome, end.retry_in_s) == (AttemptOutcome.TIMED_OUT, None)


@scenario
async def test_a_timeout_is_told_apart_from_a_cancellation_that_the_handler_made_itself(app):
    @app.handler("own")
    async def own():
        raise asyncio.CancelledError

    end = await Bench(app).outcome_of("own")
    assert end.outcome is AttemptOutcome.FAILED


@scenario
async def test_a_handler_that_swallows_its_cancellation_and_returns_has_timed_out_all_the_same(app):
    @app.handler("swallow")
    async def swallow():
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            return "done after all"

    bench = Bench(app)
    end = await bench.outcome_of("swallow", timeout_s=2.0)
    assert (end.outcome, end.result) == (AttemptOutcome.TIMED_OUT, None)
    assert "took no notice and returned" in end.error
    bench.assert_empty()


@scenario
async def test_a_handler_that_will_not_end_is_reported_at_the_grace_and_keeps_its_slot(app, caplog):
    release = asyncio.Event()

    @app.handler("stubborn")
    async def stubborn():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    noop(app)
    bench = Bench(app, slots=1, grace_s=5.0)
    run = bench.start("stubborn", timeout_s=2.0)
    waiting = bench.start("noop")
    end = await bench.only_end()
    assert (end.id, end.outcome) == (run.id, AttemptOutcome.TIMED_OUT)
    assert 7.0 <= end.finished_at - end.started_at <= 7.2
    assert "ignores cancellation and still holds a slot" in end.error
    assert "ignores cancellation" in caplog.text
    await asyncio.sleep(100)
    assert (bench.engine.running, bench.engine.held, bench.engine.unreported()) == (1, 1, 0)
    release.set()
    assert (await bench.until_ended(2))[1].id == waiting.id
    await bench.until_idle()
    assert [type(e) for e in bench.ends] == [Finished, Finished], "the late end adds nothing"
    bench.assert_empty()


@scenario
async def test_a_thread_is_reported_at_its_timeout_and_keeps_its_slot_until_it_returns(app):
    release = threading.Event()
    seen = []

    @app.handler("block")
    def block(ctx: JobContext):
        release.wait(60)
        seen.append(ctx.cancelled)
        return "too late"

    noop(app)
    bench = Bench(app, slots=1)
    bench.start("block", timeout_s=2.0)
    bench.start("noop")
    end = await bench.only_end()
    assert end.outcome is AttemptOutcome.TIMED_OUT
    assert 2.0 <= end.finished_at - end.started_at <= 2.1
    assert "use executor='process'" in end.error
    assert (bench.engine.running, bench.engine.held) == (1, 1)
    release.set()
    ends = await bench.until_ended(2)
    assert [e.outcome for e in ends] == [AttemptOutcome.TIMED_OUT, AttemptOutcome.SUCCEEDED]
    assert seen == [True], "a thread can look whether anybody still wants it"
    bench.assert_empty()


@scenario
async def test_a_scope_of_the_handlers_own_that_ends_at_the_same_moment_hides_no_timeout(app):
    returned_at = {}

    @app.handler("scoped")
    async def scoped(after_s: float, ctx: JobContext):
        with anyio.move_on_after(after_s):
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 10_000)
                await anyio.sleep(10_000)
        returned_at[ctx.job_id] = ctx._deadline_s - bench.clock.now()

    bench = Bench(app, slots=2_000)
    for n in range(1_000):
        bench.start("scoped", {"after_s": 0.9 + n * 0.0002}, timeout_s=1.0)
    outcomes = Counter()
    for end in await bench.until_ended(1_000):
        outcomes[end.outcome] += 1
        if end.outcome is AttemptOutcome.SUCCEEDED:
            assert returned_at[end.id] > -2 * limits.FLUSH_S, "it returned before anybody looked at the clock"
        else:
            assert end.outcome is AttemptOutcome.TIMED_OUT
    assert min(outcomes.values()) > 100
    await bench.until_idle()
    bench.assert_empty()


@scenario
async def test_a_task_group_that_is_entered_and_never_left_fails_the_job_and_burns_no_cpu(app):
    @app.handler("leak")
    async def leak():
        group = anyio.create_task_group()
        await group.__aenter__()
        return "left open"

    noop(app)
    bench = Bench(app)
    await bench.outcome_of("leak")
    bench.start("noop", in_s=60)
    await bench.until_ended(2)
    bench.assert_empty()


# -- threads


@scenario
async def test_threads_are_used_again_and_never_more_than_slots(app):
    names = set()

    @app.handler("name")
    def name():
        names.add(threading.current_thread().name)

    bench = Bench(app, slots=3)
    bench.accept(*[bench.run("name", timeout_s=LONG_S) for _ in range(200)])
    await bench.until_ended(200)
    assert len(names) <= 3
    assert bench.executors.threads._threads <= 3
    bench.executors.close()


@scenario
async def test_a_thread_that_raised_serves_the_next_job(app):
    def explode():
        raise SystemExit(3)

    both_ways(app, explode)
    bench = Bench(app, slots=1)
    bench.accept(*[bench.run("thread", timeout_s=LONG_S) for _ in range(50)])
    ends = await bench.until_ended(50)
    assert {end.outcome for end in ends} == {AttemptOutcome.FAILED}
    assert bench.executors.threads._threads == 1


# -- processes (real ones, hence few)


@in_real_time
async def test_process_handlers_return_raise_and_die_without_harm_to_others():
    bench = Bench(process_handlers.app, process_slots=2)
    expected = {
        "exit": ("SystemExit: 0", True),
        "interrupt": ("KeyboardInterrupt", True),
        "lock": ("UnpicklableError: a", True),
        "retry": ("Retry: later", 77.0),
        "no retry": ("NoRetry: never", None),
        "kill": ("the child process died", True),
        "_exit": ("the child process died", True),
        "nan": ("InvalidJobError: field 'result'", True),
    }
    for how in expected:
        bench.start("misbehave", {"how": how}, job_id=how, timeout_s=LONG_S)
    bench.start("add", {"a": 9007199254740993}, job_id="add", timeout_s=LONG_S)
    bench.start("tell", job_id="tell", dispatch=3, attempt=2, metadata={"a": "b"}, timeout_s=LONG_S)
    ends = {end.id: end for end in await bench.until_ended(len(expected) + 2)}
    for how, (words, retried) in expected.items():
        assert ends[how].outcome is AttemptOutcome.FAILED
        assert words in ends[how].error
        if retried in (None, 77.0):
            assert ends[how].retry_in_s == retried
    assert bytes(ends["add"].result) == b"9007199254740993"
    told = json.loads(bytes(ends["tell"].result))
    assert (told["key"], told["attempt"], told["metadata"]) == ("tell", 2, {"a": "b"})


@in_real_time
async def test_a_process_is_killed_at_its_timeout_and_frees_its_slot():
    bench = Bench(process_handlers.app, slots=1)
    bench.start("sleep", {"seconds": 600}, timeout_s=1.0)
    bench.start("add", {"a": 1}, timeout_s=LONG_S)
    timed_out, finished = await bench.until_ended(2)
    assert timed_out.outcome is AttemptOutcome.TIMED_OUT
    assert timed_out.error == "timed out after 1 s; its process was killed"
    assert finished.outcome is AttemptOutcome.SUCCEEDED


@in_real_time
async def test_waiting_for_a_free_process_is_not_running():
    bench = Bench(process_handlers.app, slots=5, process_slots=1)
    first = bench.start("sleep", {"seconds": 600}, timeout_s=1.5)
    second = bench.start("sleep", {"seconds": 600}, timeout_s=0.5)
    third = bench.start("sleep", {"seconds": 600}, timeout_s=0.5)
    one, two = await bench.until_ended(2)
    assert (one.id, two.id) == (first.id, second.id)
    assert 0.5 <= two.finished_at - two.started_at <= 1.4, "its time began when the first had gone"
    bench.engine.ask(Ask.SHUTDOWN)
    ends = await bench.until_ended(3)
    assert (ends[2].id, type(ends[2])) == (third.id, Returned)
    starts = [event.id for event in bench.reporter.events if type(event) is Started]
    assert starts[:2] == [first.id, second.id]


# -- the context


@scenario
async def test_the_context_knows_the_job(app):
    seen = {}

    @app.handler("look")
    async def look(ctx: JobContext):
        seen.update(
            job_id=ctx.job_id, handler=ctx.handler, lane=ctx.lane, attempt=ctx.attempt, max_attempts=ctx.max_attempts,
            dispatch=ctx.dispatch, metadata=dict(ctx.metadata), deadline=ctx.deadline, key=ctx.idempotency_key,
            cancelled=ctx.cancelled,
        )  # fmt: skip

    await Bench(app).outcome_of(
        "look", job_id="j", dispatch=3, attempt=2, max_attempts=5, timeout_s=60.0, metadata={"a": "b"}
    )
    assert seen == {
        "job_id": "j", "handler": "look", "lane": "default", "attempt": 2, "max_attempts": 5, "dispatch": 3,
        "metadata": {"a": "b"}, "deadline": datetime.fromtimestamp(EPOCH_S + 60, UTC), "key": "j", "cancelled": False,
    }  # fmt: skip


@pytest.mark.parametrize("way", ["async", "thread"])
@scenario
async def test_progress_is_reported_from_async_and_thread_handlers(app, way):
    @app.handler("async")
    async def in_loop(ctx: JobContext):
        await ctx.progress(0.25, "a quarter")
        await asyncio.sleep(0.001)
        ctx.progress(1)

    @app.handler("thread")
    def in_thread(ctx: JobContext):
        ctx.progress(0.25, "a quarter")
        assert reported.wait(60)
        ctx.progress(1)

    reported = threading.Event()
    bench = Bench(app)
    bench.reporter.on_progress = reported.set
    run = bench.start(way, timeout_s=LONG_S)
    await bench.until_ended()
    await turns()
    assert [(p.id, p.fraction, p.note) for p in bench.reporter.reports] == [
        (run.id, 0.25, "a quarter"),
        (run.id, 1.0, ""),
    ]
    [started, _] = bench.reporter.events
    assert type(started) is Started, "recorded later, the start would wipe out the progress"


@scenario
async def test_of_many_reports_a_few_leave_and_the_newest_is_one_of_them(app):
    @app.handler("busy")
    async def handler(ctx: JobContext):
        for step in range(100_000):
            await ctx.progress(step / 100_000, str(step))
            if step % 100 == 0:
                await asyncio.sleep(0.003)

    bench = Bench(app)
    bench.start("busy", timeout_s=LONG_S)
    await bench.until_ended()
    reports = bench.reporter.reports
    assert 5 <= len(reports) <= 3 / limits.PROGRESS_S + 2
    assert reports[-1].note == "99999"
    assert [p.fraction for p in reports] == sorted(p.fraction for p in reports)
    assert bench.reporter.reports_s == pytest.approx(sorted(bench.reporter.reports_s))
    gaps = [b - a for a, b in itertools.pairwise(bench.reporter.reports_s)][:-1]
    assert min(gaps) >= limits.PROGRESS_S - 1e-6, "the last one left because the attempt ended"


@scenario
async def test_a_thread_that_reports_without_end_does_not_flood_the_loop(app, monkeypatch):
    @app.handler("busy")
    def handler(ctx: JobContext):
        for step in range(100_000):
            ctx.progress(step / 100_000)

    calls = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(
        loop, "call_soon_threadsafe", lambda *a, f=loop.call_soon_threadsafe: (calls.append(a), f(*a))[1]
    )
    bench = Bench(app)
    bench.start("busy", timeout_s=LONG_S)
    await bench.until_ended()
    assert bench.reporter.reports[-1].fraction == 0.99999
    assert len(calls) < 2_000, "with virtual time half a second passes in no time"


@scenario
async def test_after_its_end_an_attempt_reports_no_more(app):
    contexts = []

    @app.handler("leaky")
    async def handler(ctx: JobContext):
        contexts.append(ctx)

    bench = Bench(app)
    bench.start("leaky")
    await bench.until_ended()
    contexts[0].progress(0.5)
    await asyncio.sleep(5)
    assert bench.reporter.reports == []


@pytest.mark.parametrize("note", ["\ud800", "\0", "x" * 100_000, "😀" * 1_000, 5, None], ids=type)
@scenario
async def test_no_note_whatever_spoils_the_reports_of_others(app, note):
    @app.handler("note")
    async def handler(ctx: JobContext):
        ctx.progress(0.5, note)

    bench = Bench(app)
    assert (await bench.outcome_of("note")).outcome is AttemptOutcome.SUCCEEDED
    [report] = bench.reporter.reports
    assert type(report) is Progress
    assert len(report.note) <= limits.PROGRESS_NOTE_CHARS_MAX + 10
    assert "\0" not in report.note


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
@scenario
async def test_a_fraction_outside_its_bounds_is_an_error_of_the_handler(app, fraction):
    @app.handler("note")
    async def handler(ctx: JobContext):
        ctx.progress(fraction)

    end = await Bench(app).outcome_of("note")
    assert "field 'progress'" in end.error


@scenario
async def test_the_contexts_logger_names_job_and_attempt(app, caplog):
    @app.handler("log")
    async def handler(ctx: JobContext):
        ctx.logger.warning("hello")

    with caplog.at_level(logging.WARNING):
        await Bench(app).outcome_of("log", job_id="j", attempt=2)
    [record] = [r for r in caplog.records if r.message == "hello"]
    assert (record.job_id, record.handler, record.attempt) == ("j", "log", 2)


# -- stopping


@scenario
async def test_closing_the_intake_returns_what_is_held_and_starts_nothing_more(app):
    @app.handler("second")
    async def second():
        await asyncio.sleep(1)

    bench = Bench(app, slots=2)
    delivery = bench.accept(*[bench.run("second", job_id=f"now-{n}") for n in range(4)])
    later = bench.accept(bench.run("second", job_id="later", in_s=100))
    bench.close()
    assert {(e.id, e.reason, e.attempt, e.started_at) for e in bench.ends} == {
        ("now-2", ReturnReason.DRAINED, 0, None),
        ("now-3", ReturnReason.DRAINED, 0, None),
        ("later", ReturnReason.DRAINED, 0, None),
    }
    assert bench.reporter.acked == [later], "two of the other message's jobs still run"
    await bench.until_ended(5)
    assert bench.reporter.acked == [later, delivery]
    await asyncio.sleep(200)
    assert len(bench.ends) == 5
    bench.assert_empty()


@scenario
async def test_what_arrives_after_closing_is_returned_at_once(app):
    noop(app)
    bench = Bench(app)
    bench.close()
    deliveries = [bench.accept(bench.run("noop")), bench.accept(bench.run("noop", in_s=5))]
    assert [e.reason for e in bench.ends] == [ReturnReason.DRAINED, ReturnReason.DRAINED]
    assert bench.reporter.acked == deliveries
    bench.assert_empty()


@scenario
async def test_an_interrupted_handler_goes_back_without_an_attempt_being_spent(app):
    seen = []

    @app.handler("forever")
    async def forever(ctx: JobContext):
        try:
            await asyncio.sleep(10_000)
        finally:
            seen.append(ctx.cancelled)

    bench = Bench(app)
    run = bench.start("forever", attempt=2)
    await asyncio.sleep(1)
    bench.engine.ask(Ask.SHUTDOWN)
    end = await bench.only_end()
    assert (type(end), end.id, end.reason, end.attempt) == (Returned, run.id, ReturnReason.INTERRUPTED, 2)
    assert end.started_at == EPOCH_S
    assert seen == [True]
    bench.assert_empty()


@scenario
async def test_an_interrupted_handler_that_returns_all_the_same_is_not_recorded_as_succeeded(app):
    @app.handler("swallow")
    async def swallow():
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            return "done"

    bench = Bench(app)
    bench.start("swallow")
    await asyncio.sleep(1)
    bench.engine.ask(Ask.SHUTDOWN)
    assert (await bench.only_end()).reason is ReturnReason.INTERRUPTED


@pytest.mark.parametrize("executor", ["async", "thread"])
@scenario
async def test_a_job_that_is_interrupted_before_its_first_step_is_given_back_and_frees_its_slot(app, executor):
    ran = []
    both_ways(app, lambda: ran.append(1))
    bench = Bench(app)
    bench.start(executor)
    bench.engine.ask(Ask.SHUTDOWN)  # in the same turn of the loop
    end = await bench.only_end()
    assert (type(end), end.reason, end.attempt) == (Returned, ReturnReason.DRAINED, 0)
    await turns()
    assert ran == []
    bench.assert_empty()


@scenario
async def test_an_interrupted_thread_is_given_back_at_once_and_the_worker_can_leave(app):
    release = threading.Event()

    @app.handler("block")
    def block():
        release.wait(60)

    bench = Bench(app)
    bench.start("block", timeout_s=LONG_S)
    await asyncio.sleep(1)
    bench.engine.ask(Ask.SHUTDOWN)
    end = await bench.only_end()
    assert end.reason is ReturnReason.INTERRUPTED
    assert (bench.engine.unreported(), bench.engine.running) == (0, 1)
    assert bench.engine.running_names() == [f"block {end.id}"]
    release.set()
    await bench.until_idle()
    bench.assert_empty()


@scenario
async def test_the_first_ask_decides(app):
    release = asyncio.Event()

    @app.handler("stubborn")
    async def stubborn():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    bench = Bench(app, grace_s=5.0)
    bench.start("stubborn", timeout_s=2.0)
    await asyncio.sleep(3)
    bench.engine.ask(Ask.SHUTDOWN)
    assert (await bench.only_end()).outcome is AttemptOutcome.TIMED_OUT
    release.set()
    await bench.until_idle()


@scenario
async def test_chosen_jobs_are_handed_back_and_the_others_stay(app):
    @app.handler("second")
    async def second():
        await asyncio.sleep(1)

    bench = Bench(app, slots=1)
    bench.accept(*[bench.run("second", job_id=str(n)) for n in range(5)])
    held = bench.engine.waiting_since()
    bench.engine.hand_back([held[1], held[3]], ReturnReason.REBALANCED)
    assert [e.id for e in bench.ends] == ["2", "4"]
    await bench.until_ended(5)
    assert [e.id for e in bench.ends[2:]] == ["0", "1", "3"]
    bench.assert_empty()


# -- growth


@scenario
async def test_after_many_jobs_of_every_fate_nothing_is_left_behind(app):
    @app.handler("good")
    async def good():
        return 1

    @app.handler("bad")
    async def bad():
        raise ValueError("bad")

    @app.handler("slow")
    async def slow():
        await asyncio.sleep(100)

    @app.handler("thread")
    def thread():
        return 1

    bench = Bench(app, slots=20)
    names = ["good", "bad", "slow", "thread", "unknown"]
    count = 2_000
    for n in range(count // 4):
        runs = [
            bench.run(names[(n + k) % 5], in_s=(n % 3) * 5.0, timeout_s=LONG_S, job_id=f"{n}-{k}") for k in range(4)
        ]
        for run in runs:
            if run.handler == "slow":
                run.timeout_s = 1.0
        bench.accept(*runs, priority=Priority(n % 5 + 1))
        bench.accept(*runs, priority=Priority(n % 5 + 1))  # every message comes twice
    await bench.until_ended(count)
    await bench.until_idle()
    assert len(bench.ends) == count
    assert len(bench.reporter.acked) == 2 * (count // 4)
    assert bench.engine.duplicates == count
    bench.assert_empty()
    assert bench.executors.threads._idle == bench.executors.threads._threads
    assert bench.rooms > 0


@scenario
async def test_what_was_seen_is_remembered_up_to_a_bound_and_never_forgotten_while_it_is_here(app, monkeypatch):
    monkeypatch.setattr(engine_module, "KNOWN_MAX", 400)
    noop(app)
    bench = Bench(app)
    here = bench.run("noop", in_s=1_000)
    bench.accept(here)
    for n in range(2_000):
        bench.start("noop", job_id=f"n{n}")
        await bench.until_ended(n + 1)
    assert len(bench.engine._known) <= 401
    bench.accept(here)
    assert bench.engine.held == 1, "its copy was known"


@scenario
async def test_a_message_of_fifty_megabytes_costs_no_fifty_megabytes_of_report(app):
    both_ways(app, lambda: (_ for _ in ()).throw(ValueError("x" * 50_000_000)))
    end = await Bench(app).outcome_of("async")
    assert len(end.error.encode()) <= limits.ERROR_BYTES_MAX
    assert "[cut, 50000000 characters]" in end.error


@scenario
async def test_a_chain_of_a_thousand_causes_is_reported_in_short(app):
    def explode():
        error = ValueError("root")
        for n in range(1_000):
            following = RuntimeError(f"level {n}")
            following.__cause__ = error
            error = following
        raise error

    both_ways(app, explode)
    end = await Bench(app).outcome_of("thread")
    assert "level 999" in end.error
    assert "[more causes]" in end.error
    assert len(end.error.encode()) <= limits.ERROR_BYTES_MAX


@scenario
async def test_endless_recursion_in_a_handler_fails_its_job(app):
    def recurse():
        return recurse()

    both_ways(app, recurse)
    for way in ("async", "thread"):
        end = await Bench(app).outcome_of(way)
        assert "RecursionError" in end.error
    assert sys.getrecursionlimit() >= 1_000


# Jobs that have lost workers.


def sleeping(app):
    @app.handler("sleep", timeout=3600)
    async def sleep(seconds: float):
        await asyncio.sleep(seconds)


@scenario
async def test_a_job_that_has_lost_a_worker_is_announced_before_it_is_called(app):
    called = []

    @app.handler("note")
    async def note():
        called.append([type(event) for event in bench.reporter.events])

    bench = Bench(app)
    bench.accept(bench.run("note"))
    await bench.until_ended(1)
    assert called == [[]], "without losses it is too short to be announced at all"
    bench.accept(bench.run("note", losses=1))
    await bench.until_ended(2)
    assert called[1] == [Finished, Started]


@scenario
async def test_jobs_that_have_lost_two_workers_start_one_by_one(app):
    sleeping(app)
    bench = Bench(app, slots=10)
    suspects = [bench.run("sleep", {"seconds": 1.0}, job_id=f"suspect-{n}", losses=2) for n in range(3)]
    others = [bench.run("sleep", {"seconds": 1.0}, job_id=f"other-{n}", losses=n % 2) for n in range(4)]
    bench.accept(*suspects, *others)
    assert bench.engine.running == 5, "one suspect beside all the others"
    assert bench.engine.held == 2
    await bench.until_ended(5)
    assert bench.engine.running == 1
    await bench.until_ended(7)
    starts = [event.started_at for event in bench.ends if event.id.startswith("suspect")]
    assert [b - a for a, b in itertools.pairwise(starts)] == pytest.approx([1.0, 1.0], abs=0.01)
    bench.assert_empty()


@scenario
async def test_a_suspect_that_runs_on_does_not_hold_up_the_next_one_for_ever(app):
    sleeping(app)
    bench = Bench(app, slots=10)
    bench.accept(*[bench.run("sleep", {"seconds": 600.0}, timeout_s=3600.0, losses=5) for _ in range(3)])
    assert bench.engine.running == 1
    await asyncio.sleep(limits.SUSPECT_ALONE_S + 0.2)
    assert bench.engine.running == 2
    await asyncio.sleep(limits.SUSPECT_ALONE_S + 0.2)
    assert bench.engine.running == 3


@scenario
async def test_waiting_suspects_are_handed_back_with_the_rest(app):
    sleeping(app)
    bench = Bench(app, slots=10)
    bench.accept(*[bench.run("sleep", {"seconds": 1.0}, losses=2) for _ in range(3)])
    bench.close()
    assert [event.reason for event in bench.ends] == [ReturnReason.DRAINED] * 2
    await bench.until_ended(3)
    bench.assert_empty()


# The lease.


@scenario
async def test_nothing_starts_while_the_lease_is_in_doubt_and_only_exclusive_handlers_are_cancelled(app):
    @app.handler("exclusive", exclusive=True)
    async def exclusive():
        await asyncio.sleep(60)

    sleeping(app)
    bench = Bench(app, slots=10)
    bench.accept(bench.run("exclusive", job_id="exclusive"), bench.run("sleep", {"seconds": 5.0}, job_id="other"))
    assert bench.engine.running == 2
    await turns()
    bench.trusted = False
    bench.accept(bench.run("sleep", {"seconds": 0.0}, job_id="late"))
    (ended,) = await bench.until_ended(1)
    assert (ended.id, type(ended), ended.reason) == ("exclusive", Returned, ReturnReason.INTERRUPTED)
    await bench.until_ended(2)
    assert bench.ends[1].id == "other", "what runs goes on"
    assert bench.engine.held == 1
    bench.trusted = True
    bench.engine.pump()
    await bench.until_ended(3)
    bench.assert_empty()


@scenario
async def test_a_bucket_that_is_somebody_else_s_is_forgotten_without_a_word(app):
    sleeping(app)
    bench = Bench(app, slots=1)
    kept, lost = bench.ports[Priority.HIGH], bench.ports[Priority.LOW]
    lost.reporter = Reporter()
    bench.accept(bench.run("sleep", {"seconds": 60.0}, job_id="runs"), priority=Priority.LOW)
    bench.accept(bench.run("sleep", {"seconds": 1.0}, job_id="held"), priority=Priority.LOW)
    bench.accept(bench.run("sleep", {"seconds": 1.0}, job_id="mine"), priority=Priority.HIGH)
    assert bench.engine.forget(lost, Ask.OVERTAKEN) == 1
    await bench.until_ended(1)
    assert [event.id for event in bench.ends] == ["mine"]
    assert bench.engine.holds([("held", 1), ("runs", 1), ("mine", 1)]) == []
    assert bench.engine.held_of(lost) == []
    assert not kept.closed


_note: ContextVar[str] = ContextVar("note", default="nothing")


@scenario
async def test_what_a_handler_sets_in_its_context_is_not_seen_by_the_next_one_in_its_slot(app):
    seen = []

    @app.handler("sets")
    async def sets(value: str) -> None:
        seen.append((_note.get(), log_context.facts().get("job_id")))
        _note.set(value)

    bench = Bench(app, slots=1)
    runs = [bench.start("sets", {"value": f"of {number}"}) for number in range(3)]
    await bench.until_ended(3)
    assert seen == [("nothing", run.id) for run in runs]
    assert log_context.facts() == {}
