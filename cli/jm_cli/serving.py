"""A process of the cluster from start to drained: signals, event loop, telemetry, health port, exit code.

A process holds one or more *groups*: workers, each with its own application and settings, and with ``--mode full`` a
coordinator. They start and stop together, and fail apart (``jm_cli.groups``).
"""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import typer

from jm_cli.exits import ExitCode
from jm_cli.groups import Group, run_groups
from jm_cli.logs import add_facts
from jm_cli.misspelt import misspelt
from jm_cli.redaction import redact
from jm_cli.role_settings import HealthOptions
from jm_cli.running import run_for_long
from jm_cli.scrapes import Scrapes
from jm_cli.service_manager import ServiceManager, notifying
from jm_cli.telemetry import Identity, telemetry
from jm_cli.telemetry_options import TelemetryOptions
from jm_cli.version import version
from jm_nats.health_server import HealthServer
from jm_nats.liveness import Reporter
from jm_nats.log_context import set_group

log = logging.getLogger("jobmaster.cli")

# An init that signals the whole group, and a parent that passes the signal on: one stop comes twice (BR-132).
ECHO_S: Final = 0.3
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """The first SIGTERM, SIGINT or SIGHUP sets ``stop``, the second ``hurry``; a third does what it does without us.

    What is ignored (``nohup`` does so with SIGHUP) stays ignored.
    """

    def __init__(self, rule: str) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._rule = rule
        self._first_s = 0.0
        self._numbers: list[signal.Signals] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in self._numbers:
            loop.add_signal_handler(number, self._received, number)
        try:
            yield
        finally:
            self._uninstall()

    def _received(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if not self.stop.is_set():
            log.info("told to stop", extra={"signal": number.name, "rule": self._rule})
            self._first_s = now_s
            self.stop.set()
        elif now_s - self._first_s < ECHO_S:
            log.info("told to stop at once again: an echo, it does not hurry", extra={"signal": number.name})
        else:
            log.warning("told to stop again: hurrying; a third one kills", extra={"signal": number.name})
            self.hurry.set()
            self._uninstall()

    def _uninstall(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.remove_signal_handler(number)


def serve(
    make: Callable[[], Sequence[Group]],
    *,
    identity: Identity,
    rule: str,
    health: HealthOptions,
    told: TelemetryOptions,
) -> None:
    """Run the groups of a process until they have stopped.

    Args:
        make: builds them, inside the event loop.
        told: where telemetry goes.
        rule: what the first signal does, for the log.

    Raises:
        typer.Exit: with 130 when it was hurried or stopped before it was ready, with 1 when a group has halted.
    """
    manager = ServiceManager.from_environment()
    add_facts()
    if len(identity.instances) == 1:  # also for what is logged before and after the group runs
        set_group(identity.service, identity.instances[0], ",".join(identity.clusters))
    with telemetry(told, identity) as scrapes:
        code = run_for_long(_serve(make, identity.service, rule, health, manager=manager, scrapes=scrapes))
    if code is not ExitCode.OK:
        raise typer.Exit(code)


async def _serve(
    make: Callable[[], Sequence[Group]],
    service: str,
    rule: str,
    health: HealthOptions,
    *,
    manager: ServiceManager | None,
    scrapes: Scrapes,
) -> ExitCode:
    signals = StopSignals(rule)
    with signals.installed():
        _mention_misspelt()
        log.info("process starts", extra={"role": service, "pid": os.getpid(), "version": version()})
        groups = make()
        boards = [group.board for group in groups]
        async with health_port(boards, health), notifying(manager, boards, signals.stop), settling(groups):
            stays_up = health.health_port is not None
            return await run_groups(groups, signals.stop, signals.hurry, stays_up=stays_up, linger=scrapes.linger)


@asynccontextmanager
async def health_port(boards: Sequence[Reporter], options: HealthOptions) -> AsyncIterator[None]:
    """The health port, if there is to be one.

    Raises:
        InvalidSettingError: it cannot be opened.
    """
    if options.health_port is None:
        yield
        return
    with HealthServer(boards, host=options.health_host, port=options.health_port, redact=redact) as server:
        ticking = asyncio.create_task(server.tick())
        try:
            yield
        finally:
            ticking.cancel()


@asynccontextmanager
async def settling(groups: Sequence[Group]) -> AsyncIterator[None]:
    """Once all groups are ready, what is here, modules above all, stays to the end: the collector need not look through
    it time and again. A full collection stopped a loaded worker or coordinator for 25 to 34 ms of CPU; then 0.4.
    """

    async def settle() -> None:
        for group in groups:
            await group.process.ready.wait()
        gc.collect()
        gc.freeze()

    task = asyncio.create_task(settle(), name="settle")
    try:
        yield
    finally:
        task.cancel()


def _mention_misspelt() -> None:
    from jm_cli.app import app  # noqa: PLC0415 - it imports the commands, which import us

    for name, meant in misspelt(os.environ, typer.main.get_command(app)).items():
        log.warning("variable is unknown and has no effect", extra={"variable": name, "did_you_mean": meant})
