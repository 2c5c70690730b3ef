"""Messages between the parts: JSON by msgspec, decoders made once. docs/wire-format.md is the public description.

Submissions are objects, because foreign clients write them; what only our own processes exchange (`Run`, events)
is arrays, which are a third smaller and faster. A new field is appended with a default, and unknown trailing fields
are ignored, so that two adjacent versions run side by side.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from jm_core import limits
from jm_core.model import AttemptOutcome, BucketKind, ReturnReason, WorkerMode, WorkerState
from jm_core.retry import Backoff

HEADER_RECEIPT_TO: Final = "Jm-Receipt-To"
HEADER_MSG_ID: Final = "Nats-Msg-Id"
HEADER_SCHEDULE: Final = "Nats-Schedule"
HEADER_SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
EMPTY_ARGS: Final = Raw(b"{}")

# `$` alone lets a newline pass.
Instant = Annotated[datetime, Meta(tz=True)]

# msgspec takes `Raw | None` for None alone and refuses every value; `Raw` takes null too, and None is a fine default.
if TYPE_CHECKING:
    OptionalRaw = Raw | None
    Trace = str | None
else:
    OptionalRaw = Raw
    Trace = Any  # whatever it is, it is no reason to refuse a job: see `traceparent`


_NULL: Final = Raw(b"null")


class Submission(Struct, omit_defaults=True, kw_only=True, gc=False):
    """One job as a client sends it. ``None`` means absent; `null` on the wire too (BR-116)."""

    handler: str
    args: Raw = EMPTY_ARGS
    id: str | None = None
    run_at: Instant | None = None
    delay_s: Annotated[float, Meta(ge=0, le=limits.DELAY_S_MAX)] | None = None
    lane: str | None = None
    priority: str | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=limits.ATTEMPTS_MAX)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=limits.TIMEOUT_S_MAX)] | None = None
    unique_key: str | None = None
    unique_for_s: Annotated[float, Meta(gt=0, le=limits.UNIQUE_FOR_S_MAX)] | None = None
    on_conflict: str | None = None
    metadata: dict[str, str] | None = None
    trace: Trace = None


class Run(Struct, array_like=True, gc=False):
    """One dispatch of a job to a bucket: what the worker needs to run it, and nothing else.

    ``max_attempts`` already includes the starts that cost no attempt; ``run_at`` is seconds since the epoch, UTC.
    """

    id: str
    handler: str
    args: Raw
    dispatch: int
    attempt: int  # the number this start will have, 1-based
    max_attempts: int
    run_at: float
    timeout_s: float
    metadata: dict[str, str] | None = None
    trace: str | None = None
    losses: int = 0  # workers that died with it; from the first on it is announced before it is called (DESIGN 7)
    due_at_once: bool = False  # `run_at` is when it was submitted: for a measurement, nothing depends on it
    has_run: bool = False  # since `run_at`, and was interrupted or lost: not late; for a measurement, too


class Started(Struct, array_like=True, tag="s", gc=False):
    id: str
    dispatch: int
    attempt: int
    started_at: float


class Finished(Struct, array_like=True, tag="f", gc=False):
    """An attempt's end. ``retry_in_s`` is the worker's decision (``retry.after_failure``): None is final."""

    id: str
    dispatch: int
    attempt: int
    outcome: AttemptOutcome
    started_at: float
    finished_at: float
    result: OptionalRaw = None
    error: str | None = None
    retry_in_s: float | None = None

    def __post_init__(self) -> None:
        # One comparison in C: this runs for every outcome there is, in worker and coordinator.
        if self.result is not None and self.result == _NULL:
            self.result = None


class Quarantined(Struct, array_like=True, tag="q", gc=False):
    """The worker that got it could not even call a handler: unknown name, or arguments that do not fit."""

    id: str
    dispatch: int
    at: float
    reason: str


class Returned(Struct, array_like=True, tag="r", gc=False):
    """Handed back to the master. ``started_at`` is set when it had started (``interrupted``)."""

    id: str
    dispatch: int
    reason: ReturnReason
    at: float
    attempt: int = 0
    started_at: float | None = None


class Progress(Struct, array_like=True, tag="p", gc=False):
    id: str
    dispatch: int
    at: float
    fraction: float
    note: str = ""


Event = Started | Finished | Quarantined | Returned | Progress


class EventBatch(Struct):
    """What one worker reports of one bucket, in order."""

    bucket: str
    epoch: int
    worker: str
    events: list[Event]


class ReceiptStatus:
    QUEUED: Final = "queued"
    RECORDED: Final = "recorded"
    DUPLICATE: Final = "duplicate"
    REJECTED: Final = "rejected"


class JobReceipt(Struct, omit_defaults=True):
    """What the writer answers per job, in the order of the message."""

    id: str
    status: str
    existing_id: str | None = None  # with `duplicate`: the job that is there
    reason: str | None = None  # with `rejected`


class Receipts(Struct):
    receipts: list[JobReceipt]


class HandlerDefaults(Struct, frozen=True, omit_defaults=True):
    """What a worker tells the cluster of a handler (KV key ``handler.<name>``): filled in for foreign clients."""

    lane: str
    priority: str
    max_attempts: int
    timeout_s: float
    backoff: Backoff
    seen_at: float = 0.0
    executor: str = ""  # async, thread or process; a thread cannot be forced to end


class BucketRecord(Struct, frozen=True, omit_defaults=True):
    """Registry entry of one bucket, changed only by compare-and-set on its revision.

    ``worker`` and ``incarnation`` are the owner's: who opened it, or who drains it; ``origin`` is then who opened it.
    A fallback bucket takes jobs of ``lane`` and priority ``serves``, which nobody else does, and runs them at
    ``priority``; ``reason`` says why it is there, or why it was taken from its owner.
    """

    bucket: str
    worker: str
    incarnation: str  # tells two processes with one worker id apart
    lane: str
    priority: int
    epoch: int
    status: str
    weight: int = 1
    opened_at: float = 0.0
    origin: str = ""
    kind: BucketKind = BucketKind.PROPER
    serves: int = 0
    reason: str = ""
    changed_at: float = 0.0  # of the status, by the clock of who changed it: for people
    was_lost: bool = False  # taken from its owner; else its owner left it
    returned: int = 0  # jobs that its adopter found in its stream

    @property
    def serves_priority(self) -> int:
        return self.serves or self.priority

    @property
    def opener(self) -> str:
        return self.origin or self.worker


class WorkerRecord(Struct, frozen=True):
    """Heartbeat value: who is alive, what it can run, how busy it is."""

    worker: str
    incarnation: str
    host: str
    pid: int
    started_at: float
    slots: int
    lanes: list[str]
    handlers: list[str]
    running: int = 0
    held: int = 0
    loop_lag_s: float = 0.0
    clock_offset_s: float = 0.0
    beat_at: float = 0.0
    mode: WorkerMode = WorkerMode.EXECUTION
    state: WorkerState = WorkerState.SERVING
    health: str = "healthy"  # jm_core.health.Health
    reasons: list[str] = []  # why it is not
    finished: int = 0  # attempts ended since it started
    draining: list[str] = []  # buckets that it has adopted
    priorities: list[int] = []  # that it serves
    pid_space: str = ""  # boot and namespace in which the pid means something
    schedules: str = ""  # digest of all that its code declares (jm_core.static_schedules); empty: nothing


encode = msgspec.json.Encoder().encode
decode_runs = msgspec.json.Decoder(list[Run]).decode
decode_events = msgspec.json.Decoder(EventBatch).decode
decode_receipts = msgspec.json.Decoder(Receipts).decode
decode_bucket = msgspec.json.Decoder(BucketRecord).decode
decode_worker = msgspec.json.Decoder(WorkerRecord).decode
decode_handler_defaults = msgspec.json.Decoder(HandlerDefaults).decode
decode_submissions = msgspec.json.Decoder(list[Submission]).decode
decode_submission = msgspec.json.Decoder(Submission).decode
decode_raw_array = msgspec.json.Decoder(list[Raw]).decode
decode_any: Any = msgspec.json.Decoder().decode
