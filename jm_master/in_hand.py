"""Messages that are here and not acked yet, taken or not: kept ours however long Postgres is away."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

from jm_nats.provision import MASTER_ACK_WAIT_S
from jm_nats.pull import keep_alive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nats.aio.msg import Msg

    from jm_nats.pull import PullReader

KEEP_ALIVE_S: Final = MASTER_ACK_WAIT_S / 3


class InHand:
    def __init__(self, reader: PullReader) -> None:
        self._reader = reader
        self._held: dict[int, Sequence[Msg]] = {}

    def hold(self, messages: Sequence[Msg]) -> None:
        """From now on; until the end of the ``holding`` that follows."""
        self._held[id(messages)] = messages

    @contextmanager
    def holding(self, messages: Sequence[Msg]) -> Iterator[None]:
        self.hold(messages)
        try:
            yield
        finally:
            del self._held[id(messages)]

    async def keep_alive(self) -> None:
        """Until cancelled."""
        while True:
            await anyio.sleep(KEEP_ALIVE_S)
            self._reader.keep_alive()
            for messages in list(self._held.values()):
                for message in messages:
                    keep_alive(message)
