"""Waiting for jobs: one result, many as they come, progress. Outlives coordinators, leader changes and outages: whoever
leads is asked again until the answer is there or the caller's patience ends.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from jm_core import api, limits
from jm_core.errors import JmError, JobFailedError, NoSuchJobError, ResultTimeoutError, ResultTypeError
from jm_core.ids import parse_job_id
from jm_core.model import STATUS_BY_LABEL
from jm_nats.api_client import ApiClient

POLL_S: Final = 5.0
Timeout = float | timedelta | None


class EndedJob(Struct, frozen=True):
    """A job that has ended: ``status`` is succeeded, failed, cancelled or quarantined; ``result`` is JSON text."""

    job_id: str
    status: str
    result: bytes | None = None
    error: str | None = None

    def value(self, as_type: Any = Any) -> Any:
        """What the handler returned, read as ``as_type``.

        Raises:
            JobFailedError: it did not succeed.
            ResultTypeError: the result is no ``as_type``.
        """
        if self.status != "succeeded":
            raise JobFailedError(self.job_id, self.status, self.error)
        try:
            return msgspec.json.decode(self.result or b"null", type=as_type)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            name = as_type.__name__ if isinstance(as_type, type) and not get_args(as_type) else str(as_type)
            raise ResultTypeError(self.job_id, name, str(error)) from None


class JobProgress(Struct, frozen=True):
    """How far a job is: ``fraction`` (0 to 1) and ``note`` are what the attempt has reported last, if anything."""

    job_id: str
    status: str
    attempt: int
    fraction: float | None = None
    note: str | None = None
    error: str | None = None  # once it has ended

    @property
    def has_ended(self) -> bool:
        return is_terminal(self.status)


def is_terminal(status: str) -> bool:
    known = STATUS_BY_LABEL.get(status)
    return known is not None and known.is_terminal


async def ended(client: ApiClient, job_id: str, timeout: Timeout) -> EndedJob:  # noqa: ASYNC109
    """The job's end.

    Raises:
        ResultTimeoutError, NoSuchJobError.
    """
    job_id = parse_job_id(job_id)
    patience = _Patience(timeout)
    while True:
        reply = await client.result(job_id, patience.turn_s())
        if reply is not None and is_terminal(reply.status):
            return _ended(reply)
        if patience.is_over:
            raise _late(job_id, reply, patience.patience_s)


async def as_completed(client: ApiClient, job_ids: Iterable[str], timeout: Timeout) -> AsyncGenerator[EndedJob]:  # noqa: ASYNC109
    """Each of the jobs once, as they end; an id given twice counts once.

    Raises:
        ResultTimeoutError: names how many had not ended in time; those that had have come out before.
    """
    ids = list(dict.fromkeys(parse_job_id(job_id) for job_id in job_ids))
    patience = _Patience(timeout)
    arrived: asyncio.Queue[EndedJob | None] = asyncio.Queue()
    chunks = [set(chunk) for chunk in _chunks(ids)]
    tasks = [asyncio.create_task(_collect(client, chunk, patience, arrived)) for chunk in chunks]
    running = len(tasks)
    try:
        while running:
            job = await arrived.get()
            if job is None:
                running -= 1
            else:
                yield job
        for task in tasks:
            task.result()
        if left := [job_id for chunk in chunks for job_id in chunk]:
            raise await _late_of(client, left, patience)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def progress(client: ApiClient, job_id: str, timeout: Timeout) -> AsyncIterator[JobProgress]:  # noqa: ASYNC109
    """The job's state now, and again at every change, up to its end. What changes back in between may be left out.

    Raises:
        ResultTimeoutError, NoSuchJobError: not ended, or not there, in time.
    """
    job_id = parse_job_id(job_id)
    patience = _Patience(timeout)
    seen: api.ProgressReply | None = None
    while True:
        reply = await client.progress(job_id, seen, patience.turn_s())
        if reply is not None and reply != seen:
            seen = reply
            if reply.status != api.UNKNOWN:
                now = JobProgress(job_id, reply.status, reply.attempt, reply.fraction, reply.note, reply.error)
                yield now
                if now.has_ended:
                    return
        if patience.is_over:
            raise _late(job_id, seen, patience.patience_s)


class _Patience:
    """How long the caller still waits, in turns of a few seconds."""

    def __init__(self, timeout: Timeout) -> None:
        self.patience_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self._loop = asyncio.get_running_loop()
        self._until_s = None if self.patience_s is None else self._loop.time() + self.patience_s

    def turn_s(self) -> float:
        left_s = POLL_S if self._until_s is None else min(POLL_S, self._until_s - self._loop.time())
        return max(left_s, 0.05)

    @property
    def is_over(self) -> bool:
        return self._until_s is not None and self._loop.time() >= self._until_s


def _chunks(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return [ids[start : start + limits.RESULT_IDS_MAX] for start in range(0, len(ids), limits.RESULT_IDS_MAX)]


async def _collect(
    client: ApiClient, ids: set[str], patience: _Patience, arrived: "asyncio.Queue[EndedJob | None]"
) -> None:
    """Take those that end out of ``ids``, until none is left or the patience ends."""
    try:
        while ids:
            reply = await client.results(sorted(ids), patience.turn_s())
            for one in reply.results if reply is not None else []:
                ids.discard(one.id)
                arrived.put_nowait(_ended(one))
            if patience.is_over:
                return
    finally:
        arrived.put_nowait(None)


def _ended(reply: api.ResultReply) -> EndedJob:
    return EndedJob(reply.id, reply.status, None if reply.result is None else bytes(reply.result), reply.error)


def _late(job_id: str, reply: api.ResultReply | api.ProgressReply | None, patience_s: float | None) -> JmError:
    if reply is None:
        return ResultTimeoutError(
            f"job {job_id}: no coordinator answered within {patience_s} s; start one (jm coordinator) or see jm doctor"
        )
    if reply.status == api.UNKNOWN:
        return NoSuchJobError(
            f"job {job_id} is not on the master after {patience_s} s; check the id, or wait for the writer"
        )
    return ResultTimeoutError(f"job {job_id} is {reply.status} after {patience_s} s; it goes on, ask again later")


async def _late_of(client: ApiClient, left: Sequence[str], patience: _Patience) -> JmError:
    """Of several, one by its name: the first that is not there at all, if there is one."""
    if len(left) == 1:
        return _late(left[0], await client.result(left[0], 0.05), patience.patience_s)
    some = f"{len(left)} jobs, {left[0]} among them"
    return ResultTimeoutError(f"{some}, have not ended after {patience.patience_s} s; they go on, ask again later")
