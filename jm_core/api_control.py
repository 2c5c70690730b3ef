"""Requests and replies of the operations that change jobs, and of the record that is kept of them."""

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from jm_core.control import Action
from jm_core.wire import OptionalRaw

# One subject each, so that a permission can allow one of them.
OP_OF: Final = {action: f"job-{action.value}" for action in Action}  # ControlRequest -> ControlReply
OP_JOB_HISTORY: Final = "job-history"  # JobRef -> History
OP_AUDIT_LIST: Final = "audit-list"  # AuditQuery -> AuditList
OP_AUDIT_GET: Final = "audit-get"  # AuditRef -> ActionView


class JobFilter(Struct, omit_defaults=True):
    """Combined with AND. Instants have an offset; ``_from`` is included, ``_until`` is not."""

    status: list[str] = []
    handler: str | None = None
    lane: str | None = None
    priority: str | None = None
    metadata: dict[str, str] = {}
    schedule: str | None = None  # that made them
    queued_from: datetime | None = None
    queued_until: datetime | None = None
    due_from: datetime | None = None
    due_until: datetime | None = None

    @property
    def is_empty(self) -> bool:
        return self == JobFilter()


class Change(Struct, omit_defaults=True):
    """What the action is to set; each action takes its own: cancel ``force``, requeue all but that, reschedule
    ``run_at``, priority ``priority`` and ``lane``.
    """

    run_at: datetime | None = None
    priority: str | None = None
    lane: str | None = None
    args: OptionalRaw = None
    max_attempts: int | None = None
    force: bool = False


class ControlRequest(Struct, omit_defaults=True):
    """Jobs by ``ids`` (at most ``control.IDS_MAX``; done in one transaction, one verdict each) or by ``filter``
    (done by the leader in batches; ask ``audit-get`` how far it is). An empty filter needs ``everything``.

    ``action_id``, a UUID of version 7 that the caller makes, is what makes a repetition harmless. ``expect`` refuses
    the action unless exactly so many jobs match.
    """

    action_id: str
    by: str
    reason: str = ""
    ids: list[str] = []
    filter: JobFilter | None = None
    everything: bool = False
    expect: int | None = None
    dry_run: bool = False
    change: Change = msgspec.field(default_factory=Change)


class JobVerdict(Struct, omit_defaults=True):
    """``status`` is the job's by now, ``unknown`` where there is none; ``note`` says why it was not changed, or what
    is still to come.
    """

    id: str
    status: str
    changed: bool = False
    note: str = ""


class Refusal(Struct, omit_defaults=True):
    why: str
    jobs: int
    example: str = ""


class ActionView(Struct, omit_defaults=True):
    """``matched`` jobs are, or were, to be changed; ``finished_at`` is absent while the leader is at it."""

    action_id: str
    at: datetime
    actor: str
    action: str
    matched: int
    changed: int = 0
    refused: int = 0
    reason: str = ""
    scope: str = ""  # JSON, cut in lists
    parameters: str = ""
    finished_at: datetime | None = None
    refusals: list[Refusal] = []  # the commonest, not in lists

    @property
    def left(self) -> int:
        return 0 if self.finished_at is not None else self.matched - self.changed - self.refused


class ControlReply(Struct, omit_defaults=True):
    """``action`` is absent in a dry run, and where no job was there. ``by_status``: of a dry run by filter."""

    action: ActionView | None = None
    jobs: list[JobVerdict] = []
    by_status: dict[str, int] = {}


class AuditQuery(Struct, omit_defaults=True):
    """Newest first."""

    limit: int = 50
    before: str | None = None  # an action id
    actor: str | None = None
    action: str | None = None


class AuditRef(Struct):
    action_id: str


class AuditList(Struct):
    actions: list[ActionView]
    more: bool = False


class HistoryEntry(Struct, omit_defaults=True):
    at: datetime
    what: str
    detail: str = ""
    by: str = ""  # the operator, or the worker
    action_id: str = ""


class History(Struct):
    id: str
    status: str
    entries: list[HistoryEntry]
