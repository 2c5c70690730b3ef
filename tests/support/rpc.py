"""A worker's side of its questions and orders (jm_core/rpc.py), answered by the test."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from jm_core import rpc, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nats.aio.msg import Msg

    from tests.support.master import Bench, FakeWorker


@asynccontextmanager
async def answering(
    bench: Bench, worker: FakeWorker, answer: Callable[[rpc.Request], Awaitable[rpc.Answer]]
) -> AsyncIterator[list[rpc.Request]]:
    """``worker`` answers while the body runs; gives the requests that it got."""
    requests: list[rpc.Request] = []

    async def on_request(message: Msg) -> None:
        request = rpc.decode_request(message.data)
        requests.append(request)
        await message.respond(wire.encode(await answer(request)))

    subscription = await bench.link.nc.subscribe(bench.names.worker_rpc(worker.name), cb=on_request)
    await bench.link.round_trip()
    try:
        yield requests
    finally:
        await subscription.unsubscribe()


def holding(*ids: str) -> Callable[[rpc.Request], Awaitable[rpc.Answer]]:
    """For a worker that holds these jobs and no others."""

    async def answer(request: rpc.Request) -> rpc.Answer:
        assert isinstance(request, rpc.Holds)
        return rpc.Answer(held=[job_id for job_id, _ in request.jobs if job_id in ids])

    return answer
