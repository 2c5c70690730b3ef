"""From accepted jobs to what one transaction writes: which jobs stand together, in which messages they leave."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from jm_core import limits
from jm_core.ids import BucketId
from jm_core.intake import NewJob
from jm_core.model import Priority
from jm_core.placement import Share

RUN_FIELD_BYTES = 420  # a run's fields besides args, metadata and trace: an upper bound
SECOND_NOW = 0  # the `second` of jobs that leave at once


class Group(Struct, gc=False):
    """Jobs that are alike in everything but id, arguments and extras, in the order they came.

    ``second`` is the epoch second in which they are due, ``SECOND_NOW`` when that is (nearly) now, None when it is so
    far off that they stay on the master.
    """

    handler: str
    lane: str
    priority: Priority
    max_attempts: int
    timeout_s: float
    second: int | None
    jobs: list[NewJob]
    messages: list[int]  # for each job: which of the batch's messages it came in, 1-based


class Part(Struct, gc=False):
    """Neighbours that go the same way: into one message to ``bucket``, or (None) to wait on the master."""

    group: Group
    lo: int  # of the group's jobs: lo to hi, hi excluded
    hi: int
    bucket: BucketId | None = None


def group_jobs(messages: Iterable[Sequence[NewJob]], *, now_s: float, threshold_s: float) -> list[Group]:
    """Sort a batch into groups. The loop runs once per job of the whole system, hence its plainness.

    Args:
        messages: the accepted jobs of each message.
        now_s: epoch seconds; what is due within ``SCHEDULE_LEAD_S`` counts as now, since it could not be scheduled.
        threshold_s: what is due later than this stays on the master.
    """
    groups: dict[tuple[object, ...], Group] = {}
    for ordinal, jobs in enumerate(messages, 1):
        for job in jobs:
            second = SECOND_NOW if job.run_at is None else due_second(job.run_at.timestamp(), now_s, threshold_s)
            key = (job.handler, job.lane, job.priority, job.max_attempts, job.timeout_s, second)
            group = groups.get(key)
            if group is None:
                group = groups[key] = Group(*key, [], [])
            group.jobs.append(job)
            group.messages.append(ordinal)
    return list(groups.values())


def due_second(due_s: float, now_s: float, threshold_s: float) -> int | None:
    if due_s > now_s + threshold_s:
        return None
    if due_s <= now_s + limits.SCHEDULE_LEAD_S:
        return SECOND_NOW
    return int(due_s)


def parts_of(group: Group, shares: Sequence[Share], count: int) -> list[Part]:
    """Cut the first ``count`` jobs of a group: each bucket's share into messages, the rest for the master."""
    parts: list[Part] = []
    start = 0
    for share in shares:
        parts += [Part(group, lo, hi, share.bucket) for lo, hi in message_ranges(group, start, start + share.count)]
        start += share.count
    if start < count:
        parts.append(Part(group, start, count))
    return parts


def message_ranges(group: Group, start: int, end: int) -> list[tuple[int, int]]:
    """Cut ``start`` to ``end`` so that each piece fits one message (``PACK_JOBS``, ``MESSAGE_BYTES_MAX``)."""
    ranges: list[tuple[int, int]] = []
    for lo in range(start, end, limits.PACK_JOBS):
        hi = min(lo + limits.PACK_JOBS, end)
        costs = [run_bytes_at_most(job) for job in group.jobs[lo:hi]]
        if sum(costs) <= limits.MESSAGE_BYTES_MAX:
            ranges.append((lo, hi))
        else:
            ranges += _cut_by_bytes(lo, costs)
    return ranges


def _cut_by_bytes(lo: int, costs: Sequence[int]) -> Iterable[tuple[int, int]]:
    size, start = 0, lo
    for place, cost in enumerate(costs, lo):
        if place > start and size + cost > limits.MESSAGE_BYTES_MAX:
            yield start, place
            size, start = 0, place
        size += cost
    yield start, lo + len(costs)


def run_bytes_at_most(job: NewJob) -> int:
    """An upper estimate of the job's bytes in a run message."""
    if job.metadata is None:
        return len(job.args) + RUN_FIELD_BYTES
    # JSON may escape one character of text into six.
    texts = sum(len(key) + len(value) + 1 for key, value in job.metadata.items())
    return len(job.args) + RUN_FIELD_BYTES + 6 * texts
