"""Which bucket a due job goes to, and how many jobs a worker may be given."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from jm_core import limits
from jm_core.ids import BucketId, Lane, WorkerId
from jm_core.model import WEIGHTS, Priority


class WorkerLoad(Struct, frozen=True):
    """One live worker as the leader sees it now."""

    worker: WorkerId
    slots: int
    rate_per_s: float  # finished jobs per second, measured by the leader
    outstanding: int  # dispatched to its buckets, outcome not yet recorded


class BucketLoad(Struct, frozen=True):
    """One active bucket, by the priority that it serves; ``handlers`` are the names its worker can run."""

    bucket: BucketId
    worker: WorkerId
    lane: Lane
    priority: Priority
    outstanding: int
    handlers: frozenset[str]
    is_fallback: bool = False


class Share(Struct, frozen=True):
    """``count`` jobs go to ``bucket``."""

    bucket: BucketId
    count: int


def worker_credit(load: WorkerLoad) -> int:
    """How many more jobs a worker may be given over all its buckets.

    Its free slots plus about two seconds of its measured rate: enough that it never runs dry between two passes,
    little enough that an hour-long job does not wait behind another while a neighbour idles (DESIGN 6.5).
    """
    allowed = load.slots + int(load.rate_per_s * limits.CREDIT_HORIZON_S)
    return max(0, min(allowed, limits.CREDIT_MAX) - load.outstanding)


def bucket_credit(bucket: BucketLoad, load: WorkerLoad, weight_total: int) -> int:
    """How many more jobs one bucket may be given.

    An idle share is lent out, so one busy bucket may use all of its worker's credit; but each bucket keeps at
    least its weighted share of the slots, so that a flood in a low one never closes the door to a high one; and at
    least one slot's worth, so that a flood in high ones never starves a low one of a small worker.
    """
    own_share = max(load.slots * WEIGHTS[bucket.priority] // max(weight_total, 1), 1)
    return max(worker_credit(load), own_share - bucket.outstanding, 0)


def eligible(buckets: Sequence[BucketLoad], lane: Lane, priority: Priority, handler: str) -> list[BucketLoad]:
    """Buckets of this lane and priority, those whose worker knows the handler first of all.

    When none of them knows it, all are eligible: the job is then quarantined with a reason by the one that gets it,
    which an operator sees, instead of waiting in silence. Not through a fallback bucket: it is there for what its
    worker knows, and the workers that should serve this lane, away now, may well know the handler.
    """
    fitting = [b for b in buckets if b.lane == lane and b.priority == priority]
    return [b for b in fitting if handler in b.handlers] or [b for b in fitting if not b.is_fallback]


def split(count: int, credits: Mapping[BucketId, int]) -> list[Share]:
    """Share ``count`` jobs over buckets so that the fullest pair of hands is never given the next one.

    Returns:
        At most one share per bucket, in bucket order; their sum is at most ``count`` and at most the credit. What
        is left over stays on the master, where any worker can still get it.
    """
    open_credits = {b: c for b, c in sorted(credits.items()) if c > 0}
    total = sum(open_credits.values())
    wanted = min(count, total)
    if not wanted:
        return []
    # Proportional to the credit; the remainder, less than one each, goes to whoever is then emptiest.
    counts = {b: wanted * c // total for b, c in open_credits.items()}
    emptiest = sorted(open_credits, key=lambda b: (counts[b] - open_credits[b], b))
    for bucket in emptiest[: wanted - sum(counts.values())]:
        counts[bucket] += 1
    return [Share(b, n) for b, n in counts.items() if n]


def shared_out(credits: Mapping[BucketId, int], workers: Mapping[BucketId, WorkerId]) -> dict[BucketId, int]:
    """Credits of buckets that serve the same lane and priority, where some belong to one worker: each of them may take
    all that their worker may be given, so together they get it once, in equal parts.
    """
    by_worker: dict[WorkerId, list[BucketId]] = {}
    for bucket in sorted(credits):
        by_worker.setdefault(workers[bucket], []).append(bucket)
    if len(by_worker) == len(credits):
        return dict(credits)
    shared: dict[BucketId, int] = {}
    for buckets in by_worker.values():
        total = max(credits[bucket] for bucket in buckets)
        part, rest = divmod(total, len(buckets))
        shared |= {bucket: part + (place < rest) for place, bucket in enumerate(buckets)}
    return shared


def credit_wait_s(*, short_of: int, progress_age_s: float, rate_per_s: float = math.inf) -> float:
    """How long a batch should wait for credit before its surplus is left on the master.

    Jobs that finish in microseconds free their credit within milliseconds; sending the surplus round by the master
    would cost each of them an UPDATE and a read. As long as outcomes or dispatches are fresh, waiting is cheaper;
    when nothing moves, or too slowly to free what is missing (long jobs), it is pointless.

    Args:
        rate_per_s: what the workers in question can bear together; infinite while one has not shown its own yet.
    """
    if short_of <= 0 or progress_age_s > 2 * limits.CREDIT_WAIT_S or short_of > rate_per_s * limits.CREDIT_WAIT_S:
        return 0.0
    return limits.CREDIT_WAIT_S


RATE_HALF_LIFE_S: Final = 1.0


def smoothed_rate(old_per_s: float, finished: int, elapsed_s: float) -> float:
    """Exponentially smoothed jobs per second; rises at once, decays with a half-life of ``RATE_HALF_LIFE_S``.

    Rising at once lets a burst of short jobs open the tap within one flush; decaying slowly forgives a pause.
    """
    now_per_s = finished / max(elapsed_s, 1e-3)
    if now_per_s >= old_per_s:
        return now_per_s
    kept: float = 0.5 ** (elapsed_s / RATE_HALF_LIFE_S)
    return old_per_s * kept + now_per_s * (1.0 - kept)
