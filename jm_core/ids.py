"""Identifiers: what they look like, how they are read. Making random ones is the callers' business."""

import hashlib
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Final, NewType

from jm_core.errors import InvalidJobError, InvalidNameError

JobId = NewType("JobId", str)  # canonical lower-case UUID text; ours are version 7
BucketId = NewType("BucketId", str)
WorkerId = NewType("WorkerId", str)
Lane = NewType("Lane", str)
Epoch = NewType("Epoch", int)
Term = NewType("Term", int)

# Lanes, buckets and workers become NATS subject tokens and stream names, so nothing else is let through, and
# nothing is "cleaned": two different inputs must never meet in one name (BR-224, BR-225).
NAME_PATTERN: Final = "[A-Za-z0-9_-]{1,40}"
# Dots only between other characters: the name is also part of a KV key.
HANDLER_PATTERN: Final = "(?!.*[.]{2})[A-Za-z0-9][A-Za-z0-9._-]{0,99}(?<![.])"
_name = re.compile(NAME_PATTERN)
_handler = re.compile(HANDLER_PATTERN)
_canonical = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
is_name = _name.fullmatch
is_handler_name = _handler.fullmatch
is_canonical_id = _canonical.fullmatch


def parse_name(kind: str, text: str) -> str:
    """``text`` unchanged when it is a legal lane, bucket, worker or cluster name.

    Raises:
        InvalidNameError: for anything outside ``NAME_PATTERN``.
    """
    if not is_name(text):
        raise InvalidNameError(kind, text, NAME_PATTERN)
    return text


def parse_handler_name(text: str) -> str:
    """``text`` unchanged when it is a legal handler name (dots allowed: it never becomes a subject).

    Raises:
        InvalidNameError: for anything outside ``HANDLER_PATTERN``.
    """
    if not is_handler_name(text):
        raise InvalidNameError("handler", text, HANDLER_PATTERN)
    return text


NEW_ID_REMEDY: Final = "leave it out, or send a UUID (version 7 is best)"  # for who makes a job
KNOWN_ID_REMEDY: Final = "give the whole id, 36 characters, as it was printed"  # for who means one that there is


def parse_job_id(text: str, *, remedy: str = KNOWN_ID_REMEDY) -> JobId:
    """The canonical form of a job id: a UUID of any version, upper case and dashes as written by its maker.

    One rule for every entry path (BR-115): a UUID or nothing, stored in lower case, so that "A" and "a" are the
    same job and a digit-only id can never meet a generated one.

    Raises:
        InvalidJobError: not a UUID in the 36-character form.
    """
    if is_canonical_id(text):
        return JobId(text)
    lowered = text.lower()
    if is_canonical_id(lowered):
        return JobId(lowered)
    shown = text if len(text) <= 60 else text[:57] + "..."
    raise InvalidJobError("id", f"{shown!r} is not a UUID", remedy=remedy)


def derived_job_id(stream: str, seq: int, index: int, timestamp_ms: int) -> JobId:
    """The id of a job whose sender gave none: the same at every redelivery of its message.

    A random id would make a second job of a message that is delivered twice (writer killed between COMMIT and
    ack). The layout is UUID version 7 (RFC 9562): the stream's own time stamp, then a hash of where the job lies.
    """
    return _version_7(f"{stream}/{seq}/{index}/{timestamp_ms}", timestamp_ms)


def occurrence_id(cluster: str, schedule_id: str, generation: int, instant: datetime) -> JobId:
    """The id of the job that a schedule makes for one of its instants: the same, whoever plans it and how often.

    Args:
        schedule_id: of the schedule's creation; one that is deleted and made again under its name gets other ids.
        generation: grows when planned jobs are taken back; what is planned anew must not meet the cancelled ones.
    """
    since = instant.astimezone(UTC) - _EPOCH
    return _version_7(f"schedule/{cluster}/{schedule_id}/{generation}/{since}", since // timedelta(milliseconds=1))


def _version_7(origin: str, timestamp_ms: int) -> JobId:
    digest = hashlib.sha256(origin.encode()).digest()
    bits = (timestamp_ms & (1 << 48) - 1) << 80 | int.from_bytes(digest[:10], "big")
    bits = bits & ~(0xF << 76) | 7 << 76
    bits = bits & ~(0x3 << 62) | 2 << 62
    return JobId(str(uuid.UUID(int=bits)))
