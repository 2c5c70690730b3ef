"""The report for people."""

from collections.abc import Iterator
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jm_cli.demo.app import no_op
from jm_cli.demo.chaos_tables import chaos_tables
from jm_cli.demo.report import Report

UNPARSABLE_SHOWN: Final = 3


def tables(report: Report) -> RenderableType:
    """Everything, the verdict last: that is what stays on the screen."""
    parts: list[RenderableType] = [
        _jobs(report),
        Padding(Group(*_facts(report)), (0, 1)),
        _longest(report),
        *([chaos_tables(report.chaos)] if report.chaos else []),
        _verdict(report),
    ]
    return Group(*(Padding(part, (1, 0, 0, 0), expand=False) for part in parts))


def _jobs(report: Report) -> Table:
    table = _table(f"Jobs, read from Postgres {report.postgres.split()[0]}", "handler")
    table.caption = "waited: from stored by NATS (or due, where that is later) to started; only jobs tried once"
    table.caption_justify = "left"
    for name in ("jobs", "succeeded", "failed", "other", "jobs/s", "waited p50", "waited p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.handlers:
        counts = (f"{n:,}" for n in (row.jobs, row.succeeded, row.failed, row.other))
        delays = (_duration(row.start_p50_ms), _duration(row.start_p99_ms))
        table.add_row(row.handler, *counts, f"{row.jobs_per_s or 0:,.0f}", *delays)
    return table


def _facts(report: Report) -> Iterator[Text]:
    late, retries, totals = report.lateness, report.retries, report.totals
    yield _fact(
        "Due later",
        f"{late.jobs} jobs, {late.early or 'none'} early, started {_duration(late.p50_ms)} after their instant (p50), "
        f"{_duration(late.p99_ms)} (p99)",
    )
    text = f"{retries.retried_jobs} jobs failed and ran again, {report.made_to_fail} were made to"
    yield _fact("Retried", f"{text}; table attempt has {retries.attempts} rows")
    rejected = sum(report.rejected.values())
    yield _fact("Rejected", f"{rejected} messages")
    if report.unparsable:
        names = ", ".join(path.rsplit("/", 1)[-1] for path in report.unparsable[:UNPARSABLE_SHOWN])
        more = ", …" if len(report.unparsable) > UNPARSABLE_SHOWN else ""
        text = f"{len(report.unparsable)} files that this Python cannot parse, never tried again ({names}{more})"
        yield _fact("Failed for good", text)
    for row in report.handlers:
        if row.handler == no_op.name:
            speed = f"{row.jobs_per_s or 0:,.0f} a second"
            yield _fact("Doing nothing", f"{row.jobs:,} jobs, {speed} from the first one stored to the last one ended")
    yield _fact(
        "Parsed",
        f"{totals.files:,} files, {totals.lines:,} lines, {totals.classes:,} classes, {totals.functions:,} functions",
    )


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    return table


def _fact(name: str, text: str) -> Text:
    return Text.assemble((f"{name:<16}", "bold"), text)


def _longest(report: Report) -> Table:
    table = _table(f"The longest functions of Python {report.python}'s standard library", "lines")
    table.add_column("function", overflow="fold")
    table.add_column("where", overflow="fold")
    for function in report.longest:
        table.add_row(str(function.lines), function.name, f"{function.path}:{function.line}")
    return table


def _verdict(report: Report) -> Text:
    if report.ok:
        text = f"All {report.submitted:,} jobs are accounted for. {report.wall_s:.1f} s from start to end."
        return Text(text, style="bold green")
    lines = [f"{report.submitted:,} jobs submitted, {report.recorded:,} in Postgres; not as it should be:"]
    return Text("\n  ".join([*lines, *report.problems]), style="bold red")


def _duration(ms: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
