"""``jm schedule …``: the group, and what only looks: preview (without a server), list, show, skips."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from jm_cli import schedule_change
from jm_cli.exits import UsageError
from jm_cli.options import expanded
from jm_cli.render import print_json, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.schedule_options import KIND_NAMES, NameArgument, checked_instant
from jm_cli.settings import JsonFlag

if TYPE_CHECKING:
    from jm_core.api_schedules import ScheduleList, ScheduleView, SkipList

PREVIEW_MAX: Final = 1_000
LIMIT_MAX: Final = 500
UPCOMING_MAX: Final = 100
STATES: Final = ("active", "paused", "disabled", "idle", "inactive", "done")
ORIGINS: Final = ("static", "dynamic")
REASONS: Final = ("misfire", "overlap", "duplicate", "paused", "disabled", "inactive", "cancelled")

app = typer.Typer(
    help="Recurring jobs: preview, add, list, show, edit, pause, resume, run-now, delete, skips.", rich_markup_mode=None
)


def add_to(root: typer.Typer) -> None:
    schedule_change.add_to(app)
    root.add_typer(app, name="schedule")


@app.command("preview")
@expanded
def preview(
    expression: Annotated[str, typer.Argument(metavar="EXPR", help="When: cron, interval, RRULE or plain language.")],
    *,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar=KIND_NAMES, help="How to read it.", show_default="guessed from how it looks"),
    ] = None,
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="IANA zone, Europe/Berlin for example.")] = "UTC",
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="TIME", help="Times after this one, with an offset or Z.", show_default="now"),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start", metavar="TIME", help="Where intervals begin to count.", show_default="the time of --after"
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", help=f"How many, up to {PREVIEW_MAX}.")] = 5,
    as_json: JsonFlag = False,
) -> None:
    """Show the next times of an expression. Needs no server.

    Examples:
        jm schedule preview "0 9 * * MON-FRI" --tz Europe/Berlin
        jm schedule preview "every month on the last day at 23:00" --count 12
        jm schedule preview "0 0 13 * 5" --after 2030-01-01T00:00:00Z --json
    """
    from jm_cli.schedule_view import show_times  # noqa: PLC0415
    from jm_core.recurrence import check_fires, guess_kind, parse_recurrence  # noqa: PLC0415

    if not 1 <= count <= PREVIEW_MAX:
        raise UsageError(f"--count is {count}; it must be 1 to {PREVIEW_MAX}")
    since = datetime.now(UTC) if after is None else checked_instant(after, "--after")
    anchor = since if start is None else checked_instant(start, "--start")
    recurrence = parse_recurrence(kind or guess_kind(expression), expression, tz, anchor=anchor)
    check_fires(recurrence, since)
    show_times(recurrence, since, count, as_json=as_json)


@app.command("list")
@expanded
def list_schedules(
    *,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help=f"Repeatable: {', '.join(STATES)}.")
    ] = None,
    origin: Annotated[
        str | None, typer.Option("--origin", metavar="|".join(ORIGINS), help="Declared in code, or made by a client.")
    ] = None,
    handler: Annotated[str | None, typer.Option("--handler", metavar="NAME", help="Only this handler's.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help="Names that begin so.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help=f"At most so many, up to {LIMIT_MAX}.")] = 50,
    after: Annotated[str | None, typer.Option("--after", metavar="NAME", help="Page on: names after this one.")] = None,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """List schedules by name; filters are combined.

    Examples:
        jm schedule list --state disabled --state paused
        jm schedule list --handler report --json | jq '.schedules[].spec.name'
    """
    from jm_core.api_schedules import ScheduleQuery  # noqa: PLC0415
    from jm_core.ids import parse_handler_name  # noqa: PLC0415

    _check_limit(limit)
    _known(origin and [origin], ORIGINS, "--origin")
    query = ScheduleQuery(
        state=_known(state, STATES, "--state"),
        origin=origin,
        handler=handler and parse_handler_name(handler),
        name_prefix=prefix,
        after_name=after,
        limit=limit,
    )

    async def ask() -> "ScheduleList":
        async with options.client() as client:
            return await client.schedules.page(query)

    found = run_briefly(ask())
    if as_json:
        print_json(found)
        return
    from jm_cli.schedule_view import print_schedules  # noqa: PLC0415

    print_schedules(found)


@app.command("show")
@expanded
def show(
    name: NameArgument,
    *,
    count: Annotated[
        int, typer.Option("--count", metavar="N", help=f"So many of the next times, up to {UPCOMING_MAX}.")
    ] = 5,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Show one schedule: definition, state, next times, what it has done so far.

    Example:
        jm schedule show nightly-report
    """
    from jm_core.schedule_rules import check_schedule_name  # noqa: PLC0415

    check_schedule_name(name)
    if not 0 <= count <= UPCOMING_MAX:
        raise UsageError(f"--count is {count}; it must be 0 to {UPCOMING_MAX}")

    async def ask() -> "ScheduleView":
        async with options.client() as client:
            return await client.schedules.get(name, upcoming=count)

    found = run_briefly(ask())
    if as_json:
        print_json(found)
        return
    from jm_cli.schedule_view import print_schedule  # noqa: PLC0415

    print_schedule(found)


@app.command("skips")
@expanded
def skips(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of this schedule; else of all.")] = None,
    *,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="REASON", help=f"One of {', '.join(REASONS)}.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help=f"At most so many, up to {LIMIT_MAX}.")] = 50,
    before: Annotated[
        int | None, typer.Option("--before", metavar="NUMBER", help="Page on: entries before this one.")
    ] = None,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """List the times that did not become a job, and why; the newest first.

    Example:
        jm schedule skips nightly-report --reason overlap
    """
    from jm_core.schedule_rules import check_schedule_name  # noqa: PLC0415

    _check_limit(limit)
    if name is not None:
        check_schedule_name(name)
    _known(reason and [reason], REASONS, "--reason")

    async def ask() -> "SkipList":
        async with options.client() as client:
            return await client.schedules.skips(name, reason=reason, before_id=before, limit=limit)

    found = run_briefly(ask())
    if as_json:
        print_json(found)
        return
    from jm_cli.schedule_view import print_skips  # noqa: PLC0415

    print_skips(found)
    if found.more:
        say(f"there are more: --before {found.skips[-1].skip_id}")


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"--limit is {limit}; it must be 1 to {LIMIT_MAX}")


def _known(given: list[str] | str | None, known: tuple[str, ...], option: str) -> list[str]:
    unknown = [label for label in given or [] if label not in known]
    if unknown:
        raise UsageError(f"{option} {unknown[0][:40]!r} is unknown; use {', '.join(known)}")
    return list(given or [])
