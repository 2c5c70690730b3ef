"""``jm submit --file``: many jobs, packed; checked as a whole before the first is sent."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from msgspec import Struct

from jm_cli.exits import CliError, ExitCode, UsageError, exit_code_of
from jm_cli.ndjson import BadLineError, read_jobs
from jm_cli.piped import piped_in
from jm_cli.plain_text import safe
from jm_cli.render import print_json, print_line, say
from jm_cli.running import ClientOptions, run_briefly
from jm_core.errors import JmError
from jm_core.wire import ReceiptStatus, Submission

if TYPE_CHECKING:
    from jm_nats.client import Receipt

SPOOL_BYTES_MAX: Final = 8 * 1024 * 1024  # of stdin; what exceeds it goes to a temporary file
REJECTED_SHOWN: Final = 5


class Tally(Struct):
    """What became of the file's jobs."""

    queued: int = 0
    recorded: int = 0
    duplicate: int = 0
    rejected: int = 0

    @property
    def answered(self) -> int:
        return self.queued + self.recorded + self.duplicate + self.rejected

    def add(self, receipts: "list[Receipt]") -> None:
        for receipt in receipts:
            setattr(self, receipt.status, getattr(self, receipt.status) + 1)

    def text(self) -> str:
        counts = {name: getattr(self, name) for name in self.__struct_fields__}
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "0 queued"


def submit_file(
    options: ClientOptions,
    name: str,
    *,
    skip: int,
    check: bool,
    recorded: bool,
    patience_s: float,
    as_json: bool,
    trace: str | None = None,
) -> None:
    """Submit all lines of the file ``name``.

    Args:
        trace: traceparent of the jobs that bring none.

    Raises:
        BadLineError: with ``check`` nothing was sent; without it, with what was.
        CliError: what went wrong, and what had been queued by then.
    """
    tally = Tally()
    with ExitStack() as stack:
        source = _open(name)
        stack.callback(source.close)
        total = None
        if check:
            source, total = _checked(source, skip, stack)
        jobs = _Jobs(source, skip, trace)
        try:
            run_briefly(_send(options, jobs, tally, total, recorded=recorded, patience_s=patience_s))
        except JmError as error:
            raise CliError(exit_code_of(error), f"{error}; {_so_far(tally, skip)}") from error
        if jobs.bad is not None:
            raise BadLineError(jobs.bad.number, f"{jobs.bad.problem}; {tally.text()} before it")
    if as_json:
        print_json(tally)
    else:
        print_line(tally.text())
    if tally.rejected:
        raise CliError(
            ExitCode.OUTCOME, f"{tally.rejected} of {tally.answered} jobs were rejected; see 'jm rejected list'"
        )


class _Jobs:
    """The jobs of a file up to the first bad line. That one ends the stream without an error, so that what was read
    before it is sent to the end and can be counted.
    """

    def __init__(self, source: BinaryIO, skip: int, trace: str | None) -> None:
        self._source = source
        self._skip = skip
        self._trace = trace
        self.bad: BadLineError | None = None

    def __iter__(self) -> Iterator[Submission]:
        try:
            for job in read_jobs(self._source, skip=self._skip):
                if job.trace is None:
                    job.trace = self._trace
                yield job
        except BadLineError as error:
            self.bad = error


async def _send(
    options: ClientOptions, jobs: _Jobs, tally: Tally, total: int | None, *, recorded: bool, patience_s: float
) -> None:
    async with options.client(receipt_timeout_s=patience_s) as client:
        with _progress(total) as advance:
            async for receipts in client.submit_stream(jobs, wait="recorded" if recorded else "queued"):
                before = tally.rejected
                tally.add(receipts)
                _say_rejected(receipts, before)
                advance(len(receipts))


def _checked(source: BinaryIO, skip: int, stack: ExitStack) -> tuple[BinaryIO, int]:
    """``source`` at its beginning again, and how many jobs it holds."""
    if not source.seekable():
        source = _spooled(source, stack)
    start = source.tell()
    total = sum(1 for _ in read_jobs(source, skip=skip))
    source.seek(start)
    return source, total


def _spooled(source: BinaryIO, stack: ExitStack) -> BinaryIO:
    """A pipe can be read once; we need it twice."""
    copy = tempfile.SpooledTemporaryFile(SPOOL_BYTES_MAX)  # noqa: SIM115 - closed by the stack
    stack.callback(copy.close)
    while block := source.read(1024 * 1024):
        copy.write(block)
    copy.seek(0)
    return copy  # type: ignore[return-value]


@contextmanager
def _progress(total: int | None) -> "Iterator[Callable[[int], None]]":
    """A bar on stderr, for a person only; yields what moves it on."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("submitting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("submitting", total=total)
        yield lambda count: progress.advance(task, count)


def _say_rejected(receipts: "list[Receipt]", before: int) -> None:
    """The first few by name; all of them are in ``jm rejected list``."""
    rejected = [receipt for receipt in receipts if receipt.status == ReceiptStatus.REJECTED]
    for receipt in rejected[: max(0, REJECTED_SHOWN - before)]:
        say(f"rejected {receipt.job_id}: {safe(receipt.reason or 'no reason given')}")


def _open(name: str) -> BinaryIO:
    if name == "-":
        return piped_in()
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise UsageError(f"--file {name}: {error.strerror}; name a file that can be read") from None


def _so_far(tally: Tally, skip: int) -> str:
    """What was in flight may have arrived, too: only who gave ids can repeat it without fear."""
    if not tally.answered:
        return "no receipt had come by then"
    known = f"{tally.text()} for sure, some after them perhaps"
    return f"{known}; jobs with ids can be sent again, else go on with --skip {skip + tally.answered}"
