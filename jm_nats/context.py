"""What a handler may know and do while it runs: ``JobContext``, and the two ways to end on purpose."""

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from jm_core import limits
from jm_core.errors import InvalidJobError, JmError


class Retry(JmError):  # noqa: N818  (reads as what the handler wants: `raise Retry(in_=60)`)
    """Raised by a handler: this attempt failed, try again in ``in_`` instead of by the backoff policy.

    Still bounded by ``max_attempts``: the last attempt's ``Retry`` fails the job.
    """

    def __init__(self, reason: str = "the handler asked for a retry", *, in_: float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.in_s = in_.total_seconds() if isinstance(in_, timedelta) else in_
        if self.in_s is not None and not 0 <= self.in_s <= limits.DELAY_S_MAX:
            raise InvalidJobError("in_", f"{self.in_s!r} seconds", remedy=f"give 0 to {limits.DELAY_S_MAX:.0f} seconds")


class NoRetry(JmError):  # noqa: N818  (as above)
    """Raised by a handler: this job can never succeed, fail it now whatever attempts are left."""


class _Done:
    """Awaitable that is already done, so that ``progress`` serves async and thread handlers alike."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class JobContext:
    """Injected where a handler has a parameter annotated with it.

    Attributes:
        job_id, handler, lane, attempt (1-based), max_attempts, dispatch (the fence token: it grows every time the job
        is put into a bucket), metadata, deadline (UTC
        instant after which the attempt is ended as timed out), queued args are the handler's own parameters.
    """

    def __init__(
        self,
        *,
        job_id: str,
        handler: str,
        lane: str,
        attempt: int,
        max_attempts: int,
        dispatch: int,
        metadata: Mapping[str, str],
        deadline_s: float,
        report: Callable[[float, str], None] | None = None,
    ) -> None:
        self.job_id = job_id
        self.handler = handler
        self.lane = lane
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.dispatch = dispatch
        self.metadata = metadata
        self._deadline_s = deadline_s
        self._report = report
        self._cancelled = False

    @property
    def deadline(self) -> datetime:
        return datetime.fromtimestamp(self._deadline_s, UTC)

    @property
    def idempotency_key(self) -> str:
        """To hand to the outside world: the same for every run of this job, also after its worker died.

        Where each retry is to count anew, add ``attempt``; ``dispatch`` grows with every run.
        """
        return self.job_id

    @property
    def cancelled(self) -> bool:
        """True once the attempt was timed out or cancelled. A thread cannot be stopped: it can look here and stop."""
        return self._cancelled

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry ``job_id``, ``handler`` and ``attempt``."""
        extra = {"job_id": self.job_id, "handler": self.handler, "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger(f"jobmaster.handler.{self.handler}"), extra)

    def progress(self, fraction: float, note: str = "") -> Awaitable[None]:
        """Report progress, 0 to 1; ``await`` it or not. As often as you like: the first report leaves at once, then the
        newest of each half second. A handler in a process of its own (``executor="process"``) reports to nobody.

        Raises:
            InvalidJobError: the fraction is outside 0 to 1.
        """
        if not 0.0 <= fraction <= 1.0:
            raise InvalidJobError("progress", f"{fraction!r}", remedy="give a fraction from 0 to 1")
        if self._report is not None:
            self._report(float(fraction), str(note)[: limits.PROGRESS_NOTE_CHARS_MAX])
        return _Done()
