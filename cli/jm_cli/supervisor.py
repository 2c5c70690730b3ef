"""``jm worker --processes N``: N children of the same command, started again when they die, stopped in order.

They write to our stderr and die with us (``ChildProcess``). What a dead child held is given to others at once: its
heartbeat is taken away, so that nobody waits for its lease. That is said of one incarnation, which we have given it,
by compare-and-set, and only once nothing of it can run any more (``orphans``); whatever goes wrong on the way leaves
the lease, which lapses by itself.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import typer
from msgspec import Struct

from jm_cli import orphans
from jm_cli.child_ends import CALM_S, ChildEnds
from jm_cli.children import POLL_S, Child, Death, stop_all
from jm_cli.exits import ExitCode
from jm_cli.role_settings import HealthOptions
from jm_cli.running import run_for_long
from jm_cli.service_manager import ServiceManager, notifying
from jm_cli.serving import StopSignals, health_port
from jm_core.errors import JmError
from jm_core.health import GroupReport, Health
from jm_core.kv_records import worker_at
from jm_nats.connection import connect
from jm_nats.kv import CasKv, Entry, Stale, Written

if TYPE_CHECKING:
    from jm_nats.app import JobMaster

log = logging.getLogger("jobmaster.supervisor")

CHILD_VARIABLE: Final = "JM_SUPERVISED"  # in a child: which one it is, from 1 on,
SPAWN_VARIABLE: Final = "JM_SPAWN"  # and which start of it
# The last two are of children that were told to stop while they started, and held nothing yet.
STOPPED_IN_ORDER: Final = frozenset({ExitCode.OK, None, ExitCode.INTERRUPTED, -signal.SIGTERM})
STOP_RULE: Final = "draining all processes; send it again to hurry"
STOP_MARGIN_S: Final = 5.0  # over the drain timeout
RESTART_FIRST_S: Final = 0.5
SETTLED_S: Final = 2.0  # one that lives for so long after a restart has come back
FAILURES_MAX: Final = 5  # in a row, and it will hardly come back by itself
FORGET_S: Final = 5.0


def supervise(apps: Sequence["JobMaster"], *, processes: int, drain_timeout_s: float, health: HealthOptions) -> None:
    """Until a signal; every child has ended on return.

    Args:
        apps: what the children serve, for taking a dead one's heartbeats away.

    Raises:
        CliError: a child cannot use its settings.
        typer.Exit: it was hurried, or a child did not end well.
    """
    manager = ServiceManager.from_environment()  # before the children have a copy of the environment
    children = _children(processes, drain_timeout_s + STOP_MARGIN_S)
    code = run_for_long(_supervise(children, apps, health, manager))
    if code is not ExitCode.OK:
        raise typer.Exit(code)


def _children(processes: int, stop_s: float) -> list[Child]:
    """The same command as ours; each child knows by the variable that it is one."""
    return [
        Child(
            f"worker {number}",
            sys.argv[1:],
            env=dict(os.environ) | {CHILD_VARIABLE: str(number)},
            folder=None,
            stop_s=stop_s,
            backoff_first_s=RESTART_FIRST_S,
            may_end=True,
            spawn_variable=SPAWN_VARIABLE,
        )
        for number in range(1, processes + 1)
    ]


def incarnation_of(spawn: str, number: int) -> str:
    """Of worker ``number`` of a child; empty: of one that nobody supervises."""
    return f"{spawn}-{number}" if spawn else ""


async def _supervise(
    children: Sequence[Child], apps: Sequence["JobMaster"], health: HealthOptions, manager: ServiceManager | None
) -> ExitCode:
    signals = StopSignals(STOP_RULE)
    forgetter = _Forgetter(apps)
    with signals.installed():
        boards = [SupervisorReport(children)]
        async with health_port(boards, health), notifying(manager, boards, signals.stop):
            log.info("supervisor starts", extra={"pid": os.getpid(), "processes": len(children)})
            try:
                for child in children:
                    child.start()
                await _tend(children, signals.stop, forgetter)
            finally:
                await stop_all(children, signals.hurry)
                for child in children:
                    if child.exit_code == -signal.SIGKILL and child.last_pid is not None:
                        forgetter.forget(Death(child.last_pid, child.spawn))
                await forgetter.done()
    return _code_of(children, hurried=signals.hurry.is_set())


async def _tend(children: Sequence[Child], stop: asyncio.Event, forgetter: "_Forgetter") -> None:
    """Until it is time to stop, or every child has ended as it was told to."""
    with ChildEnds() as ends:
        while not stop.is_set() and not all(child.has_ended for child in children):
            for child in children:
                if (death := child.tend()) is not None:
                    forgetter.forget(death)
            pids = [child.pid for child in children if not child.has_ended]
            told = [pid is not None and ends.watch(pid) for pid in pids]  # one has none that has just died
            calm = all(told) and not any(child.is_due for child in children)
            await ends.wait(stop, CALM_S if calm else POLL_S)


def _code_of(children: Sequence[Child], *, hurried: bool) -> ExitCode:
    codes = {child.exit_code for child in children}
    if hurried or -signal.SIGKILL in codes:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if codes <= STOPPED_IN_ORDER else ExitCode.UNEXPECTED


class _Forgetter:
    """Takes heartbeats of dead children away, in the background: a NATS that is away must not hold up a restart."""

    def __init__(self, apps: Sequence["JobMaster"]) -> None:
        self._apps = list({(app.cluster, app.nats_config()): app for app in apps}.values())
        self._tasks: set[asyncio.Task[None]] = set()

    def forget(self, death: Death) -> None:
        task = asyncio.create_task(self._forget_all(death))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def done(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _forget_all(self, death: Death) -> None:
        try:
            async with asyncio.timeout(FORGET_S):
                is_over = await orphans.ended(pid=death.pid, spawn=death.spawn)
        except TimeoutError:
            is_over = False
        if is_over:
            await asyncio.gather(*[self._forget(app, death) for app in self._apps])
        else:
            log.warning("something of a dead process may still run; its lease has to lapse", extra={"pid": death.pid})

    async def _forget(self, app: "JobMaster", death: Death) -> None:
        try:
            async with asyncio.timeout(FORGET_S):
                await forget_worker(app, death)
        except (JmError, TimeoutError) as error:
            problem = str(error) or f"not done in {FORGET_S:g} s"
            log.info("a dead process's lease has to lapse by itself", extra={"pid": death.pid, "problem": problem})


async def forget_worker(app: "JobMaster", death: Death) -> int:
    """Delete the heartbeats of that very start of the child. Returns how many there were.

    By compare-and-set: a last beat of its own that was still on its way is either in before, and we look again, or is
    refused, because it follows one that is not the last any more. Who has taken over its name keeps it.
    """
    removed = 0
    async with await connect(app.nats_config(), client_name="jobmaster supervisor") as link:
        workers = CasKv(link, app.names.workers_kv)
        for found in await workers.entries():
            entry: Entry | None = found
            while entry is not None and _is_of(entry, death.spawn):
                match await workers.delete(entry.key, revision=entry.revision):
                    case Written():
                        removed += 1
                        log.info("heartbeat of a dead process removed", extra={"worker": entry.key, "pid": death.pid})
                        break
                    case Stale(current=entry):
                        pass
    return removed


def _is_of(entry: Entry, spawn: str) -> bool:
    record = worker_at(entry.key, entry.value)  # None: another version's is not our child's
    return record is not None and bool(spawn) and record.incarnation.partition("-")[0] == spawn


class ChildState(Struct, frozen=True):
    """What the verdict depends on."""

    name: str
    running: bool
    lived_s: float
    failures: int  # in a row
    ended: bool = False  # as it was told to


def judge_children(children: Sequence[ChildState]) -> tuple[Health, list[str]]:
    """All running is healthy; one being restarted degrades; one that fails again and again is unhealthy."""
    expected = [child for child in children if not child.ended]
    failing = [child for child in expected if child.failures >= FAILURES_MAX]
    restarting = [
        child
        for child in expected
        if child not in failing and (not child.running or (child.failures and child.lived_s < SETTLED_S))
    ]
    reasons = [f"{child.name} has failed {child.failures} times in a row" for child in failing]
    reasons += [f"{child.name} is being started again" for child in restarting]
    if failing:
        return Health.UNHEALTHY, reasons
    return Health.DEGRADED if restarting else Health.HEALTHY, reasons


class SupervisorReport:
    """The supervisor on its health port."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children

    def report(self) -> GroupReport:
        states = [
            ChildState(child.name, child.running, child.lived_s, child.failures, child.has_ended)
            for child in self._children
        ]
        health, reasons = judge_children(states)
        return GroupReport("supervisor", "supervisor", health, started=True, reasons=reasons)
