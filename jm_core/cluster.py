"""What is set for a whole cluster: its mode, which priorities are off, how many buckets each priority has.

Postgres keeps it (table ``setting``); the leader of every agent copies it into its KV ``jm_<c>_cluster``, from where
workers and clients read it. Pure: what follows from a setting is decided here, and carried out elsewhere.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from jm_core.control import NOBODY, check_words
from jm_core.errors import InvalidSettingError
from jm_core.model import PRIORITY_BY_LABEL, Priority
from jm_core.wire import OptionalRaw

KEY: Final = "settings"  # in the cluster KV
BUCKETS_MAX: Final = 16  # of one lane and priority, in one worker


class ClusterMode(StrEnum):
    ACTIVE = "active"
    PASSIVE = "passive"  # accepts and records; starts nothing
    ARCHIVED = "archived"  # accepts nothing, starts nothing; can be read


class ClusterSettings(Struct, frozen=True, omit_defaults=True):
    """As it stands. ``mode_since``: epoch seconds by NATS' clock, which also stamps submissions.

    ``disabled`` and ``buckets`` hold labels of priorities, so that the text can be read as it is stored.
    """

    mode: ClusterMode = ClusterMode.ACTIVE
    mode_since: float = 0.0
    disabled: tuple[str, ...] = ()
    buckets: dict[str, int] = {}
    revision: int = 0  # grows with every change
    changed_at: float = 0.0
    changed_by: str = ""
    reason: str = ""

    @property
    def starts(self) -> bool:
        """Whether jobs are handed out and started."""
        return self.mode is ClusterMode.ACTIVE

    @property
    def plans(self) -> bool:
        """Whether schedules make new jobs."""
        return self.mode is not ClusterMode.ARCHIVED

    def accepts(self, queued_at: float) -> bool:
        """Whether a submission that NATS stored then becomes a job. What had its receipt before the cluster was
        archived does.
        """
        return self.mode is not ClusterMode.ARCHIVED or queued_at < self.mode_since

    @property
    def off(self) -> frozenset[Priority]:
        return frozenset(PRIORITY_BY_LABEL[label] for label in self.disabled if label in PRIORITY_BY_LABEL)


DEFAULT: Final = ClusterSettings()
_decode = msgspec.json.Decoder(ClusterSettings).decode


class ClusterChange(Struct, omit_defaults=True):
    """What somebody wants to be different; what is left out stays. ``buckets`` 0: as if nothing had been said."""

    mode: str | None = None
    enable: list[str] = []
    disable: list[str] = []
    buckets: dict[str, int] = {}
    by: str = ""
    reason: str = ""


class ChangeView(Struct, omit_defaults=True):
    changed_at: datetime
    changed_by: str
    reason: str
    before: OptionalRaw = None
    after: OptionalRaw = None


class AgentView(Struct, omit_defaults=True):
    """One agent, as the master knows it; ``seen_at``: when its leader last said something."""

    agent: str
    term: int
    holder: str
    seen_at: datetime | None = None
    jobs_in_buckets: int = 0


class AgentGiveUp(Struct, omit_defaults=True):
    agent: str
    by: str = ""
    reason: str = ""


class AgentGivenUp(Struct):
    agent: str
    jobs_put_back: int


class ClusterView(Struct, omit_defaults=True):
    cluster: str
    agent: str
    settings: ClusterSettings
    changes: list[ChangeView] = []  # the newest first
    agents: list[AgentView] = []
    backlogs: list[tuple[str, str]] = []  # lane and priority of due jobs that wait because no worker has room


def archived_text(cluster: str, settings: ClusterSettings) -> str:
    """Why an archived cluster refuses, for people."""
    who = f" by {settings.changed_by}" if settings.changed_by else ""
    why = f" ({settings.reason})" if settings.reason else ""
    return (
        f"cluster {cluster!r} was archived{who}{why}: it takes no jobs and no changes; submit to another one, or "
        "take it up again with 'jm cluster mode active'"
    )


def decode_settings(value: bytes | str) -> ClusterSettings:
    """Raises: msgspec.DecodeError: written by a version that has more modes than we know."""
    return _decode(value)


def changed(before: ClusterSettings, change: ClusterChange, *, now_s: float) -> ClusterSettings:
    """``before`` with the change; the very same object when it changes nothing.

    Raises:
        InvalidSettingError: naming what, the limit and what to do.
        InvalidJobError: who or why is longer than can be recorded.
    """
    by, reason = check_words(change.by or NOBODY, change.reason)
    both = set(change.enable) & set(change.disable)
    if both:
        raise InvalidSettingError(f"priority {min(both)!r} is to be enabled and disabled at once; say one of the two")
    off = set(before.off) - {_priority(label) for label in change.enable}
    off |= {_priority(label) for label in change.disable}
    if Priority.MEDIUM in off:
        raise InvalidSettingError("priority 'medium' cannot be disabled: it is what all others fall back to")
    mode = before.mode if change.mode is None else _mode(change.mode)
    wanted = replace(
        before,
        mode=mode,
        disabled=tuple(priority.label for priority in sorted(off)),
        buckets=_buckets(before.buckets, change.buckets),
    )
    if wanted == before:
        return before
    return replace(
        wanted,
        mode_since=now_s if mode is not before.mode else before.mode_since,
        revision=before.revision + 1,
        changed_at=now_s,
        changed_by=by,
        reason=reason,
    )


def _priority(label: str) -> Priority:
    try:
        return PRIORITY_BY_LABEL[label]
    except KeyError:
        raise InvalidSettingError(
            f"priority {label[:40]!r} is unknown; use one of {', '.join(PRIORITY_BY_LABEL)}"
        ) from None


def _mode(text: str) -> ClusterMode:
    try:
        return ClusterMode(text)
    except ValueError:
        raise InvalidSettingError(f"mode {text[:40]!r} is unknown; use one of {', '.join(ClusterMode)}") from None


def _buckets(before: Mapping[str, int], change: Mapping[str, int]) -> dict[str, int]:
    wanted = dict(before)
    for label, count in change.items():
        check_bucket_count(_priority(label), count, least=0)
        wanted[label] = count
    return {label: wanted[label] for label in PRIORITY_BY_LABEL if wanted.get(label)}


def check_bucket_count(priority: Priority, count: int, *, least: int = 1) -> None:
    """Raises: InvalidSettingError."""
    if not least <= count <= BUCKETS_MAX:
        raise InvalidSettingError(
            f"buckets of priority {priority.label!r}: {count} is outside {least} to {BUCKETS_MAX}; one is enough for "
            "all but the busiest workers"
        )


def check_bucket_counts(counts: Mapping[Priority, int]) -> None:
    """Raises: InvalidSettingError."""
    for priority, count in counts.items():
        check_bucket_count(priority, count)


def served_as(priority: Priority, off: Collection[Priority]) -> Priority:
    """At which priority a job of a disabled one is served: the nearest lower one that is enabled, else the nearest
    higher. Nobody is refused for a priority that was switched off behind their back, and what waits still runs; the
    record keeps the priority that was asked for.
    """
    lower = [other for other in Priority if other < priority and other not in off]
    higher = [other for other in Priority if other > priority and other not in off]
    if priority not in off:
        return priority
    return max(lower) if lower else min(higher)  # medium is always there


def buckets_wanted(
    lanes: Iterable[str], priorities: Sequence[Priority], own: Mapping[Priority, int], settings: ClusterSettings
) -> Counter[tuple[str, Priority]]:
    """How many proper buckets a worker keeps open for each lane and priority.

    Args:
        own: what the worker itself was told; comes before the cluster's number.
    """
    wanted: Counter[tuple[str, Priority]] = Counter()
    for lane in lanes:
        for priority in sorted(set(priorities) - settings.off):
            wanted[lane, priority] = min(own.get(priority) or settings.buckets.get(priority.label) or 1, BUCKETS_MAX)
    return wanted
