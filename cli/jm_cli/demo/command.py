"""``jm demo``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from jm_cli.exits import ExitCode
from jm_cli.options import expanded
from jm_cli.settings import JsonFlag


def add_to(root: typer.Typer) -> None:
    root.command("demo")(demo)


@expanded
def demo(
    *,
    jobs: Annotated[
        int, typer.Option("--jobs", metavar="N", min=0, help="Afterwards, so many jobs that do nothing: for the speed.")
    ] = 0,
    files: Annotated[
        int | None,
        typer.Option("--files", metavar="N", min=1, help="Only so many files.", show_default="all"),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep data and logs there.", file_okay=False, show_default=False),
    ] = None,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill a worker, freeze one, restart NATS, and see what becomes of the jobs.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """See it work: parse Python's standard library, a job for every file, on a cluster of its own.

    Starts NATS, Postgres, a coordinator and two workers, submits thousands of jobs (some fail once, some are due later,
    some come over a bare socket), and reads from Postgres what became of each. Exit code 0: all are accounted for.

    With --chaos it is hurt meanwhile: a worker is killed (SIGKILL), one is frozen past its lease and goes on later,
    NATS is restarted. The lease is 3 s then, so that it is over in about a minute. The exit code is not 0 when a
    promise is broken.

    Examples:
        jm demo
        jm demo --chaos
        jm demo --jobs 100000
        jm demo --json | jq '.longest[0]'
    """
    from jm_cli.demo.display import console_of  # noqa: PLC0415
    from jm_cli.demo.running import DemoSettings, run_demo  # noqa: PLC0415
    from jm_cli.demo.tables import tables  # noqa: PLC0415
    from jm_cli.logs import start_logging  # noqa: PLC0415
    from jm_cli.render import print_json  # noqa: PLC0415
    from jm_cli.running import run_for_long  # noqa: PLC0415

    start_logging("error")
    settings = DemoSettings(files=files, no_ops=jobs, keep=keep and keep.resolve(), chaos=chaos)
    report = run_for_long(run_demo(settings, console_of(sys.stderr)))
    if as_json:
        print_json(report)
    else:
        console_of(sys.stdout).print(tables(report))
    if not report.ok:
        raise typer.Exit(ExitCode.UNEXPECTED)
