"""Questions and orders to one worker, on ``jm.<c>.worker.<id>.rpc``: hints, all of them. What is not answered is asked
again, or happens later by another way.
"""

from typing import Any

import msgspec
from msgspec import Struct

from jm_core.api_schedules import ScheduleSpec


class Holds(Struct, tag="holds", tag_field="op"):
    """Which of these dispatches of ``bucket`` do you hold, run, or have still to report?"""

    bucket: str
    jobs: list[tuple[str, int]]  # (job id, dispatch)


class OpenFallback(Struct, tag="open-fallback", tag_field="op"):
    """Open a fallback bucket for jobs of ``lane`` and priority ``serves``. Done already is done."""

    lane: str
    serves: int
    reason: str


class Retire(Struct, tag="retire", tag_field="op"):
    """Close one of your buckets: hand back what is held, let the running end."""

    bucket: str
    reason: str


class Drain(Struct, tag="drain", tag_field="op"):
    """Take no more and exit once nothing runs; ``undo`` takes that back as long as it has not."""

    undo: bool = False


class Stop(Struct, tag="stop", tag_field="op"):
    """As SIGTERM; ``hurry`` as a second one."""

    hurry: bool = False


class Status(Struct, tag="status", tag_field="op"):
    """What are you doing?"""


class Declared(Struct, tag="declared", tag_field="op"):
    """Which schedules does your code declare? Those from place ``start`` on, as many as one answer holds."""

    start: int = 0


Request = Holds | OpenFallback | Retire | Drain | Stop | Status | Declared


class RunningJob(Struct, omit_defaults=True):
    id: str
    handler: str
    bucket: str
    attempt: int
    for_s: float
    asked: str = ""  # why it was asked to end


class WorkerStatus(Struct, omit_defaults=True):
    """``running`` the longest first, at most 100."""

    state: str
    running: list[RunningJob] = []
    running_total: int = 0
    held: int = 0


class Answer(Struct, omit_defaults=True):
    """``error`` says why it was refused; else the part that was asked for."""

    error: str = ""
    held: list[str] = []  # to Holds: job ids
    bucket: str = ""  # to OpenFallback
    status: WorkerStatus | None = None
    schedules: list[ScheduleSpec] = []  # to Declared
    more: bool = False  # there are others behind them


decode_request: Any = msgspec.json.Decoder(Request).decode
decode_answer = msgspec.json.Decoder(Answer).decode
