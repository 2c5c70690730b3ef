"""A cluster's streams in NATS, seen with nats.py alone."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import nats
from nats.js.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.js import JetStreamContext
    from nats.js.api import ConsumerInfo, StreamInfo

PER_PAGE: Final = 256


async def messages_left(nats_url: str, cluster: str) -> dict[str, int]:
    """What lies in the cluster's work-queue streams, and what its consumers have not acknowledged, by name."""
    async with _jetstream(nats_url) as jetstream:
        left: dict[str, int] = {}
        for stream in await _streams(jetstream, f"JM_{cluster}_"):
            name = stream.config.name or ""
            left[name] = stream.state.messages
            for consumer in await _consumers(jetstream, stream):
                left[f"{name}/{consumer.name} unacked"] = consumer.num_ack_pending or 0
                left[f"{name}/{consumer.name} pending"] = consumer.num_pending or 0
        return {name: count for name, count in left.items() if count}


async def _consumers(jetstream: JetStreamContext, stream: StreamInfo) -> list[ConsumerInfo]:
    """Of a stream that may go while we look: buckets do."""
    if not stream.state.consumer_count:
        return []
    with suppress(NotFoundError):
        return await jetstream.consumers_info(stream.config.name or "")
    return []


async def delete_streams(nats_url: str, cluster: str) -> None:
    """All that the cluster has on this NATS, its KVs included."""
    async with _jetstream(nats_url) as jetstream:
        for prefix in (f"JM_{cluster}_", f"KV_jm_{cluster}_"):
            for stream in await _streams(jetstream, prefix):
                await jetstream.delete_stream(stream.config.name or "")


@asynccontextmanager
async def _jetstream(nats_url: str) -> AsyncIterator[JetStreamContext]:
    connection = await nats.connect(nats_url.split(","), allow_reconnect=False)
    try:
        yield connection.jetstream()
    finally:
        await connection.close()


async def _streams(jetstream: JetStreamContext, prefix: str) -> list[StreamInfo]:
    found: list[StreamInfo] = []
    while True:
        page = await jetstream.streams_info(offset=len(found))
        found += page
        if len(page) < PER_PAGE:
            return [stream for stream in found if (stream.config.name or "").startswith(prefix)]
