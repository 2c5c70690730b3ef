"""A process of the cluster from start to drained: signals, event loop, telemetry, exit code."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import typer

from jm_cli.exits import ExitCode
from jm_cli.running import run_for_long
from jm_cli.telemetry import telemetry

log = logging.getLogger("jobmaster.cli")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Process(Protocol):
    """What ``serve`` runs. Before it is ready there is nothing to drain, so that a signal then ends it at once."""

    def is_ready(self) -> bool: ...

    def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> Awaitable[None]: ...


class StopSignals:
    """The first SIGTERM or SIGINT sets ``stop``, the second ``hurry``; a third does what it does without us."""

    def __init__(self, rule: str) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._rule = rule

    @contextmanager
    def installed(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
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
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def serve(make: Callable[[], Process], *, service: str, rule: str) -> None:
    """Run the process that ``make`` builds (inside the event loop) until it has stopped.

    Raises:
        typer.Exit: with 130 when it was hurried, or stopped before it was ready.
    """
    with telemetry(service):
        code = run_for_long(_serve(make, rule))
    if code is not ExitCode.OK:
        raise typer.Exit(code)


async def _serve(make: Callable[[], Process], rule: str) -> ExitCode:
    signals = StopSignals(rule)
    with signals.installed():
        process = make()
        running = asyncio.ensure_future(process.run(signals.stop, signals.hurry))
        stopping = asyncio.ensure_future(signals.stop.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not process.is_ready() and not running.done():
                running.cancel()  # it is still looking for NATS or Postgres: there is nothing to drain
                await asyncio.wait({running})
                return ExitCode.INTERRUPTED
            await running
        finally:
            stopping.cancel()
    return ExitCode.INTERRUPTED if signals.hurry.is_set() else ExitCode.OK
