"""Make a live stream or consumer what we want: compared field by field, changed, or refused (BR-144).

Only fields that we set are compared; what an operator added (placement, limits, tags) stays. Everything is safe to run
by many processes at once and at every start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from nats.js.api import ConsumerConfig, StreamConfig

from jm_nats.errors import (
    AgentUnavailableError,
    ConfigConflictError,
    JetStreamError,
    NoSuchConsumerError,
    NoSuchStreamError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jm_nats.connection import NatsLink

    Fields = dict[str, Any]

log = logging.getLogger(__name__)

# The number beside this key grows with every change of what we want. A process leaves alone what carries a larger one,
# so that old and new workers side by side do not change it to and fro.
LAYOUT_KEY: Final = "jm_layout"

# Somebody else made or removed it between our look and our request.
RACES: Final = frozenset({10058, 10148, 10149})
RACES_MAX: Final = 3


class Created(msgspec.Struct, frozen=True, tag=True):
    """It was not there."""


class Unchanged(msgspec.Struct, frozen=True, tag=True):
    """It is as wanted."""


class Updated(msgspec.Struct, frozen=True, tag=True):
    """It was changed; one line a field, ``field: old -> new``."""

    diff: tuple[str, ...]


class KeptNewer(msgspec.Struct, frozen=True, tag=True):
    """A newer version of JobMaster has set it up; it was left alone."""

    layout: int


Outcome = Created | Unchanged | Updated | KeptNewer


async def ensure_stream(link: NatsLink, wanted: StreamConfig) -> Outcome:
    """Make the stream what ``wanted`` says in the fields that it sets (those that are not nats.py's defaults).

    Raises:
        ConfigConflictError: NATS does not let us change it; with the difference.
    """
    fields = _set_fields(wanted.as_dict(), StreamConfig().as_dict())
    return await _ensure(_Stream(link, wanted.name or ""), fields)


async def ensure_consumer(link: NatsLink, stream: str, wanted: ConsumerConfig) -> Outcome:
    """The same for a durable consumer, which never gets an inactivity threshold (BR-143).

    Raises:
        ConfigConflictError: NATS does not let us change it; with the difference.
        NoSuchStreamError: there is no such stream.
    """
    name = wanted.durable_name or ""
    # The ack policy is always ours: nats.py's default is "explicit", the server's is "none".
    always = {"name": name, "ack_policy": wanted.ack_policy, "inactive_threshold": 0}
    fields = _set_fields(wanted.as_dict() | always, ConsumerConfig(ack_policy=None, inactive_threshold=1).as_dict())
    return await _ensure(_Consumer(link, stream, name, wanted.filter_subject), fields)


class _Stream:
    """How a stream is looked at, made and changed."""

    def __init__(self, link: NatsLink, name: str) -> None:
        self.link = link
        self._name = name
        self.what = f"stream '{name}'"

    async def look(self) -> Fields | None:
        try:
            return _config_of(await self.link.api(f"STREAM.INFO.{self._name}"))
        except NoSuchStreamError:
            return None

    async def create(self, config: Fields) -> Fields:
        return _config_of(await self.link.api(f"STREAM.CREATE.{self._name}", config))

    async def update(self, config: Fields) -> Fields:
        return _config_of(await self.link.api(f"STREAM.UPDATE.{self._name}", config))


class _Consumer:
    """The same for a consumer."""

    def __init__(self, link: NatsLink, stream: str, name: str, filter_subject: str | None) -> None:
        self.link = link
        self._stream = stream
        self._name = name
        self._path = f"CONSUMER.CREATE.{stream}.{name}" + (f".{filter_subject}" if filter_subject else "")
        self.what = f"consumer '{name}' of stream '{stream}'"

    async def look(self) -> Fields | None:
        try:
            return _config_of(await self.link.api(f"CONSUMER.INFO.{self._stream}.{self._name}"))
        except NoSuchConsumerError:
            return None

    async def create(self, config: Fields) -> Fields:
        return await self._send(config, "create")

    async def update(self, config: Fields) -> Fields:
        return await self._send(config, "update")

    async def _send(self, config: Fields, action: str) -> Fields:
        body = {"stream_name": self._stream, "config": config, "action": action}
        return _config_of(await self.link.api(self._path, body))


async def _ensure(target: _Stream | _Consumer, wanted: Fields) -> Outcome:
    """Look, make or change; once more when somebody else was quicker, or when nobody answered.

    In a NATS cluster a stream that was just made has no leader for a moment, and then nobody answers for it. Asking
    again is safe: it begins with a look.
    """
    for left in reversed(range(RACES_MAX)):
        try:
            return await _ensure_once(target, wanted)
        except JetStreamError as refused:
            if refused.err_code not in RACES:
                raise
        except AgentUnavailableError:
            if not left or not target.link.connected:
                raise
    raise ConfigConflictError(target.what, (), "others keep changing it")


async def _ensure_once(target: _Stream | _Consumer, wanted: Fields) -> Outcome:
    live = await target.look()
    if live is None:
        _expect(target, await target.create(wanted), wanted)
        return Created()
    if _layout(live) > _layout(wanted):
        return KeptNewer(_layout(live))
    diff = differences(live, wanted)
    if not diff:
        return Unchanged()
    try:
        changed = await target.update(_merged(live, wanted))
    except JetStreamError as refused:
        if refused.err_code in RACES:
            raise
        raise ConfigConflictError(target.what, diff, refused.description) from refused
    _expect(target, changed, wanted)
    log.info("JetStream object updated", extra={"what": target.what, "changes": "; ".join(diff)})
    return Updated(diff)


def _expect(target: _Stream | _Consumer, live: Fields, wanted: Fields) -> None:
    """A server can take a configuration and leave out what it does not know."""
    diff = differences(live, wanted)
    if diff:
        raise ConfigConflictError(target.what, diff, "(nothing: it took the request and did not follow it)")


def differences(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for each field of ``wanted`` that ``live`` does not fulfil, in the order of ``wanted``."""
    return tuple(
        f"{field}: {_shown(live.get(field))} -> {_shown(value)}"
        for field, value in wanted.items()
        if not _fulfils(field, live.get(field), value)
    )


def _fulfils(field: str, live: object, wanted: object) -> bool:
    match field, live, wanted:
        case "num_replicas", int(), int():
            return live >= wanted  # never take away what an operator added
        case "subjects", list(), list():
            return sorted(live) == sorted(wanted)
        case "metadata", dict(), dict():
            return wanted.items() <= live.items()
        case _:
            return (live or None) == (wanted or None)  # the server leaves out what is 0, false or empty


def _merged(live: Fields, wanted: Fields) -> Fields:
    """``live`` with our fields in it: a field left out of an update is reset to its default."""
    merged = {**live, **wanted}
    merged["metadata"] = live.get("metadata", {}) | wanted.get("metadata", {})
    if "num_replicas" in live:
        merged["num_replicas"] = max(live["num_replicas"], wanted.get("num_replicas", 0))
    return merged


def _set_fields(config: Mapping[str, object], defaults: Mapping[str, object]) -> Fields:
    """The fields that somebody set, as the server spells them."""
    set_ones = {field: value for field, value in config.items() if value != defaults.get(field)}
    plain: Fields = msgspec.json.decode(msgspec.json.encode(set_ones))
    return plain


def _config_of(answer: Mapping[str, Any]) -> Fields:
    config: Fields = answer["config"]
    return config


def _layout(config: Mapping[str, Any]) -> int:
    text = (config.get("metadata") or {}).get(LAYOUT_KEY, "0")
    return int(text) if text.isdecimal() else 0


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()
