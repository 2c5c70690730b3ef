"""``jm job wait`` and ``jm job watch``: for jobs that have been submitted, by whomever."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from jm_cli.exits import CliError, ExitCode
from jm_cli.options import expanded
from jm_cli.plain_text import one_line
from jm_cli.render import json_text, print_json, print_line
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import JsonFlag
from jm_cli.times import parse_delay

if TYPE_CHECKING:
    from jm_nats.results import EndedJob, JobProgress

BAR_CHARS: Final = 24
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DELAY",
        help="How long to wait (90, 90s, 10m, 1h30m); the jobs themselves go on.",
        show_default="for ever",
    ),
]


def add_to(jobs: typer.Typer) -> None:
    jobs.command("wait")(wait)
    jobs.command("watch")(watch)


@expanded
def wait(
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The jobs' ids.")],
    *,
    timeout: TimeoutOption = None,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Wait for jobs to end. A line for each as it ends: id, state, and its result as JSON or its error.

    Exit code 0: all have succeeded. 7: one has not, or has not ended in time. It goes on through restarts of
    coordinators and outages of Postgres and NATS.

    Examples:
        jm job wait 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e --timeout 10m
        jm job list --status processing --json | jq -r '.jobs[].id' | xargs jm job wait
    """
    from jm_core.errors import JmError  # noqa: PLC0415

    ids, patience_s = _ids(job_ids), _patience_s(timeout)
    ended: dict[str, EndedJob] = {}
    trouble: list[JmError] = []

    async def collect() -> None:
        async with options.client() as client:
            try:
                async for job in client.as_completed(ids, timeout=patience_s):
                    ended[job.job_id] = job
                    if not as_json:
                        print_line(f"{job.job_id} {job.status} {_outcome(job)}")
            except JmError as error:
                trouble.append(error)

    run_briefly(collect())
    if as_json:
        print_json({"jobs": [_as_json(ended[job_id]) for job_id in ids if job_id in ended]})
    if trouble:
        raise trouble[0]
    failed = [job for job in ended.values() if job.status != "succeeded"]
    if failed:
        some = f"{len(failed)} of {len(ended)} jobs have not succeeded"
        raise CliError(ExitCode.OUTCOME, f"{some}; see 'jm job show {failed[0].job_id}'")


@expanded
def watch(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.")],
    *,
    timeout: TimeoutOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document a line for every change, and nothing else there.")
    ] = False,
    options: ClientOptions,
) -> None:
    """Watch a job up to its end: its state, and what its handler reports of its progress.

    In a terminal a line that changes; elsewhere a line for every change (with --json a document). Exit code 0 when it
    has succeeded, 7 when not, or not in time.

    Example:
        jm job watch 0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e
    """
    from jm_core.errors import JobFailedError  # noqa: PLC0415

    (canonical,), patience_s = _ids([job_id]), _patience_s(timeout)

    async def look() -> "JobProgress | None":
        last = None
        async with options.client() as client:
            with _live() if sys.stdout.isatty() and not as_json else _plain(as_json=as_json) as show:
                async for last in client.progress(canonical, timeout=patience_s):
                    show(last)
        return last

    last = run_briefly(look())
    if last is not None and last.status != "succeeded":
        raise JobFailedError(canonical, last.status, last.error)


def progress_text(now: "JobProgress") -> str:
    """``processing 42% note``; the attempt from the second on."""
    parts = [now.status]
    if now.attempt > 1:
        parts.append(f"(attempt {now.attempt})")
    if now.fraction is not None:
        parts.append(f"{now.fraction:.0%}")
    if now.note:
        parts.append(one_line(now.note))
    return " ".join(parts)


@contextmanager
def _plain(*, as_json: bool) -> "Iterator[Callable[[JobProgress], None]]":
    yield (lambda now: print_json(_seen_as_json(now))) if as_json else (lambda now: print_line(progress_text(now)))


@contextmanager
def _live() -> "Iterator[Callable[[JobProgress], None]]":
    """One line, drawn anew; the last one stays."""
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(console=Console(file=sys.stdout, highlight=False), auto_refresh=False) as live:

        def show(now: "JobProgress") -> None:
            done = round(BAR_CHARS * (now.fraction or 0.0))
            bar = "" if now.fraction is None else f"{'━' * done}{'─' * (BAR_CHARS - done)} "
            live.update(Text(f"{bar}{progress_text(now)}", no_wrap=True, overflow="ellipsis"), refresh=True)

        yield show


def _ids(given: list[str]) -> list[str]:
    """Checked before connecting: a misspelt id needs no NATS."""
    from jm_core.ids import parse_job_id  # noqa: PLC0415

    return list(dict.fromkeys(parse_job_id(job_id) for job_id in given))


def _patience_s(timeout: str | None) -> float | None:
    return None if timeout is None else parse_delay(timeout, "--timeout")


def _outcome(job: "EndedJob") -> str:
    if job.status == "succeeded":
        return json_text(job.result or b"null")
    return one_line((job.error or "without an error text").partition("\n")[0])


def _seen_as_json(now: "JobProgress") -> dict[str, object]:
    """Under the names that ``job show`` and ``job wait`` use."""
    import msgspec  # noqa: PLC0415

    fields = msgspec.structs.asdict(now)
    return {"id": fields.pop("job_id"), **fields}


def _as_json(job: "EndedJob") -> dict[str, object]:
    import msgspec  # noqa: PLC0415

    result = None if job.result is None else msgspec.Raw(job.result)
    return {"id": job.job_id, "status": job.status, "result": result, "error": job.error}
