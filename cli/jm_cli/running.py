"""From a typer command, which is a plain function, into asyncio and back."""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jm_cli.exits import CliError, ExitCode, debugging
from jm_cli.settings import ClusterOptions, NatsOptions

if TYPE_CHECKING:
    from jm_nats.client import JobClient

T = TypeVar("T")
LEAVE_S: Final = 0.2  # what is left of a process gets to end by itself


@dataclass(frozen=True, kw_only=True)
class ClientOptions(NatsOptions, ClusterOptions):
    """For commands that talk to a cluster over NATS."""

    @asynccontextmanager
    async def client(self, *, receipt_timeout_s: float = 10.0) -> "AsyncIterator[JobClient]":
        from jm_nats.client import JobClient  # noqa: PLC0415

        local = self.local
        async with JobClient(self.name(local), self.nats_config(local), receipt_timeout_s=receipt_timeout_s) as client:
            yield client


def run_briefly(work: Coroutine[Any, Any, T]) -> T:
    """Run a command that answers and ends. Its libraries log nothing: what is wrong is said in one line."""
    import asyncio  # noqa: PLC0415

    from jm_cli.logs import quiet_logging, start_logging  # noqa: PLC0415

    start_logging("debug") if debugging() else quiet_logging()
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:  # typer would make a silent exit of it
        raise CliError(ExitCode.INTERRUPTED, "interrupted") from None


def run_for_long(work: Coroutine[Any, Any, T]) -> T:
    """Run a process of the cluster, on uvloop where there is one.

    A handler that takes no notice of its cancellation must not hold the exit, which asyncio's own way would do for
    ever: its task is left where it is.
    """
    import asyncio  # noqa: PLC0415

    runner = asyncio.Runner(loop_factory=_loop_factory())
    stubborn: set[asyncio.Task[Any]] = set()

    async def run() -> T:
        try:
            return await work
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                stubborn.update((await asyncio.wait(left, timeout=LEAVE_S))[1])

    try:
        return runner.run(run())
    finally:
        for task in stubborn:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it has been named
        if not stubborn:
            runner.close()


def _loop_factory() -> Any:
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return None
    return uvloop.new_event_loop
