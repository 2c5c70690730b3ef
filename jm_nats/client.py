"""The producer's API: submit jobs, get receipts, wait for results. Needs NATS only, never Postgres."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from types import TracebackType
from typing import Any, Final, Literal, Self

import uuid_utils
from msgspec import Raw, Struct

from jm_core import api, limits, wire
from jm_core.errors import (
    ClusterUnknownError,
    DuplicateJobError,
    InvalidJobError,
    JmError,
    RejectedError,
)
from jm_core.ids import NEW_ID_REMEDY, parse_job_id
from jm_core.intake import check_fields
from jm_core.model import OnConflict
from jm_core.payload import check_args, check_no_lost_floats
from jm_core.traceparent import usable_traceparent
from jm_core.wire import JobReceipt, ReceiptStatus, Submission
from jm_nats import results, telemetry
from jm_nats.api_client import ApiClient
from jm_nats.cluster_look import ClusterLook
from jm_nats.config import NatsConfig
from jm_nats.connection import NatsLink, connect
from jm_nats.control_client import Control
from jm_nats.errors import NoSuchStreamError
from jm_nats.handle import JobHandle
from jm_nats.handlers import CheckedJob
from jm_nats.packer import Packer, encode_message, message_chunks
from jm_nats.publisher import JetPublisher
from jm_nats.receipts import ReceiptInbox
from jm_nats.results import EndedJob, JobProgress, Timeout
from jm_nats.schedule_client import ScheduleClient
from jm_nats.subjects import Names

Wait = Literal["queued", "recorded"]
RECEIPT_TIMEOUT_S: Final = 30.0
MESSAGES_IN_FLIGHT: Final = 32


class Receipt(Struct, frozen=True, gc=False):
    """What is known of a submitted job. ``status``: queued, recorded, duplicate (``job_id`` is then the job that
    already holds the id or the unique key; with ``reject`` the reason says so) or rejected (with the reason).
    """

    job_id: str
    status: str
    reason: str | None = None


class ReceiptTimeoutError(JmError, TimeoutError):
    """The job is queued (NATS has it), but no ``recorded`` answer came in time. It is not lost; do not submit it anew
    under another id.
    """


class JobClient(Control):
    """Submits jobs to one cluster. Use as ``async with``; safe for any number of concurrent calls."""

    def __init__(self, cluster: str, config: NatsConfig, *, receipt_timeout_s: float = RECEIPT_TIMEOUT_S) -> None:
        self.names = Names(cluster)
        self.config = config
        self.receipt_timeout_s = receipt_timeout_s
        self._opened: _Open | None = None

    async def __aenter__(self) -> Self:
        link = await connect(self.config, client_name=f"jobmaster client {self.names.cluster}")
        telemetry.refresh()
        self._opened = _Open(link, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close(flush=error is None)

    async def submit(self, job: Submission, *, wait: Wait = "queued") -> Receipt:
        """Queue one job. Concurrent calls share messages; a lone one is sent at once.

        Returns:
            ``queued`` once NATS has stored it; with ``wait="recorded"`` the writer's answer after Postgres committed.

        Raises:
            InvalidJobError: refused here, nothing was sent.
            ClusterArchivedError: the cluster takes no jobs; nothing was sent.
            RejectedError: with ``recorded``: the writer refused it (it is in ``jm rejected list``).
            DuplicateJobError: with ``recorded`` and ``on_conflict="reject"``: another job holds the unique key.
            ReceiptTimeoutError: with ``recorded``: queued, but no answer in time.
            AgentUnavailableError: NATS did not store it; submitting the same job (same id) again is safe.
        """
        if type(job) is not CheckedJob:
            job = prepared(job)
        if job.on_conflict == OnConflict.REJECT and wait != "recorded":
            remedy = "wait for 'recorded', or use return_existing"
            raise InvalidJobError("on_conflict", f"a conflict is not known yet when a job is {wait}", remedy=remedy)
        opened = self._open()
        if not opened.look.is_open:
            await opened.look.check()
        if wait == "queued" and not telemetry.Active.tracing:  # for many callers at once: no frame more than it needs
            await opened.queued.add(job)
            return Receipt(job.id or "", ReceiptStatus.QUEUED)
        with telemetry.submitting([job]):
            return await self._submit(opened, job, wait)

    @staticmethod
    async def _submit(opened: "_Open", job: Submission, wait: Wait) -> Receipt:
        if wait == "recorded":
            answer = await opened.recorded(job)
            if answer.status == ReceiptStatus.REJECTED:
                raise RejectedError(job.id or "", answer.reason or "no reason given")
            receipt = _receipt(answer)
            if job.on_conflict == OnConflict.REJECT and receipt.job_id != job.id:
                raise DuplicateJobError(job.id or "", receipt.job_id)
            return receipt
        await opened.queued.add(job)
        return Receipt(job.id or "", ReceiptStatus.QUEUED)

    async def submit_many(self, jobs: Iterable[Submission], *, wait: Wait = "queued") -> list[Receipt]:
        """Queue many jobs in full messages, several in flight; ``jobs`` may be a generator of any length.

        Returns:
            A receipt per job, in order. Rejected ones are among them, they do not raise.

        Raises:
            InvalidJobError: names the first bad job; what came before it may already be queued.
            ClusterArchivedError: the cluster takes no jobs; nothing was sent.
        """
        receipts: list[Receipt] = []
        async for part in self.submit_stream(jobs, wait=wait):
            receipts += part
        return receipts

    async def submit_stream(self, jobs: Iterable[Submission], *, wait: Wait = "queued") -> AsyncIterator[list[Receipt]]:
        """As ``submit_many``, yielding each message's receipts as it is stored: for progress, and bounded memory."""
        opened = self._open()
        if not opened.look.is_open:
            await opened.look.check()
        pending: list[asyncio.Task[list[Receipt]]] = []
        try:
            for chunk in _chunks(jobs):
                pending.append(asyncio.create_task(opened.send_traced(chunk, wait)))
                if len(pending) >= MESSAGES_IN_FLIGHT:
                    yield await pending.pop(0)
            while pending:
                yield await pending.pop(0)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def result(self, job_id: str, *, timeout: Timeout = None, as_type: Any = Any) -> Any:  # noqa: ASYNC109
        """Wait until the job ends and return what its handler returned. Over NATS; the coordinator answers.

        Args:
            as_type: what to read the result as: a ``msgspec.Struct``, a dataclass, ``list[int]``, ...

        Raises:
            JobFailedError: it ended failed, cancelled or quarantined.
            ResultTimeoutError: not ended in time; the job goes on.
            NoSuchJobError: at the timeout the master has no such job.
            ResultTypeError: it succeeded, and its result is no ``as_type``.
        """
        return (await results.ended(self._open().api, job_id, timeout)).value(as_type)

    async def results(self, job_ids: Iterable[str], *, timeout: Timeout = None, as_type: Any = Any) -> list[Any]:  # noqa: ASYNC109
        """The results of many jobs, in the order of ``job_ids``, once all have ended.

        Raises:
            JobFailedError: as soon as one has ended without a result; the others go on. ``as_completed`` tells of each.
            ResultTimeoutError, NoSuchJobError, ResultTypeError.
        """
        ids = [parse_job_id(job_id) for job_id in job_ids]
        async with aclosing(results.as_completed(self._open().api, ids, timeout)) as ended:
            found = {job.job_id: job.value(as_type) async for job in ended}
        return [found[job_id] for job_id in ids]

    def as_completed(self, job_ids: Iterable[str], *, timeout: Timeout = None) -> AsyncIterator[EndedJob]:
        """Each job once, as they end, whatever became of it.

        Raises:
            ResultTimeoutError, NoSuchJobError: some had not ended, or were not there, in time.
        """
        return results.as_completed(self._open().api, job_ids, timeout)

    def progress(self, job_id: str, *, timeout: Timeout = None) -> AsyncIterator[JobProgress]:
        """``async for now in client.progress(job_id)``: the job's state, and again at every change, up to its end.

        Raises:
            ResultTimeoutError, NoSuchJobError.
        """
        return results.progress(self._open().api, job_id, timeout)

    def handle(self, job_id: str) -> JobHandle:
        """The questions about one job, without its id."""
        return JobHandle(self, job_id)

    async def job(self, job_id: str) -> api.JobView:
        """The job's record, with args, result and error.

        Raises:
            NoSuchJobError.
        """
        return await self._open().api.job(parse_job_id(job_id))

    @property
    def api(self) -> ApiClient:
        """The coordinator's other operations: lists, attempts, rejected, counts."""
        return self._open().api

    @property
    def schedules(self) -> ScheduleClient:
        """Recurring jobs: add, list, edit, pause, resume, run now, delete."""
        return ScheduleClient(self._open().api)

    @property
    def link(self) -> NatsLink:
        return self._open().link

    def _open(self) -> "_Open":
        if self._opened is None:
            raise JmError("the client is not connected; use it inside 'async with jm.client() as client:'")
        return self._opened


