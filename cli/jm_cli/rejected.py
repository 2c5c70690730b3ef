"""``jm rejected …``: what was sent and could never become a job, with the reason."""

from typing import TYPE_CHECKING, Annotated

import typer

from jm_cli.exits import CliError, ExitCode, UsageError
from jm_cli.job import LIMIT_MAX
from jm_cli.options import expanded
from jm_cli.render import brief_moment, moment, print_json, print_line, print_record, print_table, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import JsonFlag

if TYPE_CHECKING:
    from jm_core.api import RejectedList, RejectedView

app = typer.Typer(help="Look at what was refused and why: list, show.", rich_markup_mode=None)


def add_to(root: typer.Typer) -> None:
    root.add_typer(app, name="rejected")


@app.command("list")
@expanded
def list_rejected(
    *,
    limit: Annotated[int, typer.Option("--limit", help=f"At most so many, up to {LIMIT_MAX}.", metavar="N")] = 50,
    before: Annotated[
        int | None, typer.Option("--before", metavar="NUMBER", help="Page on: those before this number.")
    ] = None,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """List refused submissions, the newest first.

    Example:
        jm rejected list --limit 10
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"--limit is {limit}; it must be 1 to {LIMIT_MAX}, page on with --before")
    found = run_briefly(_list(options, limit, before))
    if as_json:
        print_json(found)
    elif not found.rejected:
        say("nothing was rejected")
    else:
        _print_list(found)


async def _list(options: ClientOptions, limit: int, before: int | None) -> "RejectedList":
    from jm_core.api import RejectedQuery  # noqa: PLC0415

    async with options.client() as client:
        return await client.api.rejected(RejectedQuery(limit, before))


@app.command("show")
@expanded
def show(
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="As in 'jm rejected list'.")],
    *,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Show one refused submission with the bytes that were sent.

    Example:
        jm rejected show 17
    """
    found = run_briefly(_show(options, number))
    if as_json:
        print_json(found)
    else:
        _print_one(found)


async def _show(options: ClientOptions, number: int) -> "RejectedView":
    from jm_core.errors import NoSuchJobError  # noqa: PLC0415

    async with options.client() as client:
        try:
            return await client.api.rejected_one(number)
        except NoSuchJobError:
            raise CliError(
                ExitCode.NOT_FOUND, f"no rejected message has number {number}; see 'jm rejected list'"
            ) from None


def _print_list(found: "RejectedList") -> None:
    print_table(
        ("NUMBER", "REJECTED", "JOB", "HANDLER", "REASON"),
        [
            (str(r.rejected_id), brief_moment(r.rejected_at), r.job_id or "", r.handler or "", r.reason)
            for r in found.rejected
        ],
        minor=("JOB", "HANDLER"),
    )
    if found.more:
        say(f"there are more: --before {found.rejected[-1].rejected_id}")


def _print_one(one: "RejectedView") -> None:
    print_record(
        [
            ("number", str(one.rejected_id)),
            ("rejected", moment(one.rejected_at)),
            ("job", one.job_id or ""),
            ("handler", one.handler or ""),
            ("field", one.field or ""),
            ("reason", one.reason),
            ("size", f"{one.raw_bytes} bytes"),
        ]
    )
    if one.raw:
        print_line("\nsent (base64, it is not UTF-8):" if one.raw_base64 else "\nsent:")
        print_record([("", one.raw)])
