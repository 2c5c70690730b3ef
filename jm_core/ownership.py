"""Whose a bucket is: what its owner makes of the registry, and what the leader does with one whose owner is gone.

Pure. Who carries it out does so by compare-and-set on what was judged, so that every race has one winner.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from jm_core import limits
from jm_core.lifecycle import BUCKET_MOVES, move
from jm_core.model import BucketEvent, BucketStatus
from jm_core.wire import BucketRecord, WorkerRecord

ADOPTABLE: Final = frozenset({BucketStatus.LOST, BucketStatus.READY_TO_DRAIN})
OWNED: Final = frozenset({BucketStatus.ACTIVE, BucketStatus.COMPLETING, BucketStatus.DRAINING})


class Standing(StrEnum):
    """What the registry says of a bucket that we believe to be ours."""

    OURS = "ours"
    MISSING = "missing"  # the registry was emptied, or the bucket was carried out while we were taken for dead
    OVERTAKEN = "overtaken"  # somebody took it: our outcomes can no longer count
    WENT_BACK = "went_back"  # older than what we wrote: the registry was restored from a copy


def standing(mine: BucketRecord, seen: BucketRecord | None) -> Standing:
    if seen is None:
        return Standing.MISSING
    same = seen.epoch == mine.epoch and seen.incarnation == mine.incarnation
    if seen.epoch < mine.epoch or (same and seen.changed_at < mine.changed_at):
        return Standing.WENT_BACK
    if seen.epoch > mine.epoch or seen.incarnation != mine.incarnation or seen.status == BucketStatus.LOST:
        return Standing.OVERTAKEN
    return Standing.OURS


class Silence(Struct, frozen=True):
    """What the leader knows of a bucket's owner."""

    present: WorkerRecord | None  # its heartbeat, as it stands
    silent_s: float  # since its last heartbeat came in, or since we began to listen
    resigned: bool = False  # it took its key away by itself, or somebody did it for the process that died


def is_gone(bucket: BucketRecord, owner: Silence, *, lease_s: float) -> bool:
    """Whether the owner of ``bucket``, that very process, is dead as far as anybody can tell.

    A key that is not there does not suffice: the KV may have been purged under workers that live. One that was never
    heard of is silent since we began to listen (an owner nobody has ever seen counts as dead).
    """
    if owner.present is not None:
        return owner.present.incarnation != bucket.incarnation
    return owner.resigned or owner.silent_s >= limits.SILENCE_SHARE * lease_s


class MarkLost(Struct, frozen=True, tag=True):
    """Take it from its owner."""

    bucket: str


class DrainBySelf(Struct, frozen=True, tag=True):
    """Nobody adopts it: take its jobs back by the record alone."""

    bucket: str


class CarryOut(Struct, frozen=True, tag=True):
    """It is empty: return what rows still point at it, delete its stream, leave a tombstone."""

    bucket: str


Care = MarkLost | DrainBySelf | CarryOut


def care_for(
    bucket: BucketRecord,
    owner: Silence,
    *,
    waited_s: float,
    adopters: bool,
    may_judge: bool,
    lease_s: float,
) -> Care | None:
    """What the leader does about one bucket now.

    Args:
        waited_s: since it was first seen in its present status.
        adopters: whether any worker lives that could adopt it.
        may_judge: a full lease of unbroken observation is behind us (blind time, DESIGN 7).
    """
    status = bucket.status  # which may be one that this version does not know: then it is left alone
    if status == BucketStatus.READY_TO_DELETE:
        return CarryOut(bucket.bucket)
    if status in ADOPTABLE:
        return DrainBySelf(bucket.bucket) if waited_s >= lease_s or not adopters else None
    # Silence says nothing before we have listened for a lease; that another process has the name, or that the key was
    # taken away on purpose, is no silence.
    is_told = owner.present is not None or owner.resigned
    if status in OWNED and (may_judge or is_told) and is_gone(bucket, owner, lease_s=lease_s):
        return MarkLost(bucket.bucket)
    return None


def lost(bucket: BucketRecord, *, reason: str, now_s: float) -> BucketRecord:
    """What was left in order and lost its adopter was left in order all the same. Raises: IllegalMoveError."""
    before = BucketStatus(bucket.status)
    status = move(BUCKET_MOVES, before, BucketEvent.LEASE_LOST)
    was_lost = bucket.was_lost or before is not BucketStatus.DRAINING
    return replace(
        bucket, status=status.value, reason=reason, was_lost=was_lost, origin=bucket.opener, changed_at=now_s
    )


def adopted(bucket: BucketRecord, *, worker: str, incarnation: str, now_s: float) -> BucketRecord:
    """With a higher epoch: whoever owned it before can no longer believe in it. Raises: IllegalMoveError."""
    status = move(BUCKET_MOVES, BucketStatus(bucket.status), BucketEvent.ADOPT)
    return replace(
        bucket,
        status=status.value,
        worker=worker,
        incarnation=incarnation,
        origin=bucket.opener,
        epoch=bucket.epoch + 1,
        changed_at=now_s,
    )


def moved(
    bucket: BucketRecord, event: BucketEvent, *, now_s: float, reason: str = "", returned: int = 0
) -> BucketRecord:
    """Raises: IllegalMoveError."""
    status = move(BUCKET_MOVES, BucketStatus(bucket.status), event)
    return replace(
        bucket,
        status=status.value,
        reason=reason or bucket.reason,
        returned=bucket.returned + returned,
        changed_at=now_s,
    )
