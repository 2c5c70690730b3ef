"""``jm schedule add | edit | pause | resume | run-now | delete``."""

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from jm_cli.exits import UsageError
from jm_cli.options import expanded
from jm_cli.render import print_json, print_line, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.schedule_options import NameArgument, PolicyOptions, RecordOptions, ScheduledJobOptions, WhenOptions
from jm_cli.settings import JsonFlag

if TYPE_CHECKING:
    from jm_core.api_schedules import ScheduleSpec, ScheduleView
    from jm_nats.schedule_client import ScheduleClient

DRY_RUN_TIMES: Final = 5
CLEARABLE: Final = {
    "tz": "zone",
    "start": "starts_at",
    "end": "ends_at",
    "max-runs": "max_runs",
    "metadata": "metadata",
    "lane": "lane",
    "priority": "priority",
    "max-attempts": "max_attempts",
    "timeout": "timeout_s",
    "unique-key": "unique_key",
    "misfire-window": "misfire_window_s",
}


def add_to(group: typer.Typer) -> None:
    for name, command in (
        ("add", add),
        ("edit", edit),
        ("pause", pause),
        ("resume", resume),
        ("run-now", run_now),
        ("delete", delete),
    ):
        group.command(name)(command)


@expanded
def add(
    name: NameArgument,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="Name of the handler of its jobs.")],
    *,
    when: WhenOptions,
    job: ScheduledJobOptions,
    policies: PolicyOptions,
    paused: Annotated[bool, typer.Option("--paused", help="Make it, and plan nothing until it is resumed.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help=f"Check it, show the next {DRY_RUN_TIMES} times, and send nothing.")
    ] = False,
    record: RecordOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Make a schedule: a handler, and when to run it. What can never fire is refused.

    Adding the very same again changes nothing and is no error; another one of the name is.

    Examples:
        jm schedule add nightly-report report --cron "0 3 * * *" --tz Europe/Berlin --args '{"days": 1}'
        jm schedule add poll poll-inbox --every 30s --overlap skip
        jm schedule add payday pay --plain "every month on the last weekday at 12:00" --misfire run_all --dry-run
    """
    from jm_nats.schedule_client import checked_spec  # noqa: PLC0415
    from jm_nats.schedule_spec import schedule_spec  # noqa: PLC0415

    if not when.expressions:
        raise UsageError("no expression is given; give --cron, --every, --rrule or --plain")
    fields = when.fields() | job.fields() | policies.fields()
    args = job.raw_args()
    spec = checked_spec(schedule_spec(name, handler, args, **fields))
    if dry_run:
        _show_dry_run(spec, as_json=as_json)
        return

    async def ask(schedules: "ScheduleClient") -> "ScheduleView":
        return await schedules.add(name, handler, args, paused=paused, by=record.by, reason=record.reason, **fields)

    _change(ask, options, as_json=as_json, done="added")


@expanded
def edit(
    name: NameArgument,
    *,
    handler: Annotated[str | None, typer.Option("--handler", metavar="HANDLER", help="Another handler.")] = None,
    when: WhenOptions,
    job: ScheduledJobOptions,
    policies: PolicyOptions,
    clear: Annotated[
        list[str] | None,
        typer.Option("--clear", metavar="OPTION", help=f"Back to the default; repeatable: {', '.join(CLEARABLE)}."),
    ] = None,
    revision: Annotated[
        int | None, typer.Option("--revision", metavar="N", help="Only if it is still this one (see 'show').")
    ] = None,
    drop_queued: Annotated[
        bool, typer.Option("--drop-queued", help="Forget the time that waits for its predecessor (queue_one).")
    ] = False,
    record: RecordOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Change a schedule; what is not mentioned stays. Jobs that are planned already follow the change.

    Examples:
        jm schedule edit nightly-report --cron "30 3 * * *"
        jm schedule edit poll --overlap allow --clear lane
    """
    changes = when.fields() | job.fields() | policies.fields()
    changes |= {} if handler is None else {"handler": handler}
    for option in clear or []:
        field = CLEARABLE.get(option.removeprefix("--"))
        if field is None:
            raise UsageError(f"--clear {option[:40]!r} cannot be cleared; use one of {', '.join(CLEARABLE)}")
        if field in changes:
            raise UsageError(f"--clear {option} together with a value for it; give one of them")
        changes[field] = None
    args = job.raw_args()
    if not changes and args is None and not drop_queued:
        raise UsageError("nothing to change is given; name what should be different")
    from jm_nats.schedule_client import schedule_edit  # noqa: PLC0415

    changes |= {} if revision is None else {"revision": revision}
    changes |= {"drop_queued": True} if drop_queued else {}
    request = schedule_edit(name, args, by=record.by, reason=record.reason, **changes)

    async def ask(schedules: "ScheduleClient") -> "ScheduleView":
        return await schedules.send_edit(request)

    _change(ask, options, as_json=as_json, done="changed")


@expanded
def pause(name: NameArgument, *, record: RecordOptions, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """Plan no more jobs of a schedule, and take back those that have not started. Running ones go on.

    Example:
        jm schedule pause nightly-report --reason "quarter end"
    """
    _act("pause", name, record, options, as_json=as_json)


@expanded
def resume(name: NameArgument, *, record: RecordOptions, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """Go on with the next time after now; those in between are recorded as skipped, there is no burst.

    Example:
        jm schedule resume nightly-report
    """
    _act("resume", name, record, options, as_json=as_json)


@expanded
def run_now(
    name: NameArgument,
    *,
    job_args: Annotated[
        str | None,
        typer.Option("--args", metavar="JSON", help="Instead of the schedule's own; a JSON object, '-' reads stdin."),
    ] = None,
    record: RecordOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Run one job of a schedule at once, whatever its state and policies. Prints the job's id.

    Example:
        jm schedule run-now nightly-report --args '{"days": 7}'
    """
    from jm_cli.submit import raw_args  # noqa: PLC0415
    from jm_core.schedule_rules import check_schedule_name  # noqa: PLC0415
    from jm_nats.schedule_spec import checked_args  # noqa: PLC0415

    check_schedule_name(name)
    args = raw_args(job_args)
    if args is not None:
        checked_args(args)  # before connecting

    async def ask() -> str:
        async with options.client() as client:
            return await client.schedules.run_now(name, args=args, by=record.by, reason=record.reason)

    job_id = run_briefly(ask())
    print_json({"job_id": job_id}) if as_json else print_line(job_id)


@expanded
def delete(
    name: NameArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    record: RecordOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Delete a schedule with its planned jobs that have not started. Running ones go on; skips stay on record.

    Example:
        jm schedule delete nightly-report --yes --reason "moved to billing"
    """
    from jm_core.schedule_rules import check_schedule_name  # noqa: PLC0415

    check_schedule_name(name)
    if not yes:
        _ask_first(name)
    _act("delete", name, record, options, as_json=as_json)


def _ask_first(name: str) -> None:
    """Raises UsageError: nobody is there to ask, or the answer is no."""
    if not sys.stdin or not sys.stdin.isatty():
        raise UsageError(f"schedule {name!r} is to be deleted and nobody can be asked here; say --yes")
    if not typer.confirm(f"Delete schedule {name!r} and its planned jobs?", err=True):
        raise UsageError("nothing was deleted")


def _show_dry_run(spec: "ScheduleSpec", *, as_json: bool) -> None:
    from jm_cli.schedule_view import show_times  # noqa: PLC0415
    from jm_core.schedule_rules import recurrence_of  # noqa: PLC0415

    if spec.zone is None:
        say("no --tz is given: shown in UTC; the cluster's own zone will apply")
    now = datetime.now(UTC)
    since = now if spec.starts_at is None else max(now, spec.starts_at - timedelta(microseconds=1))
    show_times(recurrence_of(spec, now, "UTC"), since, DRY_RUN_TIMES, as_json=as_json, until=spec.ends_at)


def _act(operation: str, name: str, record: RecordOptions, options: ClientOptions, *, as_json: bool) -> None:
    from jm_core.schedule_rules import check_schedule_name  # noqa: PLC0415

    check_schedule_name(name)  # before connecting: a wrong name needs no NATS

    async def ask(schedules: "ScheduleClient") -> "ScheduleView":
        actions = {"pause": schedules.pause, "resume": schedules.resume, "delete": schedules.delete}
        return await actions[operation](name, by=record.by, reason=record.reason)

    _change(ask, options, as_json=as_json, done=f"{operation.rstrip('e')}ed")


def _change(
    ask: "Callable[[ScheduleClient], Awaitable[ScheduleView]]", options: ClientOptions, *, as_json: bool, done: str
) -> None:
    async def change() -> "ScheduleView":
        async with options.client() as client:
            return await ask(client.schedules)

    view = run_briefly(change())
    if as_json:
        print_json(view)
        return
    from jm_cli.schedule_view import print_changed  # noqa: PLC0415

    print_changed(view, done)
