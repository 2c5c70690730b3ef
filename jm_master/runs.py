"""Run messages on their way into buckets."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
from msgspec import Raw, Struct
from msgspec.structs import replace

from jm_core import limits, wire
from jm_core.wire import Run
from jm_nats import telemetry
from jm_nats.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_core.save_plan import Part
    from jm_nats.publisher import JetPublisher
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)


class RunMessage(Struct, frozen=True):
    """``deliver_at``: epoch seconds when the server should move it to the bucket's ``.run``; None: at once.

    ``jobs`` are counted as dispatched when it is sent; 0 for a message that is sent again.
    """

    outbox_id: str
    bucket: str
    deliver_at: float | None
    body: bytes
    jobs: int = 0


class RunSender:
    """Carries run messages into the buckets' streams. The outbox id is the message id, so that a repeat is dropped."""

    def __init__(self, publisher: JetPublisher, names: Names) -> None:
        self._publisher = publisher
        self._names = names

    async def send_all(self, messages: Sequence[RunMessage], *, now_s: float) -> list[str]:
        """Send; returns the outbox ids of those that NATS has. The others stay in the outbox and are sent again."""
        sent: list[str] = []
        if len(messages) == 1:
            await self._send(messages[0], now_s, sent)
            return sent
        async with anyio.create_task_group() as tasks:
            for message in messages:
                tasks.start_soon(self._send, message, now_s, sent)
        return sent

    async def _send(self, message: RunMessage, now_s: float, sent: list[str]) -> None:
        try:
            for piece in pieces_of(message):
                subject, headers = self._address(piece, now_s)
                await self._publisher.publish(subject, piece.body, msg_id=piece.outbox_id, headers=headers)
        except AgentError as error:
            log.warning("run message waits in the outbox", extra={"bucket": message.bucket, "problem": str(error)})
        else:
            sent.append(message.outbox_id)
            telemetry.jobs_dispatched(message.jobs)

    def _address(self, message: RunMessage, now_s: float) -> tuple[str, dict[str, str] | None]:
        run = self._names.run(message.bucket)
        if message.deliver_at is None or message.deliver_at <= now_s:
            return run, None
        headers = {
            wire.HEADER_SCHEDULE: f"@at {rfc3339(message.deliver_at)}",
            wire.HEADER_SCHEDULE_TARGET: run,
        }
        return self._names.sched(message.bucket, message.outbox_id), headers


def pieces_of(message: RunMessage) -> list[RunMessage]:
    """Itself; or several, with ids of their own, when it has outgrown a message on the way through Postgres, which
    writes ``1e300`` in full.
    """
    if len(message.body) <= limits.MESSAGE_BYTES_MAX:
        return [message]
    pieces: list[list[Raw]] = [[]]
    size = 0
    for run in wire.decode_raw_array(message.body):
        run_bytes = memoryview(run).nbytes + 1
        if pieces[-1] and size + run_bytes > limits.MESSAGE_BYTES_MAX:
            pieces.append([])
            size = 0
        pieces[-1].append(run)
        size += run_bytes
    return [
        replace(message, outbox_id=f"{message.outbox_id}-{number}", body=wire.encode(runs))
        for number, runs in enumerate(pieces)
    ]


def encode_runs(part: Part, queued_at: Sequence[float]) -> bytes:
    """The message of a part's first dispatch."""
    group = part.group
    return wire.encode(
        [
            Run(
                job.id,
                job.handler,
                Raw(job.args),
                1,
                1,
                job.max_attempts,
                queued_at[message - 1] if job.run_at is None else job.run_at.timestamp(),
                job.timeout_s,
                job.metadata,
                job.trace,
                0,
                job.run_at is None,
            )
            for job, message in zip(group.jobs[part.lo : part.hi], group.messages[part.lo : part.hi], strict=True)
        ]
    )


def rfc3339(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
