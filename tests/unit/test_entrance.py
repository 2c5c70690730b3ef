"""First steps in a common task: nobody may notice. Handlers that wait get a task of their own, and keep it."""

import asyncio
import gc
import time
import weakref
from contextvars import ContextVar, copy_context

import anyio
import pytest

from jm_core.model import AttemptOutcome, ReturnReason
from jm_core.wire import Returned
from jm_nats import JobMaster
from jm_nats.handlers import IN_ONE_STEP_S, QUICK_RUNS
from jm_nats.worker.entrance import LOOP_SHARE_S
from jm_nats.worker.execution import Ask
from jm_nats.worker.rest import Rest
from tests.support.engine_bench import LONG_S, Bench, in_real_time, scenario

NOTE: ContextVar[str] = ContextVar("note", default="nothing")


@pytest.fixture
def app():
    return JobMaster("c")


@pytest.fixture
def tasks(app):
    """Which task each run of ``quick`` and ``slow`` was in, and what it found in NOTE; ``slow`` waits in between."""
    seen = []

    @app.handler("quick")
    async def quick():
        seen.append((asyncio.current_task(), NOTE.get()))
        NOTE.set("quick")

    @app.handler("slow")
    async def slow():
        task = asyncio.current_task()
        NOTE.set("slow")
        await asyncio.sleep(0.1)
        assert asyncio.current_task() is task
        assert await asyncio.create_task(asyncio.sleep(0.1, NOTE.get())) == "slow"
        seen.append((task, NOTE.get()))

    return seen


@scenario
async def test_what_waits_for_nothing_shares_a_task_and_no_context_variables(app, tasks):
    bench = Bench(app)
    bench.accept(*(bench.run("quick") for _ in range(30)))
    await bench.until_ended(30)
    assert len({id(task) for task, _ in tasks}) == 1
    assert [note for _, note in tasks] == ["nothing"] * 30
    assert NOTE.get() == "nothing"


@scenario
async def test_what_waits_keeps_the_task_of_its_first_step_alone(app, tasks):
    bench = Bench(app, slots=30)
    for is_known in (False, True):  # that `slow` waits
        tasks.clear()
        bench.accept(*(bench.run(name) for _ in range(10) for name in ("quick", "slow")))
        ends = await bench.until_ended(20)
        assert {end.outcome for end in ends} == {AttemptOutcome.SUCCEEDED}
        bench.reporter.ends.clear()
        slow = [task for task, note in tasks if note == "slow"]
        quick = {task for task, note in tasks if note == "nothing"}
        assert len(slow) == len(set(slow)) == 10
        assert not is_known or not quick & set(slow), "what was quick before it may have been in its task"


@scenario
async def test_a_handler_that_cancels_its_own_task_harms_no_other(app, tasks):
    @app.handler("careless")
    async def careless():
        asyncio.current_task().cancel()

    @app.handler("sorry")
    async def sorry():
        asyncio.current_task().cancel()
        await asyncio.sleep(1)

    bench = Bench(app)
    bench.accept(*(bench.run(name) for _ in range(5) for name in ("careless", "quick", "sorry")))
    ends = await bench.until_ended(15)
    outcomes = [end.outcome for end in ends]
    assert outcomes.count(AttemptOutcome.SUCCEEDED) == 10, "who ends in the same step never hears of it"
    assert all("CancelledError" in end.error for end in ends if end.outcome is AttemptOutcome.FAILED)
    assert len(tasks) == 5
    await bench.until_idle()
    bench.assert_empty()


@scenario
async def test_time_limits_and_groups_that_begin_in_the_first_step_work(app):
    async def fail():
        await asyncio.sleep(0.1)
        raise OSError("no mailbox")

    @app.handler("limited")
    async def limited():
        try:
            async with asyncio.timeout(0.5):
                await asyncio.sleep(60)
        except TimeoutError:
            return "in time"

    @app.handler("scoped")
    async def scoped():
        with anyio.move_on_after(0.5) as scope:
            await anyio.sleep(60)
        return scope.cancelled_caught

    @app.handler("grouped")
    async def grouped():
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.sleep(60)
        except ExceptionGroup as errors:
            return str(errors.exceptions[0])

    bench = Bench(app)
    for _ in range(2):
        bench.accept(*(bench.run(name) for name in ("limited", "scoped", "grouped")))
        ends = {end.id: bytes(end.result) for end in await bench.until_ended(3)}
        assert sorted(ends.values()) == [b'"in time"', b'"no mailbox"', b"true"]
        bench.reporter.ends.clear()


