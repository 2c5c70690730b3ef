"""From the bytes of a submission to a job that can be saved, or to the reason why not. A bad job spoils no other."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from jm_core import limits, wire
from jm_core.errors import InvalidJobError, InvalidNameError
from jm_core.ids import (
    JobId,
    Lane,
    derived_job_id,
    is_handler_name,
    is_name,
    parse_handler_name,
    parse_job_id,
    parse_name,
)
from jm_core.model import DEFAULT_LANE, PRIORITY_BY_LABEL, Priority
from jm_core.payload import check_args
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


class Rejection(Struct, frozen=True):
    """Why a job was refused, with the bytes that were sent, for table ``rejected`` and the receipt."""

    raw: bytes
    reason: str
    job_id: str = ""
    handler: str = ""
    field: str = ""


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
_NAIVE: Final = "Expected datetime with a timezone component"


def read_message(
    data: bytes, origin: Origin, handlers: Mapping[str, HandlerDefaults], cluster: ClusterDefaults
) -> list[Parsed]:
    """Every job of one message, in order, each accepted or refused by itself.

    The quick path decodes the whole message at once; only when that fails is it taken apart.
    """
    if len(data) > limits.MESSAGE_BYTES_MAX:
        reason = f"message of {len(data)} bytes, the limit is {limits.MESSAGE_BYTES_MAX}; send fewer jobs per message"
        return [Rejection(data, reason)]
    try:
        submissions = wire.decode_submissions(data) if _is_array(data) else [wire.decode_submission(data)]
    except (msgspec.DecodeError, RecursionError, ValueError):
        return [_one(raw, i, origin, handlers, cluster) for i, raw in enumerate(_split(data))]
    if not 0 < len(submissions) <= limits.MESSAGE_JOBS_MAX:
        return [_wrong_count(data, len(submissions))]
    parsed: list[Parsed] = []
    for index, submission in enumerate(submissions):
        try:
            parsed.append(resolve(submission, index, origin, handlers, cluster))
        except (InvalidJobError, InvalidNameError) as error:
            parsed.append(_refused(wire.encode(submission), error, submission))
    return parsed


def resolve(
    submission: Submission,
    index: int,
    origin: Origin,
    handlers: Mapping[str, HandlerDefaults],
    cluster: ClusterDefaults,
) -> NewJob:
    """Check one submission and fill in what it leaves out: the handler's defaults, then the cluster's.

    Raises:
        InvalidJobError, InvalidNameError: naming field, limit and remedy.
    """
    check_fields(submission)
    known = handlers.get(submission.handler)
    lane = submission.lane or (known.lane if known else cluster.lane)
    label = submission.priority
    if label is not None:
        priority = PRIORITY_BY_LABEL[label]
    else:
        priority = PRIORITY_BY_LABEL[known.priority] if known else cluster.priority
    args = bytes(submission.args)
    if args == b"null":
        args = b"{}"
    elif args != b"{}":
        check_args(args)
    job_id = (
        derived_job_id(origin.stream, origin.seq, index, origin.timestamp_ns // 1_000_000)
        if submission.id is None
        else parse_job_id(submission.id)
    )
    return NewJob(
        job_id,
        submission.handler,
        args,
        _due(submission, origin),
        Lane(lane),
        priority,
        submission.max_attempts or (known.max_attempts if known else cluster.max_attempts),
        submission.timeout_s or (known.timeout_s if known else cluster.timeout_s),
        submission.unique_key,
        submission.metadata,
        submission.trace,
    )


def check_fields(submission: Submission) -> None:
    """The checks that types alone cannot make. Shared by every entry path: client, CLI, writer (BR-117).

    Raises:
        InvalidJobError, InvalidNameError.
    """
    if not is_handler_name(submission.handler):
        parse_handler_name(submission.handler)
    if submission.lane is not None and not is_name(submission.lane):
        parse_name("lane", submission.lane)
    if submission.priority is not None and submission.priority not in PRIORITY_BY_LABEL:
        raise InvalidJobError(
            "priority", f"{submission.priority[:40]!r} is unknown", remedy=f"use one of {', '.join(PRIORITY_BY_LABEL)}"
        )
    if submission.run_at is not None:
        _check_run_at(submission)
    if submission.unique_key is not None:
        _check_unique_key(submission.unique_key)
    if submission.metadata is not None:
        _check_metadata(submission.metadata)


def _check_run_at(submission: Submission) -> None:
    run_at = submission.run_at
    assert run_at is not None
    if submission.delay_s is not None:
        raise InvalidJobError("delay_s", "given together with run_at", remedy="send one of the two")
    if run_at.tzinfo is None:
        raise InvalidJobError("run_at", "has no UTC offset", remedy="add one, e.g. 2030-01-01T09:00:00+01:00 or …Z")
    if not limits.RUN_AT_YEAR_MIN <= run_at.year <= limits.RUN_AT_YEAR_MAX:
        raise InvalidJobError(
            "run_at",
            f"year {run_at.year} is outside {limits.RUN_AT_YEAR_MIN} to {limits.RUN_AT_YEAR_MAX}",
            remedy="leave run_at out to run now",
        )


def _check_unique_key(key: str) -> None:
    if not key.strip() or len(key) > limits.UNIQUE_KEY_CHARS_MAX or "\0" in key:
        raise InvalidJobError(
            "unique_key",
            f"must be 1 to {limits.UNIQUE_KEY_CHARS_MAX} characters, not blank, without NUL",
            remedy="shorten or hash it",
        )


def _check_metadata(metadata: dict[str, str]) -> None:
    size = 0
    for key, value in metadata.items():
        size += len(key.encode("utf-8", "surrogatepass")) + len(value.encode("utf-8", "surrogatepass"))
        if "\0" in key or "\0" in value:
            raise InvalidJobError(f"metadata.{key}", "contains a NUL character", remedy="remove it")
    if size > limits.METADATA_BYTES_MAX:
        raise InvalidJobError(
            "metadata", f"{size} bytes, the limit is {limits.METADATA_BYTES_MAX}", remedy="move it into args"
        )


def _due(submission: Submission, origin: Origin) -> datetime | None:
    if submission.run_at is not None:
        return submission.run_at.astimezone(UTC)
    if submission.delay_s:
        # From when the server stored it, not from when somebody read it: a slow writer must not lengthen a delay.
        return datetime.fromtimestamp(origin.timestamp_ns / 1e9, UTC) + timedelta(seconds=submission.delay_s)
    return None


def _is_array(data: bytes) -> bool:
    return data[:1] == b"[" or data[:64].lstrip()[:1] == b"["


def _split(data: bytes) -> list[bytes]:
    """The jobs of a message that did not decode as a whole, each as its own bytes."""
    if not _is_array(data):
        return [data]
    for split in (_split_fast, _split_lenient):
        try:
            parts = split(data)
        except (msgspec.DecodeError, RecursionError, ValueError):
            continue
        return parts if 0 < len(parts) <= limits.MESSAGE_JOBS_MAX else [data]
    return [data]


def _split_fast(data: bytes) -> list[bytes]:
    return [bytes(raw) for raw in wire.decode_raw_array(data)]


def _split_lenient(data: bytes) -> list[bytes]:
    """Python's parser lets NaN and Infinity pass, which is just what is needed to cut the good jobs free of them."""
    dumps: Callable[[Any], str] = json.dumps
    return [dumps(item).encode() for item in json.loads(data)]


