"""What is reported of an attempt's end, in the words that its record keeps."""

import random

from msgspec import Raw

from jm_core import limits, retry
from jm_core.control import late_note
from jm_core.model import AttemptOutcome, ReturnReason
from jm_core.payload import cut_text
from jm_core.retry import GiveUp, RetryIn
from jm_core.wire import Event, Finished, Returned
from jm_nats.worker.execution import NULL, Ask, Execution

EVENT_BYTES = 200  # about, without its texts


def report_of(ended: Execution) -> tuple[Event, int]:
    """The event, and about how many bytes it takes."""
    run, outcome = ended.run, ended.outcome
    if outcome is AttemptOutcome.SUCCEEDED:
        raw = ended.raw
        result = None if raw is NULL else Raw(raw)
        event = Finished(run.id, run.dispatch, run.attempt, outcome, ended.started_at, ended.finished_at, result)
        return event, EVENT_BYTES + len(raw)
    is_ours = outcome in (AttemptOutcome.INTERRUPTED, AttemptOutcome.CANCELLED)
    if is_ours and not (ended.announced or (ended.has_begun and ended.has_entered)):
        return Returned(run.id, run.dispatch, ReturnReason.DRAINED, ended.finished_at), EVENT_BYTES
    if outcome is AttemptOutcome.INTERRUPTED:
        reason = ReturnReason.INTERRUPTED
        return Returned(run.id, run.dispatch, reason, ended.finished_at, run.attempt, ended.started_at), EVENT_BYTES
    error, retry_in_s = _error_text(ended, outcome), _retry_in_s(ended)
    times = (ended.started_at, ended.finished_at)
    event = Finished(run.id, run.dispatch, run.attempt, outcome, *times, None, error, retry_in_s)
    return event, EVENT_BYTES + 2 * len(error)


def _error_text(ended: Execution, outcome: AttemptOutcome) -> str:
    if outcome is AttemptOutcome.CANCELLED:
        note = late_note(None if ended.raw is NULL else ended.raw)
        return _end_text(ended, ended.asked_why or "cancelled", note)
    if outcome is not AttemptOutcome.TIMED_OUT:
        return ended.error or "no error text"
    return _end_text(ended, f"timed out after {ended.run.timeout_s:g} s", "it took no notice and returned")


def _end_text(ended: Execution, text: str, returned: str) -> str:
    """``returned``: what to say of a handler that returned all the same."""
    match ended.handler.executor:
        case "process":
            return f"{text}; its process was killed"
        case "thread" if not ended.is_over:
            return f"{text}; a thread cannot be stopped, it still holds a slot (use executor='process')"
        case "async" if not ended.is_over:
            return f"{text}; the handler ignores cancellation and still holds a slot"
        case _:
            note = returned if ended.error is None else ended.error
            return cut_text(f"{text}\n{note}".rstrip(), limits.ERROR_BYTES_MAX)


def _retry_in_s(ended: Execution) -> float | None:
    if ended.asked is Ask.CANCELLED:
        return None
    verdict = retry.after_failure(
        ended.handler.backoff,
        attempt=ended.run.attempt,
        max_attempts=ended.run.max_attempts,
        u=random.random(),
        asked_s=ended.retry_asked_s,
        may_retry=ended.may_retry,
    )
    match verdict:
        case RetryIn(delay_s=delay_s):
            return delay_s
        case GiveUp():
            return None
