"""Where the writer's `recorded` answers arrive: one wildcard inbox per client, a token per message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import uuid_utils
from nats.aio.msg import Msg

from jm_core import wire
from jm_core.wire import JobReceipt
from jm_nats.connection import NatsLink

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription


class Expected:
    """One awaited answer."""

    def __init__(self, subject: str, timeout_s: float) -> None:
        self.subject = subject
        self._timeout_s = timeout_s
        self.future: asyncio.Future[list[JobReceipt]] = asyncio.get_running_loop().create_future()

    async def answer(self) -> list[JobReceipt]:
        """The writer's answer.

        Raises:
            TimeoutError.
        """
        async with asyncio.timeout(self._timeout_s):
            return await self.future


class ReceiptInbox:
    """Matches answers to messages. Subscribes on first use, so that a client that never asks pays nothing."""

    def __init__(self, link: NatsLink, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._link = link
        self._prefix = f"{link.nc.new_inbox()}."
        self._waiting: dict[str, Expected] = {}
        self._subscription: Subscription | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def expect(self) -> AsyncIterator[Expected]:
        """A subject to put into ``Jm-Receipt-To``; forgotten again on leaving."""
        await self._subscribe()
        subject = f"{self._prefix}{uuid_utils.uuid4().hex}"
        expected = self._waiting[subject] = Expected(subject, self.timeout_s)
        try:
            yield expected
        finally:
            del self._waiting[subject]
            expected.future.cancel()

    async def close(self) -> None:
        if self._subscription is not None and self._link.connected:
            await self._subscription.unsubscribe()

    async def _subscribe(self) -> None:
        async with self._lock:
            if self._subscription is None:
                self._subscription = await self._link.nc.subscribe(f"{self._prefix}*", cb=self._arrived)

    async def _arrived(self, message: Msg) -> None:
        expected = self._waiting.get(message.subject)
        if expected is None or expected.future.done():
            return  # an answer to a redelivered message, after the first one was enough
        try:
            expected.future.set_result(wire.decode_receipts(message.data).receipts)
        except msgspec.DecodeError as error:
            expected.future.set_exception(error)
