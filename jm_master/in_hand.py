"""Messages that were taken and are not acked yet: kept ours however long Postgres is away."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

from jm_nats.pull import keep_alive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nats.aio.msg import Msg

KEEP_ALIVE_S: Final = 20.0  # a third of the consumers' ack wait


class InHand:
    def __init__(self) -> None:
        self._held: dict[int, Sequence[Msg]] = {}

    @contextmanager
    def holding(self, messages: Sequence[Msg]) -> Iterator[None]:
        self._held[id(messages)] = messages
        try:
            yield
        finally:
            del self._held[id(messages)]

    async def keep_alive(self) -> None:
        """Until cancelled."""
        while True:
            await anyio.sleep(KEEP_ALIVE_S)
            for messages in list(self._held.values()):
                for message in messages:
                    keep_alive(message)
