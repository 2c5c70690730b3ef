"""Compare-and-set over one NATS KV. A lost race is a value, and the fence is required (STYLE 4)."""

from __future__ import annotations

import asyncio
import base64
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from jm_core.errors import InvalidNameError
from jm_nats.errors import AgentUnavailableError, JetStreamError
from jm_nats.js_api import CHECK_SERVER
from jm_nats.kv_watch import Change, Changed, Entry, KvWatch, Removed, Snapshot, is_removal
from jm_nats.publisher import JetPublisher

if TYPE_CHECKING:
    from jm_nats.connection import NatsLink

__all__ = [
    "KEY_PATTERN",
    "CasKv",
    "Change",
    "Changed",
    "Entry",
    "KvWatch",
    "Removed",
    "Snapshot",
    "Stale",
    "Written",
    "parse_key",
]

# Narrower than NATS's own rule: what every client takes, and reads back as the same key (BR-226).
KEY_PATTERN: Final = "[A-Za-z0-9_=-]+(.[A-Za-z0-9_=-]+)*, 200 characters at most, not starting with _kv"
KEY_CHARS_MAX: Final = 200
_is_key = re.compile(r"(?!_kv)[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*").fullmatch

DEADLINE_S: Final = 5.0
REVISION_HEADER: Final = "Nats-Expected-Last-Subject-Sequence"
OPERATION_HEADER: Final = "KV-Operation"
ERR_NO_MESSAGE: Final = 10037
ERR_WRONG_REVISION: Final = frozenset({10071, 10164})
CREATE_TRIES: Final = 5


class Written(msgspec.Struct, frozen=True, tag=True):
    """Done; ``revision`` is the fence for the next change."""

    revision: int


class Stale(msgspec.Struct, frozen=True, tag=True):
    """Somebody else was quicker; nothing was changed. ``current`` is what is there now, None when nothing is."""

    current: Entry | None


def parse_key(key: str) -> str:
    """``key`` unchanged when every NATS client can use it.

    Raises:
        InvalidNameError: it has double dots, ``:``, ``~``, spaces, or belongs to NATS.
    """
    if len(key) > KEY_CHARS_MAX or not _is_key(key):
        raise InvalidNameError("key", key, KEY_PATTERN)
    return key