class _Open:
    """What exists only while a client is connected."""

    def __init__(self, link: NatsLink, client: JobClient) -> None:
        self.link = link
        self.api = ApiClient(link, client.names)
        self.look = ClusterLook(link, client.names)
        self._names = client.names
        self._subject = client.names.submit
        self._publisher = JetPublisher(link)
        self._receipts = ReceiptInbox(link, client.receipt_timeout_s)
        self._submits = telemetry.Submits(client.names.cluster)
        self.queued = Packer(self._send_queued)
        self._recorded = Packer(self._publish_recorded)

    async def recorded(self, job: Submission) -> JobReceipt:
        answer = await self._recorded.add(job)
        assert answer is not None
        return answer

    async def _send_queued(self, data: bytes, jobs: Sequence[Submission]) -> None:
        await self._publish(data, jobs, _message_id(jobs))

    async def _publish(
        self, data: bytes, jobs: Sequence[Submission], msg_id: str, headers: dict[str, str] | None = None
    ) -> None:
        if not telemetry.Active.metering:
            await self._publish_plainly(data, msg_id, headers)
            return
        began_s = time.monotonic()
        try:
            await self._publish_plainly(data, msg_id, headers)
        except Exception as error:
            self._submits.ended(len(jobs), time.monotonic() - began_s, error)
            raise
        self._submits.ended(len(jobs), time.monotonic() - began_s)

    async def _publish_plainly(self, data: bytes, msg_id: str, headers: dict[str, str] | None) -> None:
        try:
            await self._publisher.publish(self._subject, data, msg_id=msg_id, headers=headers)
        except NoSuchStreamError:
            raise ClusterUnknownError(self._names.cluster, self.link.server) from None

    async def _publish_recorded(self, data: bytes, jobs: Sequence[Submission]) -> list[JobReceipt]:
        """Publish with an inbox and wait for the writer's answer.

        Raises:
            ReceiptTimeoutError.
        """
        async with self._receipts.expect() as expected:
            headers = {wire.HEADER_RECEIPT_TO: expected.subject}
            # Not the job's id alone: of a job that is submitted again JetStream would drop the message, and then
            # nobody would answer. The primary key finds the duplicate, and the writer says so.
            msg_id = f"{_message_id(jobs)} {expected.subject}"
            await self._publish(data, jobs, msg_id, headers)
            try:
                answers = await expected.answer()
            except TimeoutError:
                raise ReceiptTimeoutError(
                    f"{len(jobs)} job(s) queued but not answered as recorded within {self._receipts.timeout_s:g} s; "
                    "they are safe in NATS, check that a coordinator and Postgres are up (jm doctor)"
                ) from None
        # A message that was refused as a whole has one answer for all its jobs.
        return answers * len(jobs) if len(answers) == 1 else answers

    async def send_traced(self, chunk: list[Submission], wait: Wait) -> list[Receipt]:
        with telemetry.submitting(chunk):
            return await self.send_chunk(chunk, wait)

    async def send_chunk(self, chunk: list[Submission], wait: Wait) -> list[Receipt]:
        data = encode_message(chunk)
        if len(data) > limits.MESSAGE_BYTES_MAX:
            half = len(chunk) // 2
            return await self.send_chunk(chunk[:half], wait) + await self.send_chunk(chunk[half:], wait)
        if wait == "recorded":
            return [_receipt(answer) for answer in await self._publish_recorded(data, chunk)]
        await self._publish(data, chunk, _message_id(chunk))
        status = ReceiptStatus.QUEUED
        return [Receipt(job.id or "", status) for job in chunk]

    async def close(self, *, flush: bool) -> None:
        try:
            if flush:
                await self.queued.close()
                await self._recorded.close()
        finally:
            self.look.close()
            await self._receipts.close()
            await self._publisher.close()
            await self.link.close()


