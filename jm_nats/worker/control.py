"""Orders about single jobs of a bucket: read from its ``.ctl``, which no work can hold up, and given to the engine."""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from jm_core.control import decode_orders
from jm_core.wire import Run, decode_runs
from jm_nats.connection import NatsLink
from jm_nats.errors import AgentError, ConsumerGoneError, JetStreamError
from jm_nats.kv import ERR_NO_MESSAGE
from jm_nats.pull import PullReader, ack
from jm_nats.subjects import CTL_CONSUMER, Names
from jm_nats.worker.engine import Engine
from jm_nats.worker.outcomes import BucketPort

log = logging.getLogger("jobmaster.worker")

MESSAGES_MAX: Final = 16
BYTES_MAX: Final = 4 * 1024 * 1024
LOOKS_MAX: Final = 5_000  # at messages for later, one after the other


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
        self._sched = names.sched_any(port.bucket)
        self._pointless = asyncio.Event()

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
        self.tidy()
        log.info("jobs cancelled", extra={"bucket": self._port.bucket, "jobs": len(orders.cancel), "running": asked})

    def tidy(self) -> None:
        """Messages that the server holds for later may have become pointless: look for them."""
        self._pointless.set()

    async def remove_pointless(self) -> None:
        """A job that is due in ten minutes lies in the server. Its message would be dropped when it comes; it need not
        wait until then (BR-193). Until cancelled. Only tidiness: whatever fails here fails for now.
        """
        while True:
            await self._pointless.wait()
            self._pointless.clear()
            try:
                await self._look_for_pointless()
            except AgentError as error:
                log.debug("scheduled messages not looked at", extra={"error": str(error)})

    async def _look_for_pointless(self) -> None:
        place = 1
        for _ in range(LOOKS_MAX):
            question = {"seq": place, "next_by_subj": self._sched}
            try:
                answer = await self._link.api(f"STREAM.MSG.GET.{self._stream}", question)
            except JetStreamError as error:
                if error.err_code == ERR_NO_MESSAGE:
                    return
                raise
            message = answer["message"]
            place = message["seq"] + 1
            runs = _runs_of(base64.b64decode(message.get("data") or ""))
            if runs is not None and all(self._engine.will_drop(run.id, run.dispatch) for run in runs):
                await self._link.api(f"STREAM.MSG.DELETE.{self._stream}", {"seq": message["seq"], "no_erase": True})
                for run in runs:
                    self._engine.will_not_come(run.id, run.dispatch)


def _runs_of(data: bytes) -> list[Run] | None:
    """None: it is a stranger's."""
    try:
        return decode_runs(data)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
