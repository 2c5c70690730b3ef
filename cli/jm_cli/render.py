"""What goes to the terminal. stdout carries data only; everything said beside it goes to stderr.

Names, arguments and error texts were written by others: they are never read as rich markup, and no character of theirs
steers the terminal (``plain_text``).
"""

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from jm_cli.exits import ExitCode
from jm_cli.plain_text import safe, safe_json, safe_lines
from jm_cli.redaction import redact

GAP: Final = 2  # between columns
ID_WIDTH: Final = 36
_STYLES: Final = {
    "succeeded": "green",
    "failed": "red",
    "timed_out": "red",
    "quarantined": "red",
    "worker_lost": "red",
    "cancelled": "yellow",
    "interrupted": "yellow",
    "processing": "cyan",
    "healthy": "green",
    "degraded": "yellow",
    "unhealthy": "red",
    "draining": "yellow",
    "stopping": "yellow",
    "fenced": "red",
    "halted": "red",
    "gone": "red",
    "lost": "red",
}


def say(text: str = "") -> None:
    """A line beside the data."""
    sys.stderr.write(f"{redact(text)}\n")


def print_line(text: str) -> None:
    """A line of data.

    Raises:
        SystemExit: whoever reads us has enough of it, as ``head`` does; that is no error to talk about.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python fails to flush the rest at its exit
        raise SystemExit(ExitCode.PIPE_CLOSED) from None


def print_json(value: Any) -> None:
    """One document; indented for a person. Numbers keep every digit they came with (BR-106)."""
    import msgspec  # noqa: PLC0415

    raw = msgspec.json.encode(value)
    if sys.stdout.isatty():
        raw = msgspec.json.format(raw, indent=2)
    print_line(json_text(raw))


def json_text(raw: bytes | Any) -> str:
    """JSON bytes (or ``msgspec.Raw``) as text that is still the same JSON and steers no terminal."""
    return safe_json(bytes(raw).decode("utf-8", "replace"))


def moment(at: datetime | None) -> str:
    """Local time with its offset; never a time without one."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S%z") if at else ""


def brief_moment(at: datetime | None) -> str:
    """For a table that a person looks at: local time, without the date if it is today. Elsewhere in full."""
    if at is None or not sys.stdout.isatty():
        return moment(at)
    local = at.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, minor: Sequence[str] = ()) -> None:
    """A line each. Where nobody looks, as wide as it needs to be; in a terminal, as wide as that.

    Args:
        minor: columns that a narrow terminal does not get to see, the least important first.
    """
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    lines = [columns, *([safe(cell) for cell in row] for row in rows)]
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        lines = _fitting(lines, console.width, list(minor))
    else:
        console.width = 1_000_000
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in lines[0]:
        # An id is of use only as a whole.
        table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=ID_WIDTH if column == "ID" else None)
    for line in lines[1:]:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in line))
    with console.capture() as captured:
        console.print(table)
    for text in captured.get().splitlines():
        print_line(text.rstrip())


def _fitting(lines: list[Sequence[str]], width: int, minor: list[str]) -> list[Sequence[str]]:
    """``lines`` without as many of the minor columns as it takes."""
    from rich.cells import cell_len  # noqa: PLC0415

    while minor and sum(max(map(cell_len, column)) + GAP for column in zip(*lines, strict=True)) - GAP > width:
        gone = list(lines[0]).index(minor.pop(0))
        lines = [[cell for number, cell in enumerate(line) if number != gone] for line in lines]
    return lines


def print_record(fields: Iterable[tuple[str, str]]) -> None:
    """``name  value`` lines; empty values are left out, further lines of a value are indented."""
    shown = [(name, safe_lines(value)) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *rest = value.splitlines() or [""]
        print_line(f"{name:<{width}}  {first}")
        for line in rest:
            print_line(f"{'':<{width}}  {line}")
