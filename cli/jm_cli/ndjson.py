"""Jobs in a file, one JSON object a line: read with bounded memory, checked as strictly as a person needs."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import BinaryIO, Final

import msgspec

from jm_cli.exits import CliError, ExitCode
from jm_core import limits
from jm_core.errors import InvalidJobError, InvalidNameError
from jm_core.wire import Submission
from jm_nats.client import prepared

_BOM: Final = b"\xef\xbb\xbf"
_UNKNOWN: Final = "Object contains unknown field `"


class _StrictSubmission(Submission, forbid_unknown_fields=True):
    """On the wire an unknown field is a newer client's; in a file that somebody wrote it is a misspelt one (BR-116)."""


_decode = msgspec.json.Decoder(_StrictSubmission).decode


class BadLineError(CliError):
    """A line that is no job.

    Args:
        number: of the line, from 1.
        problem: with the field's name and the remedy.
    """

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(ExitCode.USAGE, f"line {number}: {problem}")
        self.number = number
        self.problem = problem


def read_jobs(file: BinaryIO, *, skip: int = 0) -> Iterator[Submission]:
    """The jobs of a file, each checked as the client checks it and with an id; blank lines are passed over.

    Args:
        skip: jobs to pass over unread.

    Raises:
        BadLineError.
    """
    number = found = 0
    while line := file.readline(limits.MESSAGE_BYTES_MAX + 1):
        number += 1
        if len(line) > limits.MESSAGE_BYTES_MAX:
            raise BadLineError(number, f"longer than {limits.MESSAGE_BYTES_MAX} bytes; pass a reference instead")
        text = (line.removeprefix(_BOM) if number == 1 else line).strip()
        found += bool(text)
        if text and found > skip:
            yield _job(number, text)


def _job(number: int, text: bytes) -> Submission:
    try:
        return prepared(_decode(text))
    except (InvalidJobError, InvalidNameError) as error:
        raise BadLineError(number, str(error)) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BadLineError(number, _explained(str(error))) from None


def _explained(problem: str) -> str:
    if problem.startswith(_UNKNOWN):
        name = problem.removeprefix(_UNKNOWN).partition("`")[0]
        near = get_close_matches(name, Submission.__struct_fields__, 1)
        remedy = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(Submission.__struct_fields__)}"
        return f"field '{name}': no such field; {remedy}"
    what, _, path = problem.partition(" - at `$")
    if path.strip("`."):
        return f"field '{path.strip('`.')}': {what}; see docs/wire-format.md for its type and limits"
    return f"no job: {what}; write one JSON object per line (of an array: jq -c '.[]')"
