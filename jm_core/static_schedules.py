"""Schedules that are declared in code, and which of several declarations of one name is in force. Pure.

While a new version of an application is rolled out, workers with the old and with the new code declare different
things. The rule: **of the declarations that a worker has shown within the last ``idle_s``, the one that was first seen
latest is in force.** So the new code wins as soon as its first worker is there, an old worker that restarts changes
nothing back, and a rollback takes effect ``idle_s`` after the last worker of the newer code has gone. When nobody
declares the name: idle after ``idle_s`` (still planned, a redeploy must lose nothing), inactive after ``inactive_s``.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from jm_core.api_schedules import Origin, ScheduleSpec, ScheduleState

DIGEST_CHARS = 32
_canonical = msgspec.json.Encoder(order="deterministic").encode


def digest_of(spec: ScheduleSpec) -> str:
    """The same for the same definition, whatever the order of its arguments."""
    fields = msgspec.structs.asdict(spec)
    args = {} if spec.args is None else msgspec.json.decode(spec.args)
    given = {name: value for name, value in fields.items() if value is not None} | {"args": args}
    return hashlib.sha256(_canonical(given)).hexdigest()[:DIGEST_CHARS]


def set_digest(specs: Iterable[ScheduleSpec]) -> str:
    """Of all that an application declares; empty when that is nothing."""
    digests = sorted(f"{spec.name} {digest_of(spec)}" for spec in specs)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:DIGEST_CHARS] if digests else ""


class Version(Struct, frozen=True):
    """A declaration of ``name`` that some worker has shown."""

    name: str
    digest: str
    first_seen: datetime
    last_seen: datetime


class Known(Struct, frozen=True):
    """What table ``schedule`` says of the name."""

    origin: Origin
    state: ScheduleState
    digest: str | None


class Create(Struct, frozen=True):
    digest: str


class Change(Struct, frozen=True):
    digest: str


class Revive(Struct, frozen=True):
    """It is declared again."""


class Idle(Struct, frozen=True):
    """Nobody declares it at the moment."""


class Inactivate(Struct, frozen=True):
    """Nobody has declared it for long: not planned any more."""


class Taken(Struct, frozen=True):
    """The name belongs to a dynamic schedule, which keeps it: whoever came first."""

    digest: str


Action = Create | Change | Revive | Idle | Inactivate | Taken
_MAY_IDLE = frozenset({ScheduleState.ACTIVE})
_MAY_END = frozenset({ScheduleState.ACTIVE, ScheduleState.IDLE, ScheduleState.DISABLED, ScheduleState.DONE})
_MAY_REVIVE = frozenset({ScheduleState.IDLE, ScheduleState.INACTIVE})


class Patience(Struct, frozen=True):
    """How long nobody need declare a schedule until it is idle, and inactive."""

    idle_s: float
    inactive_s: float


def actions_for(
    versions: Sequence[Version], known: Known | None, *, now: datetime, watched_s: float, patience: Patience
) -> list[Action]:
    """What to do about one name.

    Args:
        versions: all of it, in any order.
        known: None: there is no schedule of the name.
        watched_s: for how long we have been able to see who declares what, without a break: silence while we were
            blind says nothing.
    """
    in_force = known.digest if known else None
    won = winner(versions, in_force, now=now, watched_s=watched_s, idle_s=patience.idle_s)
    if known is None:
        return [Create(won.digest)] if won else []
    if known.origin is not Origin.STATIC:
        return [Taken(won.digest)] if won else []
    if won is None:
        return _unseen(known.state, _unseen_s(versions, now, watched_s), patience)
    actions: list[Action] = []
    if known.digest != won.digest:
        actions.append(Change(won.digest))
    if known.state in _MAY_REVIVE and (now - won.last_seen).total_seconds() < patience.idle_s:
        actions.append(Revive())
    return actions


def winner(
    versions: Sequence[Version], in_force: str | None, *, now: datetime, watched_s: float, idle_s: float
) -> Version | None:
    """The declaration that should be in force; None: nobody has shown one within ``idle_s``.

    The one that is has the benefit of the doubt as long as we have not watched for so long.
    """
    shown = [
        v
        for v in versions
        if (_unseen_s([v], now, watched_s) if v.digest == in_force else (now - v.last_seen).total_seconds()) < idle_s
    ]
    return max(shown, key=lambda v: (v.first_seen, v.digest), default=None)


def _unseen_s(versions: Sequence[Version], now: datetime, watched_s: float) -> float:
    last = max((v.last_seen for v in versions), default=None)
    return watched_s if last is None else min((now - last).total_seconds(), watched_s)


def _unseen(state: ScheduleState, unseen_s: float, patience: Patience) -> list[Action]:
    if unseen_s >= patience.inactive_s and state in _MAY_END:
        return [Inactivate()]
    if unseen_s >= patience.idle_s and state in _MAY_IDLE:
        return [Idle()]
    return []
