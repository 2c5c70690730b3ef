"""The chaos report for people."""

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jm_cli.demo.chaos_report import ChaosReport, FaultRow


def chaos_tables(report: ChaosReport) -> RenderableType:
    return Group(_faults(report), Padding(_promises(report), (1, 0, 0, 0)))


def _faults(report: ChaosReport) -> Table:
    table = _table(f"What was done to it (lease {report.lease_s:g} s; the default is 10 s)", "fault", "process")
    table.caption = (
        "jobs: in its hands when it was hit; moved: had not ended by themselves; recovered: from the fault to the "
        "start of the last of them"
    )
    table.caption_justify = "left"
    for name in ("lasted", "jobs", "moved", "recovered", "promised"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.faults:
        recovered = Text(_seconds(row.recovery_s), style="" if row.kept else "bold red")
        table.add_row(
            row.fault, row.process, _seconds(row.lasted_s), str(row.hit), str(row.moved), recovered, _promised(row)
        )
    return table


def _promised(row: FaultRow) -> str:
    return "" if row.promised_s is None else f"{row.promised_s:g} s"


def _promises(report: ChaosReport) -> Table:
    table = _table("What became of the jobs, asked by SQL", "")
    table.add_column("jobs", justify="right", no_wrap=True)
    table.add_column("promised", justify="right", no_wrap=True)
    table.add_column("")
    rows = [
        ("submitted", report.jobs, None, ""),
        ("lost", report.lost, 0, "acknowledged by NATS, and not ended in Postgres"),
        ("effects recorded more than once", report.recorded_twice, 0, "two successes of one job"),
        ("stale effects refused", report.stale_refused, None, "ended under a dispatch that was not live any more"),
        ("ran to the end twice", report.twice_run, None, "execution is at least once; the record is exactly once"),
        ("started twice", report.twice_started, None, "cut off by a fault, or run twice"),
        ("attempts ended worker_lost", report.lost_attempts, None, "rows in table attempt"),
    ]
    for name, count, promised, text in rows:
        broken = promised is not None and count != promised
        shown = Text(f"{count:,}", style="bold red" if broken else "")
        table.add_row(name, shown, "" if promised is None else str(promised), text)
    return table


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