class CasKv:
    """One KV. Reads ask the stream's leader, so that a write is seen by whoever reads after it.

    (Direct gets are quicker, and any replica may answer them with what it has.)

    Args:
        link: the connection.
        kv: name of the KV.
        deadline_s: how long a call takes at most while the server is away.
    """

    def __init__(self, link: NatsLink, kv: str, *, deadline_s: float = DEADLINE_S) -> None:
        self.link = link
        self.kv = kv
        self.deadline_s = deadline_s
        self._prefix = f"$KV.{kv}."
        self._publisher: JetPublisher | None = None

    @classmethod
    async def open(cls, link: NatsLink, kv: str, *, deadline_s: float = DEADLINE_S) -> Self:
        """The KV, which exists.

        Raises:
            NoSuchStreamError: it does not; ``ensure_cluster`` makes ours.
        """
        await link.api(f"STREAM.INFO.KV_{kv}")
        return cls(link, kv, deadline_s=deadline_s)

    async def close(self) -> None:
        """Give up the inbox for the server's answers (the link's end does, too)."""
        if self._publisher is not None:
            await self._publisher.close()

    async def get(self, key: str) -> Entry | None:
        """The value, or None when the key was never written, deleted, or has expired."""
        found = await self._last(parse_key(key))
        return None if found is None or is_removal(found.headers) else found.entry

    async def create(self, key: str, value: bytes) -> Written | Stale:
        """Write a key that is not there."""
        revision = 0
        for _ in range(CREATE_TRIES):
            written, found = await self._write(key, value, {REVISION_HEADER: str(revision)})
            if written is not None:
                return written
            if found is not None and not is_removal(found.headers):
                return Stale(found.entry)
            # What is last on its subject says that it was removed: that is the revision to follow.
            revision = found.entry.revision if found is not None else 0
        return Stale(None)

    async def update(self, key: str, value: bytes, *, revision: int) -> Written | Stale:
        """Write a key whose last change was ``revision``."""
        return await self._fenced(key, value, {REVISION_HEADER: str(revision)})

    async def delete(self, key: str, *, revision: int) -> Written | Stale:
        """Delete a key whose last change was ``revision``. Watchers see it."""
        return await self._fenced(key, b"", {REVISION_HEADER: str(revision), OPERATION_HEADER: "DEL"})

    async def put(self, key: str, value: bytes) -> Written:
        """Write without a fence: for keys that only one process ever writes."""
        ack = await self._publish(key, value, {}, msg_id=None)
        return Written(ack)

    async def entries(self) -> list[Entry]:
        """Everything, by key.

        Raises:
            AgentUnavailableError: not in time.
        """
        async with self.watch() as changes:
            try:
                async with asyncio.timeout(self.deadline_s):
                    first = await anext(changes)
            except TimeoutError:
                problem = f"KV '{self.kv}' could not be listed in {self.deadline_s:g} s: {changes.trouble}"
                raise AgentUnavailableError(self.link.server, problem, remedy=CHECK_SERVER) from None
        assert isinstance(first, Snapshot)
        return list(first.entries)

    async def keys(self) -> list[str]:
        """Every key, sorted."""
        return [entry.key for entry in await self.entries()]

    def watch(self) -> KvWatch:
        """Everything, and then every change; see ``KvWatch``."""
        return KvWatch(self.link, self.kv)

    async def _fenced(self, key: str, value: bytes, headers: dict[str, str]) -> Written | Stale:
        written, found = await self._write(key, value, headers)
        if written is not None:
            return written
        return Stale(None if found is None or is_removal(found.headers) else found.entry)

    async def _write(self, key: str, value: bytes, headers: dict[str, str]) -> tuple[Written | None, _Found | None]:
        """(done, _), or (None, what is there instead).

        A write whose answer was lost is sent again and then meets itself: the server looks at the revision before it
        looks at the message id. So we look whose message is there.
        """
        msg_id = self.link.nc.new_inbox()
        try:
            return Written(await self._publish(key, value, headers, msg_id=msg_id)), None
        except JetStreamError as refused:
            if refused.err_code not in ERR_WRONG_REVISION:
                raise
        found = await self._last(key)
        if found is not None and found.headers.get("Nats-Msg-Id") == msg_id:
            return Written(found.entry.revision), None
        return None, found

    async def _publish(self, key: str, value: bytes, headers: dict[str, str], *, msg_id: str | None) -> int:
        if self._publisher is None:
            self._publisher = JetPublisher(self.link, deadline_s=self.deadline_s, attempt_s=self.deadline_s / 4)
        ack = await self._publisher.publish(self._prefix + parse_key(key), value, msg_id=msg_id, headers=headers)
        return ack.seq

    async def _last(self, key: str) -> _Found | None:
        try:
            answer = await self.link.api(f"STREAM.MSG.GET.KV_{self.kv}", {"last_by_subj": self._prefix + key})
        except JetStreamError as absent:
            if absent.err_code != ERR_NO_MESSAGE:
                raise
            return None
        return _found(key, answer["message"])


class _Found(msgspec.Struct, frozen=True):
    """The last message of a key: a value, or word of its removal."""

    entry: Entry
    headers: dict[str, str]


def _found(key: str, message: dict[str, Any]) -> _Found:
    stored_at = msgspec.convert(message["time"], datetime)
    value = base64.b64decode(message.get("data", ""))
    return _Found(Entry(key, value, message["seq"], stored_at), _headers(message.get("hdrs", "")))


def _headers(encoded: str) -> dict[str, str]:
    lines = base64.b64decode(encoded).decode(errors="replace").split("\r\n")[1:]
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
