"""From the bytes of a submission to a job that can be saved, or to the reason why not. A bad job spoils no other."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from jm_core import limits, scan, wire
from jm_core.errors import InvalidJobError, InvalidNameError
from jm_core.ids import (
    NEW_ID_REMEDY,
    JobId,
    Lane,
    derived_job_id,
    is_canonical_id,
    is_handler_name,
    is_name,
    parse_handler_name,
    parse_job_id,
    parse_name,
)
from jm_core.model import DEFAULT_LANE, PRIORITY_BY_LABEL, OnConflict, Priority
from jm_core.payload import check_args
from jm_core.rejection import Rejection, located, refused, rejection, remedy_for, undecodable, wrong_count
from jm_core.traceparent import usable_traceparent
from jm_core.wire import HandlerDefaults, Submission


class NewJob(Struct, gc=False):
    """A valid job with every default filled in. ``args`` is the JSON text to store."""

    id: JobId
    handler: str
    args: bytes
    run_at: datetime | None  # None: as soon as it is saved
    lane: Lane
    priority: Priority
    max_attempts: int
    timeout_s: float
    unique_key: str | None = None
    metadata: dict[str, str] | None = None
    trace: str | None = None
    unique_for_s: float | None = None
    on_conflict: str | None = None


class ClusterDefaults(Struct, frozen=True):
    lane: str = DEFAULT_LANE
    priority: Priority = Priority.MEDIUM
    max_attempts: int = limits.MAX_ATTEMPTS
    timeout_s: float = limits.JOB_TIMEOUT_S


class Origin(Struct, frozen=True):
    """Where a message lies in its stream: what ids and due times of its jobs are derived from."""

    stream: str
    seq: int
    timestamp_ns: int  # the server's clock when it stored the message


Parsed = NewJob | Rejection
__all__ = [
    "ClusterDefaults",
    "NewJob",
    "Origin",
    "Parsed",
    "Rejection",
    "check_fields",
    "raw_jobs",
    "read_message",
    "resolve",
]
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SPACES: Final = b" \t\r\n"
_CHECKED: Final = [name for name in Submission.__struct_fields__ if name != "args"]


def read_message(
    data: bytes, origin: Origin, handlers: Mapping[str, HandlerDefaults], cluster: ClusterDefaults
) -> list[Parsed]:
    """Every job of one message, in order, each accepted or refused by itself.

    The quick path decodes the whole message at once; only when that fails is it taken apart.
    """
    if len(data) > limits.MESSAGE_BYTES_MAX:
        problem = f"message of {len(data)} bytes, the limit is {limits.MESSAGE_BYTES_MAX}"
        return [rejection(data, f"{problem}; send fewer jobs per message")]
    data = data.removeprefix(_BYTE_ORDER_MARK)
    try:
        submissions = wire.decode_submissions(data) if _is_array(data) else [wire.decode_submission(data)]
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _read_apart(data, origin, handlers, cluster)
    if not 0 < len(submissions) <= limits.MESSAGE_JOBS_MAX:
        return [wrong_count(data, str(len(submissions)))]
    parsed: list[Parsed] = []
    parts: list[bytes] = []
    reader = _Reader(origin, handlers, cluster)
    for index, submission in enumerate(submissions):
        try:
            parsed.append(reader.resolve(submission, index))
        except (InvalidJobError, InvalidNameError) as error:
            parts = parts or raw_jobs(data)
            parsed.append(refused(parts[index], error, submission))
    return parsed


def _read_apart(
    data: bytes, origin: Origin, handlers: Mapping[str, HandlerDefaults], cluster: ClusterDefaults
) -> list[Parsed]:
    parts = raw_jobs(data)
    if len(parts) > limits.MESSAGE_JOBS_MAX:
        return [wrong_count(data, f"more than {limits.MESSAGE_JOBS_MAX}")]
    reader = _Reader(origin, handlers, cluster)
    return [_one(raw, index, reader) for index, raw in enumerate(parts)]


def resolve(
    submission: Submission,
    index: int,
    origin: Origin,
    handlers: Mapping[str, HandlerDefaults],
    cluster: ClusterDefaults,
) -> NewJob:
    """Check one decoded submission and fill in what it leaves out: the handler's defaults, then the cluster's.

    Raises:
        InvalidJobError, InvalidNameError: naming field, limit and remedy.
    """
    return _Reader(origin, handlers, cluster).resolve(submission, index)


class _Kind(Struct, frozen=True, gc=False):
    """What jobs have in common that name the same handler and ask for the same."""

    lane: Lane
    priority: Priority
    max_attempts: int
    timeout_s: float


class _Reader:
    """Resolves the jobs of one message. What they have in common, which is nearly all of it in nearly every message, is
    checked and filled in once: this runs for every job of the whole system.
    """

    def __init__(self, origin: Origin, handlers: Mapping[str, HandlerDefaults], cluster: ClusterDefaults) -> None:
        self._origin = origin
        self._handlers = handlers
        self._cluster = cluster
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def resolve(self, submission: Submission, index: int) -> NewJob:
        """See ``resolve``."""
        handler = submission.handler
        key = (handler, submission.lane, submission.priority, submission.max_attempts, submission.timeout_s)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._kind_of(submission)
        run_at, own_key, metadata = submission.run_at, submission.unique_key, submission.metadata
        unique_for_s, on_conflict = submission.unique_for_s, submission.on_conflict
        plain = run_at is None and own_key is None and metadata is None and unique_for_s is None and on_conflict is None
        if not plain:
            _check_extras(submission)
        args = bytes(submission.args)
        if args == b"null":
            args = b"{}"
        elif args != b"{}":
            check_args(args)
        job_id, trace = submission.id, submission.trace
        return NewJob(
            JobId(job_id) if job_id is not None and is_canonical_id(job_id) else self._id_of(job_id, index),
            handler,
            args,
            None if run_at is None and not submission.delay_s else _due(submission, self._origin),
            kind.lane,
            kind.priority,
            kind.max_attempts,
            kind.timeout_s,
            own_key,
            metadata,
            None if trace is None else usable_traceparent(trace),
            unique_for_s,
            on_conflict,
        )

    def _kind_of(self, submission: Submission) -> _Kind:
        _check_common(submission)
        known, cluster = self._handlers.get(submission.handler), self._cluster
        label = submission.priority
        if label is not None:
            priority = PRIORITY_BY_LABEL[label]
        else:
            # What a worker of another version declared may be unknown here; that must not stop the writer.
            priority = PRIORITY_BY_LABEL.get(known.priority, cluster.priority) if known else cluster.priority
        return _Kind(
            Lane(submission.lane or (known.lane if known else cluster.lane)),
            priority,
            submission.max_attempts or (known.max_attempts if known else cluster.max_attempts),
            submission.timeout_s or (known.timeout_s if known else cluster.timeout_s),
        )

    def _id_of(self, given: str | None, index: int) -> JobId:
        if given is not None:
            return parse_job_id(given, remedy=NEW_ID_REMEDY)
        origin = self._origin
        return derived_job_id(origin.stream, origin.seq, index, origin.timestamp_ns // 1_000_000)


def check_fields(submission: Submission) -> None:
    """Everything but ``args`` of a submission that Python code built, as strictly as if it had come over the wire.

    Struct constraints hold where a message is decoded, not where an object is made. Shared by every entry path that
    does not decode (BR-117).

    Raises:
        InvalidJobError, InvalidNameError.
    """
    given = {name: value for name in _CHECKED if (value := getattr(submission, name)) is not None}
    try:
        decoded = msgspec.convert(given, Submission)
    except msgspec.ValidationError as error:
        field, problem = located(error)
        raise InvalidJobError(field or "handler", problem, remedy=remedy_for(problem)) from None
    _check_meaning(decoded)


def _check_meaning(submission: Submission) -> None:
    """The checks that types alone cannot make."""
    _check_common(submission)
    _check_extras(submission)


def _check_common(submission: Submission) -> None:
    """Of what many jobs share."""
    if not is_handler_name(submission.handler):
        parse_handler_name(submission.handler)
    if submission.lane is not None and not is_name(submission.lane):
        parse_name("lane", submission.lane)
    if submission.priority is not None and submission.priority not in PRIORITY_BY_LABEL:
        raise InvalidJobError(
            "priority", f"{submission.priority[:40]!r} is unknown", remedy=f"use one of {', '.join(PRIORITY_BY_LABEL)}"
        )


def _check_extras(submission: Submission) -> None:
    """Of what each job has for itself, and most have not."""
    if submission.run_at is not None:
        _check_run_at(submission)
    if submission.unique_key is not None:
        _check_unique_key(submission.unique_key)
    if submission.unique_for_s is not None or submission.on_conflict is not None:
        _check_scope(submission)
    if submission.metadata is not None:
        _check_metadata(submission.metadata)


def _check_run_at(submission: Submission) -> None:
    run_at = submission.run_at
    assert run_at is not None
    if submission.delay_s is not None:
        raise InvalidJobError("delay_s", "given together with run_at", remedy="send one of the two")
    if not limits.RUN_AT_YEAR_MIN <= run_at.year <= limits.RUN_AT_YEAR_MAX:
        raise InvalidJobError(
            "run_at",
            f"year {run_at.year} is outside {limits.RUN_AT_YEAR_MIN} to {limits.RUN_AT_YEAR_MAX}",
            remedy="leave run_at out to run now",
        )


def _check_unique_key(key: str) -> None:
    if not key.strip() or len(key) > limits.UNIQUE_KEY_CHARS_MAX:
        raise InvalidJobError(
            "unique_key",
            f"must be 1 to {limits.UNIQUE_KEY_CHARS_MAX} characters, not blank",
            remedy="shorten or hash it",
        )
    _text_bytes("unique_key", key)


def _check_scope(submission: Submission) -> None:
    if submission.unique_key is None:
        field = "unique_for_s" if submission.unique_for_s is not None else "on_conflict"
        raise InvalidJobError(field, "given without unique_key", remedy="give the key, too, or leave it out")
    if submission.on_conflict is not None and submission.on_conflict not in tuple(OnConflict):
        raise InvalidJobError(
            "on_conflict",
            f"{submission.on_conflict[:40]!r} is unknown",
            remedy=f"use one of {', '.join(OnConflict)}",
        )


def _check_metadata(metadata: dict[str, str]) -> None:
    size = sum(_text_bytes("metadata", key) + _text_bytes(f"metadata.{key}", text) for key, text in metadata.items())
    if size > limits.METADATA_BYTES_MAX:
        raise InvalidJobError(
            "metadata", f"{size} bytes, the limit is {limits.METADATA_BYTES_MAX}", remedy="move it into args"
        )


def _text_bytes(field: str, text: str) -> int:
    """Bytes of ``text`` in UTF-8.

    Raises:
        InvalidJobError: Postgres or UTF-8 cannot hold it.
    """
    if "\0" in text:
        raise InvalidJobError(field, "contains a NUL character", remedy="remove it")
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidJobError(field, "contains half a surrogate pair", remedy="send valid Unicode") from None


def _due(submission: Submission, origin: Origin) -> datetime | None:
    if submission.run_at is not None:
        return submission.run_at.astimezone(UTC)
    if submission.delay_s:
        # From when the server stored it, not from when somebody read it: a slow writer must not lengthen a delay.
        return datetime.fromtimestamp(origin.timestamp_ns / 1e9, UTC) + timedelta(seconds=submission.delay_s)
    return None


def _is_array(data: bytes) -> bool:
    return data.lstrip(_SPACES)[:1] == b"["


def raw_jobs(data: bytes) -> list[bytes]:
    """The jobs of a message, each as the bytes that were sent, whatever is wrong with its neighbours."""
    return scan.elements(data, at_most=limits.MESSAGE_JOBS_MAX + 1) if _is_array(data) else [data]


def _one(raw: bytes, index: int, reader: _Reader) -> Parsed:
    try:
        submission = wire.decode_submission(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return undecodable(raw, error)
    try:
        return reader.resolve(submission, index)
    except (InvalidJobError, InvalidNameError) as error:
        return refused(raw, error, submission)
