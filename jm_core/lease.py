"""Leadership as a lease that nobody's wall clock decides."""

from typing import Final

from msgspec import Struct

from jm_core.ids import Term


class Seen(Struct, frozen=True):
    """What a standby saw of the leader's key: its revision, and since when (own monotonic seconds)."""

    revision: int
    since_s: float


class LeaderRecord(Struct, frozen=True):
    """Value of KV key ``leader``."""

    holder: str
    term: int = 0


def observe(seen: Seen | None, revision: int, *, now_s: float) -> Seen:
    """Restart the clock whenever the key moved: every renewal is a new revision."""
    if seen is not None and seen.revision == revision:
        return seen
    return Seen(revision, now_s)


def may_take_over(seen: Seen, *, now_s: float, lease_s: float) -> bool:
    """True when the key has not moved for one full lease *of our own watching*.

    Comparing durations on one monotonic clock instead of two wall clocks means that skew between machines can only
    delay a takeover, never make two leaders; a stale one is stopped by its term in Postgres anyway.
    """
    return now_s - seen.since_s >= lease_s


def trusted_until_s(last_renewed_s: float, *, lease_s: float, margin_s: float) -> float:
    """Until when (monotonic) a leader may believe in itself after its last acknowledged renewal."""
    return last_renewed_s + lease_s - margin_s


SELF_FENCE_S: Final = 2.0


def self_fence_margin_s(lease_s: float) -> float:
    """How long before its lease can end a worker stops trusting it: it starts nothing more, because from the end on
    somebody else may (DESIGN 7). A fifth of a lease that is shorter than usual.
    """
    return min(SELF_FENCE_S, lease_s / 5)


def is_newer(mine: Term, other: Term) -> bool:
    return other > mine
