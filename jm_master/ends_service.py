"""The operations that wait: for the end of one job, or of one of many, or for anything new about one."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import anyio

from jm_core import api, limits
from jm_core.errors import InvalidJobError
from jm_core.ids import is_canonical_id
from jm_core.model import STATUS_BY_LABEL
from jm_master.api_errors import decoded
from jm_master.pg_errors import StoreContentionError, StoreUnavailableError
from jm_nats.pace import tick

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from msgspec import Struct

    from jm_master.job_store import JobStore
    from jm_master.waiters import ResultWaiters

log = logging.getLogger(__name__)
T = TypeVar("T")
WAIT_MAX_S: Final = 60.0
OTHERS_POLL_S: Final = 1.0
POLL_JOBS: Final = 5_000  # of one look
REPLY_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX  # of results in one reply; what is left comes with the next


class Read(Protocol):
    """Runs a query under the service's bounds."""

    async def __call__(self, ask: Callable[[], Awaitable[T]]) -> T: ...


class EndsService:
    """Each operation answers at once when there is something to say, else after the request's ``wait_s``."""

    def __init__(
        self, store: JobStore, waiters: ResultWaiters, read: Read, *, others: Callable[[], bool] = lambda: False
    ) -> None:
        """Args: others: whether jobs may end at another agent, whose leader tells ours nothing."""
        self._store = store
        self._waiters = waiters
        self._read = read
        self._others = others

    def operations(self) -> dict[str, Callable[[bytes], Awaitable[Struct]]]:
        return {
            api.OP_JOB_RESULT: self._result,
            api.OP_JOB_RESULTS: self._results,
            api.OP_JOB_PROGRESS: self._progress,
        }

    async def run(self) -> None:
        """Until cancelled: notice what ends at other agents, by one look for all who wait."""
        while True:
            await tick(OTHERS_POLL_S)
            if self._others():
                await self._notice()

    async def _notice(self) -> None:
        ids = [job_id for job_id in self._waiters.awaited() if is_canonical_id(job_id)]
        for start in range(0, len(ids), POLL_JOBS):
            some = ids[start : start + POLL_JOBS]
            try:
                self._waiters.ended(await self._store.which_ended(some))
            except (StoreUnavailableError, StoreContentionError) as error:
                log.debug("ends elsewhere are looked for again", extra={"problem": str(error)})
                return

    async def _result(self, data: bytes) -> Struct:
        """Reply at the job's end, or after ``wait_s`` with its state of the moment."""
        request = decoded(data, api.ResultRequest)
        until_s = _until_s(request.wait_s)
        while True:
            with self._waiters.waiting(request.id.lower()) as ended:
                reply = await self._read(lambda: self._store.result(request.id))
                if _has_ended(reply.status) or not await self._wait(ended, until_s):
                    return reply

    async def _results(self, data: bytes) -> Struct:
        """Reply with all that have ended, as soon as one has; after ``wait_s`` with none."""
        request = decoded(data, api.ResultsRequest)
        if not 1 <= len(request.ids) <= limits.RESULT_IDS_MAX:
            problem = f"{len(request.ids)} ids"
            raise InvalidJobError("ids", problem, remedy=f"ask for 1 to {limits.RESULT_IDS_MAX} at a time")
        ids = [job_id.lower() for job_id in request.ids]
        until_s = _until_s(request.wait_s)
        while True:
            with self._waiters.waiting(*ids) as ended:
                reply = await self._read(lambda: self._store.ended_of(ids, bytes_max=REPLY_BYTES_MAX))
                if reply.results or not await self._wait(ended, until_s):
                    return reply

    async def _progress(self, data: bytes) -> Struct:
        """Reply as soon as it differs from what the asker has seen, or after ``wait_s``."""
        request = decoded(data, api.ProgressRequest)
        until_s = _until_s(request.wait_s)
        while True:
            with self._waiters.watching(request.id.lower()) as news:
                reply = await self._read(lambda: self._store.progress(request.id))
                if reply != request.seen or _has_ended(reply.status) or not await self._wait_for_news(news, until_s):
                    return reply

    @staticmethod
    async def _wait(event: anyio.Event, until_s: float) -> bool:
        """False when the time was over before."""
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return False
        with anyio.move_on_after(left_s):
            await event.wait()
        return True

    async def _wait_for_news(self, event: anyio.Event, until_s: float) -> bool:
        """As ``_wait``, and back every second where it may be elsewhere that there is news."""
        if time.monotonic() >= until_s:
            return False
        while await self._wait(event, min(until_s, time.monotonic() + OTHERS_POLL_S)):
            if event.is_set() or self._others() or time.monotonic() >= until_s:
                break
        return True


def _has_ended(status: str) -> bool:
    known = STATUS_BY_LABEL.get(status)
    return known is not None and known.is_terminal


def _until_s(wait_s: float) -> float:
    return time.monotonic() + min(max(wait_s, 0.0), WAIT_MAX_S)
