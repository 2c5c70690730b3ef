"""``jm worker list`` and ``show``: the workers as their heartbeats say, and what one of them answers."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from jm_cli.exits import CliError, ExitCode
from jm_cli.fleet import age, not_found, say_unreadable, take_census
from jm_cli.options import expanded
from jm_cli.render import print_json, print_line, print_record, print_table, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import JsonFlag

if TYPE_CHECKING:
    from jm_core.rpc import WorkerStatus
    from jm_nats.census import BucketView, Census, GoneWorker, WorkerView
    from jm_nats.client import JobClient

STATUS_TIMEOUT_S: Final = 3.0
GONE: Final = "gone"

WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="The worker's id, as 'jm worker list' shows it.")]


@expanded
def list_workers(*, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """List the workers: what each does, how it is, and how long ago it said so.

    A worker without a heartbeat that is still the owner of buckets is listed as "gone".

    Examples:
        jm worker list
        jm worker list --json | jq '.workers[] | select(.health != "healthy")'
    """
    census = run_briefly(take_census(options))
    if as_json:
        print_json(
            {
                "cluster": census.cluster,
                "at": census.at,
                "workers": census.workers,
                "gone": census.gone,
                "unreadable": census.unreadable,
            }
        )
        return
    if census.workers or census.gone:
        columns = ("WORKER", "STATE", "HEALTH", "MODE", "RUNNING", "HELD", "BUCKETS", "BEAT", "HOST", "PID", "REASON")
        rows = [_row(view) for view in census.workers] + [_gone_row(gone) for gone in census.gone]
        print_table(columns, rows, minor=("PID", "MODE", "HOST", "HELD", "BUCKETS", "REASON"))
    else:
        say("no workers; start one with 'jm worker MODULE:APP'")
    say_unreadable(census.unreadable)


@expanded
def show_worker(worker: WorkerArgument, *, as_json: JsonFlag = False, options: ClientOptions) -> None:
    """Show one worker: its record, its buckets, and the jobs that it runs at this moment.

    The jobs are its own answer; where it gives none the exit code is 8, after all that its record says.

    Example:
        jm worker show web-7-4711-0f3a9c21
    """
    census, status, problem = run_briefly(_look(worker, options))
    found: WorkerView | GoneWorker | None = census.worker(worker) or next(
        (gone for gone in census.gone if gone.worker == worker), None
    )
    buckets = [bucket for bucket in census.buckets if worker in (bucket.worker, bucket.origin)]
    if as_json:
        print_json({"worker": found, "buckets": buckets, "status": status, "problem": problem})
    else:
        print_record(_fields(found))
        _print_buckets(worker, buckets)
        if status is not None:
            _print_running(status)
    if problem:
        raise CliError(ExitCode.NO_WORKER, problem)


async def _look(worker: str, options: ClientOptions) -> "tuple[Census, WorkerStatus | None, str]":
    """All that is known, what it answers, and why it does not."""
    from jm_core.errors import JmError  # noqa: PLC0415
    from jm_core.rpc import Status  # noqa: PLC0415
    from jm_nats.census import read_census  # noqa: PLC0415
    from jm_nats.worker_client import accepted, ask  # noqa: PLC0415

    async with options.client() as client:
        census = await read_census(client.link, client.names)
        if require_worker(client, census, worker) is None:
            return census, None, ""
        try:
            answer = await ask(client.link, client.names, worker, Status(), timeout_s=STATUS_TIMEOUT_S)
            return census, accepted(worker, answer).status, ""
        except JmError as error:
            return census, None, str(error)


def require_worker(client: "JobClient", census: "Census", worker: str) -> "WorkerView | None":
    """Its record; None when it is gone and its buckets are still there.

    Raises:
        CliError: nobody has heard of it.
    """
    found = census.worker(worker)
    if found is None and worker not in {gone.worker for gone in census.gone}:
        known = [*(view.worker for view in census.workers), *(gone.worker for gone in census.gone)]
        not_found("worker", worker, census, known, client.names.workers_kv)
    return found


def _row(view: "WorkerView") -> tuple[str, ...]:
    return (
        view.worker,
        view.state,
        view.health,
        view.mode,
        f"{view.running}/{view.slots}",
        str(view.held),
        str(len(view.buckets)),
        age(view.beat_age_s),
        view.host,
        str(view.pid),
        "; ".join(view.reasons),
    )


def _gone_row(gone: "GoneWorker") -> tuple[str, ...]:
    return (gone.worker, GONE, "", "", "", "", str(len(gone.buckets)), "", "", "", "no heartbeat")


def _fields(found: "WorkerView | GoneWorker | None") -> list[tuple[str, str]]:
    assert found is not None, "require_worker has said so"
    view: Any = found
    if not hasattr(view, "state"):
        state = f"{GONE}: no heartbeat, its buckets are taken over by others"
        return [("worker", view.worker), ("state", state), ("incarnation", view.incarnation)]
    return [
        ("worker", view.worker),
        ("state", view.state),
        ("mode", view.mode),
        ("health", view.health),
        ("reasons", "\n".join(view.reasons)),
        ("host", view.host),
        ("pid", str(view.pid)),
        ("incarnation", view.incarnation),
        ("up for", age(view.uptime_s)),
        ("heartbeat", f"{age(view.beat_age_s)} ago"),
        ("slots", f"{view.running} of {view.slots} in use"),
        ("held", str(view.held)),
        ("finished", str(view.finished)),
        ("loop lag", f"{view.loop_lag_s * 1000:.0f} ms"),
        ("clock", f"{-view.clock_offset_s * 1000:+.0f} ms from the server's"),
        ("lanes", ", ".join(view.lanes)),
        ("priorities", ", ".join(view.priorities)),
        ("handlers", ", ".join(view.handlers)),
        ("draining", ", ".join(view.draining)),
    ]


def _print_buckets(worker: str, buckets: "list[BucketView]") -> None:
    if buckets:
        print_line("\nbuckets:")
        rows = [(b.bucket, b.status, b.lane, b.priority, str(b.epoch), _relation(worker, b), b.reason) for b in buckets]
        print_table(("BUCKET", "STATUS", "LANE", "PRIORITY", "EPOCH", "IS", "REASON"), rows, minor=("EPOCH", "REASON"))


def _relation(worker: str, bucket: "BucketView") -> str:
    if bucket.worker != worker:
        return f"taken over by {bucket.worker}"
    return "its own" if bucket.origin == worker else f"adopted from {bucket.origin}"


def _print_running(status: "WorkerStatus") -> None:
    print_line(f"\nrunning {status.running_total}, held {status.held}:")
    rows = [(job.id, job.handler, job.bucket, str(job.attempt), age(job.for_s), job.asked) for job in status.running]
    if rows:
        print_table(("ID", "HANDLER", "BUCKET", "ATTEMPT", "FOR", "ASKED TO END"), rows, minor=("BUCKET", "ATTEMPT"))
