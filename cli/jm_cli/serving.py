"""A process of the cluster from start to drained: signals, event loop, telemetry, exit code."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import typer

from jm_cli.exits import ExitCode
from jm_cli.misspelt import misspelt
from jm_cli.running import run_for_long
from jm_cli.telemetry import telemetry
from jm_cli.version import version

log = logging.getLogger("jobmaster.cli")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Process(Protocol):
    """What ``serve`` runs."""

    def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> Awaitable[None]: ...


ProcessT = TypeVar("ProcessT", bound=Process)


class StopSignals:
    """The first SIGTERM, SIGINT or SIGHUP sets ``stop``, the second ``hurry``; a third does what it does without us.

    What is ignored (``nohup`` does so with SIGHUP) stays ignored.
    """

    def __init__(self, rule: str) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._rule = rule
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
        if not self.stop.is_set():
            log.warning("%s: %s", number.name, self._rule)
            self.stop.set()
        else:
            log.warning("%s again: hurrying; a third one kills", number.name)
            self.hurry.set()
            self._uninstall()

    def _uninstall(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.remove_signal_handler(number)


def serve(make: Callable[[], ProcessT], *, service: str, rule: str, is_ready: Callable[[ProcessT], bool]) -> None:
    """Run a process until it has stopped.

    Args:
        make: builds it, inside the event loop.
        rule: what the first signal does, for the log.
        is_ready: whether it has anything to drain; before that, a signal ends it at once.

    Raises:
        typer.Exit: with 130 when it was hurried, or stopped before it was ready.
    """
    with telemetry(service):
        code = run_for_long(_serve(make, service, rule, is_ready))
    if code is not ExitCode.OK:
        raise typer.Exit(code)


async def _serve(
    make: Callable[[], ProcessT], service: str, rule: str, is_ready: Callable[[ProcessT], bool]
) -> ExitCode:
    signals = StopSignals(rule)
    with signals.installed():
        _mention_misspelt()
        log.info("%s starts", service, extra={"pid": os.getpid(), "version": version()})
        process = make()
        running = asyncio.ensure_future(process.run(signals.stop, signals.hurry))
        stopping = asyncio.ensure_future(signals.stop.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and not is_ready(process):
                running.cancel()  # it is still looking for NATS
                await asyncio.wait({running})
                return ExitCode.INTERRUPTED
            await running
        finally:
            stopping.cancel()
    return ExitCode.INTERRUPTED if signals.hurry.is_set() else ExitCode.OK


def _mention_misspelt() -> None:
    from jm_cli.app import app  # noqa: PLC0415 - it imports the commands, which import us

    for name, meant in misspelt(os.environ, typer.main.get_command(app)).items():
        log.warning("the variable %s is unknown and has no effect; did you mean %s?", name, meant)