def prepared(job: Submission) -> Submission:
    """``job`` with an id, and everything checked that the writer would refuse it for (BR-117).

    Raises:
        InvalidJobError, InvalidNameError.
    """
    check_fields(job)
    if job.trace is not None:
        job.trace = usable_traceparent(job.trace)
    raw = bytes(job.args)
    if raw not in (b"{}", b"null"):
        check_args(raw)
    job.id = str(uuid_utils.uuid7()) if job.id is None else parse_job_id(job.id, remedy=NEW_ID_REMEDY)
    return job


def submission(handler: str, args: Any = None, **fields: Any) -> Submission:
    """A job for a handler known by name only, from plain values (what the CLI and `submit --file` use).

    Raises:
        InvalidJobError, InvalidNameError: naming the field; unknown field names are refused, not ignored (BR-116).
    """
    unknown = set(fields) - set(Submission.__struct_fields__)
    if unknown:
        raise InvalidJobError(
            min(unknown), "no such field", remedy=f"use one of {', '.join(Submission.__struct_fields__)}"
        )
    given = {"handler": handler, **fields, "args": {} if args is None else args}
    encoded = {name: _encoded(value, name) for name, value in given.items() if value is not None}
    try:
        return prepared(wire.decode_submission(wire.encode(encoded)))
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, JmError):
            raise
        raise InvalidJobError(
            _field_of(error), str(error).split(" - at ")[0], remedy="see docs/wire-format.md for the fields"
        ) from None


