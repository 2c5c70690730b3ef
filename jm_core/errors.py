"""The error tree. Every message says what, which, limit, remedy; the same facts are fields."""

import math
from collections.abc import Mapping

from jm_core import limits


class JmError(Exception):
    """Root of everything JobMaster raises on purpose."""


class InvalidJobError(JmError, ValueError):
    """A submission that can never be accepted as it stands.

    Args:
        field: path of the offending field as the caller wrote it, e.g. ``args.items[3]``; the middle of a long one is
            left out.
        problem: what is wrong, with the limit where there is one.
        remedy: what to do instead, one clause.
    """

    def __init__(self, field: str, problem: str, *, remedy: str) -> None:
        field = _printable(field)
        super().__init__(f"field '{field}': {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


def _cut(text: str) -> str:
    """The middle of a long one is left out."""
    half = limits.PROBLEM_CHARS_MAX // 2
    return text if len(text) <= limits.PROBLEM_CHARS_MAX else f"{text[: half - 1]}…{text[-half:]}"


def _printable(path: str) -> str:
    """A path is made of a stranger's keys: it may be long, and hold what neither a log nor Postgres takes."""
    if len(path) > limits.PATH_CHARS_MAX:
        half = limits.PATH_CHARS_MAX // 2
        path = f"{path[: half - 1]}…{path[-half:]}"
    return path if path.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)


class InvalidNameError(JmError, ValueError):
    """A cluster, lane, bucket, worker or handler name outside the published pattern."""

    def __init__(self, kind: str, name: str, pattern: str) -> None:
        shown = name if len(name) <= 60 else name[:57] + "..."
        super().__init__(f"{kind} {shown!r} is not a valid name: it must match {pattern}; choose another name")
        self.kind = kind
        self.name = name
        self.pattern = pattern


class InvalidSettingError(JmError, ValueError):
    """A setting that contradicts another or its own bounds; refused before anything starts."""


def check_finite(settings: Mapping[str, object]) -> None:
    """Refuse NaN, which passes every comparison with a bound, and infinity, of which no timer can be made.

    Raises:
        InvalidSettingError
    """
    for name, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidSettingError(f"{name} is {value}; it must be a finite number")


class InvalidScheduleError(JmError, ValueError):
    """A schedule, or a part of it, that can never be accepted as it stands.

    Args:
        field: which part: ``cron``, ``every``, ``rrule``, ``plain``, ``zone``, ``after``, ...
        problem: what is wrong with it, the limit where there is one.
        position: the character of the expression where it goes wrong, 1-based; None: the whole of it.
        expected: what could stand there instead.
        remedy: what to do, one clause.
    """

    def __init__(
        self, field: str, problem: str, position: int | None = None, expected: tuple[str, ...] = (), *, remedy: str
    ) -> None:
        problem = _cut(problem)  # it quotes a stranger's text
        where = f" at position {position}" if position is not None else ""
        wanted = f"; expected {' or '.join(expected)}" if expected else ""
        super().__init__(f"schedule, {field}: {problem}{where}{wanted}; {remedy}")
        self.field = field
        self.problem = problem
        self.position = position
        self.expected = expected
        self.remedy = remedy


class ScheduleRefusedError(JmError, ValueError):
    """The coordinator found something wrong with a schedule; the message is its own and says what, which, remedy."""


class NoSuchAgentError(JmError, LookupError):
    """The cluster has no agent of this name."""


class NoSuchScheduleError(JmError, LookupError):
    """The cluster has no schedule of this name."""


class ScheduleConflictError(JmError):
    """What was asked does not go together with the schedule as it is: the name is taken, it is declared in code, it is
    another revision by now, or an unfinished job has its unique key. Nothing was changed.
    """


class IllegalMoveError(JmError):
    """A state machine was asked for a move that its table does not have. Always a bug."""


class JobFailedError(JmError):
    """Raised by ``client.result``: the job ended without a result."""

    def __init__(self, job_id: str, status: str, error: str | None) -> None:
        super().__init__(f"job {job_id} ended {status}" + (f": {error}" if error else ""))
        self.job_id = job_id
        self.status = status
        self.error = error


class ResultTypeError(JmError, TypeError):
    """The job succeeded, and its result is not of the type that the caller asked for."""

    def __init__(self, job_id: str, type_name: str, problem: str) -> None:
        super().__init__(f"job {job_id}: its result is no {type_name}: {problem}; ask for it without a type to see it")
        self.job_id = job_id
        self.type_name = type_name
        self.problem = problem


class ClusterUnknownError(JmError):
    """NATS has no front door for this cluster: no coordinator or worker of it has ever run here."""

    def __init__(self, cluster: str, server: str) -> None:
        super().__init__(
            f"NATS at {server} knows no cluster {cluster!r}; check the name, "
            "or start its coordinator once: jm coordinator"
        )
        self.cluster = cluster


class ClusterArchivedError(JmError):
    """The cluster was archived: it takes no jobs and no changes, and answers questions only. Nothing was sent."""


class NoSuchJobError(JmError, LookupError):
    """The master has no job with this id (yet: a job only ``queued`` is not known to it)."""


class ActionRefusedError(JmError):
    """An operator's action does not apply to the job as it is, or not to as many jobs as expected; nothing changed."""


class ResultTimeoutError(JmError, TimeoutError):
    """The job had not ended when the caller's patience did. The job itself goes on."""


class DuplicateJobError(JmError):
    """With ``on_conflict="reject"``: the unique key is held by ``existing_id``; nothing was added."""

    def __init__(self, job_id: str, existing_id: str) -> None:
        super().__init__(f"job {job_id} was not added: its unique key is held by job {existing_id}")
        self.job_id = job_id
        self.existing_id = existing_id


class RejectedError(JmError):
    """The writer refused a job after it was queued; ``reason`` is the text kept in table ``rejected``."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id} was rejected: {reason}")
        self.job_id = job_id
        self.reason = reason
