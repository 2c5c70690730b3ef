"""``jm cluster …``: what is set for all of a cluster, and to change it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jm_cli.exits import UsageError
from jm_cli.options import expanded
from jm_cli.render import moment, print_json, print_line, print_record, print_table, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.schedule_options import RecordOptions
from jm_cli.settings import PRIORITY_NAMES, JsonFlag, parse_counts, parse_priority, words

if TYPE_CHECKING:
    from jm_core.cluster import AgentGivenUp, AgentGiveUp, ClusterChange, ClusterSettings, ClusterView

app = typer.Typer(help="What is set for a cluster: show, set, mode, give-up-agent.", rich_markup_mode=None)
MODES = "active|passive|archived"


def add_to(root: typer.Typer) -> None:
    root.add_typer(app, name="cluster")


def _record(record: RecordOptions) -> dict[str, Any]:
    """Raises: InvalidJobError: longer than can be recorded."""
    from jm_core.control import check_words  # noqa: PLC0415
    from jm_nats.actor import default_actor  # noqa: PLC0415

    by, reason = check_words(record.by or default_actor(), record.reason)
    return {"by": by, "reason": reason}


@app.command("show")
@expanded
def show(*, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """Show the mode, disabled priorities, bucket counts, agents, and the last changes with who made them.

    Examples:
        jm cluster show
        jm cluster show --json | jq .settings.mode
    """
    _print(run_briefly(_show(options)), as_json=as_json)


@app.command("mode")
@expanded
def mode(
    wanted: Annotated[str, typer.Argument(metavar=MODES, help="What the cluster is to be.")],
    *,
    record: RecordOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Set what the cluster does, at once and for all of its processes.

    active: accept and run jobs. passive: accept and record, start nothing: jobs that workers hold go back at no cost,
    those that run end. archived: accept nothing, start nothing; it can still be read. What was accepted before waits.

    Examples:
        jm cluster mode passive --reason "database maintenance"
        jm cluster mode active
    """
    from jm_core.cluster import ClusterChange  # noqa: PLC0415

    _change(ClusterChange(mode=wanted, **_record(record)), options, as_json=as_json)


@app.command("set")
@expanded
def set_(
    *,
    disable: Annotated[
        list[str] | None,
        typer.Option(
            "--disable", metavar=PRIORITY_NAMES, help="Priority to switch off; repeat it, or separate by commas."
        ),
    ] = None,
    enable: Annotated[
        list[str] | None, typer.Option("--enable", metavar=PRIORITY_NAMES, help="Priority to switch on again.")
    ] = None,
    buckets: Annotated[
        list[str] | None,
        typer.Option(
            "--buckets",
            metavar="PRIORITY=N",
            help="How many buckets a worker opens for a lane at a priority, where it is told nothing else; 0: one.",
        ),
    ] = None,
    record: RecordOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Disable priorities, or set how many buckets they have.

    Jobs of a disabled priority are taken and run with those of the next lower one that is enabled (the next higher, if
    there is none); their record keeps the priority they were sent with. 'medium' cannot be disabled.

    Examples:
        jm cluster set --disable critical,very_low
        jm cluster set --enable critical --buckets high=2
    """
    from jm_core.cluster import ClusterChange  # noqa: PLC0415

    change = ClusterChange(
        disable=[parse_priority(word).label for word in words(disable)],
        enable=[parse_priority(word).label for word in words(enable)],
        buckets={priority.label: count for priority, count in parse_counts(words(buckets)).items()},
        **_record(record),
    )
    if not (change.disable or change.enable or change.buckets):
        raise UsageError("nothing to set; give --disable, --enable or --buckets (or see 'jm cluster mode')")
    _change(change, options, as_json=as_json)


@app.command("give-up-agent")
@expanded
def give_up_agent(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Its name, as 'jm cluster show' shows it.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Its NATS is gone for good.")] = False,
    record: RecordOptions,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Give up an agent whose NATS will not come back: what lay in its buckets goes back, for other agents to run.

    Asked of another agent's coordinator. Where the NATS is gone but for its address, rather start its coordinator on a
    new one with --accept-agent-loss. What still runs on workers of that NATS would run twice: stop them first.

    Example:
        jm cluster give-up-agent east --yes --reason "the data centre burnt down"
    """
    from jm_core.agent_names import parse_agent  # noqa: PLC0415
    from jm_core.cluster import AgentGiveUp  # noqa: PLC0415

    request = AgentGiveUp(parse_agent(agent), **_record(record))
    if not yes:
        raise UsageError(f"this runs what agent {agent!r} held elsewhere; say --yes when its NATS is gone for good")
    given_up = run_briefly(_give_up(request, options))
    if as_json:
        print_json(given_up)
    else:
        print_line(f"agent {given_up.agent} given up, {given_up.jobs_put_back} jobs put back")


async def _give_up(request: "AgentGiveUp", options: ClientOptions) -> "AgentGivenUp":
    async with options.client() as client:
        return await client.api.give_up_agent(request)


def _change(change: "ClusterChange", options: ClientOptions, *, as_json: bool) -> None:
    from jm_core.cluster import DEFAULT, changed  # noqa: PLC0415

    changed(DEFAULT, change, now_s=1.0)  # what can never be set is refused here
    _print(run_briefly(_set(change, options)), as_json=as_json)


async def _show(options: ClientOptions) -> "ClusterView":
    async with options.client() as client:
        return await client.api.cluster()


async def _set(change: "ClusterChange", options: ClientOptions) -> "ClusterView":
    async with options.client() as client:
        return await client.api.change_cluster(change)


def _print(view: "ClusterView", *, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    print_record(
        [
            ("cluster", view.cluster),
            ("agent", view.agent),
            ("mode", view.settings.mode.value),
            ("disabled", " ".join(view.settings.disabled)),
            ("buckets", _counts(view.settings)),
        ]
    )
    if view.agents:
        print_line("")
        columns = ("AGENT", "TERM", "LEADER", "SEEN", "JOBS IN BUCKETS")
        print_table(
            columns, [(a.agent, str(a.term), a.holder, moment(a.seen_at), str(a.jobs_in_buckets)) for a in view.agents]
        )
    if view.changes:
        print_line("")
        rows = [(moment(c.changed_at), c.changed_by, _text(c.after), c.reason) for c in view.changes]
        print_table(("CHANGED", "BY", "TO", "REASON"), rows)
    else:
        say("never changed")


def _counts(settings: "ClusterSettings") -> str:
    return " ".join(f"{label}={count}" for label, count in settings.buckets.items())


def _text(after: object) -> str:
    """What it was changed to, in a line."""
    from jm_core.cluster import decode_settings  # noqa: PLC0415

    settings = decode_settings(bytes(after))  # type: ignore[call-overload]
    off = f"without {' '.join(settings.disabled)}" if settings.disabled else ""
    return "; ".join(filter(None, (settings.mode.value, off, _counts(settings))))
