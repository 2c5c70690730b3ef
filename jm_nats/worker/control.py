"""Orders about single jobs of a bucket: read from its ``.ctl``, which no work can hold up, and given to the engine."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from jm_core.control import decode_orders
from jm_nats.connection import NatsLink
from jm_nats.errors import ConsumerGoneError
from jm_nats.pull import PullReader, ack
from jm_nats.subjects import CTL_CONSUMER, Names
from jm_nats.worker.engine import Engine
from jm_nats.worker.outcomes import BucketPort

log = logging.getLogger("jobmaster.worker")

MESSAGES_MAX: Final = 16
BYTES_MAX: Final = 4 * 1024 * 1024


class ControlIntake:
    """One bucket's reader. Args: heal: what to do when the consumer or the stream was deleted."""

    def __init__(
        self, link: NatsLink, names: Names, port: BucketPort, engine: Engine, heal: Callable[[], Awaitable[None]]
    ) -> None:
        self._link = link
        self._stream = names.bucket_stream(port.bucket)
        self._port = port
        self._engine = engine
        self._heal = heal

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._read()
            except ConsumerGoneError:
                await self._heal()

    async def _read(self) -> None:
        async with PullReader(
            self._link, self._stream, CTL_CONSUMER, batch=MESSAGES_MAX, max_bytes=BYTES_MAX
        ) as reader:
            while True:
                for message in await reader.take(MESSAGES_MAX):
                    self.carry_out(message.data)
                    # An order that is lost with us needs no second: whoever adopts the bucket asks the record.
                    ack(message)
                await asyncio.sleep(0)

    def carry_out(self, data: bytes) -> None:
        try:
            orders = decode_orders(data)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            log.error(  # noqa: TRY400  (a trace of the decoder says nothing)
                "undecodable order dropped", extra={"bucket": self._port.bucket, "error": str(error)[:200]}
            )
            return
        asked = self._engine.cancel(orders.cancel)
        log.info("jobs cancelled", extra={"bucket": self._port.bucket, "jobs": len(orders.cancel), "running": asked})