def _encoded(value: Any, field: str) -> Raw:
    """JSON, or InvalidJobError: also for NaN, which the encoder would turn into null, that is into "left out"."""
    try:
        raw = wire.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidJobError(field, f"not JSON: {error}", remedy="give what JSON can hold") from None
    check_no_lost_floats(value, raw, field)
    return Raw(raw)


def _field_of(error: Exception) -> str:
    _, _, path = str(error).partition("`$.")
    return path.rstrip("`") or "job"


def _chunks(jobs: Iterable[Submission]) -> Iterator[list[Submission]]:
    iterator = iter(jobs)
    while batch := list(islice(iterator, limits.PACK_JOBS)):
        for job in batch:
            if type(job) is not CheckedJob:
                prepared(job)
        yield from message_chunks(batch)


def _message_id(jobs: Sequence[Submission]) -> str:
    """Publish retries of one message carry one id. A lone job's is its own, so that its caller's retry is one too.

    A batch gets a fresh one: anything derived from its jobs could meet another batch's, and that one would be dropped
    as a repeat, with jobs in it that nobody has seen.
    """
    return jobs[0].id or "" if len(jobs) == 1 else str(uuid_utils.uuid7())


def _receipt(answer: JobReceipt) -> Receipt:
    if answer.status == ReceiptStatus.DUPLICATE:
        return Receipt(answer.existing_id or answer.id, ReceiptStatus.DUPLICATE, answer.reason)
    return Receipt(answer.id, answer.status, answer.reason)


__all__ = ["JobClient", "Receipt", "ReceiptTimeoutError", "Wait", "submission"]
