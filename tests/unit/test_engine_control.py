"""What an operator's order does in the engine: cancel, and jobs asked back."""

import asyncio
import random
import threading

import pytest

from jm_core.control import CancelOrder
from jm_core.model import AttemptOutcome, Priority, ReturnReason
from jm_core.wire import Finished, Returned
from jm_nats import JobMaster
from jm_nats.context import JobContext
from jm_nats.worker import engine as engine_module
from jm_nats.worker import refusals as refusals_module
from jm_nats.worker.execution import Ask
from tests.support import process_handlers
from tests.support.engine_bench import LONG_S, Bench, in_real_time, scenario


@pytest.fixture
def app():
    return JobMaster("c")


@pytest.fixture
def sleeps(app):
    started = []

    @app.handler("sleep")
    async def sleep(ctx: JobContext, seconds: float = 60.0) -> str:
        started.append(ctx.job_id)
        await asyncio.sleep(seconds)
        return "done"

    return started


def order(run, why="cancelled by ops"):
    return CancelOrder(run.id, run.dispatch, why)


async def until_running(bench, count=1):
    while bench.engine.running < count:
        await asyncio.sleep(0.01)


@scenario
async def test_a_running_handler_is_cancelled_and_reported_so_without_a_retry(app, sleeps):
    bench = Bench(app)
    run = bench.start("sleep", max_attempts=9)
    await until_running(bench)
    await asyncio.sleep(0.01)
    assert bench.engine.cancel([order(run, "cancelled by ops: enough")]) == 1
    end = await bench.only_end()
    assert (end.outcome, end.error, end.retry_in_s) == (AttemptOutcome.CANCELLED, "cancelled by ops: enough", None)
    await bench.until_idle()
    bench.assert_empty()


@scenario
async def test_what_waits_is_dropped_before_what_runs_frees_its_slot(app, sleeps):
    bench = Bench(app, slots=1)
    runs = [bench.start("sleep", job_id=f"job-{n}") for n in range(21)]
    await asyncio.sleep(0.01)
    assert bench.engine.cancel([order(run) for run in runs]) == 1
    await bench.until_ended(21)
    await bench.until_idle()
    assert sleeps == ["job-0"]
    assert {type(end) for end in bench.ends[:20]} == {Returned}
    assert isinstance(bench.ends[20], Finished)
    bench.assert_empty()


@scenario
async def test_a_job_for_later_is_dropped_too(app, sleeps):
    bench = Bench(app)
    run = bench.start("sleep", in_s=50.0)
    bench.engine.cancel([order(run)])
    await asyncio.sleep(60)
    assert sleeps == []
    (end,) = bench.ends
    assert (end.reason, end.started_at) == (ReturnReason.DRAINED, None)
    bench.assert_empty()


@scenario
async def test_an_order_that_comes_before_its_job_keeps_it_from_starting(app, sleeps):
    bench = Bench(app)
    run = bench.run("sleep")
    bench.engine.cancel([order(run)])
    delivery = bench.accept(run)
    await asyncio.sleep(1)
    assert (sleeps, bench.ends, bench.reporter.acked) == ([], [], [delivery])
    again = bench.run("sleep", job_id=run.id, dispatch=2)  # requeued since
    bench.accept(again)
    await asyncio.sleep(0.01)
    assert sleeps == [run.id]
    bench.engine.ask(Ask.SHUTDOWN)
    await bench.until_idle()


@scenario
async def test_an_order_for_another_dispatch_harms_nobody(app, sleeps):
    bench = Bench(app)
    run = bench.start("sleep", {"seconds": 1.0}, dispatch=5)
    assert bench.engine.cancel([CancelOrder(run.id, 4, "why")]) == 0
    end = await bench.only_end()
    assert end.outcome is AttemptOutcome.SUCCEEDED


@scenario
async def test_an_order_that_comes_too_late_or_twice_changes_nothing(app, sleeps):
    bench = Bench(app)
    run = bench.start("sleep", {"seconds": 1.0})
    await bench.only_end()
    assert bench.engine.cancel([order(run)]) == 0
    other = bench.start("sleep")
    await asyncio.sleep(0.01)
    assert [bench.engine.cancel([order(other, why)]) for why in ("first", "second")] == [1, 1]
    await bench.until_idle()
    assert [end.error for end in bench.ends[1:]] == ["first"]


