"""Requests and replies of the ``jm.<c>.api.>`` services, answered by the leading coordinator."""

from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from jm_core.wire import OptionalRaw

# The last token of each subject; no dots, so that a permission can name one operation or all (`jm.<c>.api.*`).
OP_JOB_GET: Final = "job-get"  # JobRef -> JobView
OP_JOB_LIST: Final = "job-list"  # JobQuery -> JobList
OP_JOB_ATTEMPTS: Final = "job-attempts"  # JobRef -> AttemptList
OP_JOB_RESULT: Final = "job-result"  # ResultRequest -> ResultReply
OP_JOB_RESULTS: Final = "job-results"  # ResultsRequest -> ResultsReply
OP_JOB_PROGRESS: Final = "job-progress"  # ProgressRequest -> ProgressReply
OP_JOB_COUNT: Final = "job-count"  # {} -> CountReply
OP_REJECTED_LIST: Final = "rejected-list"  # RejectedQuery -> RejectedList
OP_REJECTED_GET: Final = "rejected-get"  # RejectedRef -> RejectedView
OP_UNSERVED: Final = "unserved"  # {} -> UnservedList
OP_CLUSTER_GET: Final = "cluster-get"  # {} -> cluster.ClusterView
OP_CLUSTER_SET: Final = "cluster-set"  # cluster.ClusterChange -> cluster.ClusterView
OP_AGENT_GIVE_UP: Final = "agent-give-up"  # cluster.AgentGiveUp -> cluster.AgentGivenUp

UNKNOWN: Final = "unknown"  # the status of a job that the master does not have


class ApiError(Struct, omit_defaults=True):
    """``code`` is one of ``not_found bad_request refused unavailable timeout archived``; ``message`` is for people."""

    code: str
    message: str


class Reply(Struct, omit_defaults=True):
    """Exactly one of the two is set; ``data`` is the operation's own reply."""

    data: OptionalRaw = None
    error: ApiError | None = None


class JobRef(Struct):
    id: str


class ResultRequest(Struct):
    """Answered when the job ends, or after ``wait_s`` with status of the moment; the client asks again."""

    id: str
    wait_s: float = 5.0


class ResultReply(Struct):
    id: str
    status: str  # label of JobStatus; `unknown` while the master has no such row
    result: OptionalRaw = None
    error: str | None = None


class ResultsRequest(Struct):
    """Answered when one of the jobs has ended, with all that have; or after ``wait_s``, with none."""

    ids: list[str]
    wait_s: float = 5.0


class ResultsReply(Struct):
    """Ended jobs, the first to end first: as many as fit one message."""

    results: list[ResultReply]


class ProgressReply(Struct, omit_defaults=True):
    """``fraction`` and ``note`` are the newest that the attempt has reported."""

    id: str
    status: str
    attempt: int = 0
    fraction: float | None = None
    note: str | None = None
    error: str | None = None


class ProgressRequest(Struct):
    """Answered when there is something else than ``seen``, the last reply; or after ``wait_s``."""

    id: str
    seen: ProgressReply | None = None
    wait_s: float = 5.0


class JobQuery(Struct, omit_defaults=True):
    """Filters are combined with AND; newest first; ``before_id`` pages on (ids are time-ordered)."""

    status: list[str] = []
    handler: str | None = None
    lane: str | None = None
    priority: str | None = None
    before_id: str | None = None
    limit: int = 50
    schedule: str | None = None


class JobView(Struct, omit_defaults=True):
    """A job as people see it. ``args`` and ``result`` are exact JSON (digits kept), cut in lists."""

    id: str
    handler: str
    status: str
    lane: str
    priority: str
    attempt: int
    max_attempts: int
    run_at: datetime
    queued_at: datetime | None = None
    recorded_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    timeout_s: float | None = None
    bucket: str | None = None
    worker: str | None = None
    dispatch: int = 0
    losses: int = 0
    unique_key: str | None = None
    unique_until: datetime | None = None  # it holds the key until then, even when it has ended
    metadata: dict[str, str] | None = None
    trace: str | None = None
    progress: float | None = None
    progress_note: str | None = None
    args: OptionalRaw = None
    args_cut: bool = False
    result: OptionalRaw = None
    error: str | None = None
    cancel_requested_at: datetime | None = None  # of a job that still runs: it is asked to end
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    waits: str | None = None  # why it has not started although it is due; of one job, not in lists
    schedule: str | None = None  # that made it,
    occurrence: datetime | None = None  # for this instant; None: a run-now


class JobList(Struct):
    jobs: list[JobView]
    more: bool = False


class AttemptView(Struct, omit_defaults=True):
    attempt: int
    outcome: str
    dispatch: int
    worker: str | None = None
    bucket: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    retry_in_s: float | None = None


class AttemptList(Struct):
    id: str
    attempts: list[AttemptView]


class RejectedView(Struct, omit_defaults=True):
    rejected_id: int
    rejected_at: datetime
    reason: str
    job_id: str | None = None
    handler: str | None = None
    field: str | None = None
    raw: str | None = None  # text where it is UTF-8, else base64 with `raw_base64`
    raw_base64: bool = False
    raw_bytes: int = 0


class RejectedList(Struct):
    rejected: list[RejectedView]
    more: bool = False


class RejectedQuery(Struct):
    limit: int = 50
    before: int | None = None


class RejectedRef(Struct):
    rejected_id: int


class CountReply(Struct):
    by_status: dict[str, int]
    rejected: int = 0


class UnservedKind(Struct):
    """Due jobs wait on the master, and no bucket takes them; ``reason`` says why, for people."""

    lane: str
    priority: str
    handler: str
    waiting_since: datetime  # when the first of them was due
    reason: str


class UnservedList(Struct):
    unserved: list[UnservedKind]


Json = dict[str, Any]
