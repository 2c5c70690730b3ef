"""Options that several ``jm schedule`` commands share: when, which job, which policies, who acts."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import typer

from jm_cli.exits import UsageError
from jm_cli.settings import PRIORITY_NAMES, parse_priority, setting
from jm_cli.submit import metadata_of, raw_args
from jm_cli.times import parse_delay, parse_instant

KIND_NAMES: Final = "cron|every|rrule|plain"
MISFIRES: Final = "skip|run_once|run_all"
OVERLAPS: Final = "allow|skip|queue_one"
ARGS_FILE_MAX: Final = 1_000_000
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@dataclass(frozen=True, kw_only=True)
class WhenOptions:
    """When it is due: one expression, in a zone. `jm schedule preview` shows what an expression means."""

    TITLE: ClassVar[str] = "When"

    cron: Annotated[
        str | None, typer.Option("--cron", metavar="EXPR", help="Five fields, or six with seconds: '0 9 * * MON-FRI'.")
    ] = None
    every: Annotated[
        str | None, typer.Option("--every", metavar="INTERVAL", help="In real time: 90s, 15m, 1h30m, 1d.")
    ] = None
    rrule: Annotated[
        str | None, typer.Option("--rrule", metavar="RULE", help="RFC 5545: 'FREQ=WEEKLY;BYDAY=MO;BYHOUR=9'.")
    ] = None
    plain: Annotated[
        str | None, typer.Option("--plain", metavar="TEXT", help="Plain language: 'every weekday at 9:00'.")
    ] = None
    tz: Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="IANA zone.", show_default="the cluster's")] = (
        None
    )
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="TIME", help="Nothing before it; intervals count from it. With an offset."),
    ] = None
    end: Annotated[str | None, typer.Option("--end", metavar="TIME", help="Nothing after it.")] = None
    max_runs: Annotated[int | None, typer.Option("--max-runs", metavar="N", help="Done after so many jobs.")] = None

    @property
    def expressions(self) -> list[tuple[str, str]]:
        """(kind, text) of those that are given."""
        given = {"cron": self.cron, "every": self.every, "rrule": self.rrule, "plain": self.plain}
        return [(kind, text) for kind, text in given.items() if text is not None]

    def fields(self) -> dict[str, Any]:
        """What is given, as fields of a schedule.

        Raises:
            UsageError, InvalidJobError.
        """
        if len(self.expressions) > 1:
            names = " and ".join(f"--{kind}" for kind, _ in self.expressions)
            raise UsageError(f"{names} are given; a schedule has one expression")
        return dict(self.expressions) | _given(
            zone=self.tz,
            starts_at=None if self.start is None else checked_instant(self.start, "--start"),
            ends_at=None if self.end is None else checked_instant(self.end, "--end"),
            max_runs=self.max_runs,
        )


@dataclass(frozen=True, kw_only=True)
class ScheduledJobOptions:
    """The job that is made each time; what is left out comes from the handler, then from the cluster."""

    TITLE: ClassVar[str] = "Its jobs"

    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="Arguments, a JSON object; '-' reads stdin.")
    ] = None
    args_file: Annotated[
        Path | None, typer.Option("--args-file", metavar="FILE", help="Arguments from a file instead.")
    ] = None
    meta: Annotated[
        list[str] | None, typer.Option("--metadata", "--meta", metavar="KEY=VALUE", help="Metadata; repeatable.")
    ] = None
    lane: Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Else the handler's.")] = None
    priority: Annotated[str | None, typer.Option("--priority", metavar=PRIORITY_NAMES, help="Else the handler's.")] = (
        None
    )
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", metavar="N", help="Else the handler's.")] = None
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DELAY", help="Of one attempt. Else the handler's.")
    ] = None
    unique_key: Annotated[
        str | None,
        typer.Option(
            "--unique-key",
            metavar="KEY",
            help="No job is made while another holds this key; held until the job ends, without a window.",
        ),
    ] = None

    def raw_args(self) -> Any:
        """JSON as it was given, or None.

        Raises:
            UsageError, InvalidJobError.
        """
        if self.args_file is None:
            return raw_args(self.args)
        if self.args is not None:
            raise UsageError("--args and --args-file are given; give one of them")
        try:
            with self.args_file.open("rb") as file:
                return raw_args(file.read(ARGS_FILE_MAX).decode())
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--args-file {self.args_file}: {error}") from None

    def fields(self) -> dict[str, Any]:
        """What is given, but for the arguments.

        Raises:
            UsageError, InvalidJobError.
        """
        return _given(
            metadata=metadata_of(self.meta),
            lane=self.lane,
            priority=self.priority and parse_priority(self.priority).label,
            max_attempts=self.max_attempts,
            timeout_s=_delay(self.timeout, "--timeout"),
            unique_key=self.unique_key,
        )


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """What happens when its time was missed, or its last job still runs."""

    TITLE: ClassVar[str] = "Policies"

    misfire: Annotated[
        str | None,
        typer.Option(
            "--misfire",
            metavar=MISFIRES,
            help="Of missed times run none, the newest, or the newest few.",
            show_default="run_once",
        ),
    ] = None
    misfire_limit: Annotated[
        int | None, typer.Option("--misfire-limit", metavar="N", help="With run_all: so many.", show_default="10")
    ] = None
    misfire_window: Annotated[
        str | None,
        typer.Option("--misfire-window", metavar="DELAY", help="Nothing that was missed longer ago; 60s or more."),
    ] = None
    overlap: Annotated[
        str | None,
        typer.Option(
            "--overlap",
            metavar=OVERLAPS,
            help="While its last job is unfinished: run beside it, skip, or wait.",
            show_default="allow",
        ),
    ] = None
    jitter: Annotated[str | None, typer.Option("--jitter", metavar="DELAY", help="Delay each job by 0 to so much.")] = (
        None
    )

    def fields(self) -> dict[str, Any]:
        """What is given.

        Raises:
            UsageError, InvalidJobError.
        """
        return _given(
            misfire=_one_of(self.misfire, MISFIRES, "--misfire"),
            misfire_limit=self.misfire_limit,
            misfire_window_s=None
            if self.misfire_window is None
            else parse_delay(self.misfire_window, "--misfire-window"),
            overlap=_one_of(self.overlap, OVERLAPS, "--overlap"),
            jitter_s=_delay(self.jitter, "--jitter"),
        )


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What goes on record beside the change."""

    TITLE: ClassVar[str] = "For the record"

    by: Annotated[
        str | None,
        setting("--by", "JM_ACTOR", "Who acts, for the record; otherwise user and host.", metavar="NAME"),
    ] = None
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = ""


def checked_instant(text: str, option: str) -> datetime:
    """An instant that a job can be due at.

    Raises:
        UsageError, InvalidJobError.
    """
    from jm_core import limits  # noqa: PLC0415

    at = parse_instant(text, option)
    if not limits.RUN_AT_YEAR_MIN <= at.year <= limits.RUN_AT_YEAR_MAX:
        years = f"{limits.RUN_AT_YEAR_MIN} to {limits.RUN_AT_YEAR_MAX}"
        raise UsageError(f"{option} is in the year {at.year}; it must be {years}")
    return at


def _delay(text: str | None, option: str) -> float | None:
    return None if text is None else parse_delay(text, option)


def _one_of(given: str | None, known: str, option: str) -> str | None:
    if given is not None and given not in known.split("|"):
        raise UsageError(f"{option} {given[:40]!r} is unknown; use {', '.join(known.split('|'))}")
    return given


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
