"""``jm worker drain`` and ``stop``: an order to one worker, and the wait until it has taken it.

The order goes to the worker itself and may get lost, so it is given again, which changes nothing; that it was taken is
read from its heartbeat, which anybody can see.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from jm_cli.exits import CliError, ExitCode, UsageError
from jm_cli.options import expanded
from jm_cli.render import print_json, print_line, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import JsonFlag
from jm_cli.worker_look import GONE, WorkerArgument, require_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from jm_core.rpc import Request
    from jm_nats.census import WorkerView
    from jm_nats.client import JobClient

ASK_TRIES: Final = 3
ASK_TIMEOUT_S: Final = 3.0
ASK_PAUSE_S: Final = 1.0
TAKEN_WITHIN_S: Final = 20.0  # ten heartbeats
POLL_S: Final = 0.25

WaitFlag = Annotated[
    bool, typer.Option("--wait", help="Return only when the worker has exited, however long it takes.")
]


@expanded
def drain(
    worker: WorkerArgument,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take jobs again, if it has not exited yet.")] = False,
    wait: WaitFlag = False,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Tell a worker to take no more jobs, and to exit once those that it runs have ended in their own time.

    What it holds and has not started goes back at once, for others to run. Returns when its heartbeat says that it
    drains, or it is gone.

    Examples:
        jm worker drain web-7-4711-0f3a9c21 --wait
        jm worker drain web-7-4711-0f3a9c21 --undo
    """
    from jm_core.model import WorkerState  # noqa: PLC0415
    from jm_core.rpc import Drain  # noqa: PLC0415

    if undo and wait:
        raise UsageError("--wait waits for the end of the worker; with --undo there is none")
    taken = (
        (lambda state: state in (WorkerState.SERVING, WorkerState.FENCED))
        if undo
        else (lambda state: state in (WorkerState.DRAINING, WorkerState.STOPPING, GONE))
    )
    run_briefly(_order(worker, Drain(undo=undo), taken, wait=wait, as_json=as_json, options=options))


@expanded
def stop(
    worker: WorkerArgument,
    *,
    hurry: Annotated[
        bool, typer.Option("--hurry", help="As a second signal: running jobs are cut short and go back now.")
    ] = False,
    wait: WaitFlag = False,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Stop a worker as SIGTERM does: running jobs get its --drain-timeout, then they go back to the master.

    Returns when its heartbeat says that it stops, or it is gone.

    Example:
        jm worker stop web-7-4711-0f3a9c21 --wait
    """
    from jm_core.model import WorkerState  # noqa: PLC0415
    from jm_core.rpc import Stop  # noqa: PLC0415

    def taken(state: str) -> bool:
        return state in (WorkerState.STOPPING, GONE)

    run_briefly(_order(worker, Stop(hurry=hurry), taken, wait=wait, as_json=as_json, options=options))


async def _order(
    worker: str,
    order: "Request",
    taken: "Callable[[str], bool]",
    *,
    wait: bool,
    as_json: bool,
    options: ClientOptions,
) -> None:
    from jm_nats.census import read_census  # noqa: PLC0415

    async with options.client() as client:
        before = require_worker(client, await read_census(client.link, client.names), worker)
        if before is None:
            raise CliError(ExitCode.NO_WORKER, f"worker {worker!r} is gone: it has no heartbeat, others take its jobs")
        with _spinner(f"{worker}: asking") as show:
            await _ask(client, worker, order)
            follower = _Follower(client, before, show)
            state = await follower.until(taken, TAKEN_WITHIN_S)
            if wait:
                state = await follower.until(lambda state: state == GONE, None)
    if as_json:
        running, held = (follower.last.running, follower.last.held) if follower.last else (0, 0)
        print_json({"worker": worker, "state": state, "running": running, "held": held})
    else:
        print_line(f"{worker} {state}")


async def _ask(client: "JobClient", worker: str, order: "Request") -> None:
    """Give the order until it is answered.

    Raises:
        NoSuchWorkerError, AgentUnavailableError: it does not answer, several times.
        WorkerRefusedError.
    """
    import asyncio  # noqa: PLC0415

    from jm_nats.errors import AgentUnavailableError  # noqa: PLC0415
    from jm_nats.worker_client import NoSuchWorkerError, accepted, ask  # noqa: PLC0415

    for attempt in range(1, ASK_TRIES + 1):
        try:
            accepted(worker, await ask(client.link, client.names, worker, order, timeout_s=ASK_TIMEOUT_S))
            return
        except (NoSuchWorkerError, AgentUnavailableError) as error:
            if attempt == ASK_TRIES:
                problem = f"worker {worker!r} does not answer, asked {ASK_TRIES} times: {error}"
                raise CliError(ExitCode.NO_WORKER, problem) from None
            await asyncio.sleep(ASK_PAUSE_S)


class _Follower:
    """Reads the worker's heartbeat until it says what is waited for. ``last`` is None once it is gone."""

    def __init__(self, client: "JobClient", worker: "WorkerView", show: "Callable[[str], None]") -> None:
        self._client = client
        self._show = show
        self._incarnation = worker.incarnation
        self._name = worker.worker
        self.last: WorkerView | None = worker

    async def until(self, reached: "Callable[[str], bool]", patience_s: float | None) -> str:
        """The state, once ``reached``.

        Raises:
            CliError: not in time.
        """
        import asyncio  # noqa: PLC0415

        try:
            async with asyncio.timeout(patience_s):
                while not reached(state := await self._look()):  # noqa: ASYNC110 - a look is a question to NATS
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            state = self.last.state if self.last else GONE
            problem = f"worker {self._name!r} took the order, but its heartbeat says {state!r} after {patience_s:g} s"
            raise CliError(ExitCode.NO_WORKER, f"{problem}; look again with 'jm worker show {self._name}'") from None
        return state

    async def _look(self) -> str:
        """Its state. NATS being away costs looks: the order stands."""
        from jm_nats.census import read_census  # noqa: PLC0415
        from jm_nats.errors import AgentUnavailableError  # noqa: PLC0415

        try:
            found = (await read_census(self._client.link, self._client.names)).worker(self._name)
        except AgentUnavailableError as error:
            self._show(f"{self._name}: {error}")
            return ""
        self.last = found if found and found.incarnation == self._incarnation else None
        state = self.last.state if self.last else GONE
        self._show(f"{self._name}: {state}{self._rest()}")
        return state

    def _rest(self) -> str:
        return f", {self.last.running} running, {self.last.held} held" if self.last else ""


@contextmanager
def _spinner(text: str) -> "Iterator[Callable[[str], None]]":
    """Gives what shows a line: in place on a terminal, elsewhere each new one below the last."""
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from jm_cli.plain_text import safe  # noqa: PLC0415

    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(Text(safe(text))) as status:
            yield lambda line: status.update(Text(safe(line)))
        return
    last = ""

    def show(line: str) -> None:
        nonlocal last
        if line != last:
            last = line
            say(safe(line))

    yield show
