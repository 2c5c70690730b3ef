"""Several groups in one process: how each of them ends, and what the process makes of it."""

import asyncio
import logging

import pytest

from jm_cli import scrapes as scrapes_module
from jm_cli.exits import ExitCode
from jm_cli.groups import Group, run_groups
from jm_cli.scrapes import Scrapes
from jm_core.errors import InvalidSettingError
from jm_core.health import Invariant, InvariantViolatedError
from jm_nats.errors import AgentUnavailableError
from jm_nats.health import HealthBoard

AWAY = AgentUnavailableError("here", "no answer", remedy="start it")


class Fake:
    """A worker that fails or ends as it is told to, at its start or once it is ready."""

    def __init__(self, *, fails=None, at_start=False, ends=False):
        self.ready = asyncio.Event()
        self.cancelled = False
        self._fails = fails
        self._at_start = at_start
        self._ends = ends
        self.go = asyncio.Event()
        self.go.set()

    async def run(self, stop, hurry):  # noqa: ARG002 - a worker's
        try:
            if not self._at_start:
                self.ready.set()
            await self.go.wait()
            if self._fails:
                await asyncio.sleep(0)
                raise self._fails
            if not self._ends:
                await stop.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


class Searching(Fake):
    async def run(self, stop, hurry):
        self.go.clear()
        self._at_start = True
        await super().run(stop, hurry)


def groups_of(*processes, **options):
    return [Group(process=p, board=HealthBoard(f"g{i}", "worker"), **options) for i, p in enumerate(processes)]


async def run(groups, *, stop_when=None, stays_up=False, hurried=False, linger=None):
    """The exit code; with ``stop_when`` the stop comes once that is true."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    running = asyncio.ensure_future(run_groups(groups, stop, hurry, stays_up=stays_up, linger=linger))
    async with asyncio.timeout(5):
        if stop_when is not None:
            while not stop_when():
                await asyncio.sleep(0)
            if hurried:
                hurry.set()
            stop.set()
        return await running


async def test_all_end_well():
    groups = groups_of(Fake(), Fake())
    started = lambda: all(group.board.report().started for group in groups)  # noqa: E731
    assert await run(groups, stop_when=started) is ExitCode.OK


async def test_one_halts_and_its_sibling_goes_on(caplog):
    well, sick = Fake(), Fake(fails=KeyError("a bug"))
    groups = groups_of(well, sick)
    assert await run(groups, stop_when=lambda: groups[1].board.is_halted) is ExitCode.UNEXPECTED
    assert not well.cancelled
    assert not groups[0].board.is_halted
    assert groups[1].board.verdict().reasons == ("halted: KeyError: 'a bug'",)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [(record.group, record.exc_info is not None) for record in errors] == [("g1", True)]


async def test_without_a_health_port_the_process_ends_with_its_last_group():
    groups = groups_of(Fake(fails=KeyError("1")), Fake(fails=KeyError("2")))
    assert await run(groups) is ExitCode.UNEXPECTED


async def test_with_a_health_port_it_stays_up_until_a_signal(caplog):
    groups = groups_of(Fake(fails=KeyError("1")))
    said = lambda: "nothing runs any more" in caplog.text  # noqa: E731
    assert await run(groups, stays_up=True, stop_when=said) is ExitCode.UNEXPECTED
    assert groups[0].board.is_halted


async def test_without_a_health_port_it_waits_for_whoever_wants_to_see_why():
    lingered = []

    async def linger(stop):
        assert groups[0].board.is_halted
        lingered.append(stop)

    groups = groups_of(Fake(fails=KeyError("1")))
    assert await run(groups, linger=linger) is ExitCode.UNEXPECTED
    assert len(lingered) == 1
    groups = groups_of(Fake(ends=True))
    assert await run(groups, linger=linger) is ExitCode.OK
    assert len(lingered) == 1, "what ended in order is gone at once"


async def test_a_page_that_nobody_reads_holds_nobody_up():
    async with asyncio.timeout(5):
        await Scrapes().linger(asyncio.Event())


async def test_a_page_that_is_read_no_more_holds_nobody_up_for_long(monkeypatch):
    scrapes = Scrapes()
    scrapes.collect()
    monkeypatch.setattr(scrapes_module, "LINGER_S", 0.3)
    async with asyncio.timeout(5):
        await scrapes.linger(asyncio.Event())


async def test_what_was_known_to_go_wrong_is_logged_without_a_traceback(caplog):
    groups = groups_of(Fake(fails=AWAY))
    assert await run(groups) is ExitCode.UNEXPECTED
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is None


@pytest.mark.parametrize("stays_up", [False, True])
@pytest.mark.parametrize("error", [AWAY, InvalidSettingError("x"), KeyError("k")], ids=repr)
async def test_a_start_that_fails_is_told_by_its_error_alone(error, stays_up, caplog):
    with pytest.raises(type(error)):
        await run(groups_of(Fake(fails=error, at_start=True)), stays_up=stays_up)
    assert caplog.records == []


async def test_when_no_group_starts_the_first_error_is_that_of_the_process():
    with pytest.raises(AgentUnavailableError):
        await run(groups_of(Fake(fails=AWAY, at_start=True), Fake(fails=KeyError(), at_start=True)), stays_up=True)


async def test_one_that_does_not_start_is_no_reason_to_end_the_other():
    groups = groups_of(Fake(), Fake(fails=AWAY, at_start=True))
    assert await run(groups, stop_when=lambda: groups[1].board.is_halted) is ExitCode.UNEXPECTED
    assert not groups[0].process.cancelled


async def test_a_broken_invariant_is_shown_even_if_it_was_found_at_the_start(caplog):
    broken = InvariantViolatedError(Invariant.AGENT_STORE_CHANGED, "x")
    groups = groups_of(Fake(fails=broken, at_start=True))
    said = lambda: "nothing runs any more" in caplog.text  # noqa: E731
    assert await run(groups, stays_up=True, stop_when=said) is ExitCode.UNEXPECTED
    assert "agent_store_changed" in groups[0].board.verdict().reasons[0]


async def test_without_a_health_port_it_is_told_by_the_error_like_any_other_failed_start():
    with pytest.raises(InvariantViolatedError):
        await run(groups_of(Fake(fails=InvariantViolatedError(Invariant.AGENT_STORE_CHANGED, "x"), at_start=True)))


async def test_what_ends_by_itself_ends_the_process_with_0_though_there_is_a_health_port():
    assert await run(groups_of(Fake(ends=True)), stays_up=True) is ExitCode.OK


async def test_a_stop_does_not_wait_for_what_still_looks_for_nats():
    searching = Searching()
    assert await run(groups_of(searching), stop_when=lambda: True) is ExitCode.INTERRUPTED
    assert searching.cancelled


async def test_hurried_is_interrupted():
    groups = groups_of(Fake())
    assert await run(groups, stop_when=groups[0].process.ready.is_set, hurried=True) is ExitCode.INTERRUPTED