@scenario
async def test_a_bug_of_ours_at_one_end_stops_no_other(app, tasks, caplog):
    bench = Bench(app)
    add, calls = bench.reporter.add, []

    def failing_once(event, *, size=200):
        calls.append(event)
        if len(calls) == 1:
            raise LookupError("a bug")
        add(event, size=size)

    bench.reporter.add = failing_once
    bench.accept(*(bench.run("quick") for _ in range(10)))
    await bench.until_ended(9)
    assert len(tasks) == 10
    tasks.clear()
    gc.collect()
    assert "a bug" in caplog.text, "and it is heard of"


@pytest.mark.parametrize("name", ["quick", "slow", "thread"])
@scenario
async def test_nothing_begins_while_the_lease_is_in_doubt_and_all_of_it_afterwards(app, tasks, name):
    ran = []

    @app.handler("thread")
    def in_a_thread():
        ran.append(None)

    bench = Bench(app, slots=20)
    for _ in range(2):  # the second time it is known what waits
        before = len(bench.ends)
        bench.accept(*(bench.run(name, timeout_s=LONG_S) for _ in range(10)))
        bench.trusted = False  # between being given a slot and the first step
        await asyncio.sleep(1)
        assert (len(bench.ends), bench.engine.running) == (before, 10)
        assert len(tasks) + len(ran) == before
        bench.trusted = True  # and nobody says so: the doubt was over before anybody else had seen it
        await bench.until_ended(before + 10)
        assert len(tasks) + len(ran) == before + 10
        await bench.until_idle()


@scenario
async def test_what_is_taken_away_in_that_time_never_begins(app, tasks):
    bench = Bench(app)
    bench.accept(*(bench.run("quick") for _ in range(10)))
    bench.trusted = False
    await asyncio.sleep(1)
    assert bench.engine.ask(Ask.SHUTDOWN) == 10
    assert [(type(end), end.reason) for end in bench.ends] == [(Returned, ReturnReason.DRAINED)] * 10
    bench.trusted = True
    bench.start("quick")
    await bench.until_ended(11)
    assert len(tasks) == 1


@pytest.mark.parametrize("why", [Ask.SHUTDOWN, Ask.CANCELLED])
@scenario
async def test_what_ends_before_it_has_begun_has_no_start_in_1970(app, tasks, why):
    """Announced, for it has lost a worker before; the announcement is still on its way."""
    bench = Bench(app)
    gate = asyncio.Event()
    bench.reporter.stored = gate.wait
    bench.accept(bench.run("quick", losses=1))
    await asyncio.sleep(1)
    assert bench.engine.ask(why) == 1
    gate.set()
    end = await bench.only_end()
    assert end.started_at == pytest.approx(bench.clock.now(), abs=2)
    assert not tasks


@in_real_time
async def test_a_flood_of_busy_handlers_leaves_the_loop_its_turns():
    app = JobMaster("c")

    @app.handler("busy")
    async def busy():
        until_s = time.perf_counter() + LOOP_SHARE_S
        while time.perf_counter() < until_s:
            pass

    bench = Bench(app, slots=100)
    bench.accept(*(bench.run("busy") for _ in range(100)))
    turns = set()
    while len(bench.ends) < 100:
        turns.add(len(bench.ends))
        await asyncio.sleep(0)
    assert len(turns) > 50, "about one between two of them"


def test_a_handler_is_expected_to_do_what_it_did(app):
    @app.handler("any")
    async def function():
        pass

    handler = app.handlers["any"]
    assert not handler.waits
    handler.waits = True
    for _ in range(QUICK_RUNS - 1):
        handler.took(IN_ONE_STEP_S / 2)
    handler.took(1.0)
    for _ in range(QUICK_RUNS - 1):
        handler.took(IN_ONE_STEP_S / 2)
    assert handler.waits
    handler.took(IN_ONE_STEP_S / 2)
    assert not handler.waits


def test_threads_and_what_is_only_marked_a_coroutine_function_never_share_a_task(app):
    @app.handler("thread")
    def function():
        pass

    handler = app.handlers["thread"]
    for _ in range(2 * QUICK_RUNS):
        handler.took(0.0)
    assert (handler.waits, handler.is_plain) == (True, False)


@scenario
async def test_an_attempt_that_is_left_behind_runs_its_clean_up_and_is_freed():
    closed = []

    class Thing:
        pass

    async def handler(thing):
        try:
            await asyncio.sleep(60)
        finally:
            closed.append(thing)

    thing = Thing()
    alive = weakref.ref(thing)
    coroutine = handler(thing)
    waits_for = coroutine.send(None)
    rest = Rest(coroutine, waits_for, copy_context()).__await__()
    next(rest)
    rest.close()
    assert closed == [thing]
    closed.clear()
    del thing, coroutine, rest
    gc.collect()
    assert alive() is None
