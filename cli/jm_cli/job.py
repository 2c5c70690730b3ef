"""``jm job …``: what the master knows of jobs, asked over NATS."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from jm_cli import job_wait
from jm_cli.exits import UsageError
from jm_cli.options import expanded
from jm_cli.render import brief_moment, json_text, moment, print_json, print_line, print_record, print_table, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import PRIORITY_NAMES, JsonFlag, parse_priority, words
from jm_core.model import STATUS_BY_LABEL, JobStatus

if TYPE_CHECKING:
    from jm_core.api import AttemptList, AttemptView, JobList, JobView

STATUS_NAMES: Final = [label for label, status in STATUS_BY_LABEL.items() if status is not JobStatus.PENDING_SAVE]
LIMIT_MAX: Final = 1000

app = typer.Typer(help="Look at jobs, wait for them, and act on them.", rich_markup_mode=None)
JobIdArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]


def add_to(root: typer.Typer) -> None:
    job_wait.add_to(app)
    root.add_typer(app, name="job")


@app.command("list")
@expanded
def list_jobs(
    *,
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help=f"Repeatable: {', '.join(STATUS_NAMES)}.")
    ] = None,
    handler: Annotated[str | None, typer.Option("--handler", metavar="NAME", help="Only this handler's.")] = None,
    lane: Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Only this lane's.")] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", metavar=PRIORITY_NAMES, help="Only this priority's.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="NAME", help="Only those that this schedule has made.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help=f"At most so many, up to {LIMIT_MAX}.", metavar="N")] = 50,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Page on: jobs older than this one.")
    ] = None,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """List jobs, the newest first; filters are combined.

    Examples:
        jm job list --status failed --handler send-email
        jm job list --json | jq '.jobs[].id'
    """
    from jm_core.api import JobQuery  # noqa: PLC0415
    from jm_core.ids import parse_handler_name, parse_job_id, parse_name  # noqa: PLC0415

    if not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"--limit is {limit}; it must be 1 to {LIMIT_MAX}, page on with --before")
    query = JobQuery(
        status=statuses(status),
        handler=handler and parse_handler_name(handler),
        lane=lane and parse_name("lane", lane),
        priority=priority and parse_priority(priority).label,
        schedule=schedule,
        before_id=before and parse_job_id(before),
        limit=limit,
    )

    async def ask() -> "JobList":
        async with options.client() as client:
            return await client.api.jobs(query)

    found = run_briefly(ask())
    if as_json:
        print_json(found)
    else:
        _print_list(found)


@app.command("show")
@expanded
def show(job_id: JobIdArgument, *, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """Show one job with its arguments, result and error.

    Example:
        jm job show 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e
    """
    from jm_core.ids import parse_job_id  # noqa: PLC0415

    canonical = parse_job_id(job_id)  # before connecting: a misspelt id needs no NATS

    async def ask() -> "JobView":
        async with options.client() as client:
            return await client.job(canonical)

    found = run_briefly(ask())
    if as_json:
        print_json(found)
    else:
        print_job(found)


@app.command("attempts")
@expanded
def attempts(job_id: JobIdArgument, *, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """Show how each start of a job ended. A clean first success leaves no entry: the job itself says it all.

    Example:
        jm job attempts 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e
    """
    from jm_core.ids import parse_job_id  # noqa: PLC0415

    canonical = parse_job_id(job_id)

    async def ask() -> "AttemptList":
        async with options.client() as client:
            found = await client.api.attempts(canonical)
            if not found.attempts:
                await client.job(canonical)  # none because there is none, or because there is no such job?
            return found

    found = run_briefly(ask())
    if as_json:
        print_json(found)
    elif not found.attempts:
        say(f"job {canonical} has no attempts on record")
    else:
        _print_attempts(found.attempts)


def statuses(given: list[str] | None) -> list[str]:
    """The labels, checked.

    Raises:
        UsageError.
    """
    chosen = list(words(given))
    unknown = [label for label in chosen if label not in STATUS_NAMES]
    if unknown:
        raise UsageError(f"--status {unknown[0]!r} is unknown; use {', '.join(STATUS_NAMES)}")
    return chosen


def _print_list(found: "JobList") -> None:
    if not found.jobs:
        say("no such jobs")
        return
    columns = ("ID", "STATUS", "HANDLER", "LANE", "PRIORITY", "ATTEMPT", "DUE")
    print_table(
        columns,
        [
            (j.id, j.status, j.handler, j.lane, j.priority, f"{j.attempt}/{j.max_attempts}", brief_moment(j.run_at))
            for j in found.jobs
        ],
        minor=("LANE", "PRIORITY", "ATTEMPT", "DUE"),
    )
    if found.more:
        say(f"there are more: --before {found.jobs[-1].id}")


def print_job(job: "JobView") -> None:
    """Every fact that is there, the long ones last."""
    print_record(
        [
            ("id", job.id),
            ("status", job.status),
            ("waits", job.waits or ""),
            ("handler", job.handler),
            ("lane", job.lane),
            ("priority", job.priority),
            ("attempt", f"{job.attempt} of {job.max_attempts}"),
            ("due", moment(job.run_at)),
            ("schedule", job.schedule or ""),
            ("occurrence", moment(job.occurrence)),
            ("queued", moment(job.queued_at)),
            ("recorded", moment(job.recorded_at)),
            ("started", moment(job.started_at)),
            ("finished", moment(job.finished_at)),
            ("timeout", f"{job.timeout_s:g} s" if job.timeout_s is not None else ""),
            ("worker", job.worker or ""),
            ("bucket", job.bucket or ""),
            ("dispatch", str(job.dispatch) if job.dispatch else ""),
            ("losses", str(job.losses) if job.losses else ""),
            ("unique key", job.unique_key or ""),
            ("unique until", moment(job.unique_until)),
            ("metadata", "\n".join(f"{key}={value}" for key, value in (job.metadata or {}).items())),
            ("trace", job.trace or ""),
            ("progress", _progress(job)),
            ("cancel asked", moment(job.cancel_requested_at)),
            ("cancelled by", job.cancelled_by or ""),
            ("cancel reason", job.cancel_reason or ""),
        ]
    )
    for title, text in (
        ("args", "" if job.args is None else json_text(job.args)),
        ("result", "" if job.result is None else json_text(job.result)),
        ("error", job.error or ""),
    ):
        if text:
            print_line(f"\n{title}:")
            print_record([("", text)])


def _progress(job: "JobView") -> str:
    return "" if job.progress is None else f"{job.progress:.0%} {job.progress_note or ''}".strip()


def _print_attempts(found: "list[AttemptView]") -> None:
    columns = ("ATTEMPT", "OUTCOME", "STARTED", "FINISHED", "WORKER", "RETRY IN", "ERROR")
    print_table(
        columns,
        [
            (
                str(a.attempt),
                a.outcome,
                brief_moment(a.started_at),
                brief_moment(a.finished_at),
                a.worker or "",
                "" if a.retry_in_s is None else f"{a.retry_in_s:g} s",
                (a.error or "").partition("\n")[0],
            )
            for a in found
        ],
        minor=("WORKER", "FINISHED"),
    )