@scenario
async def test_who_was_asked_to_end_before_ends_as_it_was_asked(app, sleeps):
    """The record knows of the cancel, and ends the job cancelled whatever is reported."""
    bench = Bench(app)
    run = bench.start("sleep")
    await asyncio.sleep(0.01)
    bench.engine.ask(Ask.SHUTDOWN)
    bench.engine.cancel([order(run)])
    end = await bench.only_end()
    assert isinstance(end, Returned)
    assert end.reason is ReturnReason.INTERRUPTED


@scenario
async def test_a_process_handler_that_waits_for_a_child_has_not_started():
    bench = Bench(process_handlers.app, process_slots=1)
    bench.executors.processes.acquire_on_behalf_of_nowait("another")
    run = bench.start("sleep", {"seconds": 1})
    await asyncio.sleep(0.1)
    bench.engine.cancel([order(run)])
    end = await bench.only_end()
    assert (type(end), end.started_at) == (Returned, None)
    await bench.until_idle()
    bench.assert_empty()


@scenario
async def test_a_job_is_given_back_only_if_it_has_not_started(app, sleeps):
    bench = Bench(app, slots=1)
    running = bench.start("sleep", {"seconds": 5.0})
    held = bench.start("sleep")
    later = bench.start("sleep", in_s=50.0)
    await asyncio.sleep(0.01)
    coming = bench.run("sleep")
    wanted = [(run.id, run.dispatch) for run in (running, held, later, coming)]
    assert bench.engine.recall(wanted) == [held.id, later.id, coming.id]
    assert len(bench.reporter.acked) == 2
    bench.accept(coming)
    assert len(bench.reporter.acked) == 3
    assert bench.engine.recall(wanted) == [held.id, later.id, coming.id]  # asked again, answered alike
    (end,) = await bench.until_ended()
    assert end.id == running.id
    await asyncio.sleep(60)
    assert sleeps == [running.id]
    bench.assert_empty()


@scenario
async def test_a_job_that_has_ended_is_not_given_back(app, sleeps):
    bench = Bench(app)
    run = bench.start("sleep", {"seconds": 1.0})
    await bench.only_end()
    assert bench.engine.recall([(run.id, run.dispatch)]) == []


@scenario
async def test_what_was_refused_or_recalled_is_remembered_however_many_other_jobs_pass(app, sleeps, monkeypatch):
    """It lies in the server for ten minutes, in a message that others are in, too."""
    monkeypatch.setattr(engine_module, "KNOWN_MAX", 400)
    bench = Bench(app)
    cancelled, recalled, beside = (bench.run("sleep", {"seconds": 0.0}, job_id=name) for name in "crb")
    more = [bench.run("sleep", job_id=f"more-{n}") for n in range(1_000)]  # no refusal drives another one out
    bench.engine.cancel([order(cancelled), *map(order, more)])
    assert bench.engine.recall([(recalled.id, recalled.dispatch)]) == [recalled.id]
    for n in range(0, 1_000, 10):
        bench.accept(*[bench.run("sleep", {"seconds": 0.0}, job_id=f"other-{n + i}") for i in range(10)])
        await bench.until_ended(n + 10)
    assert bench.engine.will_drop(cancelled.id, cancelled.dispatch)
    delivery = bench.accept(cancelled, recalled, beside)
    await bench.until_ended(1_001)
    assert [job_id for job_id in sleeps if not job_id.startswith("other")] == [beside.id]
    assert delivery in bench.reporter.acked
    assert bench.engine.recall([(recalled.id, recalled.dispatch)]) == [recalled.id]
    await bench.until_idle()
    bench.assert_empty()


def test_refusals_are_forgotten_when_what_they_are_about_has_come_and_after_a_day():
    refusals = refusals_module.Refusals()
    day_s = refusals_module.REFUSED_S
    for n in range(10):
        refusals.refuse(f"old-{n}", 2, now_s=0.0)
    refusals.came("old-0", 2)
    refusals.came("old-1", 1)  # an earlier one: the second is to come yet
    assert [refusals.refuses(f"old-{n}", 2) for n in range(3)] == [False, True, True]
    assert not refusals.refuses("old-2", 3)
    refusals.refuse("new", 1, now_s=day_s + 1)
    assert refusals.refuses("old-9", 2)
    refusals.refuse("newer", 1, now_s=2 * day_s + 2)
    assert (refusals.refuses("old-9", 2), refusals.refuses("new", 1)) == (False, True)
    refusals.refuse("newest", 1, now_s=5 * day_s)
    assert not refusals.refuses("newer", 1)
    refusals.came("newest", 1)
    assert not refusals.any


