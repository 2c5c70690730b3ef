"""Publish to JetStream and know that it is stored.

One inbox takes all the server's answers; a message that gets none is sent again under the same ``Nats-Msg-Id``, so that
the stream keeps one copy whatever got lost (its duplicate window has to be longer than ``deadline_s``).

Compared with nats.py's ``js.publish``: a third of the CPU (31 µs a message against 90 µs, measured with 500 at once),
bounded, retried, and a message that is too large is refused before it is sent (BR-111).
"""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import TYPE_CHECKING, Final, Self

import msgspec
from nats import errors

from jm_nats import js_api
from jm_nats.errors import AgentDeniedError, AgentUnavailableError, NoSuchStreamError, PayloadTooLargeError
from jm_nats.frames import header_block, publish_frame
from jm_nats.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from jm_nats.connection import NatsLink

IN_FLIGHT_MAX: Final = 4096
IN_FLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024
DEADLINE_S: Final = 30.0
ATTEMPT_S: Final = 5.0
ERR_IN_PROCESS: Final = 10158
REFUSED_S: Final = 3.0  # how long "no" for the server's own reasons is asked again: an election ends, a full disk stays
WAIT_FIRST_S: Final = 0.02
WAIT_MAX_S: Final = 1.0
SWEEP_S: Final = 0.25
CHECK_S: Final = 1.0


class PubAck(msgspec.Struct, frozen=True):
    """The stream has it. ``duplicate``: had it already, under this message id, at ``seq``."""

    stream: str
    seq: int
    duplicate: bool = False


class _Again(msgspec.Struct, frozen=True):
    """No answer that settles it."""

    reason: str
    no_responders: bool = False
    refused: bool = False


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Answer).decode


class _Flight:
    """One message on its way."""

    __slots__ = ("answer", "due", "ends_at", "frame", "started", "subject")

    def __init__(self, subject: str, frame: bytes, now: float, deadline_s: float) -> None:
        self.subject = subject
        self.frame = frame
        self.started = now
        self.ends_at = now + deadline_s
        self.due = now
        self.answer: asyncio.Future[PubAck | _Again | Exception] | None = None

    def settle(self, answer: PubAck | _Again | Exception) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(answer)


