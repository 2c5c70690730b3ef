"""Waiting until what workers have reported is in the record: a finished job must not run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from jm_nats.errors import NoSuchStreamError
from jm_nats.subjects import RECORDER_CONSUMER

if TYPE_CHECKING:
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

EVENTS_POLL_S: Final = 0.05


async def events_recorded(link: NatsLink, names: Names) -> None:
    """Return once the recorder has applied every event that is stored by now.

    Raises:
        AgentError: nobody can say at the moment.
    """
    stream = names.events_stream
    try:
        info = await link.api(f"STREAM.INFO.{stream}")
        last = info["state"]["last_seq"]
        while not await _is_applied(link, stream, last):  # noqa: ASYNC110 - NATS has no event for it
            await anyio.sleep(EVENTS_POLL_S)
    except NoSuchStreamError:
        return


async def _is_applied(link: NatsLink, stream: str, last: int) -> bool:
    info = await link.api(f"CONSUMER.INFO.{stream}.{RECORDER_CONSUMER}")
    idle = not info["num_pending"] and not info["num_ack_pending"]
    return idle or int(info["ack_floor"]["stream_seq"]) >= last
