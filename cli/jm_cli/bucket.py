"""``jm bucket …``: where jobs wait for workers, and who owns it."""

from typing import TYPE_CHECKING, Annotated

import typer

from jm_cli.fleet import age, not_found, say_unreadable, size, unserved_text
from jm_cli.options import expanded
from jm_cli.render import print_json, print_record, print_table, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import JsonFlag

if TYPE_CHECKING:
    from jm_core.api import UnservedKind
    from jm_nats.census import BucketView, Census, StreamFacts

app = typer.Typer(help="Look at buckets: list, show.", rich_markup_mode=None)
BucketArgument = Annotated[str, typer.Argument(metavar="BUCKET", help="The bucket's id, as 'jm bucket list' shows it.")]


def add_to(root: typer.Typer) -> None:
    root.add_typer(app, name="bucket")


@app.command("list")
@expanded
def list_buckets(*, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """List the buckets: lane, priority, owner and state; fallback buckets with the reason why they are there.

    Due jobs that no bucket takes are mentioned too, if a coordinator can say so.

    Examples:
        jm bucket list
        jm bucket list --json | jq '.buckets[] | select(.status != "active")'
    """
    census, unserved, problem = run_briefly(_look_at_all(options))
    if as_json:
        print_json(
            {
                "cluster": census.cluster,
                "at": census.at,
                "buckets": census.buckets,
                "unreadable": census.unreadable,
                "unserved": unserved,
                "unserved_problem": problem,
            }
        )
        return
    if census.buckets:
        columns = ("BUCKET", "STATUS", "LANE", "PRIORITY", "KIND", "WORKER", "EPOCH", "AGE", "REASON")
        rows = [
            (b.bucket, b.status, b.lane, _priority(b), b.kind, _owner(b), str(b.epoch), age(b.age_s), b.reason)
            for b in census.buckets
        ]
        print_table(columns, rows, minor=("EPOCH", "AGE", "KIND", "LANE", "PRIORITY"))
    else:
        say("no buckets; a worker opens them: 'jm worker MODULE:APP'")
    say_unreadable(census.unreadable)
    for kind in unserved or []:
        say(f"warning: {unserved_text(kind)}")
    if problem:
        say(f"whether jobs wait that nobody takes is not known: {problem}")


@app.command("show")
@expanded
def show_bucket(bucket: BucketArgument, *, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """Show one bucket: its record, and what lies in its stream.

    Example:
        jm bucket show default-high-0f3a9c21
    """
    view, facts = run_briefly(_look(bucket, options))
    if as_json:
        print_json({"bucket": view, "stream": facts})
    else:
        print_record(_fields(view) + _stream_fields(facts))


async def _look_at_all(options: ClientOptions) -> "tuple[Census, list[UnservedKind] | None, str]":
    """The records; what nobody takes, or None and why that is not known."""
    from jm_core.errors import JmError  # noqa: PLC0415
    from jm_nats.census import read_census  # noqa: PLC0415

    async with options.client() as client:
        census = await read_census(client.link, client.names)
        try:
            return census, (await client.api.unserved()).unserved, ""
        except JmError as error:  # no coordinator, or one of an older version
            return census, None, str(error)


async def _look(bucket: str, options: ClientOptions) -> "tuple[BucketView, StreamFacts | None]":
    from jm_nats.census import read_census, read_stream_facts  # noqa: PLC0415

    async with options.client() as client:
        census = await read_census(client.link, client.names)
        view = census.bucket(bucket)
        if view is None:
            not_found("bucket", bucket, census, (b.bucket for b in census.buckets), client.names.buckets_kv)
        return view, await read_stream_facts(client.link, client.names, bucket)


def _priority(view: "BucketView") -> str:
    """A fallback takes jobs of one priority and runs them at another."""
    return view.priority if view.serves == view.priority else f"{view.serves} at {view.priority}"


def _owner(view: "BucketView") -> str:
    return view.worker if view.owner == "alive" else f"{view.worker} ({view.owner})"


def _fields(view: "BucketView") -> list[tuple[str, str]]:
    return [
        ("bucket", view.bucket),
        ("status", view.status),
        ("lane", view.lane),
        ("priority", _priority(view)),
        ("kind", view.kind),
        ("reason", view.reason),
        ("worker", _owner(view)),
        ("opened by", view.origin if view.origin != view.worker else ""),
        ("incarnation", view.incarnation),
        ("epoch", str(view.epoch)),
        ("weight", str(view.weight)),
        ("age", age(view.age_s)),
        ("changed", f"{age(view.changed_age_s)} ago"),
    ]


def _stream_fields(facts: "StreamFacts | None") -> list[tuple[str, str]]:
    if facts is None:
        return [("stream", "gone")]
    waiting = "no consumer: nobody reads it" if facts.pending_runs is None else str(facts.pending_runs)
    return [
        ("stream", facts.stream),
        ("messages", f"{facts.messages}, {size(facts.bytes)}"),
        ("waiting", waiting),
        ("unacked", "" if facts.unacked_runs is None else str(facts.unacked_runs)),
        ("redelivered", str(facts.redelivered_runs) if facts.redelivered_runs else ""),
        ("scheduled", str(facts.scheduled)),
    ]
