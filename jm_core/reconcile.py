"""Rows that are out although nobody holds them: which are suspects, and what becomes of them. DESIGN 7.

A message can be lost behind the record's back: deleted by hand, or with its stream. The row then says *in a bucket*
for ever. Everything here errs on the side of waiting: what is handed back too early runs twice.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from jm_core.ends import End, Held
from jm_core.model import AttemptOutcome, BucketStatus, JobStatus

NOT_HELD: Final = "its worker does not hold it any more"
LOOKED_AT: Final = frozenset({BucketStatus.ACTIVE.value, BucketStatus.COMPLETING.value})

Key = tuple[str, int]  # job id, dispatch


class Out(Struct, frozen=True):
    """A row that lies in a bucket; ``due_for_s`` is negative when it is due later."""

    held: Held
    due_for_s: float
    is_unsent: bool = False  # its message is still in the outbox

    @property
    def key(self) -> Key:
        return self.held.id, self.held.dispatch


class StreamLook(Struct, frozen=True):
    """A bucket's stream: messages in it, and those of them that its run consumer has not delivered yet."""

    messages: int
    pending: int


GONE: Final = StreamLook(0, 0)  # a stream that is not there holds nothing


def first_seen(before: Mapping[Key, float], rows: Iterable[Out], *, now_s: float) -> dict[Key, float]:
    """Since when each row is seen to be out under its dispatch. What is not out any more is forgotten."""
    return {row.key: before.get(row.key, now_s) for row in rows}


def suspects(rows: Sequence[Out], seen_s: Mapping[Key, float], *, now_s: float, patience_s: float) -> list[Out]:
    """Rows that have been out, due and sent, for so long that their worker must have them.

    ``patience_s`` after the first look a message that was lost on the way to the worker has been delivered again.
    """
    ripe = (row for row in rows if not row.is_unsent and row.due_for_s >= 0)
    return [row for row in ripe if now_s > seen_s[row.key] and now_s - seen_s[row.key] >= patience_s]


def suspects_after_loss(rows: Sequence[Out], look: StreamLook) -> list[Out]:
    """The same for a bucket whose stream was made anew: where it is empty there is nothing to wait for, due or not.

    Nothing is on its way to the worker then: a message stays in the stream until its jobs' ends are stored.
    """
    return [] if look.messages else [row for row in rows if not row.is_unsent]


def may_decide(look: StreamLook) -> bool:
    """What has not been delivered yet can be any job's message."""
    return look.pending == 0


def hand_back(rows: Iterable[Out], held: Collection[str], *, now_s: float) -> list[End]:
    """Ends for what its worker, asked, does not hold: back to the master, at no cost of an attempt."""
    return [_end(row.held, now_s) for row in rows if row.held.id not in held]


def _end(held: Held, now_s: float) -> End:
    if held.started_at is None:
        return End(held.id, held.dispatch, 0, JobStatus.ON_MASTER)
    return End(
        held.id,
        held.dispatch,
        held.attempt,
        JobStatus.ON_MASTER,
        AttemptOutcome.INTERRUPTED,
        held.started_at,
        now_s,
        error=NOT_HELD,
        excused=1,
    )
