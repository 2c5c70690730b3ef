"""Answers to a JetStream message, and what its reply subject tells. Nothing here waits, except ``ack_sync``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from nats import errors

from jm_nats.errors import AgentUnavailableError

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from jm_nats.driver import SteadyClient

ACK_SYNC_TIMEOUT_S: Final = 5.0


def ack(message: Msg) -> None:
    """Done with it: a work-queue drops it. Not confirmed; when this is lost the message comes again."""
    _answer(message, b"+ACK")


def keep_alive(message: Msg) -> None:
    """Still at it: starts the consumer's ack wait anew."""
    _answer(message, b"+WPI")


def nak(message: Msg, delay_s: float = 0.0) -> None:
    """Give it back, to be delivered again after ``delay_s``."""
    delay_ns = int(delay_s * 1_000_000_000)
    _answer(message, b"-NAK " + json.dumps({"delay": delay_ns}).encode() if delay_ns > 0 else b"-NAK")


def term(message: Msg) -> None:
    """Never again: a work-queue drops it although nobody is done with it."""
    _answer(message, b"+TERM")


async def ack_sync(message: Msg, *, timeout_s: float = ACK_SYNC_TIMEOUT_S) -> None:
    """``ack``, and wait until the server has taken it.

    Raises:
        AgentUnavailableError: no confirmation in time; the message may come again.
    """
    client = _client(message)
    try:
        await client.request(message.reply, b"+ACK", timeout=timeout_s)
    except errors.Error as problem:
        text = f"an ack was not confirmed in {timeout_s:g} s ({str(problem).removeprefix('nats: ')})"
        raise AgentUnavailableError(_server(client), text, remedy="the message will come again") from None


class Meta(NamedTuple):
    """Facts of one delivery. ``deliveries`` counts from 1 and is not an attempt of a job."""

    stream_seq: int
    deliveries: int
    timestamp_ns: int  # when the stream stored it, by the server's clock
    pending: int  # behind this one, for this consumer
    consumer_seq: int


def meta(message: Msg) -> Meta:
    """Read the reply subject.

    Two forms: ``$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<ns>.<pending>``, and the one of
    12 tokens with domain and account before the stream and a random token at the end (ADR-15).

    Raises:
        ValueError: not a message from a consumer.
    """
    tokens = message.reply.split(".")
    at = 4 if len(tokens) == 9 else 6
    if len(tokens) < at + 5 or tokens[1] != "ACK":
        raise ValueError(f"{message.reply!r} is no reply subject of a JetStream consumer")
    deliveries, stream_seq, consumer_seq, timestamp_ns, pending = tokens[at : at + 5]
    return Meta(int(stream_seq), int(deliveries), int(timestamp_ns), int(pending), int(consumer_seq))


def _answer(message: Msg, body: bytes) -> None:
    reply = message.reply
    if not reply:
        raise ValueError(f"the message on '{message.subject}' expects no ack: it is not from a consumer")
    _client(message).post(b"PUB %b %d\r\n%b\r\n" % (reply.encode(), len(body), body))


def _client(message: Msg) -> SteadyClient:
    # nats.py's Msg has no public way to the connection it came by.
    return cast("SteadyClient", message._client)  # noqa: SLF001


def _server(client: SteadyClient) -> str:
    url = client.connected_url
    return f"{url.scheme}://{url.hostname}:{url.port}" if url else "(not connected)"
