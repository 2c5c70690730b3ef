"""The state machines as tables. A missing pair is the illegal move; the docs' diagrams are printed from here."""

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

from jm_core.errors import IllegalMoveError
from jm_core.model import AttemptOutcome, BucketStatus, JobStatus
from jm_core.model import BucketEvent as B
from jm_core.model import JobEvent as E

S = JobStatus
JOB_MOVES: Final[Mapping[tuple[JobStatus, E], JobStatus]] = {
    (S.PENDING_SAVE, E.SAVE): S.ON_MASTER,
    (S.PENDING_SAVE, E.ASSIGN): S.IN_BUCKET,  # due soon and a bucket has credit: saved straight into it
    (S.PENDING_SAVE, E.CANCEL): S.CANCELLED,
    (S.ON_MASTER, E.ASSIGN): S.IN_BUCKET,
    (S.ON_MASTER, E.CANCEL): S.CANCELLED,
    (S.IN_BUCKET, E.START): S.PROCESSING,
    (S.IN_BUCKET, E.SUCCEED): S.SUCCEEDED,  # a short attempt sends only its end
    (S.IN_BUCKET, E.RETRY): S.ON_MASTER,
    (S.IN_BUCKET, E.FAIL): S.FAILED,
    (S.IN_BUCKET, E.CANCEL): S.CANCELLED,
    (S.IN_BUCKET, E.QUARANTINE): S.QUARANTINED,
    (S.IN_BUCKET, E.HAND_BACK): S.ON_MASTER,
    (S.PROCESSING, E.SUCCEED): S.SUCCEEDED,
    (S.PROCESSING, E.RETRY): S.ON_MASTER,
    (S.PROCESSING, E.FAIL): S.FAILED,
    (S.PROCESSING, E.CANCEL): S.CANCELLED,
    (S.PROCESSING, E.QUARANTINE): S.QUARANTINED,
    (S.PROCESSING, E.HAND_BACK): S.ON_MASTER,
    # P7: only an operator, and it is recorded as an operator action.
    (S.SUCCEEDED, E.REQUEUE): S.ON_MASTER,
    (S.FAILED, E.REQUEUE): S.ON_MASTER,
    (S.CANCELLED, E.REQUEUE): S.ON_MASTER,
    (S.QUARANTINED, E.REQUEUE): S.ON_MASTER,
}

K = BucketStatus
BUCKET_MOVES: Final[Mapping[tuple[BucketStatus, B], BucketStatus]] = {
    (K.ACTIVE, B.RETIRE): K.COMPLETING,
    (K.ACTIVE, B.LEASE_LOST): K.LOST,
    (K.COMPLETING, B.LEASE_LOST): K.LOST,
    (K.COMPLETING, B.HANDED_BACK): K.READY_TO_DRAIN,
    (K.READY_TO_DRAIN, B.ADOPT): K.DRAINING,
    (K.LOST, B.ADOPT): K.DRAINING,
    (K.DRAINING, B.LEASE_LOST): K.LOST,  # the adopter died too; the next one gets a higher epoch
    (K.DRAINING, B.EMPTIED): K.READY_TO_DELETE,
    (K.READY_TO_DELETE, B.DELETE): K.DELETED,
}

# What the end of an attempt makes of its job, where nothing else decides: with attempts left FAILED and TIMED_OUT send
# it back to the master to be tried again, without one WORKER_LOST ends it failed; a cancel that was asked for wins.
ATTEMPT_ENDS: Final[Mapping[AttemptOutcome, JobStatus]] = {
    AttemptOutcome.SUCCEEDED: S.SUCCEEDED,
    AttemptOutcome.FAILED: S.FAILED,
    AttemptOutcome.TIMED_OUT: S.FAILED,
    AttemptOutcome.CANCELLED: S.CANCELLED,
    AttemptOutcome.INTERRUPTED: S.ON_MASTER,
    AttemptOutcome.WORKER_LOST: S.ON_MASTER,
}

StateT = TypeVar("StateT", bound=Enum)
EventT = TypeVar("EventT", bound=Enum)


def move(table: Mapping[tuple[StateT, EventT], StateT], state: StateT, event: EventT) -> StateT:
    """The state after ``event``.

    Raises:
        IllegalMoveError: the table has no such pair.
    """
    try:
        return table[state, event]
    except KeyError:
        raise IllegalMoveError(f"no move from {state.name} by {event.name}") from None


def as_mermaid(table: Mapping[tuple[StateT, EventT], StateT]) -> str:
    """A state diagram of ``table`` for the documents, in table order."""
    lines = [f"    {a.name.lower()} --> {b.name.lower()}: {e.name.lower()}" for (a, e), b in table.items()]
    return "\n".join(["stateDiagram-v2", *lines])


def attempts_as_mermaid() -> str:
    """A state diagram of one attempt, with what becomes of its job."""
    lines = ["    [*] --> running: start", *(f"    running --> {end}" for end in ATTEMPT_ENDS)]
    lines += [f"    {end} --> job_{status.label}" for end, status in ATTEMPT_ENDS.items()]
    return "\n".join(["stateDiagram-v2", *lines])


def diagrams() -> list[str]:
    """Of a job, a bucket and an attempt, as the documents show them."""
    return [as_mermaid(JOB_MOVES), as_mermaid(BUCKET_MOVES), attempts_as_mermaid()]
