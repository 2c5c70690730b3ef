"""The nouns: priorities, states, outcomes, and the records that the parts hand to each other."""

from enum import IntEnum, StrEnum
from typing import Final


class Priority(IntEnum):
    """Larger is sooner. Spelled out on the wire (``"high"``), small integers in Postgres."""

    VERY_LOW = 1
    LOW = 2
    MEDIUM = 3
    HIGH = 4
    CRITICAL = 5

    @property
    def label(self) -> str:
        return _PRIORITY_LABELS[self]  # `name` is slow, and every job that is submitted asks


_PRIORITY_LABELS: Final = {p: p.name.lower() for p in Priority}
PRIORITY_BY_LABEL: Final = {p.label: p for p in Priority}
WEIGHTS: Final = {
    Priority.VERY_LOW: 1,
    Priority.LOW: 2,
    Priority.MEDIUM: 3,
    Priority.HIGH: 5,
    Priority.CRITICAL: 8,
}
DEFAULT_LANE: Final = "default"


class JobStatus(IntEnum):
    """Where a job is. The numbers are what table ``job`` stores; from ``SUCCEEDED`` on a state is terminal."""

    PENDING_SAVE = 0  # in NATS only: never stored
    ON_MASTER = 1
    IN_BUCKET = 2
    PROCESSING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    QUARANTINED = 7

    @property
    def label(self) -> str:
        return self.name.lower()

    @property
    def has_worker(self) -> bool:
        """Whether what the row says of a worker and a start is of now: while a job waits, it is of an earlier run."""
        return self >= JobStatus.PROCESSING

    @property
    def is_terminal(self) -> bool:
        return self >= JobStatus.SUCCEEDED


STATUS_BY_LABEL: Final = {s.label: s for s in JobStatus}


class JobEvent(StrEnum):
    """What can happen to a job (the columns of the table in ``lifecycle``)."""

    SAVE = "save"
    ASSIGN = "assign"
    START = "start"
    SUCCEED = "succeed"
    RETRY = "retry"
    FAIL = "fail"
    CANCEL = "cancel"
    QUARANTINE = "quarantine"
    HAND_BACK = "hand_back"
    REQUEUE = "requeue"


class AttemptOutcome(StrEnum):
    """How one start of a handler ended: six different things to a person who asks what happened."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    WORKER_LOST = "worker_lost"


class OnConflict(StrEnum):
    """What a job wants when its key is held. All three are told the job that holds it."""

    RETURN_EXISTING = "return_existing"  # the default: the other one will do
    REJECT = "reject"  # as an error
    REPLACE = "replace"  # take the place of one that waits; of one that has started, never


class BucketStatus(StrEnum):
    ACTIVE = "active"
    COMPLETING = "completing"
    LOST = "lost"
    READY_TO_DRAIN = "ready_to_drain"
    DRAINING = "draining"
    READY_TO_DELETE = "ready_to_delete"
    DELETED = "deleted"


class BucketKind(StrEnum):
    PROPER = "proper"
    FALLBACK = "fallback"  # stands in for a lane and priority that nobody serves


class WorkerMode(StrEnum):
    """What a process takes part in."""

    FULL = "full"  # runs jobs, adopts lost buckets, and is a coordinator too
    EXECUTION = "execution"  # runs jobs and adopts lost buckets
    DRAIN = "drain"  # adopts and drains lost buckets, runs nothing
    COORDINATOR = "coordinator"


class WorkerState(StrEnum):
    """What a worker is doing, as its heartbeat says."""

    SERVING = "serving"
    FENCED = "fenced"  # its lease is in doubt: it starts nothing
    DRAINING = "draining"  # told to take no more; running jobs end in their own time
    STOPPING = "stopping"
    HALTED = "halted"  # fail-stop: see its reasons


class BucketEvent(StrEnum):
    RETIRE = "retire"
    LEASE_LOST = "lease_lost"
    HANDED_BACK = "handed_back"
    ADOPT = "adopt"
    EMPTIED = "emptied"
    DELETE = "delete"


class ReturnReason(StrEnum):
    """Why a worker gives a job back without an attempt being spent."""

    DRAINED = "drained"  # graceful exit: it was held, not started
    INTERRUPTED = "interrupted"  # graceful exit: it was running and its budget ended
    REBALANCED = "rebalanced"  # waited unstarted while another worker of the lane is free
    LOST = "lost"  # it lay in the bucket of a worker that died: the record says what that costs
    ABANDONED = "abandoned"  # it lay in the bucket of a worker that had closed it and gone
