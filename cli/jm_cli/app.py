"""The command tree. Nothing here or in the command modules imports NATS, Postgres or rich before a command runs."""

import sys
from typing import Annotated, NoReturn

import typer

from jm_cli import (
    audit,
    bucket,
    cluster,
    coordinator,
    doctor,
    exits,
    job,
    job_control,
    migrate,
    rejected,
    retention,
    schedule,
    submit,
    top,
    up,
    worker,
)
from jm_cli.demo import command as demo
from jm_cli.options import expanded
from jm_cli.redaction import learn_environment
from jm_cli.version import version as package_version

# Plain help: drawing it with rich would triple the time it takes, and fold the examples.
app = typer.Typer(
    name="jm",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
@expanded
def root(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """JobMaster for NATS: a job scheduler. Jobs move on NATS JetStream, Postgres keeps the record.

    Try it, with nothing installed but this:
        jm up                                      # in one terminal
        jm submit hello '{"name": "you"}'          # in another one, same folder

    Exit codes: 0 done, 1 unexpected, 2 usage, 3 NATS, 4 Postgres, 5 no coordinator, 6 not found, 7 job failed,
    rejected or action refused, 8 no worker or no answer of it, 9 already running, 130 interrupted, 141 output closed.
    JM_DEBUG=1 shows tracebacks.
    """
    if version:
        typer.echo(package_version())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


worker.add_to(app)
bucket.add_to(app)
cluster.add_to(app)
top.add_to(app)
coordinator.add_to(app)
up.add_to(app)
demo.add_to(app)
submit.add_to(app)
job.add_to(app)
job_control.add_to(job.app)
audit.add_to(app)
schedule.add_to(app)
rejected.add_to(app)
retention.add_to(app)
migrate.add_to(app)
doctor.add_to(app)


def main() -> NoReturn:
    """The entry point of ``jm``."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """One command, to its exit code."""
    _make_output_unfailing()
    learn_environment()
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="jm", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the edge of the process: report() tells them apart
        return exits.report(error)
    return code if isinstance(code, int) else exits.ExitCode.OK


def _make_output_unfailing() -> None:
    """A text that the terminal's encoding cannot show is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
