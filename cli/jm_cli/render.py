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

_STYLES: Final = {
    "succeeded": "green",
    "failed": "red",
    "timed_out": "red",
    "quarantined": "red",
    "worker_lost": "red",
    "cancelled": "yellow",
    "interrupted": "yellow",
    "processing": "cyan",
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


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they need; in a terminal, as wide as it allows, and the first one whole."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    wide = None if sys.stdout.isatty() else 1_000_000
    console = Console(file=sys.stdout, width=wide, highlight=False, markup=False, emoji=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(cell), style=_STYLES.get(cell, "")) for cell in row))
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print_line(line.rstrip())


def print_record(fields: Iterable[tuple[str, str]]) -> None:
    """``name  value`` lines; empty values are left out, further lines of a value are indented."""
    shown = [(name, safe_lines(value)) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *rest = value.splitlines() or [""]
        print_line(f"{name:<{width}}  {first}")
        for line in rest:
            print_line(f"{'':<{width}}  {line}")
