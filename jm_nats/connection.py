"""One connection to NATS: checked when it is made, kept for ever, closed without leftovers."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from nats import errors

from jm_core import limits
from jm_nats import js_api
from jm_nats.denials import Denials
from jm_nats.driver import ReconnectPlan, SteadyClient, connect_options
from jm_nats.errors import AgentError, AgentUnavailableError, AgentUnsupportedError
from jm_nats.handshake import VERSION_MIN, check_credential_files, describe, parse_version, refusal, tls_context
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.js import JetStreamContext

    from jm_nats.config import NatsConfig

    Callback = Callable[[], None]

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0
ABANDONED_CLOSE_S: Final = 0.2
ROUND_TRIP_TIMEOUT_S: Final = 5.0
JETSTREAM_POLL_S: Final = 0.1
CLOCK_SAMPLES: Final = 5
PAYLOAD_MIN: Final = limits.MESSAGE_BYTES_MAX + 16 * limits.KIB  # with its headers


async def connect(config: NatsConfig, *, client_name: str) -> NatsLink:
    """A standing connection to a server that can do what we need.

    Tries all servers for ``config.connect_timeout_s``, so that one that is just starting is found; gives up at once
    where trying again is no use. From then on it reconnects for ever.

    Raises:
        AgentAuthError: the server refuses the credentials, or (``AgentDeniedError``) what every role needs.
        AgentUnavailableError: no server within the time, or TLS does not come about.
        AgentUnsupportedError: older than 2.12, no JetStream, or messages of our size are too large for it.
        InvalidSettingError: a credentials or TLS file cannot be used.
    """
    link = NatsLink(config, client_name)
    try:
        await link._open()  # noqa: SLF001 - the constructor's second half
    except BaseException:
        await link.close()
        raise
    return link


class NatsLink:
    """The client, its JetStream context and what happens to the connection. Made by ``connect``."""

    def __init__(self, config: NatsConfig, client_name: str) -> None:
        self.config = config
        self.client_name = client_name
        self.nc = SteadyClient(requires_tls=config.requires_tls)
        self.js: JetStreamContext = self.nc.jetstream(timeout=js_api.API_TIMEOUT_S)
        self.denials = Denials(lambda: self.server, config.who, config.inbox_prefix)
        self._plan = ReconnectPlan(config.reconnect_wait_max_s)
        self._up = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # a new one per connection
        self._refused: asyncio.Future[AgentError] | None = None  # only while the first connection is made
        self._started = False
        self._closing = False
        self._abandoned = False
        self._trouble = ""
        self._pings: set[asyncio.Task[None]] = set()
        self._reconnect_callbacks: list[Callback] = []
        self._disconnect_callbacks: list[Callback] = []

    @property
    def connected(self) -> bool:
        """Whether the connection stands as far as we know; a silent server is noticed within three ping intervals."""
        return self._up.is_set() and self.nc.is_connected

    @property
    def server(self) -> str:
        """Where we are connected to, or would like to be, for messages: never with credentials."""
        url = self.nc.connected_url
        return f"{url.scheme}://{url.hostname}:{url.port}" if url else self.config.redacted_servers

    @property
    def trouble(self) -> str:
        """The last thing that went wrong since the connection stands, or why it does not; empty when nothing did."""
        return self._trouble

    async def wait_connected(self) -> None:
        """Return when the connection stands."""
        await self._up.wait()

    def on_reconnect(self, callback: Callback) -> Callback:
        """Call ``callback`` after every reconnect, when subscriptions are restored. Returns what undoes this."""
        return _register(self._reconnect_callbacks, callback)

    def on_disconnect(self, callback: Callback) -> Callback:
        """Call ``callback`` when the connection breaks (not when we close it). Returns what undoes this."""
        return _register(self._disconnect_callbacks, callback)

    async def api(self, path: str, body: object = None, *, timeout_s: float = js_api.API_TIMEOUT_S) -> dict[str, Any]:
        """The answer of JetStream's API; errors as in ``js_api.ask``.

        Fails when the connection breaks: the answer cannot come any more, and the time is better spent asking again.
        """
        if self._closing or self._abandoned:
            raise self._unavailable(f"{path}: the connection was closed")
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait_connected()
        except TimeoutError:
            raise self._unavailable(f"{path}: not connected for {timeout_s:g} s") from None
        asking = asyncio.ensure_future(js_api.ask(self.nc, self.server, path, body, timeout_s=timeout_s))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if we are cancelled first
        with self.denials.watched(f"{js_api.PREFIX}.{path}") as refused:
            try:
                either: set[asyncio.Future[Any]] = {asking, self._broken, refused}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    return asking.result()
                if refused.done():
                    refused.result()
            finally:
                asking.cancel()
        raise self._unavailable(f"{path}: the connection broke")

    async def request(self, subject: str, payload: bytes = b"", *, timeout_s: float) -> Msg:
        """The answer of whoever listens on ``subject``; or an error: nats.py's own, or one of these.

        Raises:
            AgentDeniedError: the server does not let us ask there, or hear the answer.
        """
        asking = asyncio.ensure_future(self.nc.request(subject, payload, timeout=timeout_s))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if we are cancelled first
        with self.denials.watched(subject) as refused:
            try:
                either: set[asyncio.Future[Any]] = {asking, refused}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    refused.result()
                return asking.result()
            finally:
                asking.cancel()

    async def round_trip(self, timeout_s: float = ROUND_TRIP_TIMEOUT_S) -> None:
        """Return when the server has worked off all we sent so far, and we have received all it sent before that.

        nats.py's ``flush`` must not end before its PONG: a PONG for one that was cancelled or timed out sets the
        result of a finished future, and the exception ends nats.py's read loop. So it runs in a task of its own,
        with more time than a dead connection has.

        Raises:
            AgentUnavailableError: no answer in time.
        """
        if self.connected:
            ping = asyncio.create_task(self._ping())
            self._pings.add(ping)
            ping.add_done_callback(self._pings.discard)
            done, _ = await asyncio.wait({ping}, timeout=timeout_s)
            if done and self.connected:
                return
        raise self._unavailable(f"no answer to a round trip in {timeout_s:g} s")

    def _unavailable(self, problem: str) -> AgentUnavailableError:
        return AgentUnavailableError(self.server, problem, remedy=js_api.CHECK_SERVER)

    async def _ping(self) -> None:
        with suppress(errors.Error, OSError):
            await self.nc.flush(timeout=10 * self.config.ping_interval_s)

    async def retire(self, subscription: Subscription) -> None:
        """Unsubscribe without losing anything that the server had sent by then."""
        try:
            if self.connected:
                await self.nc.send_unsubscribe(subscription)
                await self.round_trip()
                while subscription.pending_msgs and self.connected:  # noqa: ASYNC110 - nats.py signals nothing
                    await asyncio.sleep(0)  # its callback has them next
        except AgentUnavailableError:
            log.debug("a subscription ends without the server's answer")
        finally:
            with suppress(errors.Error):  # closed meanwhile
                await subscription.unsubscribe()

    def abandon(self) -> None:
        """The server does not answer and we are about to go: every call fails from now on, and nobody waits for it."""
        self._abandoned = True
        self._up.clear()
        if not self._broken.done():
            self._broken.set_result(None)

    async def close(self) -> None:
        """Send what waits, close the socket, end every task. Closing twice does nothing."""
        if self._closing:
            return
        self._closing = True
        self._up.clear()
        if self._started:
            await self._close_client()
        for ping in list(self._pings):
            ping.cancel()
        await asyncio.sleep(0)  # nats.py, too, cancels its tasks without waiting for them

    async def _close_client(self) -> None:
        patience_s = ABANDONED_CLOSE_S if self._abandoned else CLOSE_TIMEOUT_S
        try:
            async with asyncio.timeout(patience_s):
                await self.nc.close()
        except TimeoutError:
            facts = {"nats": self.server, "waited_s": patience_s}
            log.warning("NATS took none of our data, closed without", extra=facts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # The first connection.

    async def _open(self) -> None:
        check_credential_files(self.config)
        options = connect_options(self.config) | {"name": self.client_name, "tls": tls_context(self.config)}
        self._refused = asyncio.get_running_loop().create_future()
        self._started = True
        attempt = asyncio.create_task(self._connect_client(options))
        try:
            await self._until_connected(attempt, self._refused)
        finally:
            self._refused = None
            attempt.cancel()
            await asyncio.wait({attempt})
        await self._check_version()
        self._check_payload()
        await self._check_jetstream()

    async def _connect_client(self, options: dict[str, Any]) -> None:
        await self.nc.connect(
            **options,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
            reconnect_to_server_handler=self._plan.next_try,
        )
        if self.nc.is_connected:
            self._up.set()
        # Else the server closed in place of a PONG: nats.py calls that connected, and reconnects.
        await self._up.wait()

    async def _until_connected(self, attempt: asyncio.Task[None], refused: asyncio.Future[AgentError]) -> None:
        """nats.py by itself would try for ever. We stop when it is connected, refused or too late."""
        timeout_s = self.config.connect_timeout_s
        either: set[asyncio.Future[Any]] = {attempt, refused}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if refused.done():
            raise refused.result()
        if not attempt.done():
            problem = f"no connection in {timeout_s:g} s{self._trouble_text()}"
            remedy = "start it, or correct JM_NATS_URL"
            raise AgentUnavailableError(self.config.redacted_servers, problem, remedy=remedy)
        attempt.result()

    async def _check_version(self) -> None:
        version = repr(self.nc.connected_server_version).removeprefix("<nats server v").removesuffix(">")
        if parse_version(version) < VERSION_MIN:
            remedy = "upgrade it: scheduled messages and expiry markers need 2.12"
            raise AgentUnsupportedError(self.server, f"its version is {version}", remedy=remedy)

    def _check_payload(self) -> None:
        """A run message that the server never takes would leave its jobs in the outbox for ever."""
        if self.nc.max_payload < PAYLOAD_MIN:
            problem = f"its max_payload is {self.nc.max_payload} bytes, messages here have up to {PAYLOAD_MIN}"
            raise AgentUnsupportedError(self.server, problem, remedy="raise it (NATS' own default is 1 MiB)")

    async def _check_jetstream(self) -> None:
        """A cluster without a leader answers in a moment; a server without JetStream never."""
        try:
            async with asyncio.timeout(self.config.connect_timeout_s):
                while not await self._jetstream_answers():  # noqa: ASYNC110 - nor does the server
                    await asyncio.sleep(JETSTREAM_POLL_S)
        except TimeoutError:
            remedy = "enable it (`jetstream {}` in the server's configuration), or wait for the cluster's leader"
            raise AgentUnsupportedError(self.server, "JetStream does not answer", remedy=remedy) from None

    async def _jetstream_answers(self) -> bool:
        try:
            await self.api("INFO")
        except AgentUnavailableError:
            return False
        return True

    # What nats.py tells us.

    async def _on_error(self, problem: Exception) -> None:
        """One line, and the same line again only for those who debug: an outage repeats it with every attempt."""
        text = describe(problem)
        if self.denials.heard(problem):
            self._trouble = text
            return
        if self._refused is not None and not self._refused.done():
            verdict = refusal(self.config, problem)
            if verdict is not None:
                self._refused.set_result(verdict)
        quiet = self._closing or self._refused is not None or text == self._trouble
        self._trouble = text
        if quiet:
            log.debug("trouble with NATS", extra={"problem": text})
        else:
            trouble(log, "trouble with NATS", {"problem": text})

    async def _on_disconnected(self) -> None:
        was_up = self._up.is_set()
        self._up.clear()
        self.denials.forget()
        if not self._broken.done():
            self._broken.set_result(None)
        if was_up and not self._closing:
            log.warning("disconnected from NATS", extra={"nats": self.config.redacted_servers})
            _call_all(self._disconnect_callbacks)

    async def _on_reconnected(self) -> None:
        self._plan.reset()
        self._trouble = ""
        if self._broken.done():
            self._broken = asyncio.get_running_loop().create_future()
        if not self._abandoned:
            self._up.set()
        log.info("connected to NATS", extra={"nats": self.server})
        _call_all(self._reconnect_callbacks)

    async def _on_closed(self) -> None:
        if not self._closing:
            log.error("the connection to NATS is closed for good", extra={"problem": self._trouble})

    def _trouble_text(self) -> str:
        return f" ({self._trouble})" if self._trouble else ""


class ClockOffset(msgspec.Struct, frozen=True):
    """How far the server's wall clock is ahead of ours: add ``offset_s`` to ours to get the server's."""

    offset_s: float
    error_s: float  # at most this far off: half of the round trip it was measured with

    @property
    def correction_s(self) -> float:
        """The offset, as far as it is more than the error of its measurement: of two clocks that agree, the error
        alone would make jobs start a few microseconds early.
        """
        return self.offset_s if abs(self.offset_s) > self.error_s else 0.0


async def server_clock_offset(link: NatsLink, *, samples: int = CLOCK_SAMPLES) -> ClockOffset:
    """Measure our wall clock against the connected server's.

    The server stamps its answer to ``$SYS.REQ.USER.INFO``, which every user may ask and which needs no stream. Its
    time is taken to be that of the middle of the round trip; the shortest round trip decides (NTP does the same).

    Raises:
        AgentUnavailableError: no answer.
    """
    return min([await _clock_sample(link) for _ in range(samples)], key=lambda sample: sample.error_s)


async def _clock_sample(link: NatsLink) -> ClockOffset:
    asked, began = time.time(), time.monotonic()
    try:
        reply = await link.request("$SYS.REQ.USER.INFO", timeout_s=js_api.API_TIMEOUT_S)
    except errors.Error as problem:
        problem_text = f"it does not tell its time ({problem})"
        remedy = "allow this user to publish to $SYS.REQ.USER.INFO"
        raise AgentUnavailableError(link.server, problem_text, remedy=remedy) from None
    half_s = (time.monotonic() - began) / 2
    stamp: datetime = msgspec.json.decode(reply.data, type=_UserInfo).server.time
    return ClockOffset(offset_s=stamp.timestamp() - (asked + half_s), error_s=half_s)


class _ServerInfo(msgspec.Struct):
    time: datetime


class _UserInfo(msgspec.Struct):
    server: _ServerInfo


def _register(callbacks: list[Callback], callback: Callback) -> Callback:
    callbacks.append(callback)

    def undo() -> None:
        with suppress(ValueError):
            callbacks.remove(callback)

    return undo


def _call_all(callbacks: list[Callback]) -> None:
    for callback in list(callbacks):
        try:
            callback()
        except Exception:
            log.exception("a callback for a change of the NATS connection failed")
