"""``jm job cancel | requeue | run-now | reschedule | priority``: operator actions on named jobs, or by a filter."""

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from jm_cli.control_options import ActingOptions, IdsArgument, TargetOptions
from jm_cli.exits import CliError, ExitCode, UsageError
from jm_cli.options import expanded
from jm_cli.render import print_json, print_line, print_table, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import PRIORITY_NAMES, JsonFlag, parse_priority
from jm_cli.submit import raw_args
from jm_cli.times import parse_delay, parse_instant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_core.api_control import ActionView, Change, JobVerdict
    from jm_core.control import Action
    from jm_core.errors import ResultTimeoutError
    from jm_nats.client import JobClient

POLL_S = 0.2
UNKNOWN = "unknown"


@expanded
def cancel(
    ids: IdsArgument = None,
    *,
    targets: TargetOptions,
    force: Annotated[
        bool, typer.Option("--force", help="Running jobs too at once, be their worker dead or deaf.")
    ] = False,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DELAY", help="Wait so long until running jobs have really ended.")
    ] = None,
    acting: ActingOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Cancel jobs in whatever state they are, for good. What has not started never will; what runs is asked to end.

    A running job is ended at once when it is async, its process is killed when it has one, and a thread is told
    (ctx.cancelled) and cannot be forced. Whatever it makes of it, the job ends cancelled, and is not retried.

    Examples:
        jm job cancel 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e --reason "wrong customer" --wait 30s
        jm job cancel --handler send-email --status on_master --dry-run
        jm job list --status processing --json | jq -r '.jobs[].id' | jm job cancel --ids-from - --force
    """
    from jm_core.api_control import Change  # noqa: PLC0415
    from jm_core.control import Action  # noqa: PLC0415

    wait_s = None if wait is None else parse_delay(wait, "--wait")
    job = _Job(Action.CANCEL, Change(force=force), targets, acting, as_json=as_json, options=options, wait_s=wait_s)
    job.run(ids)


@expanded
def requeue(
    ids: IdsArgument = None,
    *,
    targets: TargetOptions,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="Other arguments: a JSON object; - reads stdin.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="Run then; otherwise now.")] = None,
    lane: Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Into another lane.")] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", metavar=PRIORITY_NAMES, help="With another priority.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="So many starts from now on.")
    ] = None,
    acting: ActingOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Run jobs again that have ended, with all their attempts anew; what they did before stays on record.

    A filter picks failed, cancelled and quarantined jobs; succeeded ones only when --status names them.

    Examples:
        jm job requeue 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e --args '{"to": "you@example.com"}'
        jm job requeue --handler send-email --status failed --queued-after 2030-01-01T00:00:00Z --dry-run
    """
    from jm_core.api_control import Change  # noqa: PLC0415
    from jm_core.control import Action  # noqa: PLC0415

    change = Change(
        None if at is None else parse_instant(at),
        priority and parse_priority(priority).label,
        lane,
        raw_args(args),
        max_attempts,
    )
    _Job(Action.REQUEUE, change, targets, acting, as_json=as_json, options=options).run(ids)


