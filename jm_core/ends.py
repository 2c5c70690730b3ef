"""What workers' events mean for the record, sorted for set-wise statements; and what follows a worker's death."""

from collections.abc import Sequence
from typing import Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from jm_core import limits, wire
from jm_core.control import late_note
from jm_core.lifecycle import ATTEMPT_ENDS
from jm_core.model import AttemptOutcome, JobStatus, ReturnReason
from jm_core.payload import cut_text
from jm_core.retry import Backoff, GiveUp, after_failure

_SUCCEEDED: Final = AttemptOutcome.SUCCEEDED


class End(Struct, gc=False):
    """How a dispatch ended, for the job's row; with an ``outcome`` also for a row in ``attempt``.

    ``status`` ON_MASTER sends it back: after ``retry_in_s``, or (None) at its old due time.
    """

    id: str
    dispatch: int
    attempt: int
    status: JobStatus
    outcome: str = ""
    started_at: float | None = None
    finished_at: float | None = None
    result: Raw | None = None
    error: str | None = None
    retry_in_s: float | None = None
    excused: int = 0
    losses: int = 0


class Sorted(Struct):
    """One batch of events by what has to be done. The numbers beside are places in the list of batches."""

    successes: list[wire.Finished]  # clean first ones: the common case
    success_batches: list[int]
    ends: list[End]
    end_batches: list[int]
    lost: list[wire.Returned]  # their worker died; the row decides what follows
    lost_batches: list[int]
    started: list[wire.Started]
    started_batches: list[int]
    progress: list[wire.Progress]


class Held(Struct, frozen=True):
    """The row of a job that its dead worker held."""

    id: str
    handler: str
    dispatch: int
    attempt: int
    max_attempts: int  # with the excused starts added
    losses: int
    started_at: float | None  # None: it was not seen to start


def sort_events(batches: Sequence[wire.EventBatch]) -> Sorted:
    """Sort events by statement. What precedes the end of its dispatch in one batch is dropped: the end says all."""
    out = Sorted([], [], [], [], [], [], [], [], [])
    successes, success_batches = out.successes, out.success_batches
    for place, batch in enumerate(batches):
        for event in batch.events:
            if type(event) is wire.Finished and event.attempt == 1 and event.outcome is _SUCCEEDED:
                successes.append(event)
                success_batches.append(place)
            else:
                _sort_other(event, place, out)
    if out.started or out.progress:
        _drop_overtaken(out)
    return out


def _sort_other(event: wire.Event, place: int, out: Sorted) -> None:
    match event:
        case wire.Started():
            out.started.append(event)
            out.started_batches.append(place)
        case wire.Progress():
            out.progress.append(event)
        case wire.Returned(reason=ReturnReason.LOST | ReturnReason.ABANDONED):
            out.lost.append(event)
            out.lost_batches.append(place)
        case _:
            out.ends.append(end_of(event))
            out.end_batches.append(place)


def _drop_overtaken(out: Sorted) -> None:
    events: list[wire.Finished | End | wire.Returned] = [*out.successes, *out.ends, *out.lost]
    ended = {(event.id, event.dispatch) for event in events}
    if out.lost and out.started:
        # A start that is seen together with the loss counts all the same: the row has not heard of it.
        starts = {(event.id, event.dispatch): event for event in out.started}
        out.lost = [_with_start(event, starts.get((event.id, event.dispatch))) for event in out.lost]
    kept = [i for i, event in enumerate(out.started) if (event.id, event.dispatch) not in ended]
    out.started, out.started_batches = [out.started[i] for i in kept], [out.started_batches[i] for i in kept]
    latest = {(event.id, event.dispatch): event for event in out.progress}
    out.progress = [event for key, event in latest.items() if key not in ended]


def _with_start(lost: wire.Returned, start: wire.Started | None) -> wire.Returned:
    if start is None or lost.started_at is not None:
        return lost
    return replace(lost, attempt=start.attempt, started_at=start.started_at)


