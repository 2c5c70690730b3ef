"""Which jobs an operator's action is about, who acts, and how sure they are: options of every action."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from jm_cli.exits import UsageError
from jm_cli.settings import PRIORITY_NAMES, parse_priority, setting, words
from jm_cli.submit import metadata_of
from jm_cli.times import parse_instant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jm_core.api_control import JobFilter

STDIN: Final = "-"
LINE_MAX: Final = 1_000
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The jobs' ids.")]


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """By ids, or by a filter: what is given is combined with AND. Times have an offset, e.g. `2030-01-01T09:00:00Z`."""

    TITLE: ClassVar[str] = "Which jobs"

    ids_from: Annotated[
        Path | None,
        typer.Option("--ids-from", metavar="FILE", help="Ids, the first word of each line; - reads them from stdin."),
    ] = None
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help="In this state; repeatable.")
    ] = None
    handler: Annotated[str | None, typer.Option("--handler", metavar="NAME", help="Of this handler.")] = None
    of_lane: Annotated[str | None, typer.Option("--in-lane", metavar="LANE", help="In this lane.")] = None
    of_priority: Annotated[
        str | None, typer.Option("--of-priority", metavar=PRIORITY_NAMES, help="Of this priority.")
    ] = None
    meta: Annotated[
        list[str] | None, typer.Option("--meta", metavar="KEY=VALUE", help="With this metadata; repeatable.")
    ] = None
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="NAME", help="That this schedule has made.")] = (
        None
    )
    queued_after: Annotated[
        str | None, typer.Option("--queued-after", metavar="TIME", help="Submitted then or later.")
    ] = None
    queued_before: Annotated[str | None, typer.Option("--queued-before", metavar="TIME", help="Submitted before.")] = (
        None
    )
    due_after: Annotated[str | None, typer.Option("--due-after", metavar="TIME", help="Due then or later.")] = None
    due_before: Annotated[str | None, typer.Option("--due-before", metavar="TIME", help="Due before.")] = None
    everything: Annotated[
        bool, typer.Option("--all", help="Every job that the action applies to; for want of a filter.")
    ] = False

    def ids(self, named: list[str] | None) -> "Sequence[str]":
        """Canonical ids, each once; none when a filter picks them.

        Raises:
            UsageError, InvalidJobError.
        """
        from jm_core.ids import parse_job_id  # noqa: PLC0415

        given = [*(named or []), *(_read_ids(self.ids_from) if self.ids_from is not None else [])]
        chosen = list(dict.fromkeys(parse_job_id(text) for text in given))
        has_filter = self.filter() is not None or self.everything
        if chosen and has_filter:
            raise UsageError("ids and a filter are given; name jobs, or give a filter, not both")
        if not chosen and self.ids_from is not None:
            raise UsageError(f"--ids-from {self.ids_from}: there is no id in it")
        if not chosen and not has_filter:
            raise UsageError("no job is named and no filter is given; to act on every job say --all")
        return chosen

    def filter(self) -> "JobFilter | None":
        """None when none is given. Raises: UsageError, InvalidJobError, InvalidNameError."""
        from jm_core.api_control import JobFilter  # noqa: PLC0415
        from jm_core.control_checks import check_filter  # noqa: PLC0415

        wanted = JobFilter(
            status=list(words(self.status)),
            handler=self.handler,
            lane=self.of_lane,
            priority=self.of_priority and parse_priority(self.of_priority).label,
            metadata=metadata_of(self.meta) or {},
            schedule=self.schedule,
            queued_from=_instant(self.queued_after, "--queued-after"),
            queued_until=_instant(self.queued_before, "--queued-before"),
            due_from=_instant(self.due_after, "--due-after"),
            due_until=_instant(self.due_before, "--due-before"),
        )
        check_filter(wanted)
        return None if wanted.is_empty else wanted


@dataclass(frozen=True, kw_only=True)
class ActingOptions:
    """What goes on record beside the change, and how it is made sure."""

    TITLE: ClassVar[str] = "Acting"

    by: Annotated[
        str | None,
        setting("--by", "JM_ACTOR", "Who acts, for the record; otherwise user and host.", metavar="NAME"),
    ] = None
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = ""
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False
    expect: Annotated[
        int | None,
        typer.Option("--expect", metavar="N", help="With a filter: do nothing unless exactly so many jobs match."),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With a filter: do not ask.")] = False


def _instant(text: str | None, option: str) -> "datetime | None":
    return None if text is None else parse_instant(text, option)


def _read_ids(path: Path) -> list[str]:
    try:
        text = sys.stdin.read() if str(path) == STDIN else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--ids-from {path}: {error}") from None
    return [line.split()[0][:LINE_MAX] for line in text.splitlines() if line.strip()]
