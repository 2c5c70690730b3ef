"""Requests and replies of the ``jm.<c>.api.schedule-…`` services, answered by the leading coordinator.

Words: an *occurrence* is one instant of a schedule's plan and the job made for it. It is *planned* when its job is in
Postgres, by default 15 minutes ahead of its instant; a schedule whose ``overlap`` is not ``allow``, or that has a
unique key, is decided at the instant itself, because only then can be known what is still unfinished.

Errors are ``ApiError``: ``bad_request`` (the message names field, problem and remedy), ``not_found`` (no schedule of
that name), ``conflict`` (the name is taken, or the schedule is declared in code, or it was changed meanwhile),
``unavailable``, ``timeout``.
"""

from datetime import datetime
from enum import StrEnum
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from jm_core.wire import EMPTY_ARGS, Instant, OptionalRaw

OP_SCHEDULE_ADD: Final = "schedule-add"
"""ScheduleAdd -> ScheduleView. A new dynamic schedule; ``conflict`` when the name is taken (a repeat of the very same
request is answered with what is there). Refused: what can never fire, a wrong zone, expression or handler, arguments
over the limit, a jitter as long as the interval, an end before the start."""
OP_SCHEDULE_LIST: Final = "schedule-list"
"""ScheduleQuery -> ScheduleList, by name; ``more``: ask again with ``after_name`` = the last one. Without args."""
OP_SCHEDULE_GET: Final = "schedule-get"
"""ScheduleRef -> ScheduleView, with the next ``upcoming`` instants."""
OP_SCHEDULE_EDIT: Final = "schedule-edit"
"""ScheduleEdit -> ScheduleView. What is not mentioned stays. Occurrences that are planned and not started are cancelled
and planned anew by the new definition. ``conflict`` for a static schedule: its definition is the code."""
OP_SCHEDULE_PAUSE: Final = "schedule-pause"
"""ScheduleAction -> ScheduleView. Plans no more; what is planned and not started is cancelled. Pausing a paused one is
no error. A static schedule stays paused over redeploys, until it is resumed."""
OP_SCHEDULE_RESUME: Final = "schedule-resume"
"""ScheduleAction -> ScheduleView. Goes on with the next instant after now; those in between are recorded as skipped
(``paused``), there is no burst. Also takes a ``disabled`` schedule back into the plan."""
OP_SCHEDULE_RUN_NOW: Final = "schedule-run-now"
"""RunNow -> RunNowReply. One job at once, whatever the schedule's state, overlap policy or ``max_runs``; no occurrence
of the plan. Who asked is in the job's metadata (``run_now_by``). ``conflict`` when an unfinished job has its unique
key."""
OP_SCHEDULE_DELETE: Final = "schedule-delete"
"""ScheduleAction -> ScheduleView (as it was last). What is planned and not started is cancelled; jobs that run go on.
``conflict`` for a static schedule that is still declared: take the declaration out of the code, or pause it."""
OP_SCHEDULE_SKIPS: Final = "schedule-skips"
"""SkipQuery -> SkipList: what did not become a job and why, newest first. Kept when the schedule is deleted."""

SCHEDULE_OPERATIONS: Final = (
    OP_SCHEDULE_ADD,
    OP_SCHEDULE_LIST,
    OP_SCHEDULE_GET,
    OP_SCHEDULE_EDIT,
    OP_SCHEDULE_PAUSE,
    OP_SCHEDULE_RESUME,
    OP_SCHEDULE_RUN_NOW,
    OP_SCHEDULE_DELETE,
    OP_SCHEDULE_SKIPS,
)


class ScheduleState(StrEnum):
    ACTIVE = "active"  # planned
    PAUSED = "paused"  # by an operator
    DISABLED = "disabled"  # it raised: `error` says what; edit or resume it
    IDLE = "idle"  # static, no worker has declared it for 5 min; still planned: a redeploy must lose no occurrence
    INACTIVE = "inactive"  # static, no worker has declared it for 1 h; not planned
    DONE = "done"  # its end, or max_runs, is reached: nothing more will come


class Origin(StrEnum):
    STATIC = "static"  # declared in code, beside the handler
    DYNAMIC = "dynamic"  # made by client, command line or SQL


class MisfirePolicy(StrEnum):
    """What becomes of instants that nobody could plan in time: the master was down for more than 30 s.

    All instants up to now count as one gap, newest first; what is not run is recorded as skipped (``misfire``).
    """

    SKIP = "skip"  # none is run
    RUN_ONCE = "run_once"  # the newest is
    RUN_ALL = "run_all"  # the newest `misfire_limit` are, oldest of them first


class OverlapPolicy(StrEnum):
    """What becomes of an instant while a job of the same schedule is unfinished (run-now jobs count)."""

    ALLOW = "allow"  # it runs beside the other
    SKIP = "skip"  # it is recorded as skipped (`overlap`, with the id of the other)
    QUEUE_ONE = "queue_one"  # one waits and becomes a job when the other has ended; the next ones are skipped


class SkipReason(StrEnum):
    """Why an instant did not become a job. ``detail`` of a skip has the id or text that belongs to it."""

    MISFIRE = "misfire"
    OVERLAP = "overlap"  # detail: id of the unfinished job
    DUPLICATE = "duplicate"  # detail: id of the job that has the unique key
    PAUSED = "paused"
    DISABLED = "disabled"
    INACTIVE = "inactive"
    CANCELLED = "cancelled"  # it had a job, which somebody cancelled before the schedule was changed; detail: its id


