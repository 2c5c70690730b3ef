"""What a control request must look like; the same check at the caller, before anything is sent, and at the leader."""

from collections.abc import Mapping
from typing import Final

from jm_core import limits
from jm_core.api_control import Change, ControlRequest, JobFilter
from jm_core.control import APPLIES_TO, BULK_DEFAULT, IDS_MAX, Action, check_words, is_action_id
from jm_core.errors import InvalidJobError
from jm_core.ids import parse_handler_name, parse_job_id
from jm_core.intake import check_fields
from jm_core.model import PRIORITY_BY_LABEL, STATUS_BY_LABEL, JobStatus
from jm_core.payload import check_args
from jm_core.schedule_rules import check_schedule_name
from jm_core.wire import Submission

TAKES: Final[Mapping[Action, frozenset[str]]] = {
    Action.CANCEL: frozenset({"force"}),
    Action.REQUEUE: frozenset({"run_at", "priority", "lane", "args", "max_attempts"}),
    Action.RUN_NOW: frozenset(),
    Action.RESCHEDULE: frozenset({"run_at"}),
    Action.PRIORITY: frozenset({"priority", "lane"}),
}
NEEDS_ONE: Final = {Action.RESCHEDULE: ("run_at",), Action.PRIORITY: ("priority", "lane")}


def checked(action: Action, request: ControlRequest) -> ControlRequest:
    """``request`` with its ids in their canonical form, each once.

    Raises:
        InvalidJobError, InvalidNameError: which field, what is wrong with it, what to do.
    """
    if not is_action_id(request.action_id):
        raise InvalidJobError("action_id", f"{request.action_id[:60]!r} is no UUID", remedy="make one of version 7")
    request.by, request.reason = check_words(request.by, request.reason)
    _check_scope(action, request)
    request.ids = list(dict.fromkeys(parse_job_id(job_id) for job_id in request.ids))
    check_change(action, request.change)
    if request.expect is not None and request.expect < 0:
        raise InvalidJobError("expect", f"{request.expect}", remedy="give the number that a dry run says")
    return request


def _check_scope(action: Action, request: ControlRequest) -> None:
    if request.ids and (request.filter is not None or request.everything):
        raise InvalidJobError("ids", "given beside a filter", remedy="name jobs, or give a filter, not both")
    if request.ids and request.expect is not None:
        raise InvalidJobError("expect", "given beside ids", remedy="it goes with a filter; count the ids yourself")
    if len(request.ids) > IDS_MAX:
        raise InvalidJobError("ids", f"{len(request.ids)}, the limit is {IDS_MAX}", remedy="send them in parts")
    if request.ids:
        return
    if request.filter is not None and not request.filter.is_empty:
        statuses_of(action, request.filter)
        check_filter(request.filter)
    elif not request.everything:
        raise InvalidJobError("filter", "is empty", remedy="name jobs or give a filter; for all jobs say so (--all)")


def check_change(action: Action, change: Change) -> None:
    """Raises: InvalidJobError, InvalidNameError."""
    given = {name for name in Change.__struct_fields__ if getattr(change, name) not in (None, False)}
    unknown = sorted(given - TAKES[action])
    if unknown:
        takes = ", ".join(sorted(TAKES[action])) or "nothing"
        raise InvalidJobError(unknown[0], f"{action.value} does not take it", remedy=f"it takes {takes}")
    if action in NEEDS_ONE and not given:
        raise InvalidJobError(
            NEEDS_ONE[action][0], "is missing", remedy=f"{action.value} needs {' or '.join(NEEDS_ONE[action])}"
        )
    check_fields(Submission(handler="any", run_at=change.run_at, lane=change.lane, priority=change.priority))
    if change.max_attempts is not None and not 1 <= change.max_attempts <= limits.ATTEMPTS_MAX:
        raise InvalidJobError("max_attempts", f"{change.max_attempts}", remedy=f"give 1 to {limits.ATTEMPTS_MAX}")
    if change.args is not None:
        check_args(bytes(change.args))


def check_filter(wanted: JobFilter) -> None:
    """Raises: InvalidJobError, InvalidNameError."""
    check_fields(
        Submission(handler="any", lane=wanted.lane, priority=wanted.priority, metadata=wanted.metadata or None)
    )
    if wanted.handler is not None:
        parse_handler_name(wanted.handler)
    if wanted.schedule is not None:
        check_schedule_name(wanted.schedule)
    for name in ("queued_from", "queued_until", "due_from", "due_until"):
        at = getattr(wanted, name)
        if at is not None and at.tzinfo is None:
            raise InvalidJobError(name, f"{at} has no UTC offset", remedy="write it with one, or with Z for UTC")


def statuses_of(action: Action, wanted: JobFilter | None) -> list[int]:
    """The states that a filter picks from: those named, else the action's own.

    Raises:
        InvalidJobError: an unknown one, or one that the action never applies to.
    """
    if wanted is None or not wanted.status:
        return sorted(BULK_DEFAULT[action])
    applies = ", ".join(sorted(status.label for status in APPLIES_TO[action]))
    found: set[JobStatus] = set()
    for label in wanted.status:
        status = STATUS_BY_LABEL.get(label)
        if status is None:
            raise InvalidJobError("status", f"{label[:40]!r} is unknown", remedy=f"use {applies}")
        if status not in APPLIES_TO[action]:
            raise InvalidJobError("status", f"{action.value} does nothing to {label} jobs", remedy=f"use {applies}")
        found.add(status)
    return sorted(found)


def priority_number(label: str | None) -> int | None:
    return None if label is None else int(PRIORITY_BY_LABEL[label])
