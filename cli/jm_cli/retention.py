"""``jm retention …``: how long what has ended is kept, what was removed, and a pass by hand."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from jm_cli.exits import CliError, ExitCode, UsageError
from jm_cli.options import expanded
from jm_cli.render import moment, print_json, print_line, print_record, print_table, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import JsonFlag
from jm_cli.times import parse_delay

if TYPE_CHECKING:
    from jm_core.api_retention import RetentionView
    from jm_nats.client import JobClient

POLL_S: Final = 0.5
TIMEOUT: Final = "10m"
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))

app = typer.Typer(help="How long ended jobs are kept: show, run.", rich_markup_mode=None)


def add_to(root: typer.Typer) -> None:
    root.add_typer(app, name="retention")


@app.command("show")
@expanded
def show(*, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """Show the leader's retention by kind, what was removed so far, and when it last worked.

    It is a setting of the coordinators (--retention, JM_RETENTION); that of the leader counts.

    Example:
        jm retention show
    """

    async def ask() -> "RetentionView":
        async with options.client() as client:
            return await client.api.retention()

    found = run_briefly(ask())
    print_json(found) if as_json else _print(found)


@app.command("run")
@expanded
def run(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; count what would go.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DELAY", help="How long to wait for its end; the pass goes on.")
    ] = TIMEOUT,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Begin a pass through the whole table now, and wait for its end. The leader takes its time: it rests after every
    step, so that jobs are not slowed down.

    Examples:
        jm retention run --dry-run
        jm retention run
    """
    timeout_s = parse_delay(timeout, "--timeout")
    if not timeout_s:
        raise UsageError(f"--timeout is {timeout}; it must be more than 0")

    async def work() -> dict[str, int]:
        async with options.client() as client:
            return await (_count(client) if dry_run else _pass(client, timeout_s))

    counts = {kind: rows for kind, rows in run_briefly(work()).items() if rows}
    if as_json:
        print_json({"dry_run": dry_run, "removed": counts})
        return
    what = ", ".join(f"{rows:,} {kind}" for kind, rows in counts.items()) or "nothing"
    print_line(f"{'would remove' if dry_run else 'removed'} {what}")


async def _count(client: "JobClient") -> dict[str, int]:
    counts: dict[str, int] = {}
    chunk: int | None = 0
    with _status() as told:
        while chunk is not None:
            part = await client.api.count_retention(chunk)
            for kind, rows in part.counts.items():
                counts[kind] = counts.get(kind, 0) + rows
            chunk = part.next_chunk
            told(f"{chunk or part.chunks} of {part.chunks} parts")
    return counts


async def _pass(client: "JobClient", timeout_s: float) -> dict[str, int]:
    """What one pass has removed (and what else was removed meanwhile)."""
    import asyncio  # noqa: PLC0415

    from jm_nats.api_client import NoCoordinatorError  # noqa: PLC0415

    before = now = await client.api.begin_retention()
    until_s = asyncio.get_running_loop().time() + timeout_s
    with _status() as told:
        while now.passes == before.passes:
            if asyncio.get_running_loop().time() >= until_s:
                problem = f" ({now.problem})" if now.problem else ""
                late = f"the pass has not ended after {timeout_s:g} s{problem}; it goes on, see 'jm retention show'"
                raise CliError(ExitCode.OUTCOME, late)
            await asyncio.sleep(POLL_S)
            try:
                now = await client.api.retention()
            except NoCoordinatorError:
                continue  # another one will lead, and go on
            told(f"{now.chunk} of {now.chunks} parts")
    was = {kind.kind: kind.removed for kind in before.kinds}
    return {kind.kind: kind.removed - was.get(kind.kind, 0) for kind in now.kinds}


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """A line that changes, on stderr, for a person only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415

    with Console(stderr=True).status("looking") as status:
        yield status.update


def _print(found: "RetentionView") -> None:
    print_table(
        ("KIND", "KEPT FOR", "REMOVED", "LAST"),
        [(k.kind, duration_text(k.keep_s), f"{k.removed:,}", moment(k.removed_at)) for k in found.kinds],
    )
    print_line("")
    print_record(
        [
            ("last looked", moment(found.looked_at)),
            ("last pass", moment(found.passed_at)),
            ("passes", str(found.passes)),
            ("at", f"{found.chunk} of {found.chunks} parts of the table" if found.chunks else ""),
            ("problem", found.problem or ""),
            ("done by", f"agent {found.agent}" if found.agent else ""),
        ]
    )
    if found.problem:
        say("it is tried again; the coordinator's log has the details")


def duration_text(seconds: float | None) -> str:
    """``30d``, ``36h``, ``90s``; ``ever``: it is never removed."""
    if seconds is None:
        return "ever"
    for unit, size in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"
