"""What is in a KV, and every change of it: as a listing, or as a watch that survives the loss of the server.

A watch reads an ephemeral pull consumer. When anything may have been missed (a reconnect, a gap in the sequence, a
consumer that is gone) it starts over, and says so by giving the whole content again: whoever holds a picture of the KV
replaces it, and nothing that was deleted in between lives on in it (BR-151). The consumer keeps its name over all of
this, so that a flapping connection leaves no crowd of them behind (BR-150).
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

import msgspec
from nats import errors

from jm_nats.acks import meta
from jm_nats.errors import AgentError, AgentUnavailableError, ConsumerGoneError, JetStreamError
from jm_nats.provision import delete_consumer
from jm_nats.pull import PullReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nats.aio.msg import Msg

    from jm_nats.connection import NatsLink

log = logging.getLogger(__name__)

BATCH: Final = 256
BATCH_BYTES: Final = 4 * 1024 * 1024
INACTIVE_S: Final = 60.0  # then the server removes the consumer of a watcher that died
QUIET_FIRST_S: Final = 0.05  # without anything coming: then the consumer is asked, and after twice as long again
QUIET_MAX_S: Final = 1.0
WAIT_FIRST_S: Final = 0.1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
WAIT_MAX_S: Final = 5.0


class Entry(msgspec.Struct, frozen=True):
    """One key's value. ``stored_at`` is the server's time."""

    key: str
    value: bytes
    revision: int
    stored_at: datetime


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """All there is, by key. What is not in it is not there."""

    entries: tuple[Entry, ...]


class Changed(msgspec.Struct, frozen=True, tag=True):
    """A key was written."""

    entry: Entry


class Removed(msgspec.Struct, frozen=True, tag=True):
    """A key was deleted, or ``expired``."""

    key: str
    revision: int
    expired: bool


Change = Snapshot | Changed | Removed


class KvWatch:
    """An endless iterator of changes, to be used as a context manager. The first is a ``Snapshot``.

        async with kv.watch() as changes:
            async for change in changes:
                match change: ...

    One reader only. While the server is away it waits; it never ends by itself.
    """

    def __init__(self, link: NatsLink, kv: str) -> None:
        self._link = link
        self._kv = kv
        self._name = f"w_{link.nc.new_inbox().rpartition('.')[2]}"
        self.trouble = ""  # why it has to start over; empty while all is well
        self._reading: _Reading | None = None
        self._wait_s = 0.0
        self._undo: Callable[[], None] = link.on_reconnect(self._reconnected)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._undo()
        await self._end_reading()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while True:
            try:
                return await self._next()
            except (AgentError, errors.Error) as cut:
                facts = {"kv": str(self._kv), "problem": str(cut)}
                log.log(logging.DEBUG if self.trouble else logging.INFO, "watch starts over", extra=facts)
                self.trouble = str(cut)
                await self._end_reading()
                await self._pause()

    async def _next(self) -> Change:
        if self._reading is not None:
            return await self._reading.change()
        await self._link.wait_connected()
        self._reading = await _Reading.begin(self._link, self._kv, self._name)
        snapshot = await self._reading.snapshot()
        self._wait_s, self.trouble = 0.0, ""
        return snapshot

    async def _pause(self) -> None:
        """Jittered, because all watchers of a server are cut in the same instant."""
        if self._wait_s:
            await asyncio.sleep(random.uniform(self._wait_s / 2, self._wait_s))
        self._wait_s = min(WAIT_MAX_S, max(WAIT_FIRST_S, 2 * self._wait_s))

    def _reconnected(self) -> None:
        if self._reading is not None:
            self._reading.reader.give_up("the connection was away")

    async def _end_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            await reading.end()


class _Reading:
    """One consumer from its making to its end."""

    def __init__(self, link: NatsLink, stream: str, name: str, prefix: str, pending: int) -> None:
        self._link = link
        self._stream = stream
        self._name = name
        self._prefix = prefix
        self._pending = pending
        self._consumer_seq = 0
        self._arrived: list[Msg] = []
        self.reader = PullReader(link, stream, name, batch=BATCH, max_bytes=BATCH_BYTES)

    @classmethod
    async def begin(cls, link: NatsLink, kv: str, name: str) -> Self:
        stream, prefix = f"KV_{kv}", f"$KV.{kv}."
        config = {
            "name": name,
            "filter_subject": f"{prefix}>",
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE_S * 1_000_000_000),
        }
        await delete_consumer(link, stream, name)  # ours of before, which may still be there
        body = {"stream_name": stream, "config": config, "action": "create"}
        info = await link.api(f"CONSUMER.CREATE.{stream}.{name}.{prefix}>", body)
        reading = cls(link, stream, name, prefix, info["num_pending"])
        await reading.reader.start()
        return reading

    async def end(self) -> None:
        await self.reader.close()
        if self._link.connected:
            with suppress(AgentUnavailableError, JetStreamError):  # then its inactivity ends it
                await delete_consumer(self._link, self._stream, self._name)

    async def snapshot(self) -> Snapshot:
        entries: dict[str, Entry] = {}
        quiet_s = QUIET_FIRST_S
        while self._pending:
            if not self._arrived and not await self._more_within(quiet_s):
                quiet_s = min(QUIET_MAX_S, 2 * quiet_s)
                continue
            match self._read():
                case Changed(entry):
                    entries[entry.key] = entry
                case Removed(key):
                    entries.pop(key, None)
        return Snapshot(tuple(entries[key] for key in sorted(entries)))

    async def change(self) -> Changed | Removed:
        if not self._arrived:
            self._arrived = (await self.reader.take(BATCH))[::-1]
        return self._read()

    def _read(self) -> Changed | Removed:
        message = self._arrived.pop()
        facts = meta(message)
        self._consumer_seq += 1
        if facts.consumer_seq != self._consumer_seq:
            raise ConsumerGoneError(self._stream, self._name, f"message {self._consumer_seq} of it was missed")
        self._pending = facts.pending
        key, headers = message.subject.removeprefix(self._prefix), message.headers or {}
        if is_removal(headers):
            return Removed(key, facts.stream_seq, expired=headers.get("Nats-Marker-Reason") == "MaxAge")
        return Changed(Entry(key, message.data, facts.stream_seq, instant(facts.timestamp_ns)))

    async def _more_within(self, quiet_s: float) -> bool:
        """What was pending may expire or be replaced before it is sent: the consumer knows when nothing is left."""
        try:
            async with asyncio.timeout(quiet_s):
                self._arrived = (await self.reader.take(BATCH))[::-1]
        except TimeoutError:
            info = await self._link.api(f"CONSUMER.INFO.{self._stream}.{self._name}")
            if info["delivered"]["consumer_seq"] == self._consumer_seq:
                self._pending = info["num_pending"]
            return False
        return True


def instant(timestamp_ns: int) -> datetime:
    """Rounded as msgspec rounds the same time from text, so that an entry is equal however it was read."""
    return EPOCH + timedelta(microseconds=(timestamp_ns + 500) // 1000)


def is_removal(headers: Mapping[str, str]) -> bool:
    """A client's delete or purge, or the server's marker for a key that expired or was removed."""
    return headers.get("KV-Operation") in ("DEL", "PURGE") or "Nats-Marker-Reason" in headers
