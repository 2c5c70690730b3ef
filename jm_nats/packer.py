"""Packs concurrent submissions into shared messages without making a lone one wait.

The first job of an event-loop turn schedules a flush for the end of that turn; whatever else is submitted in the
same turn, or while too many messages are in flight, rides along. So a lone job leaves at once, and a thousand
concurrent ones leave in a handful of messages.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from jm_core import limits, wire
from jm_core.errors import InvalidJobError, JmError
from jm_core.wire import JobReceipt, Submission

IN_FLIGHT_MAX: Final = 32
# A job's fields besides args, metadata and unique key, each at its longest, with JSON's punctuation: an upper bound,
# because a message that comes out too large is refused by the writer as a whole, after it was queued.
FIELD_BYTES: Final = 600

_Entry = tuple[Submission, "asyncio.Future[JobReceipt | None]"]
Send = Callable[[bytes, Sequence[Submission]], Awaitable[Sequence[JobReceipt] | None]]


def message_chunks(jobs: Sequence[Submission]) -> list[list[Submission]]:
    """``jobs`` in order, cut so that each chunk fits one message (``PACK_JOBS``, ``MESSAGE_BYTES_MAX``)."""
    if _fit_plainly(jobs):
        return [list(jobs)]
    chunks: list[list[Submission]] = []
    chunk: list[Submission] = []
    size = 2
    for job in jobs:
        cost = encoded_bytes_at_most(job)
        if chunk and not _has_room(len(chunk), size + cost):
            chunks.append(chunk)
            chunk, size = [], 2
        chunk.append(job)
        size += cost
    if chunk:
        chunks.append(chunk)
    return chunks


def _fit_plainly(jobs: Sequence[Submission]) -> bool:
    """The common case, in a fraction of the time: few enough, small, and without texts of unknown encoded size."""
    if not 0 < len(jobs) <= limits.PACK_JOBS or any(job.metadata or job.unique_key for job in jobs):
        return False
    return sum([len(job.args) for job in jobs]) + len(jobs) * FIELD_BYTES <= limits.MESSAGE_BYTES_MAX


def _has_room(count: int, size: int) -> bool:
    return count < limits.PACK_JOBS and size <= limits.MESSAGE_BYTES_MAX


def encoded_bytes_at_most(job: Submission) -> int:
    """An upper estimate of a job's bytes on the wire."""
    cost = len(job.args) + FIELD_BYTES
    if job.metadata or job.unique_key:
        # JSON may escape one byte of text into six.
        texts = sum(len(k) + len(v) + 6 for k, v in (job.metadata or {}).items()) + len(job.unique_key or "")
        cost += 6 * texts
    return cost


def encode_message(jobs: Sequence[Submission]) -> bytes:
    """One message.

    Raises:
        InvalidJobError: a single job is larger than a message may be.
    """
    data = wire.encode(jobs[0] if len(jobs) == 1 else jobs)
    if len(data) > limits.MESSAGE_BYTES_MAX and len(jobs) == 1:
        raise InvalidJobError(
            "args", f"{len(data)} bytes with its metadata, the limit is {limits.MESSAGE_BYTES_MAX}", remedy="send less"
        )
    return data


class Packer:
    """Collects jobs of one receipt kind and sends them in full messages.

    Args:
        send: publishes one message and returns when its receipt is there: an answer per job in the message's order, or
            None when it has none; its exception goes to every job in it.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[_Entry] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._scheduled = False

    def add(self, job: Submission) -> asyncio.Future[JobReceipt | None]:
        """The answer for ``job``, to be awaited: there when the message that carries it has its receipt."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[JobReceipt | None] = loop.create_future()
        self._waiting.append((job, future))
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)
        return future

    async def close(self) -> None:
        """Wait for what is under way."""
        while self._waiting or self._in_flight:
            self._flush()
            if self._in_flight:
                await asyncio.wait(self._in_flight)

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._in_flight) < IN_FLIGHT_MAX:
            task = asyncio.create_task(self._carry(self._take_message()))
            self._in_flight.add(task)
            task.add_done_callback(self._landed)

    def _take_message(self) -> list[_Entry]:
        batch: list[_Entry] = []
        size = 2
        while self._waiting:
            size += encoded_bytes_at_most(self._waiting[0][0])
            if batch and not _has_room(len(batch), size):
                break
            batch.append(self._waiting.popleft())
        return batch

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if self._waiting:
            self._flush()

    async def _carry(self, batch: list[_Entry]) -> None:
        jobs = [job for job, _ in batch]
        try:
            answers = await self._send(encode_message(jobs), jobs)
        except BaseException as error:
            _fail(batch, error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
            return
        each: Sequence[JobReceipt | None] = [None] * len(batch) if answers is None else answers
        if len(each) != len(batch):
            problem = f"{len(each)} answers to {len(batch)} jobs; see which are recorded before submitting again"
            _fail(batch, JmError(problem))
            return
        for (_, future), answer in zip(batch, each, strict=True):
            if not future.done():
                future.set_result(answer)


def _fail(batch: list[_Entry], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