@scenario
async def test_a_job_that_comes_again_takes_the_place_of_its_older_dispatch_that_waits_here(app, sleeps):
    """Cancelled while it lay here, requeued before its worker was told, and given to the same worker."""
    bench = Bench(app, slots=1)
    bench.start("sleep", {"seconds": 5.0}, job_id="running")
    waits, later = bench.run("sleep", job_id="waits"), bench.run("sleep", job_id="later", in_s=30.0)
    first = bench.accept(waits, later)
    again = [bench.run("sleep", {"seconds": 1.0}, job_id=name, dispatch=2) for name in ("waits", "later")]
    bench.accept(*again)
    assert first in bench.reporter.acked
    assert bench.engine.held == 2
    assert bench.engine.cancel([order(waits), order(later)]) == 0
    await bench.until_ended(3)
    await asyncio.sleep(60)
    assert sorted(sleeps) == ["later", "running", "waits"]
    assert [(end.id, end.dispatch) for end in bench.ends] == [("running", 1), ("waits", 2), ("later", 2)]
    bench.assert_empty()


@scenario
async def test_an_order_is_for_its_dispatch_also_where_another_one_still_runs(app, sleeps):
    """Forced to end, in the record; what runs cannot be stopped, and the job was requeued."""
    go_on = threading.Event()

    @app.handler("thread", executor="thread")
    def thread() -> None:
        go_on.wait(20)

    bench = Bench(app, slots=1)
    runs = bench.start("thread", job_id="job")
    await until_running(bench)
    await asyncio.sleep(0.01)
    waits = bench.start("sleep", job_id="job", dispatch=2)
    assert bench.engine.recall([("job", 1)]) == []
    assert bench.engine.cancel([order(waits)]) == 0  # and not the one that runs
    assert [(type(end), end.dispatch) for end in bench.ends] == [(Returned, 2)]
    assert bench.engine.cancel([order(runs)]) == 1
    go_on.set()
    await bench.until_idle()
    await asyncio.sleep(1)
    assert sleeps == []
    assert [end.dispatch for end in bench.ends] == [2, 1]
    assert bench.ends[1].outcome is AttemptOutcome.CANCELLED
    bench.assert_empty()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("races", [40, pytest.param(500, marks=pytest.mark.soak)])
@in_real_time
async def test_br194_cancelling_one_process_job_never_harms_the_next(tmp_path, races):
    """Cancels at the very time at which the child is done with one job and is given the next."""
    bench = Bench(process_handlers.app, slots=1, process_slots=1)
    cut = 0
    warm = bench.start("touch", {"path": str(tmp_path / "warm")}, timeout_s=LONG_S)
    await bench.until_ended()
    for number in range(races):
        seconds = random.uniform(0.0, 0.002)
        first = bench.start("touch", {"path": str(tmp_path / "first"), "seconds": seconds}, timeout_s=LONG_S)
        path = tmp_path / f"second-{number}"
        second = bench.start("touch", {"path": str(path)}, timeout_s=LONG_S, priority=Priority.LOW)
        await asyncio.sleep(random.uniform(0.0, 0.003))
        bench.engine.cancel([order(first)])
        ends = {end.id: end for end in await bench.until_ended(2 * number + 3)}
        cut += ends[first.id].outcome is AttemptOutcome.CANCELLED if isinstance(ends[first.id], Finished) else 0
        assert ends[second.id].outcome is AttemptOutcome.SUCCEEDED, ends[second.id].error
        assert path.read_text() == "x"
    assert warm.id not in {first.id, second.id}
    assert 0 < cut < races  # or none of them was a race


@scenario
async def test_br196_a_cancelled_thread_is_reported_when_it_returns_or_its_time_is_over(app):
    go_on = threading.Event()

    @app.handler("thread", executor="thread")
    def thread() -> str:
        go_on.wait(20)
        return "late"

    bench = Bench(app, grace_s=5.0)
    run = bench.start("thread", timeout_s=30.0)
    await asyncio.sleep(1)
    bench.engine.cancel([order(run)])
    await asyncio.sleep(20)
    assert bench.ends == []  # it runs still, and that is what is said of it
    await asyncio.sleep(10)
    (end,) = bench.ends
    assert end.outcome is AttemptOutcome.CANCELLED
    assert "a thread cannot be stopped, it still holds a slot" in end.error
    assert bench.engine.running == 1
    go_on.set()
    await bench.until_idle()
    assert len(bench.ends) == 1
    bench.assert_empty()
