"""A reader for a pull consumer, in place of nats.py's ``fetch``.

``fetch`` drops a message that arrives as it times out (BR-007), turns a cancellation into a timeout (BR-121), and waits
although messages are there (BR-152). Here nothing times out: messages land in a buffer, whoever waits is given what is
there, and one *pull request* at a time stands at the server.

Why one at a time: the server deals messages out to standing requests in turn and does not say which request a message
was for, so with two of them neither count nor bytes can be accounted for exactly. The next request leaves the moment
the last one is used up and the buffer is at most half full; what is in the buffer hides the round trip.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Final, Self

import anyio
from nats import errors

from jm_nats import telemetry
from jm_nats.acks import Meta, ack, ack_sync, keep_alive, meta, nak, term
from jm_nats.errors import (
    AgentError,
    ConsumerGoneError,
    NoSuchConsumerError,
    NoSuchStreamError,
)
from jm_nats.pull_status import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from jm_nats.connection import NatsLink

__all__ = ["Meta", "PullReader", "ReaderClosedError", "ack", "ack_sync", "keep_alive", "meta", "nak", "term"]

log = logging.getLogger(__name__)

EXPIRES_S: Final = 30.0
IDLE_HEARTBEAT_S: Final = 5.0
SILENCE: Final = 2.5  # heartbeats missed before the request is taken for lost
WAIT_FIRST_S: Final = 0.05
WAIT_MAX_S: Final = 2.0

assert EXPIRES_S >= 2 * IDLE_HEARTBEAT_S  # the server's own rule


class ReaderClosedError(AgentError):
    """``take`` on a reader that was closed."""


class _Pull:
    """The request that stands at the server."""

    __slots__ = ("asked_bytes", "left", "token", "untouched")

    def __init__(self, token: str, messages: int, asked_bytes: int) -> None:
        self.token = token
        self.left = messages
        self.asked_bytes = asked_bytes
        self.untouched = True


class PullReader:
    """Messages of one consumer, ready to be taken.

    Never more than ``batch`` messages and ``max_bytes`` are here untaken or on their way here; a single message larger
    than ``max_bytes`` is fetched alone. One task may ``take`` at a time, or several: each message goes to one.

    Args:
        link: the connection; a reconnect is ridden out.
        stream: its name.
        consumer: name of a durable pull consumer.
        batch: messages asked for at most.
        max_bytes: bytes asked for at most, as the server counts (with subject and headers).
        expires_s: after so long the server ends an unused request; at least two heartbeats.
        idle_heartbeat_s: how often the server says that a request still stands.
        on_gone: called once when the consumer is found gone; ``take`` raises the same error.
    """

    def __init__(
        self,
        link: NatsLink,
        stream: str,
        consumer: str,
        *,
        batch: int,
        max_bytes: int,
        expires_s: float = EXPIRES_S,
        idle_heartbeat_s: float = IDLE_HEARTBEAT_S,
        on_gone: Callable[[ConsumerGoneError], None] | None = None,
    ) -> None:
        if batch < 1 or max_bytes < 1 or expires_s < 2 * idle_heartbeat_s:
            raise ValueError("batch and max_bytes must be 1 or more, expires_s two heartbeats or more")
        self.link = link
        self.stream = stream
        self.consumer = consumer
        self.batch = batch
        self.max_bytes = max_bytes
        self._request = {"expires": _ns(expires_s), "idle_heartbeat": _ns(idle_heartbeat_s)}
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._silence_s = SILENCE * idle_heartbeat_s
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Msg] = deque()
        self._buffered_bytes = 0
        self._arrived = asyncio.Event()
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()  # one at a time opens, asks or shuts
        self._keeper: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._pull: _Pull | None = None
        self._pulls = 0
        self._heard_at = self._asked_at = self._taken_at = self._loop.time()
        self._paused = False
        self._stale = False  # the inbox is to be replaced: an old request may still stand behind it
        self._in_doubt = False
        self._wait_s = 0.0  # before the next request; grows while the server turns us away
        self._only_when_empty = False
        self._alone = False
        self._end: Exception | None = None
        self._undo: Callable[[], None] | None = None

    @property
    def buffered(self) -> int:
        """Messages here, not yet taken."""
        return len(self._buffer)

    @property
    def unheard_s(self) -> float:
        """Since NATS last answered a pull, with a message or a sign of life; since the last ``take`` while nothing is
        asked for, because there is no room. From any thread.
        """
        asks = self._pull is not None or self._has_room()
        return max(0.0, self._loop.time() - (self._heard_at if asks else self._taken_at))

    @property
    def paused(self) -> bool:
        return self._paused

    async def start(self) -> Self:
        """Begin to ask."""
        if self._keeper is None:
            self._undo = self.link.on_reconnect(self._reconnected)
            self._keeper = asyncio.create_task(self._keep_asking(), name=f"pull {self.stream}/{self.consumer}")
            self._keeper.add_done_callback(self._keeper_ended)
            self._wake.set()
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def take(self, max_messages: int) -> list[Msg]:
        """What is there, at least one message, in the order of delivery; waits only while there is none.

        Cancelling it loses nothing.

        Raises:
            ConsumerGoneError: the consumer was deleted. What was here untaken is dropped: it would be delivered again
                to the consumer's successor, and its acks go nowhere.
            ReaderClosedError: ``close`` was called.
        """
        while not self._buffer or self._end is not None:
            if self._end is not None:
                raise self._end
            self._arrived.clear()
            await self._arrived.wait()
        messages = self._pop(max_messages)
        self._taken_at = self._loop.time()
        if self._pull is None and self._has_room():
            self._wake.set()
        return messages

    async def pause(self) -> None:
        """Stop asking; when this returns nothing more arrives, and what did arrive can still be taken.

        The request is cut off by unsubscribing its inbox: the server drops requests nobody listens for. What it had
        sent by then is awaited, so nothing has to wait for its ack wait to end.
        """
        self._paused = True
        async with self._busy:
            await self._shut()

    def resume(self) -> None:
        """Ask again: after ``pause``, or when a consumer that was gone has been made anew."""
        self._paused = False
        if isinstance(self._end, ConsumerGoneError):
            self._end = None
            self._stale = True
        self._wake.set()

    def keep_alive(self) -> None:
        """Keep what is here untaken ours, beyond the consumer's ack wait."""
        for message in self._buffer:
            keep_alive(message)

    def give_up(self, reason: str) -> None:
        """Treat the consumer as gone: for an owner that knows it cannot go on with it."""
        self._gone(reason)

    async def close(self) -> None:
        """Stop for good, and give back what was not taken, to be delivered elsewhere at once."""
        self._end = self._end or ReaderClosedError(f"the reader of '{self.stream}/{self.consumer}' is closed")
        self._arrived.set()
        if self._undo is not None:
            self._undo()
        # Also when who closes is being cancelled: half a close would leave a subscription behind that takes messages,
        # and those wait for their ack wait to end.
        with anyio.CancelScope(shield=True):
            if self._keeper is not None:
                self._keeper.cancel()
                await asyncio.wait({self._keeper})
            await self._shut()
        for message in self._pop(len(self._buffer)):
            nak(message)

    # The buffer.

    def _pop(self, max_messages: int) -> list[Msg]:
        buffer = self._buffer
        if max_messages >= len(buffer):
            messages = list(buffer)
            buffer.clear()
            self._buffered_bytes = 0
            return messages
        messages = [buffer.popleft() for _ in range(max_messages)]
        self._buffered_bytes -= sum(map(_size, messages))
        return messages

    def _has_room(self) -> bool:
        if self._only_when_empty:
            return not self._buffer
        return 2 * len(self._buffer) <= self.batch and 2 * self._buffered_bytes <= self.max_bytes

    async def _on_message(self, message: Msg) -> None:
        """nats.py's callback: a message of the stream has a reply subject, a status has none."""
        self._heard_at = self._loop.time()
        if not message.reply:
            self._on_status(message)
            return
        if isinstance(self._end, ConsumerGoneError):
            return
        self._buffer.append(message)
        self._buffered_bytes += _size(message)
        self._arrived.set()
        pull = self._pull
        if pull is not None:
            pull.untouched = False
            pull.left -= 1
            if not pull.left:
                self._over()

    # The request.

    def _over(self) -> None:
        self._pull = None
        self._wait_s = 0.0
        self._only_when_empty = self._alone = False
        if self._has_room():
            self._wake.set()

    def _on_status(self, message: Msg) -> None:
        pull = self._pull
        if pull is None or not message.subject.endswith(pull.token):
            return  # about a request that we have given up
        headers = message.headers or {}
        code, description = headers.get("Status", ""), headers.get("Description", "")
        match judge(code, description):
            case Verdict.ALIVE:
                self._wait_s = 0.0
            case Verdict.USED_UP:
                self._over()
            case Verdict.TOO_BIG:
                self._too_big(pull)
            case Verdict.GONE:
                self._gone(description)
            case verdict:
                level = logging.DEBUG if self._wait_s else logging.INFO  # the first of a row
                log.log(level, "pull of %s/%s: %s %s", self.stream, self.consumer, code, description)
                self._turned_away(in_doubt=verdict is Verdict.DOUBT)

    def _too_big(self, pull: _Pull) -> None:
        """Ask again once the buffer is empty; and if it is too big for all we have, for this one alone."""
        self._over()
        self._only_when_empty = True
        self._alone = pull.untouched and pull.asked_bytes >= self.max_bytes
        if not self._buffer:
            self._wake.set()

    def _turned_away(self, *, in_doubt: bool) -> None:
        self._pull = None
        self._in_doubt = self._in_doubt or in_doubt
        self._wait_s = min(WAIT_MAX_S, max(WAIT_FIRST_S, 2 * self._wait_s))
        self._wake.set()

    def _gone(self, reason: str) -> None:
        if self._end is None:
            self._end = ConsumerGoneError(self.stream, self.consumer, reason)
            self._pull = None
            self._pop(len(self._buffer))
            self._arrived.set()
            log.info("%s", self._end)
            if self._on_gone is not None:
                self._on_gone(self._end)

    def _reconnected(self) -> None:
        self._stale = True
        self._wait_s = 0.0
        self._wake.set()

    # The keeper: the one task that sends.

    async def _keep_asking(self) -> None:
        while True:
            await self._until_woken()
            if self._paused or self._end is not None or not self.link.connected:
                continue  # resume, or the reconnect, wakes us
            try:
                await self._once_more()
            except (AgentError, errors.Error, OSError) as problem:
                log.debug("pull of %s/%s: %s", self.stream, self.consumer, problem)
                self._turned_away(in_doubt=False)

    @property
    def _sign_at(self) -> float:
        """Since when an answer is due."""
        return max(self._heard_at, self._asked_at)

    async def _until_woken(self) -> None:
        """Sleep until there is something to do, or the server has been silent for too long."""
        listening = self._pull is not None and self.link.connected
        try:
            async with asyncio.timeout_at(self._sign_at + self._silence_s if listening else None):
                await self._wake.wait()
        except TimeoutError:
            if self._loop.time() - self._sign_at >= self._silence_s:
                log.info("pull of %s/%s: no heartbeat, asking anew", self.stream, self.consumer)
                telemetry.stalled("pull")
                self._in_doubt = self._stale = True
        self._wake.clear()

    async def _once_more(self) -> None:
        if self._wait_s:
            await asyncio.sleep(random.uniform(self._wait_s / 2, self._wait_s))
        async with self._busy:
            if self._paused:
                return
            if self._in_doubt:
                await self._check_consumer()
            if self._stale or self._subscription is None:
                await self._shut()
                await self._open()
            if self._pull is None and self._has_room() and self._end is None:
                await self._ask()

    async def _check_consumer(self) -> None:
        try:
            await self.link.api(f"CONSUMER.INFO.{self.stream}.{self.consumer}")
        except (NoSuchConsumerError, NoSuchStreamError) as absent:
            self._gone(absent.description)
        self._in_doubt = False

    async def _open(self) -> None:
        self._inbox = self.link.nc.new_inbox()
        self._subscription = await self.link.nc.subscribe(f"{self._inbox}.*", cb=self._on_message)
        self._stale = False

    async def _shut(self) -> None:
        subscription, self._subscription, self._pull = self._subscription, None, None
        if subscription is not None:
            await self.link.retire(subscription)

    async def _ask(self) -> None:
        self._pulls += 1
        messages, max_bytes = self.batch - len(self._buffer), self.max_bytes - self._buffered_bytes
        body = {"batch": 1} if self._alone else {"batch": messages, "max_bytes": max_bytes}
        self._pull = _Pull(f".{self._pulls}", body["batch"], max_bytes)
        self._asked_at = self._loop.time()
        request = json.dumps(self._request | body).encode()
        await self.link.nc.publish(self._subject, request, reply=f"{self._inbox}.{self._pulls}")

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        """A bug must not look like an idle consumer."""
        if not keeper.cancelled() and (problem := keeper.exception()) is not None:
            log.error("pull of %s/%s failed", self.stream, self.consumer, exc_info=problem)
            self._end = AgentError(f"reading '{self.stream}/{self.consumer}' failed: {problem!r}")
            self._arrived.set()


def _size(message: Msg) -> int:
    """About what the server counts against ``max_bytes``."""
    size = len(message.data) + len(message.subject) + len(message.reply)
    if message.headers:
        size += sum(len(name) + len(value) + 4 for name, value in message.headers.items())
    return size


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
