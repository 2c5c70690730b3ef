"""The groups of one process: started and stopped together, each failing for itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from jm_cli.exits import ExitCode
from jm_core.health import Fault
from jm_nats.health import HealthBoard, describe

log = logging.getLogger("jobmaster.cli")


class Process(Protocol):
    """A worker or a coordinator."""

    ready: asyncio.Event

    def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> Awaitable[None]: ...


@dataclass(frozen=True, kw_only=True)
class Group:
    """One of them.

    Args:
        stops_any_time: it has nothing to drain, so a stop need not wait for it to be ready; one that drains is
            cancelled while it still looks for NATS.
    """

    process: Process
    board: HealthBoard
    stops_any_time: bool = False


@dataclass(frozen=True)
class _End:
    error: Exception | None = None
    was_ready: bool = True
    interrupted: bool = False


async def run_groups(
    groups: Sequence[Group],
    stop: asyncio.Event,
    hurry: asyncio.Event,
    *,
    stays_up: bool,
    linger: Callable[[asyncio.Event], Awaitable[None]] | None = None,
) -> ExitCode:
    """Run all until they have ended; how the process is to end.

    A group whose ``run`` fails halts, and its siblings go on.

    Args:
        stays_up: when every group has ended and one of them has halted, wait for ``stop`` all the same: somebody may
            want to ask why (the health port is served meanwhile).
        linger: else waits for whoever comes by to see why; given ``stop``, which ends it.

    Raises:
        Exception: of the first group, when none got as far as being ready: that is a start that failed, with the
            exit code of its kind.
    """
    alone = len(groups) == 1
    ends = await asyncio.gather(*(_run_one(g, stop, hurry, alone=alone, stays_up=stays_up) for g in groups))
    failed = [end for end in ends if end.error is not None]
    if failed and len(failed) == len(ends) and not any(end.was_ready for end in ends):
        assert failed[0].error is not None
        raise failed[0].error
    if failed:
        if stays_up and not stop.is_set():
            log.error("nothing runs any more; health is served until a signal")
            await stop.wait()
        elif linger is not None and not stop.is_set():
            await linger(stop)
        return ExitCode.UNEXPECTED
    interrupted = hurry.is_set() or any(end.interrupted for end in ends)
    return ExitCode.INTERRUPTED if interrupted else ExitCode.OK


async def _run_one(group: Group, stop: asyncio.Event, hurry: asyncio.Event, *, alone: bool, stays_up: bool) -> _End:
    process = group.process
    running = asyncio.ensure_future(process.run(stop, hurry))
    stopping = asyncio.ensure_future(stop.wait())
    starting = asyncio.ensure_future(_note_start(group))
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and not (group.stops_any_time or process.ready.is_set()):
            running.cancel()  # it is still looking for NATS
            await asyncio.wait({running})
            group.board.ended()
            return _End(interrupted=True)
        await running
    except Exception as error:  # noqa: BLE001 - the edge of the group: siblings must not fall with it
        return _failed(group, error, alone=alone, stays_up=stays_up)
    finally:
        stopping.cancel()
        starting.cancel()
    group.board.ended()
    return _End()


async def _note_start(group: Group) -> None:
    await group.process.ready.wait()
    group.board.started()


def _failed(group: Group, error: Exception, *, alone: bool, stays_up: bool) -> _End:
    """What was known to go wrong needs no traceback. A start that failed is told by the error itself, in one line;
    unless an invariant is broken and there is a health port to say so.
    """
    from jm_master.faults import classify  # noqa: PLC0415 - brings Postgres's driver along

    fault = classify(error)
    was_ready = group.process.ready.is_set() or (stays_up and fault is Fault.INVARIANT)
    if was_ready or not alone:
        group.board.halt(describe(error), error if fault is Fault.UNKNOWN else None)
    return _End(error, was_ready)