@expanded
def run_now(
    ids: IdsArgument = None,
    *,
    targets: TargetOptions,
    acting: ActingOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Make waiting jobs due now, also those in retry backoff.

    Example:
        jm job run-now 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e
    """
    from jm_core.api_control import Change  # noqa: PLC0415
    from jm_core.control import Action  # noqa: PLC0415

    _Job(Action.RUN_NOW, Change(), targets, acting, as_json=as_json, options=options).run(ids)


@expanded
def reschedule(
    ids: IdsArgument = None,
    *,
    targets: TargetOptions,
    at: Annotated[str, typer.Option("--at", metavar="TIME", help="When they are due from now on.", show_default=False)],
    acting: ActingOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Make waiting jobs due at another time.

    Example:
        jm job reschedule 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e --at 2030-01-01T09:00:00+01:00
    """
    from jm_core.api_control import Change  # noqa: PLC0415
    from jm_core.control import Action  # noqa: PLC0415

    change = Change(parse_instant(at))
    _Job(Action.RESCHEDULE, change, targets, acting, as_json=as_json, options=options).run(ids)


@expanded
def priority(
    ids: IdsArgument = None,
    *,
    targets: TargetOptions,
    to: Annotated[str | None, typer.Option("--to", metavar=PRIORITY_NAMES, help="Their priority from now on.")] = None,
    lane: Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Their lane from now on.")] = None,
    acting: ActingOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Change the priority of waiting jobs, their lane, or both.

    Example:
        jm job priority --handler send-email --in-lane default --to high --lane mail --dry-run
    """
    from jm_core.api_control import Change  # noqa: PLC0415
    from jm_core.control import Action  # noqa: PLC0415

    change = Change(None, to and parse_priority(to).label, lane)
    _Job(Action.PRIORITY, change, targets, acting, as_json=as_json, options=options).run(ids)


class _Job:
    """One action as it was typed: checked before anything connects, then carried out and told about."""

    def __init__(
        self,
        action: "Action",
        change: "Change",
        targets: TargetOptions,
        acting: ActingOptions,
        *,
        as_json: bool,
        options: ClientOptions,
        wait_s: float | None = None,
    ) -> None:
        self.action = action
        self.change = change
        self.targets = targets
        self.acting = acting
        self.as_json = as_json
        self.options = options
        self.wait_s = wait_s

    def run(self, named: list[str] | None) -> None:
        from jm_core.control import check_words  # noqa: PLC0415
        from jm_core.control_checks import check_change, statuses_of  # noqa: PLC0415
        from jm_nats.actor import default_actor  # noqa: PLC0415

        check_change(self.action, self.change)
        check_words(self.acting.by or default_actor(), self.acting.reason)
        ids = self.targets.ids(named)
        if ids:
            if self.acting.expect is not None and self.acting.expect != len(ids):
                raise UsageError(f"{len(ids)} jobs are named, --expect says {self.acting.expect}; nothing was done")
            run_briefly(self._named(ids))
            return
        statuses_of(self.action, self.targets.filter())
        if self.wait_s is not None:
            raise UsageError("--wait goes with ids; with a filter, see 'jm job list --status processing'")
        run_briefly(self._filtered())

    # By ids.

    async def _named(self, ids: "Sequence[str]") -> None:
        verdicts: list[JobVerdict] = []
        action: ActionView | None = None
        async with self.options.client() as client:
            with _Progress(self.action.value, len(ids)) as progress:
                async for reply in client.control(
                    self.action,
                    ids,
                    self.change,
                    by=self.acting.by,
                    reason=self.acting.reason,
                    dry_run=self.acting.dry_run,
                ):
                    verdicts += reply.jobs
                    action = reply.action or action
                    progress.at(len(verdicts))
            late = await self._wait(client, verdicts) if self.wait_s is not None and not self.acting.dry_run else []
        if self.as_json:
            matched = [v.status for v in verdicts if v.status != UNKNOWN]
            _print_document(len(matched), dict(Counter(matched)), action, verdicts)
        else:
            print_table(("ID", "STATUS", "DONE", "NOTE"), [(v.id, v.status, _done(v), v.note) for v in verdicts])
        if late:
            raise late[0]
        _check(self.action, verdicts)

    async def _wait(self, client: "JobClient", verdicts: "list[JobVerdict]") -> "list[ResultTimeoutError]":
        """Until those that run have ended; one error for each that has not in time, said once all are shown."""
        import asyncio  # noqa: PLC0415

        from jm_core.errors import ResultTimeoutError  # noqa: PLC0415

        late: list[ResultTimeoutError] = []

        async def one(verdict: "JobVerdict") -> None:
            try:
                verdict.status = await client.ended(verdict.id, self.wait_s or 0.0)
            except ResultTimeoutError as error:
                late.append(error)
                verdict.note = "it has not ended in time"
            else:
                verdict.note = ""

        await asyncio.gather(*[one(v) for v in verdicts if v.status == "processing"])
        return late

    # By a filter.

    async def _filtered(self) -> None:
        wanted = self.targets.filter()
        async with self.options.client() as client:
            by_status = await client.count_where(self.action, wanted, self.change)
            matched = sum(by_status.values())
            if self.acting.dry_run:
                self._say_count(by_status, matched)
                return
            if self.acting.expect is None and not self.acting.yes:
                _ask(self.action, matched, by_status)
            view = await client.control_where(
                self.action,
                wanted,
                self.change,
                by=self.acting.by,
                reason=self.acting.reason,
                expect=self.acting.expect,
            )
            view = await self._follow(client, view)
        if self.as_json:
            _print_document(view.matched, by_status, view)
        else:
            print_line(f"{self.action.value}: {view.changed} of {view.matched} jobs")
            for refusal in view.refusals:
                print_line(f"refused {refusal.jobs}: {refusal.why}, e.g. {refusal.example}")
            say(f"on record as {view.action_id}: jm audit show {view.action_id}")

    def _say_count(self, by_status: dict[str, int], matched: int) -> None:
        if self.as_json:
            _print_document(matched, by_status)
        else:
            print_line(f"{self.action.value} would be about {_counted(matched, by_status)}")
            say("nothing was done; to do it for exactly so many, add --expect " + str(matched))

    async def _follow(self, client: "JobClient", view: "ActionView") -> "ActionView":
        """The leader works it off, also if we go."""
        import asyncio  # noqa: PLC0415

        with _Progress(self.action.value, view.matched) as progress:
            try:
                while view.finished_at is None:
                    progress.at(view.matched - view.left)
                    await asyncio.sleep(POLL_S)
                    view = await client.action(view.action_id)
            except asyncio.CancelledError:
                say(f"the coordinator goes on with it: jm audit show {view.action_id}")
                raise
            progress.at(view.matched)
        return view if not view.matched else await client.action(view.action_id)


def _print_document(
    matched: int,
    by_status: dict[str, int],
    action: "ActionView | None" = None,
    jobs: "Sequence[JobVerdict]" = (),
) -> None:
    """One shape for ids, filter and dry run. ``action`` null: nothing is on record; ``jobs``: of those named by ids."""
    print_json({"action": action, "jobs": list(jobs), "matched": matched, "by_status": by_status})


class _Progress:
    """A bar on a terminal, for what takes a while; nothing elsewhere."""

    def __init__(self, what: str, total: int) -> None:
        self._shown: Any = None
        self._what = what
        self._total = total

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and self._total > 1:
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import Progress  # noqa: PLC0415

            self._shown = Progress(console=Console(file=sys.stderr), transient=True)
            self._shown.start()
            self._task = self._shown.add_task(self._what, total=self._total)
        return self

    def at(self, done: int) -> None:
        if self._shown is not None:
            self._shown.update(self._task, completed=done)

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()


def _done(verdict: "JobVerdict") -> str:
    return "yes" if verdict.changed else "no"


def _counted(matched: int, by_status: dict[str, int]) -> str:
    parts = ", ".join(f"{label} {jobs}" for label, jobs in sorted(by_status.items()))
    return f"{matched} jobs" + (f" ({parts})" if parts else "")


def _ask(action: "Action", matched: int, by_status: dict[str, int]) -> None:
    """Raises: UsageError: there is nobody to ask. CliError: they said no."""
    if not matched:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"{action.value} would be about {_counted(matched, by_status)}; confirm with --yes, or --expect {matched}"
        )
    if not typer.confirm(f"{action.value} {_counted(matched, by_status)}?", err=True):
        raise CliError(ExitCode.OUTCOME, "nothing was done")


def _check(action: "Action", verdicts: "list[JobVerdict]") -> None:
    """What was asked for has happened, or already had; else an error that says of how many it has not.

    Raises:
        CliError.
    """
    missing = [v for v in verdicts if v.status == UNKNOWN]
    refused = [v for v in verdicts if not v.changed and v.status != UNKNOWN and not _is_done_already(action, v)]
    if refused:
        first = refused[0]
        raise CliError(
            ExitCode.OUTCOME, f"{action.value} refused for {len(refused)} of {len(verdicts)}: {first.id}: {first.note}"
        )
    if missing:
        raise CliError(
            ExitCode.NOT_FOUND,
            f"{action.value}: {len(missing)} of {len(verdicts)} unknown: {missing[0].id}: {missing[0].note}",
        )


def _is_done_already(action: "Action", verdict: "JobVerdict") -> bool:
    """A job that is cancelled, or asked to end, needs no second cancel."""
    return action.value == "cancel" and verdict.status in ("cancelled", "processing")


def add_to(app: typer.Typer) -> None:
    app.command("cancel")(cancel)
    app.command("requeue")(requeue)
    app.command("run-now")(run_now)
    app.command("reschedule")(reschedule)
    app.command("priority")(priority)
