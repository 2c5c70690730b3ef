"""``jm worker --processes N``: N children of the same command, started again when they die, stopped in order.

They write to our stderr and die with us (``ChildProcess``). What a dead child held is given to others at once: its
heartbeat is taken away, so that nobody waits for its lease.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import typer
from msgspec import Struct

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
from jm_nats.kv import CasKv
from jm_nats.worker.heartbeat import pid_space

if TYPE_CHECKING:
    from jm_nats.app import JobMaster

log = logging.getLogger("jobmaster.supervisor")

CHILD_VARIABLE: Final = "JM_SUPERVISED"  # in a child: which one it is, from 1 on
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
        )
        for number in range(1, processes + 1)
    ]


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
                    if child.exit_code == -signal.SIGKILL:
                        forgetter.forget(child.last_pid)
                await forgetter.done()
    return _code_of(children, hurried=signals.hurry.is_set())


async def _tend(children: Sequence[Child], stop: asyncio.Event, forgetter: "_Forgetter") -> None:
    """Until it is time to stop, or every child has ended as it was told to."""
    while not stop.is_set() and not all(child.has_ended for child in children):
        for child in children:
            match child.tend():
                case Death(pid=pid):
                    forgetter.forget(pid)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), POLL_S)


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

    def forget(self, pid: int | None) -> None:
        for app in self._apps if pid is not None else []:
            task = asyncio.create_task(self._forget(app, pid))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def done(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _forget(self, app: "JobMaster", pid: int | None) -> None:
        try:
            async with asyncio.timeout(FORGET_S):
                await forget_worker(app, pid=pid, space=pid_space())
        except (JmError, TimeoutError) as error:
            problem = str(error) or f"not done in {FORGET_S:g} s"
            log.info("a dead process's lease has to lapse by itself", extra={"pid": pid, "problem": problem})


async def forget_worker(app: "JobMaster", *, pid: int | None, space: str) -> int:
    """Delete the heartbeats of that very process, as they were when we looked: whoever took its name over has written
    since, and keeps its own. Returns how many there were.
    """
    removed = 0
    async with await connect(app.nats_config(), client_name="jobmaster supervisor") as link:
        workers = CasKv(link, app.names.workers_kv)
        for entry in await workers.entries():
            record = worker_at(entry.key, entry.value)  # None: another version's is not our child's
            if space and record is not None and (record.pid, record.pid_space) == (pid, space):
                await workers.delete(entry.key, revision=entry.revision)
                removed += 1
                log.info("heartbeat of a dead process removed", extra={"worker": entry.key, "pid": pid})
    return removed


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
