"""Operator control of jobs: the actions, which states they apply to, and the orders to a worker (docs/control.md)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from jm_core import limits
from jm_core.errors import InvalidJobError
from jm_core.ids import is_canonical_id
from jm_core.model import JobStatus as S
from jm_core.payload import cut_text

IDS_MAX: Final = 500  # of one request
BATCH_JOBS: Final = 500  # of one transaction of an action in bulk
MATCHED_MAX: Final = 1_000_000  # of one action in bulk
ACTOR_CHARS_MAX: Final = 100
REASON_CHARS_MAX: Final = 500


# What is done to schedules is on record under the names of their operations (jm_core/api_schedules.py).
SCHEDULE_ACTION: Final = "schedule-"
SCHEDULE_ACTIONS: Final = tuple(
    f"{SCHEDULE_ACTION}{verb}"
    for verb in ("add", "edit", "pause", "resume", "run-now", "delete", "change", "revive", "inactivate")
)


class Action(StrEnum):
    """What an operator can do to a job."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    RUN_NOW = "run-now"
    RESCHEDULE = "reschedule"
    PRIORITY = "priority"  # and lane


LIVE: Final = frozenset({S.ON_MASTER, S.IN_BUCKET, S.PROCESSING})
UNSTARTED: Final = frozenset({S.ON_MASTER, S.IN_BUCKET})
ENDED: Final = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.QUARANTINED})

APPLIES_TO: Final[Mapping[Action, frozenset[S]]] = {
    Action.CANCEL: LIVE,
    Action.REQUEUE: ENDED,
    Action.RUN_NOW: UNSTARTED,
    Action.RESCHEDULE: UNSTARTED,
    Action.PRIORITY: UNSTARTED,
}
# In bulk, unless states are named: to run again what has succeeded is seldom meant.
BULK_DEFAULT: Final[Mapping[Action, frozenset[S]]] = {
    **APPLIES_TO,
    Action.REQUEUE: frozenset({S.FAILED, S.CANCELLED, S.QUARANTINED}),
}


# What the record of operator actions has; those of the cluster are named as its operations are (jm_core/api.py).
CLUSTER_ACTIONS: Final = ("cluster-set", "agent-give-up")
AUDITED: Final = (*(action.value for action in Action), *SCHEDULE_ACTIONS, *CLUSTER_ACTIONS)
NOBODY: Final = "unknown"  # who acts and does not say so, where that is allowed


def refusal(action: Action, status: S | None) -> str:
    """Why ``action`` does nothing to a job in ``status`` (None: there is no such job); empty when it applies."""
    if status is None:
        return "no such job on the master"
    if status in APPLIES_TO[action]:
        return ""
    if action is Action.REQUEUE:
        return f"it is {status.label}: only a job that has ended can be requeued"
    if status is S.PROCESSING:
        return "it is running: wait for its end, or cancel it"
    remedy = "" if action is Action.CANCEL else "; requeue it to run it again"
    return f"it has ended {status.label}{remedy}"


def cancel_text(by: str, reason: str) -> str:
    """What a job that was cancelled says as its error."""
    return f"cancelled by {by}" + (f": {reason}" if reason else "")


def check_words(by: str, reason: str) -> tuple[str, str]:
    """Who acts and why, fit to be stored.

    Raises:
        InvalidJobError: nobody is named, or more than fits.
    """
    by = by.strip()
    if not by:
        raise InvalidJobError("by", "is empty", remedy="say who acts, for the record: --by NAME or JM_ACTOR")
    for field, text, chars_max in (("by", by, ACTOR_CHARS_MAX), ("reason", reason, REASON_CHARS_MAX)):
        if len(text) > chars_max:
            raise InvalidJobError(field, f"{len(text)} characters, the limit is {chars_max}", remedy="shorten it")
    return _one_line(by, ACTOR_CHARS_MAX), _one_line(reason.strip(), REASON_CHARS_MAX)


def _one_line(text: str, chars_max: int) -> str:
    """A stranger's text, fit to be stored and shown."""
    return cut_text("".join(c if c.isprintable() else " " for c in text), 4 * chars_max)


class CancelOrder(Struct, array_like=True, frozen=True):
    """To the worker that has the job under this dispatch number: drop it, or end its handler."""

    id: str
    dispatch: int
    why: str


class Orders(Struct, omit_defaults=True):
    """A message on a bucket's ``.ctl``."""

    cancel: list[CancelOrder] = []


decode_orders = msgspec.json.Decoder(Orders).decode


def late_note(result: bytes | None) -> str:
    """Of a handler that returned although it had been cancelled: its result is noted, it does not count (BR-191)."""
    text = "it returned all the same, too late to count"
    if result is None:
        return text
    return f"{text}; late result: {cut_text(result.decode(errors='replace'), limits.KIB)}"


def is_action_id(text: str) -> bool:
    return is_canonical_id(text) is not None
