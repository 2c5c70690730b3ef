"""Why a job was refused, in words that lead to its repair, whatever a stranger put into the message."""

import re
from typing import Final

import msgspec
from msgspec import Struct

from jm_core import limits, scan, wire
from jm_core.errors import InvalidJobError, InvalidNameError
from jm_core.payload import cut_text
from jm_core.wire import Submission

_NOT_A_NUMBER: Final = re.compile(rb"-?Infinity|NaN")
_LOCATED: Final = re.compile(r"(.*) - at (?:`key` in )?`\$\.(.*)`", re.DOTALL)
_NAME_CHARS_MAX: Final = 100  # of an id or handler name beside a rejection


class Rejection(Struct, frozen=True):
    """Why a job was refused, with the bytes that were sent, for table ``rejected`` and the receipt."""

    raw: bytes
    reason: str
    job_id: str = ""
    handler: str = ""
    field: str = ""


def undecodable(raw: bytes, error: Exception) -> Rejection:
    if not raw.strip():
        return rejection(raw, "nothing where a job should be; send one JSON object, or an array of them")
    members = scan.members(raw, at_most=1_000)
    field, problem = located(error)
    if not field:
        field, problem = _culprit(members, error)
    names = _names_in(members)
    if not field:
        return rejection(raw, f"not a job: {problem}; send one JSON object, or an array of them, in UTF-8", **names)
    refusal = InvalidJobError(field, problem, remedy=remedy_for(problem))
    return rejection(raw, str(refusal), field=refusal.field, **names)


def located(error: Exception) -> tuple[str, str]:
    """(field or nothing, problem) of msgspec's message."""
    match = _LOCATED.fullmatch(str(error))
    return (match[2], match[1]) if match else ("", str(error))


def _culprit(members: list[tuple[bytes, bytes]], error: Exception) -> tuple[str, str]:
    """Which member spoils a job that cannot be read as a whole, and how."""
    if isinstance(error, msgspec.ValidationError):
        return ("handler", "is missing") if "`handler`" in str(error) else ("", str(error))
    for key, value in members:
        try:
            wire.decode_any(value)
        except RecursionError:
            return _text(key), f"nested deeper than {limits.ARGS_DEPTH_MAX} levels"
        except (msgspec.DecodeError, ValueError) as wrong:
            found = _NOT_A_NUMBER.search(scan.without_texts(value))
            return _text(key), f"{found[0].decode()} is not JSON" if found else str(wrong).partition(" (byte ")[0]
    return "", str(error)


def remedy_for(problem: str) -> str:
    if "timezone" in problem:
        return "add an offset, e.g. +01:00 or Z"
    if "nested" in problem:
        return "flatten it or send it as text"
    if "not JSON" in problem:
        return "send null or text instead"
    return "see docs/wire-format.md for its type and limits"


def _text(raw: bytes) -> str:
    """A JSON text's value, or what can be seen of it."""
    try:
        value = wire.decode_any(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        value = raw.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _names_in(members: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Id and handler of a job whose other fields are wrong, so that a person can find it in ``rejected``."""
    names = {b'"id"': "job_id", b'"handler"': "handler"}
    return {names[key]: _text(value) for key, value in members if key in names}


def refused(raw: bytes, error: InvalidJobError | InvalidNameError, submission: Submission) -> Rejection:
    field = error.field if isinstance(error, InvalidJobError) else error.kind
    return rejection(raw, str(error), field=field, job_id=submission.id or "", handler=submission.handler)


def wrong_count(data: bytes, count: str) -> Rejection:
    if count == "0":
        return rejection(data, "an empty array; send at least one job")
    problem = f"{count} jobs in one message, the limit is {limits.MESSAGE_JOBS_MAX}"
    return rejection(data, f"{problem}; send several messages")


def rejection(raw: bytes, reason: str, *, field: str = "", job_id: str = "", handler: str = "") -> Rejection:
    """All of it was a stranger's text: bounded, and made fit for Postgres, before it goes on."""
    job_id, handler, field = (cut_text(name, _NAME_CHARS_MAX) for name in (job_id, handler, field))
    return Rejection(raw, cut_text(reason, limits.REASON_BYTES_MAX), job_id, handler, field)
