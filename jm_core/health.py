"""How well a part of a process is, decided from what it has noticed; and what an error means for it.

`healthy`, `degraded` and `unhealthy` are for people and orchestrators: the process answers with them on its health
port, the heartbeat carries them. Two mistakes are avoided on purpose. An outage of NATS or Postgres must not make
*liveness* red: whoever restarts us for it kills running jobs and mends nothing. And a part that has stopped for good
must not look well because its process is still there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Final

from msgspec import Struct

from jm_core.errors import JmError


class Health(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"  # an outage is being ridden out, or part of the loops has stopped
    UNHEALTHY = "unhealthy"  # halted for good, or no success for too long


class Invariant(StrEnum):
    """What can never be, unless something outside our rules has happened. The names are public (docs, metrics)."""

    WORKER_ID_TAKEN = "worker_id_taken"
    BUCKET_EPOCH_WENT_BACK = "bucket_epoch_went_back"
    SLOTS_OVERCOMMITTED = "slots_overcommitted"
    ILLEGAL_BUCKET_MOVE = "illegal_bucket_move"
    AGENT_STORE_CHANGED = "agent_store_changed"
    TERM_WENT_BACK = "term_went_back"

    @property
    def meaning(self) -> str:
        return MEANING[self]


MEANING: Final[Mapping[Invariant, str]] = {
    Invariant.WORKER_ID_TAKEN: "another live process beats under this worker's id",
    Invariant.BUCKET_EPOCH_WENT_BACK: "a bucket's record shows a lower epoch than was seen before",
    Invariant.SLOTS_OVERCOMMITTED: "more handlers run than the worker has slots",
    Invariant.ILLEGAL_BUCKET_MOVE: "a bucket's record made a move that the state table does not have",
    Invariant.AGENT_STORE_CHANGED: "NATS is not the store that this cluster has been using",
    Invariant.TERM_WENT_BACK: "Postgres knows a lower term of leadership than was seen before",
}


class InvariantViolatedError(JmError):
    """One of ``Invariant`` does not hold: whoever sees it stops, because nothing it would do can be trusted."""

    def __init__(self, invariant: Invariant, detail: str) -> None:
        super().__init__(f"{invariant.value}: {invariant.meaning}; {detail}")
        self.invariant = invariant
        self.detail = detail


class Fault(IntEnum):
    """What an error calls for; of several at once, the largest decides."""

    TRANSIENT = 1  # ride it out
    MISCONFIGURED = 2  # trying again does not help, a person has to
    UNKNOWN = 3  # ours, a bug: fail stop
    INVARIANT = 4  # fail stop, with its name


def worst_fault(error: BaseException, classify_one: Callable[[BaseException], Fault]) -> Fault:
    """``classify_one`` of an error; of a group, the worst of what is in it."""
    if isinstance(error, BaseExceptionGroup):
        return max(worst_fault(inner, classify_one) for inner in error.exceptions)
    return classify_one(error)


def violation_in(error: BaseException) -> InvariantViolatedError | None:
    """The broken invariant among what a task group collected."""
    if isinstance(error, InvariantViolatedError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(violation_in, error.exceptions)), None)
    return None


# -- how well one group is


class Trouble(Struct, frozen=True):
    """A fault that is being ridden out. It is over when the same thing has worked again, and by nothing else."""

    name: str
    text: str
    since_s: float


class LoopState(Struct, frozen=True):
    """A loop that must succeed now and then: ``limit_s`` without a success is a stall."""

    name: str
    succeeded_s: float
    limit_s: float


class HaltedLoop(Struct, frozen=True):
    name: str
    reason: str


class Condition(Struct, frozen=True):
    """All that the verdict depends on. Times are of one monotonic clock."""

    now_s: float
    halted: str | None = None  # why the whole group has stopped for good
    troubles: Sequence[Trouble] = ()
    loops: Sequence[LoopState] = ()
    halted_loops: Sequence[HaltedLoop] = ()


class Verdict(Struct, frozen=True):
    health: Health
    reasons: tuple[str, ...] = ()  # the gravest first


def stalled(condition: Condition) -> list[LoopState]:
    """Loops that have not succeeded for too long."""
    return [loop for loop in condition.loops if condition.now_s - loop.succeeded_s >= loop.limit_s]


def judge(condition: Condition) -> Verdict:
    """How well the group is, with every reason against it.

    A halt is final. A stall ends with the loop's next success, a trouble with its own success alone: while Postgres
    answers and NATS does not, the group stays degraded whatever Postgres says.
    """
    if condition.halted is not None:
        return Verdict(Health.UNHEALTHY, (f"halted: {condition.halted}",))
    now_s = condition.now_s
    stand_still = stalled(condition)
    reasons = [
        f"{loop.name}: no success for {now_s - loop.succeeded_s:.0f} s (limit {loop.limit_s:g} s)"
        for loop in stand_still
    ]
    reasons += [f"{loop.name} has stopped: {loop.reason}" for loop in condition.halted_loops]
    reasons += [f"{t.name}: {t.text} (for {max(0.0, now_s - t.since_s):.0f} s)" for t in condition.troubles]
    if stand_still:
        return Verdict(Health.UNHEALTHY, tuple(reasons))
    return Verdict(Health.DEGRADED if reasons else Health.HEALTHY, tuple(reasons))


# -- what the process answers


class GroupReport(Struct, frozen=True):
    """One group as the health port shows it."""

    name: str
    kind: str
    health: Health
    started: bool = False
    halted: bool = False
    reasons: Sequence[str] = ()
    violations: Mapping[str, int] = {}
    loop_ages_s: Mapping[str, float] = {}


class Answer(Struct, frozen=True):
    """Green or red, and why it is red."""

    ok: bool
    reasons: Sequence[str] = ()


_GRAVITY: Final = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.UNHEALTHY: 2}


def overall(groups: Iterable[GroupReport]) -> Health:
    """Of the process: that of its worst group."""
    return max((group.health for group in groups), key=_GRAVITY.__getitem__, default=Health.HEALTHY)


def is_live(groups: Sequence[GroupReport], *, stuck_s: float, stall_limit_s: float) -> Answer:
    """Red when only a restart helps: every group has failed stop, or the event loop is stuck.

    While one group still runs its jobs the others' end is shown by readiness; an outage shows there, too.
    """
    reasons = []
    if stuck_s > stall_limit_s:
        reasons.append(f"the event loop is stuck for {stuck_s:.0f} s (limit {stall_limit_s:g} s)")
    if groups and all(group.halted for group in groups):
        reasons += [f"{group.name}: {reason}" for group in groups for reason in group.reasons]
    return Answer(not reasons, tuple(reasons))


def is_ready(groups: Sequence[GroupReport]) -> Answer:
    """Red while a group has not started, or is unhealthy."""
    reasons = [f"{group.name}: not started yet" for group in groups if not group.started and not group.halted]
    sick = (group for group in groups if group.health is Health.UNHEALTHY)
    reasons += [f"{group.name}: {reason}" for group in sick for reason in group.reasons]
    return Answer(not reasons, tuple(reasons))
