"""The connection to NATS on a group's board: in trouble when it breaks, well again once JetStream has answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from jm_nats.errors import AgentError

if TYPE_CHECKING:
    from jm_nats.connection import NatsLink
    from jm_nats.health import HealthBoard

NAME: Final = "nats"
AGAIN_S: Final = 1.0


async def watch_link(link: NatsLink, board: HealthBoard, name: str = NAME) -> None:
    """Until cancelled. A connection that stands proves nothing: a cluster without a leader accepts connections."""
    changed = asyncio.Event()

    def broken() -> None:
        board.trouble(name, f"not connected to {link.server}")

    undo = [link.on_disconnect(broken), link.on_reconnect(changed.set)]
    if not link.connected:
        broken()
        changed.set()
    try:
        while True:
            await changed.wait()
            changed.clear()
            await link.wait_connected()
            try:
                await link.api("INFO")
            except AgentError as error:
                board.trouble(name, str(error))
                changed.set()
                await asyncio.sleep(AGAIN_S)
            else:
                if link.connected:  # else it broke once more, and that will be told
                    board.cleared(name)
    finally:
        for forget in undo:
            forget()
