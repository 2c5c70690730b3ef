"""Why a job has not started, for whoever looks at it: said by the one who decides, not guessed from its state."""

from collections.abc import Collection
from typing import Final

from jm_core.api import JobView
from jm_core.cluster import ClusterSettings
from jm_core.model import PRIORITY_BY_LABEL, Priority

Route = tuple[str, int]  # lane, priority
SHARED: Final = "the workers of its lane are busy; each priority gets its share of their slots by weight"


def why_waiting(
    job: JobView, *, due_in_s: float, settings: ClusterSettings, backlogs: Collection[Route], unserved: str | None
) -> str | None:
    """None for a job that runs, has ended, or is not due yet.

    Args:
        backlogs: lanes and priorities of which due jobs wait on the master because no worker has room.
        unserved: why nobody takes its kind of job, where that is so.
    """
    if job.status not in ("on_master", "in_bucket"):
        return None
    if not settings.starts:
        return f"the cluster is {settings.mode.value}: nothing is started"
    if due_in_s > 0:
        return None
    return unserved if unserved and job.status == "on_master" else _for_a_slot(job, backlogs)


def _for_a_slot(job: JobView, backlogs: Collection[Route]) -> str:
    mine = PRIORITY_BY_LABEL[job.priority]
    ahead = sorted((p for lane, p in backlogs if lane == job.lane and p > mine), reverse=True)
    if ahead:
        return f"behind priority {', '.join(Priority(p).label for p in ahead)}: {SHARED}"
    if job.status == "in_bucket":
        return "for a free slot of the worker that has its bucket"
    if (job.lane, mine) in backlogs:
        return f"behind older jobs of its lane and priority: {SHARED}"
    return "for the next look at what is due"
