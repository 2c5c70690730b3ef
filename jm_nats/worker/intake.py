"""Brings one bucket's run messages to the engine: never more than fit in memory, kept alive while they are here."""

import asyncio
import logging
from typing import Final

import msgspec
from nats.aio.msg import Msg

from jm_core import wire
from jm_nats import telemetry
from jm_nats.connection import NatsLink
from jm_nats.provision import BUCKET_ACK_WAIT_S
from jm_nats.pull import PullReader, ack, keep_alive
from jm_nats.subjects import RUN_CONSUMER, Names
from jm_nats.worker.engine import Engine
from jm_nats.worker.outcomes import BucketPort, Delivery

log = logging.getLogger("jobmaster.worker")

MESSAGES_MAX: Final = 64
BYTES_MAX: Final = 8 * 1024 * 1024
HELD_JOBS_MAX: Final = 2_000
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
KEEP_ALIVE_S: Final = BUCKET_ACK_WAIT_S / 3
TAKE_MAX: Final = 8


class Room:
    """Shared by all intakes of a worker: open while the engine holds little enough."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def update(self, engine: Engine) -> None:
        if engine.held < HELD_JOBS_MAX and engine.held_bytes < HELD_BYTES_MAX:
            self._open.set()
        else:
            self._open.clear()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def wait(self) -> None:
        await self._open.wait()


class Intake:
    """One bucket's reader."""

    def __init__(self, link: NatsLink, names: Names, port: BucketPort, engine: Engine, room: Room) -> None:
        self._port = port
        self._engine = engine
        self._room = room
        self._link = link
        self._stream = names.bucket_stream(port.bucket)
        self._deliveries: set[Delivery] = set()
        self._reader: PullReader | None = None

    async def run(self) -> None:
        """Read until cancelled. What is here stays here when its consumer goes: a new one delivers it again, and it is
        told by its dispatch number.

        Raises:
            ConsumerGoneError: somebody deleted it, or the stream.
        """
        reader = self._reader = PullReader(
            self._link, self._stream, RUN_CONSUMER, batch=MESSAGES_MAX, max_bytes=BYTES_MAX
        )
        async with reader:
            while True:
                await self._room.wait()
                for message in await reader.take(TAKE_MAX):
                    self._take(message)
                self._room.update(self._engine)

    @property
    def unheard_s(self) -> float:
        """See ``PullReader.unheard_s``; 0 while the worker holds as much as it may."""
        return self._reader.unheard_s if self._reader is not None and self._room.is_open else 0.0

    @property
    def unread(self) -> int:
        """Messages that are here and not looked at yet."""
        return self._reader.buffered if self._reader is not None else 0

    async def keep_alive(self) -> None:
        """Tell NATS now and then that what we hold is still being worked on."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            self._deliveries = {d for d in self._deliveries if d.left}
            for delivery in self._deliveries:
                keep_alive(delivery.message)
            if self._reader is not None:
                self._reader.keep_alive()

    def _take(self, message: Msg) -> None:
        try:
            runs = wire.decode_runs(message.data)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            # Only the writer publishes here, so this is a stranger's message (BR-015). It names no job that we could
            # report on: drop it, loudly, once.
            log.error(  # noqa: TRY400  (a trace of the decoder says nothing)
                "undecodable run message dropped", extra={"bucket": self._port.bucket, "error": str(error)[:200]}
            )
            ack(message)
            return
        delivery = Delivery(message, len(runs))
        if not runs:
            ack(message)
            return
        self._deliveries.add(delivery)
        telemetry.jobs_taken(len(runs), self._port.lane, self._port.priority.label)
        self._engine.accept(runs, self._port, delivery)
        if not delivery.left:
            self._deliveries.discard(delivery)