class ScheduleSpec(Struct, omit_defaults=True, kw_only=True):
    """The definition. None: what the handler, then the cluster, has as default (``zone``: the cluster's zone).

    ``kind`` is ``cron every rrule plain``. Instants need an offset; both ends are included. ``jitter_s`` delays each
    job by 0 to so many seconds, the same for the same instant every time; it must be less than the interval.
    ``unique_key``: held by its jobs until they end, without a window; an instant at which any job holds it is skipped.
    ``misfire_window_s``: missed instants older than that are never run (None: no limit; at least 60).
    """

    name: str
    kind: str
    expr: str
    handler: str
    zone: str | None = None
    args: OptionalRaw = EMPTY_ARGS
    lane: str | None = None
    priority: str | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    metadata: dict[str, str] | None = None
    unique_key: str | None = None
    misfire: MisfirePolicy = MisfirePolicy.RUN_ONCE
    misfire_limit: int = 10
    misfire_window_s: float | None = None
    overlap: OverlapPolicy = OverlapPolicy.ALLOW
    jitter_s: float = 0.0
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    max_runs: int | None = None


class ScheduleAdd(Struct, omit_defaults=True):
    """``by``: who asks (e.g. ``anna@host``), ``reason`` why: both for the record."""

    spec: ScheduleSpec
    by: str = ""
    paused: bool = False
    reason: str = ""


class ScheduleEdit(Struct, omit_defaults=True, kw_only=True):
    """Fields left out stay; null sets back to the default. ``args`` null or absent: unchanged (``{}`` empties it).

    ``revision``: only if it is still this one (``ScheduleView.revision``). ``drop_queued``: forget the instant that
    waits for its predecessor (overlap ``queue_one``); recorded as skipped.
    """

    name: str
    by: str = ""
    reason: str = ""
    revision: int | None = None
    drop_queued: bool = False
    kind: str | UnsetType = UNSET
    expr: str | UnsetType = UNSET
    handler: str | UnsetType = UNSET
    zone: str | UnsetType | None = UNSET
    args: OptionalRaw = None
    lane: str | UnsetType | None = UNSET
    priority: str | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    timeout_s: float | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType | None = UNSET
    unique_key: str | UnsetType | None = UNSET
    misfire: MisfirePolicy | UnsetType = UNSET
    misfire_limit: int | UnsetType = UNSET
    misfire_window_s: float | UnsetType | None = UNSET
    overlap: OverlapPolicy | UnsetType = UNSET
    jitter_s: float | UnsetType = UNSET
    starts_at: Instant | UnsetType | None = UNSET
    ends_at: Instant | UnsetType | None = UNSET
    max_runs: int | UnsetType | None = UNSET


class ScheduleAction(Struct, omit_defaults=True):
    """Pause, resume, delete. ``reason`` is kept in the error text of each job that is cancelled by it."""

    name: str
    by: str = ""
    reason: str = ""


class RunNow(Struct, omit_defaults=True):
    """``args`` null or absent: the schedule's own. ``request_id`` (a UUID): a repeat with the same one makes no
    second job.
    """

    name: str
    by: str = ""
    args: OptionalRaw = None
    request_id: str | None = None
    reason: str = ""


class RunNowReply(Struct):
    job_id: str


class ScheduleRef(Struct, omit_defaults=True):
    """``upcoming``: how many of the next instants to show, 0 to 100."""

    name: str
    upcoming: int = 5


class ScheduleQuery(Struct, omit_defaults=True):
    """Filters are combined with AND; in order of names, ``limit`` at most 500."""

    state: list[str] = []
    origin: str | None = None
    handler: str | None = None
    name_prefix: str | None = None
    after_name: str | None = None
    limit: int = 50


class ScheduleView(Struct, omit_defaults=True, kw_only=True):
    """A schedule as people see it.

    ``next_at`` is the first instant after now (None: there is none, or it is not planned in this state), ``last_at``
    the last one that became a job and whose instant has come, ``planned_to`` the last one that has its job already.
    ``runs`` counts occurrences that became jobs, planned ones included; ``skipped`` those that did not (``at least``
    with ``skipped_more``). ``queued_instant`` waits for its predecessor (overlap ``queue_one``). ``unfinished`` counts
    jobs of the schedule that are due or running. ``cancelled_planned`` is set in the reply to edit, pause and delete.
    """

    spec: ScheduleSpec
    state: ScheduleState
    origin: Origin
    zone: str  # in force
    description: str = ""  # of the recurrence, in words
    revision: int = 0
    next_at: datetime | None = None
    last_at: datetime | None = None
    planned_to: datetime | None = None
    upcoming: list[datetime] = []
    runs: int = 0
    skipped: int = 0
    skipped_more: bool = False
    unfinished: int = 0
    queued_instant: datetime | None = None
    error: str | None = None
    paused_by: str | None = None
    note: str | None = None  # e.g. that code declares a schedule of the same name
    created_at: datetime | None = None
    created_by: str = ""
    updated_at: datetime | None = None
    updated_by: str = ""
    seen_at: datetime | None = None  # static: when a worker declared it last
    cancelled_planned: int = 0


class ScheduleList(Struct):
    schedules: list[ScheduleView]
    more: bool = False


class SkipQuery(Struct, omit_defaults=True):
    """Of one schedule, or (None) of all; ``before_id`` pages on. ``limit`` at most 500."""

    name: str | None = None
    reason: str | None = None
    before_id: int | None = None
    limit: int = 50


class SkipView(Struct, omit_defaults=True):
    """``count`` instants from ``first_at`` to ``last_at``, skipped for the same reason; ``more``: at least so many."""

    skip_id: int
    schedule: str
    first_at: datetime
    last_at: datetime
    reason: str
    count: int = 1
    more: bool = False
    detail: str = ""
    recorded_at: datetime | None = None


class SkipList(Struct):
    skips: list[SkipView]
    more: bool = False