class JetPublisher:
    """Publishes over one link. Made without waiting; its inbox opens with the first message.

    Args:
        link: the connection; while it is away messages wait, up to their deadline.
        in_flight_max: messages unanswered at once; ``publish`` waits beyond that.
        in_flight_bytes_max: the same in bytes; a single larger message goes alone.
        deadline_s: after so long ``publish`` gives up.
        attempt_s: after so long without an answer a message is sent again.
    """

    def __init__(
        self,
        link: NatsLink,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        deadline_s: float = DEADLINE_S,
        attempt_s: float = ATTEMPT_S,
    ) -> None:
        self.link = link
        self.deadline_s = deadline_s
        self.attempt_s = attempt_s
        self._loop = asyncio.get_running_loop()
        self._gate = Gate(in_flight_max, in_flight_bytes_max)
        self._inbox = link.nc.new_inbox()
        self._subscription: Subscription | None = None
        self._opening = asyncio.Lock()
        self._flights: dict[str, _Flight] = {}
        self._tokens = count(1)
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._undo = (link.on_disconnect(self._disconnected), link.denials.listen(self._denied))

    @property
    def in_flight(self) -> int:
        """Messages sent and not settled."""
        return len(self._flights)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        msg_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
    ) -> PubAck:
        """Return when the stream has stored the message.

        Args:
            msg_id: names the message for the stream's duplicate window; made up when left out.
            headers: further ones.
            deadline_s: instead of the publisher's.

        Raises:
            PayloadTooLargeError: with its headers it is larger than the server takes; it was not sent.
            NoSuchStreamError: no stream takes this subject.
            JetStreamError: the server refuses it for good (a wrong revision, for one).
            AgentUnavailableError: not settled in time; it may be stored or not.
            AgentDeniedError: the server does not let us publish there, or hear its answer.
            ValueError: a subject or header that would be another one on the wire.
        """
        token = str(next(self._tokens))
        header = header_block(msg_id or f"{self._inbox}.{token}", headers)
        self._check(subject, len(header) + len(payload))
        frame = publish_frame(subject, f"{self._inbox}.{token}", header, payload)
        flight = _Flight(subject, frame, self._loop.time(), deadline_s or self.deadline_s)
        self._enter()
        try:
            await self._wait_for_turn(flight)
            try:
                return await self._deliver(token, flight)
            finally:
                self._gate.leave(len(frame))
        finally:
            self._leave()

    async def flush(self) -> None:
        """Return when nothing is in flight."""
        await self._idle.wait()

    async def close(self) -> None:
        """Give up what is in flight, and the inbox."""
        if self._closed:
            return
        self._closed = True
        for undo in self._undo:
            undo()
        if self._timer is not None:
            self._timer.cancel()
        for flight in list(self._flights.values()):
            flight.settle(self._unavailable("the publisher was closed"))
        if self._subscription is not None:
            try:
                await self._subscription.unsubscribe()
            except errors.Error:
                return  # the link was closed before us

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # One message.

    async def _wait_for_turn(self, flight: _Flight) -> None:
        size = len(flight.frame)
        if self._gate.try_enter(size):
            return
        try:
            async with asyncio.timeout_at(flight.ends_at):
                await self._gate.enter(size)
        except TimeoutError:
            raise self._unavailable("too much is in flight already", flight) from None

    async def _deliver(self, token: str, flight: _Flight) -> PubAck:
        if self._subscription is None:
            await self._open()
        self._flights[token] = flight
        try:
            return await self._until_settled(flight)
        finally:
            del self._flights[token]

    async def _until_settled(self, flight: _Flight) -> PubAck:
        """Send, and send again, until there is an answer or no time left. A late answer to an early try counts."""
        wait_s, refused_at = WAIT_FIRST_S, 0.0
        while True:
            answer = await self._attempt(flight)
            if isinstance(answer, PubAck):
                return answer
            if isinstance(answer, Exception):
                raise answer
            now = self._loop.time()
            refused_at = (refused_at or now) if answer.refused else 0.0
            if self._closed or now >= flight.ends_at or (refused_at and now - refused_at >= REFUSED_S):
                raise self._unavailable(answer.reason, flight)
            if answer.no_responders:
                await self._check_stream(flight.subject)
            await asyncio.sleep(min(random.uniform(wait_s / 2, wait_s), max(0.0, flight.ends_at - now)))
            wait_s = min(2 * wait_s, WAIT_MAX_S)

    async def _attempt(self, flight: _Flight) -> PubAck | _Again | Exception:
        if self._closed or self.link.nc.is_closed:
            return self._unavailable("the publisher or its connection was closed")
        if not self.link.connected:
            try:
                async with asyncio.timeout_at(flight.ends_at):
                    await self.link.wait_connected()
            except TimeoutError:
                return _Again("not connected")
        flight.answer = self._loop.create_future()
        flight.due = min(self._loop.time() + self.attempt_s, flight.ends_at)
        if not self.link.nc.post(flight.frame):
            return _Again("too much waits for the socket already")
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        return await flight.answer

    async def _check_stream(self, subject: str) -> None:
        """Nobody listens: is there no such stream, or only no leader at the moment?"""
        try:
            answer = await self.link.api("STREAM.NAMES", {"subject": subject}, timeout_s=CHECK_S)
        except (AgentUnavailableError, AgentDeniedError):
            return  # who may only publish may not ask
        if not answer.get("streams"):
            asked = f"publish to '{subject}'"
            raise NoSuchStreamError(asked, 404, js_api.ERR_STREAM_NOT_FOUND, "no stream takes this subject")

    def _check(self, subject: str, size: int) -> None:
        if self._closed:
            raise self._unavailable("the publisher was closed")
        if size > self.link.nc.max_payload:
            raise PayloadTooLargeError(subject, size, self.link.nc.max_payload)

    def _unavailable(self, reason: str, flight: _Flight | None = None) -> AgentUnavailableError:
        after = ""
        if flight is not None:
            after = f"publish to '{flight.subject}' not settled in {self._loop.time() - flight.started:.1f} s: "
        trouble = f" (last trouble: {self.link.trouble})" if self.link.trouble else ""
        remedy = "publish it again with the same message id"
        return AgentUnavailableError(self.link.server, f"{after}{reason}{trouble}", remedy=remedy)

    # All of them.

    async def _open(self) -> None:
        async with self._opening:
            if self._subscription is None:
                self._subscription = await self.link.nc.subscribe(f"{self._inbox}.*", cb=self._on_answer)

    async def _on_answer(self, message: Msg) -> None:
        flight = self._flights.get(message.subject.rpartition(".")[2])
        if flight is None:
            return  # settled by an earlier answer, or given up
        if not message.data:
            flight.settle(_Again("nobody listens on its subject", no_responders=True))
            return
        try:
            answer = _decode(message.data)
        except msgspec.DecodeError:
            return  # a stranger listens on the subject, too, and answers; the stream's word is still to come
        if answer.error is None:
            flight.settle(PubAck(answer.stream, answer.seq, answer.duplicate))
        else:
            flight.settle(self._refusal(flight.subject, answer.error))

    def _refusal(self, subject: str, error: _Error) -> _Again | Exception:
        if error.err_code == ERR_IN_PROCESS:
            return _Again("an earlier copy of it is still being stored")  # and will be there, or not, in a moment
        if error.code >= 500:
            return _Again(f"{error.description} (err_code {error.err_code})", refused=True)
        return js_api.translate(self.link.server, f"publish to '{subject}'", msgspec.structs.asdict(error))

    def _disconnected(self) -> None:
        for flight in list(self._flights.values()):
            flight.settle(_Again("the connection broke"))

    def _denied(self, error: AgentDeniedError, subject: str | None) -> None:
        for flight in list(self._flights.values()):
            if subject is None or flight.subject.lower() == subject:
                flight.settle(error)

    def _sweep(self) -> None:
        """One timer for all: setting and cancelling one a message costs more than the rest of it."""
        now = self._loop.time()
        for flight in list(self._flights.values()):
            if now >= flight.due:
                flight.settle(_Again("no answer"))
        self._timer = self._loop.call_later(SWEEP_S, self._sweep) if self._flights else None

    def _enter(self) -> None:
        self._active += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._active -= 1
        if not self._active:
            self._idle.set()