def _one(
    raw: bytes, index: int, origin: Origin, handlers: Mapping[str, HandlerDefaults], cluster: ClusterDefaults
) -> Parsed:
    try:
        submission = wire.decode_submission(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return _undecodable(raw, error)
    try:
        return resolve(submission, index, origin, handlers, cluster)
    except (InvalidJobError, InvalidNameError) as error:
        return _refused(raw, error, submission)


def _undecodable(raw: bytes, error: Exception) -> Rejection:
    text = str(error)
    if not raw.strip():
        return Rejection(raw, "empty message; send one JSON object or an array of them")
    if isinstance(error, RecursionError):
        return Rejection(raw, f"nested deeper than {limits.ARGS_DEPTH_MAX} levels; flatten it or send it as text")
    if " - at `$." in text:
        problem, _, path = text.partition(" - at `$.")
        field = path.rstrip("`")
        remedy = "add an offset or Z" if "timezone" in problem else "see docs/wire-format.md for its type and limits"
        return Rejection(raw, f"field '{field}': {problem}; {remedy}", field=field, **_names_in(raw))
    if isinstance(error, msgspec.ValidationError):
        return Rejection(raw, f"{text}; see docs/wire-format.md for the fields", **_names_in(raw))
    return Rejection(raw, f"not a JSON job: {text}; send one JSON object or an array of them, in UTF-8")


def _names_in(raw: bytes) -> dict[str, str]:
    """Id and handler of a job whose other fields are wrong, so that a person can find it in ``rejected``."""
    try:
        value = wire.decode_any(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return {}
    if not isinstance(value, dict):
        return {}
    found = {"job_id": value.get("id"), "handler": value.get("handler")}
    return {name: text[:100].replace("\0", "") for name, text in found.items() if isinstance(text, str)}


def _refused(raw: bytes, error: InvalidJobError | InvalidNameError, submission: Submission) -> Rejection:
    field = error.field if isinstance(error, InvalidJobError) else error.kind
    names = {"job_id": submission.id or "", "handler": submission.handler}
    return Rejection(raw, str(error), field=field, **{k: v[:100].replace("\0", "") for k, v in names.items()})


def _wrong_count(data: bytes, count: int) -> Rejection:
    if not count:
        return Rejection(data, "an empty array; send at least one job")
    return Rejection(
        data, f"{count} jobs in one message, the limit is {limits.MESSAGE_JOBS_MAX}; send several messages"
    )