def end_of(event: wire.Finished | wire.Quarantined | wire.Returned) -> End:
    match event:
        case wire.Finished():
            return _end_of_finished(event)
        case wire.Quarantined():
            return End(event.id, event.dispatch, 0, JobStatus.QUARANTINED, finished_at=event.at, error=event.reason)
        case wire.Returned(started_at=None):
            return End(event.id, event.dispatch, 0, JobStatus.ON_MASTER)
        case wire.Returned():
            return End(
                event.id,
                event.dispatch,
                event.attempt,
                JobStatus.ON_MASTER,
                AttemptOutcome.INTERRUPTED,
                event.started_at,
                event.at,
                excused=1,
            )


def _end_of_finished(event: wire.Finished) -> End:
    status = ATTEMPT_ENDS[event.outcome]
    retry_in_s = event.retry_in_s
    if status is JobStatus.FAILED and retry_in_s is not None:
        status = JobStatus.ON_MASTER
    return End(
        event.id,
        event.dispatch,
        event.attempt,
        status,
        event.outcome,
        event.started_at,
        event.finished_at,
        event.result,
        event.error,
        min(max(retry_in_s, 0.0), limits.DELAY_S_MAX) if retry_in_s is not None else None,
        excused=1 if event.outcome is AttemptOutcome.INTERRUPTED else 0,
    )


def after_loss(held: Held, policy: Backoff, *, now_s: float, u: float) -> End:
    """What becomes of a job whose worker died.

    A start that was seen counts as an attempt, and is made up for at once the first time: most workers die of
    something else than the job (P4). From the second loss on it waits as after a failure.

    A start that was not seen costs no attempt. It counts as a loss the first time only: a job with a loss is announced
    before its handler is called, so that from then on a job that was not seen to start had no part in the death.
    """
    if held.started_at is None:
        return End(held.id, held.dispatch, 0, JobStatus.ON_MASTER, losses=0 if held.losses else 1)
    next_step = after_failure(policy, attempt=held.attempt, max_attempts=held.max_attempts, u=u)
    gave_up = isinstance(next_step, GiveUp)
    return End(
        held.id,
        held.dispatch,
        held.attempt,
        JobStatus.FAILED if gave_up else JobStatus.ON_MASTER,
        AttemptOutcome.WORKER_LOST,
        held.started_at,
        now_s,
        error="worker lost",
        retry_in_s=None if isinstance(next_step, GiveUp) else next_step.delay_s if held.losses else 0.0,
        losses=1,
    )


def after_abandonment(held: Held, policy: Backoff, *, now_s: float, u: float) -> End:
    """What becomes of a job that lay in the bucket of a worker that had closed it in order. It had no part in anything;
    only a start that nobody reported the end of is treated as lost.
    """
    if held.started_at is None:
        return End(held.id, held.dispatch, 0, JobStatus.ON_MASTER)
    return after_loss(held, policy, now_s=now_s, u=u)


def as_end(success: wire.Finished) -> End:
    return _end_of_finished(success)


def after_cancel(end: End) -> End:
    """``end`` of a job whose cancel was asked for: it ends cancelled. A success came too late, and is noted as that."""
    if end.outcome != _SUCCEEDED:
        return end
    return replace(
        end, outcome=AttemptOutcome.CANCELLED, result=None, error=late_note(bytes(end.result) if end.result else None)
    )


def storable(end: End, problem: str) -> End:
    """``end`` without what Postgres refused: a success that cannot be stored is a failure that says so (BR-102)."""
    error = f"the result cannot be stored: {problem}" if end.result is not None else end.error or problem
    status = JobStatus.FAILED if end.status is JobStatus.SUCCEEDED else end.status
    outcome = AttemptOutcome.FAILED if end.outcome == AttemptOutcome.SUCCEEDED else end.outcome
    return End(
        end.id,
        end.dispatch,
        end.attempt,
        status,
        outcome,
        error=cut_text(error, limits.ERROR_BYTES_MAX),
        retry_in_s=end.retry_in_s,
        excused=end.excused,
        losses=end.losses,
    )
