"""When a worker hands due jobs back because a neighbour could start them now (DESIGN 6.5)."""

from collections.abc import Sequence

from msgspec import Struct

from jm_core import limits
from jm_core.model import WorkerState
from jm_core.wire import WorkerRecord


class Waiting(Struct, frozen=True):
    """A due job without a slot: index in the caller's list, what it needs, how long it has waited."""

    index: int
    handler: str
    lane: str
    waited_s: float


def jobs_to_return(waiting: Sequence[Waiting], others: Sequence[WorkerRecord]) -> list[int]:
    """Indices of the jobs to hand back.

    Args:
        waiting: in the order in which they would start here.
        others: heartbeats of the other live workers.

    Returns:
        Those that waited ``REBALANCE_AFTER_S`` and that a neighbour with a free slot, the lane and the handler can
        take; the last in line first, because the first in line get our next slot, and never more than the free slots.
    """
    free = {o.worker: _free_slots(o) for o in others}
    chosen: list[int] = []
    for job in reversed(waiting):
        if job.waited_s < limits.REBALANCE_AFTER_S:
            continue
        for other in others:
            if free[other.worker] and job.lane in other.lanes and job.handler in other.handlers:
                free[other.worker] -= 1
                chosen.append(job.index)
                break
    return chosen


def _free_slots(other: WorkerRecord) -> int:
    """Whoever is about to go, or not sure of its lease, starts nothing."""
    return max(other.slots - other.running - other.held, 0) if other.state is WorkerState.SERVING else 0
