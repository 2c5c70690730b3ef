"""``jm audit …`` and ``jm job history``: what operators have done, and everything that happened to one job."""

from typing import TYPE_CHECKING, Annotated

import typer

from jm_cli.exits import UsageError
from jm_cli.job import LIMIT_MAX, JobIdArgument
from jm_cli.job import app as job_app
from jm_cli.options import expanded
from jm_cli.render import brief_moment, moment, print_json, print_record, print_table, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import JsonFlag

if TYPE_CHECKING:
    from jm_core.api_control import ActionView, AuditList, History

app = typer.Typer(help="What operators have done: list, show.", rich_markup_mode=None)


@app.command("list")
@expanded
def list_actions(
    *,
    by: Annotated[str | None, typer.Option("--of", metavar="NAME", help="Only this actor's.")] = None,
    action: Annotated[
        str | None,
        typer.Option(
            "--action",
            metavar="ACTION",
            help="Only these, e.g. cancel, requeue, schedule-edit.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help=f"At most so many, up to {LIMIT_MAX}.", metavar="N")] = 50,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Page on: older than this one.")] = None,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """List operator actions, the newest first. Who acted is what they said of themselves.

    Examples:
        jm audit list
        jm audit list --of anna@web-7 --action cancel
    """
    from jm_core.api_control import AuditQuery  # noqa: PLC0415
    from jm_core.control import AUDITED  # noqa: PLC0415
    from jm_core.ids import parse_job_id  # noqa: PLC0415

    if not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"--limit is {limit}; it must be 1 to {LIMIT_MAX}, page on with --before")
    if action is not None and action not in AUDITED:
        raise UsageError(f"--action {action!r} is unknown; use {', '.join(AUDITED)}")
    query = AuditQuery(limit, before and parse_job_id(before), by, action)

    async def ask() -> "AuditList":
        async with options.client() as client:
            return await client.actions(query)

    found = run_briefly(ask())
    if as_json:
        print_json(found)
    elif not found.actions:
        say("no such actions")
    else:
        print_table(
            ("ID", "AT", "ACTOR", "ACTION", "CHANGED", "REFUSED", "REASON"),
            [
                (a.action_id, brief_moment(a.at), a.actor, a.action, _changed(a), str(a.refused or ""), a.reason)
                for a in found.actions
            ],
            minor=("REASON", "REFUSED"),
        )
        if found.more:
            say(f"there are more: --before {found.actions[-1].action_id}")


@app.command("show")
@expanded
def show(
    action_id: Annotated[str, typer.Argument(metavar="ID", help="The action's id.")],
    *,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Show one operator action: which jobs, what was changed, what was refused and why.

    Example:
        jm audit show 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e
    """
    from jm_core.ids import parse_job_id  # noqa: PLC0415

    canonical = parse_job_id(action_id)

    async def ask() -> "ActionView":
        async with options.client() as client:
            return await client.action(canonical)

    found = run_briefly(ask())
    if as_json:
        print_json(found)
        return
    print_record(
        [
            ("id", found.action_id),
            ("action", found.action),
            ("actor", found.actor),
            ("reason", found.reason),
            ("at", moment(found.at)),
            ("finished", moment(found.finished_at) or "not yet"),
            ("jobs", found.scope),
            ("change", "" if found.parameters == "{}" else found.parameters),
            ("matched", str(found.matched)),
            ("changed", str(found.changed)),
            ("refused", str(found.refused or "")),
            ("why", "\n".join(f"{r.jobs}: {r.why} (e.g. {r.example})" for r in found.refusals)),
        ]
    )


@job_app.command("history")
@expanded
def history(job_id: JobIdArgument, *, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """Show everything that is on record about one job, in order: submitted, recorded, attempts, operator actions.

    Example:
        jm job history 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e
    """
    from jm_core.ids import parse_job_id  # noqa: PLC0415

    canonical = parse_job_id(job_id)

    async def ask() -> "History":
        async with options.client() as client:
            return await client.history(canonical)

    found = run_briefly(ask())
    if as_json:
        print_json(found)
    else:
        print_table(("AT", "WHAT", "BY", "DETAIL"), [(moment(e.at), e.what, e.by, e.detail) for e in found.entries])


def _changed(action: "ActionView") -> str:
    return f"{action.changed}/{action.matched}" + ("" if action.finished_at else " …")


def add_to(root: typer.Typer) -> None:
    root.add_typer(app, name="audit")
