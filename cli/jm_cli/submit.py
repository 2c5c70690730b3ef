"""``jm submit``: one job from the command line, or many from a file."""

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from jm_cli.exits import UsageError
from jm_cli.options import expanded
from jm_cli.piped import piped_in
from jm_cli.render import json_text, print_json, print_line, say
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import PRIORITY_NAMES, JsonFlag
from jm_cli.times import parse_delay, parse_instant
from jm_core import limits
from jm_core.model import OnConflict
from jm_core.traceparent import usable_traceparent

if TYPE_CHECKING:
    from jm_core.wire import Submission

RECORDED_TIMEOUT_S: Final = 10.0
RESULT_TIMEOUT_S: Final = 60.0


class WaitFor(StrEnum):
    """What to wait for: NATS has it, Postgres has it, its handler has ended."""

    QUEUED = "queued"
    RECORDED = "recorded"
    RESULT = "result"


def add_to(root: typer.Typer) -> None:
    root.command("submit")(submit)


@expanded
def submit(
    *,
    handler: Annotated[str | None, typer.Argument(metavar="HANDLER", help="Name of the handler.")] = None,
    args: Annotated[
        str | None, typer.Argument(metavar="ARGS", help="Its arguments, a JSON object; '-' reads it from stdin.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--in", metavar="DELAY", help="Run it later: 90, 90s, 10m, 2h, 1d.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Run it then: 2030-01-01T09:00:00+01:00, or with Z.")
    ] = None,
    lane: Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Else the handler's.")] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", metavar=PRIORITY_NAMES, help="Else the handler's.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", metavar="N", help="Else the handler's.")] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DELAY", help="Of one attempt. Else the handler's.")
    ] = None,
    unique_key: Annotated[
        str | None,
        typer.Option("--unique-key", metavar="KEY", help="Nothing is submitted while an unfinished job has this key."),
    ] = None,
    unique_for: Annotated[
        str | None,
        typer.Option(
            "--unique-for",
            metavar="DELAY",
            help="The key is held for so long, even when the job has ended: 90s, 10m, 2h, 1d, or forever (ten years).",
        ),
    ] = None,
    on_conflict: Annotated[
        str | None,
        typer.Option(
            "--on-conflict",
            metavar="|".join(OnConflict),
            help="When another job holds the key: be told which (return_existing), fail (reject, exit code 7), or "
            "cancel it if it still waits and take its place (replace).",
            show_default="return_existing",
        ),
    ] = None,
    meta: Annotated[list[str] | None, typer.Option("--meta", metavar="KEY=VALUE", help="Metadata; repeatable.")] = None,
    job_id: Annotated[
        str | None, typer.Option("--id", metavar="UUID", help="Submitting the same id again does nothing.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", metavar="FILE", help="Jobs instead of HANDLER: one JSON object per line; '-' reads stdin."
        ),
    ] = None,
    skip: Annotated[int, typer.Option("--skip", metavar="N", help="Pass over the file's first N jobs.", min=0)] = 0,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Check the whole file before the first job is sent."),
    ] = True,
    wait: Annotated[
        WaitFor,
        typer.Option(
            "--wait",
            metavar="queued|recorded|result",
            help="Until NATS has stored it (queued), Postgres has committed it (recorded), or it has ended (result).",
        ),
    ] = WaitFor.QUEUED,
    wait_timeout: Annotated[
        float | None,
        typer.Option(
            "--wait-timeout",
            metavar="SECONDS",
            help="How long to wait; the job itself goes on.",
            show_default=f"{RECORDED_TIMEOUT_S:g} for recorded, {RESULT_TIMEOUT_S:g} for result",
        ),
    ] = None,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Submit a job, or the jobs of a file.

    With the variable TRACEPARENT set (W3C), the runs become part of that trace.

    Examples:
        jm submit send-email '{"to": "a@b.c", "subject": "hi"}'
        jm submit send-email '{"to": "a@b.c", "subject": "hi"}' --in 10m --wait recorded
        jm submit render-report '{"month": "2030-01"}' --at 2030-02-01T06:00:00+01:00
        jm submit add '{"a": 1, "b": 2}' --wait result
        jm submit digest '{"user": 7}' --in 1h --unique-key digest-7 --on-conflict replace --wait recorded
        jm submit --file jobs.ndjson
        generate-jobs | jm submit --file -

    A line of the file:
        {"handler": "send-email", "args": {"to": "a@b.c"}, "delay_s": 60, "unique_key": "mail-1"}
    """
    fields = {
        "delay_s": None if delay is None else parse_delay(delay, "--in"),
        "run_at": None if at is None else parse_instant(at),
        "lane": lane,
        "priority": priority,
        "max_attempts": max_attempts,
        "timeout_s": None if timeout is None else parse_delay(timeout, "--timeout"),
        "unique_key": unique_key,
        "unique_for_s": None if unique_for is None else _unique_for_s(unique_for),
        "on_conflict": on_conflict,
        "metadata": metadata_of(meta),
        "id": job_id,
    }
    trace = usable_traceparent(os.environ.get("TRACEPARENT"))  # of the script or build that calls us
    if file is not None:
        _check_file_alone(handler, fields, wait)
        from jm_cli.submit_file import submit_file  # noqa: PLC0415

        patience_s = RECORDED_TIMEOUT_S if wait_timeout is None else wait_timeout
        recorded = wait is WaitFor.RECORDED
        submit_file(
            options,
            file,
            skip=skip,
            check=check,
            recorded=recorded,
            patience_s=patience_s,
            as_json=as_json,
            trace=trace,
        )
        return
    if handler is None:
        raise UsageError("HANDLER is missing; name the handler, or give --file")
    if on_conflict == OnConflict.REJECT and wait is WaitFor.QUEUED:
        raise UsageError("--on-conflict reject needs --wait recorded or result; else nobody is told")
    job = _job(handler, args, fields | {"trace": trace})
    run_briefly(_submit_one(options, job, wait, wait_timeout, as_json=as_json))


async def _submit_one(
    options: ClientOptions, job: "Submission", wait: WaitFor, wait_timeout: float | None, *, as_json: bool
) -> None:
    """The receipt goes to stdout, or, when the result is waited for, the result does."""
    patience_s = RECORDED_TIMEOUT_S if wait_timeout is None or wait is WaitFor.RESULT else wait_timeout
    async with options.client(receipt_timeout_s=patience_s) as client:
        receipt = await client.submit(job, wait="queued" if wait is WaitFor.QUEUED else "recorded")
        if wait is not WaitFor.RESULT:
            print_json(receipt) if as_json else print_line(f"{receipt.status} {receipt.job_id}")
            return
        say(f"{receipt.status} {receipt.job_id}")
        await client.result(receipt.job_id, timeout=RESULT_TIMEOUT_S if wait_timeout is None else wait_timeout)
        # Asked for again as it is stored: the digits of a number are not ours to change.
        ended = await client.job(receipt.job_id)
    if as_json:
        print_json(ended)
    else:
        print_line("null" if ended.result is None else json_text(ended.result))


def _job(handler: str, args: str | None, fields: dict[str, Any]) -> "Submission":
    """Checked as far as that is possible without the handler's signature.

    Raises:
        InvalidJobError, InvalidNameError.
    """
    from jm_nats.client import submission  # noqa: PLC0415

    return submission(handler, raw_args(args), **fields)


def raw_args(text: str | None) -> Any:
    """``text`` as it is, once it is known to be one JSON value: digits and key order are the caller's."""
    import msgspec  # noqa: PLC0415

    from jm_core.errors import InvalidJobError  # noqa: PLC0415

    if text is None:
        return None
    typed = text.encode("utf-8", "surrogateescape")
    raw = piped_in().read(limits.MESSAGE_BYTES_MAX) if text == "-" else typed
    try:
        return msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidJobError(
            "args", f"{error}", remedy="""give a JSON object in quotes: '{"to": "a@b.c"}'"""
        ) from None


def _unique_for_s(text: str) -> float:
    return limits.UNIQUE_FOR_S_MAX if text.strip().lower() == "forever" else parse_delay(text, "--unique-for")


def metadata_of(given: list[str] | None) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in given or []]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise UsageError(f"--meta {key!r} has no value; write --meta KEY=VALUE")
    found = {key: value for key, _, value in pairs}
    if len(found) < len(pairs):
        raise UsageError("--meta names one key twice; a key has one value")
    return found or None


def _check_file_alone(handler: str | None, fields: dict[str, Any], wait: WaitFor) -> None:
    given = [name for name, value in fields.items() if value is not None]
    if handler is not None or given:
        what = "HANDLER" if handler is not None else f"an option for {given[0]}"
        raise UsageError(f"--file together with {what}; put it into the lines of the file")
    if wait is WaitFor.RESULT:
        raise UsageError("--wait result is for one job; with --file wait for queued or recorded")
