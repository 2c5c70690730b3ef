"""One frame of ``jm top``, drawn by rich. What needs a look comes first, and what does not fit is counted."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jm_cli.fleet import age, unserved_text
from jm_cli.plain_text import safe
from jm_cli.top_feed import TopView, TopWorker
from jm_core.model import STATUS_BY_LABEL, BucketKind, BucketStatus, WorkerState
from jm_nats.census import BucketView, OwnerState

STALE_S: Final = 10.0  # older data is no picture of now, and red
FIXED_LINES: Final = 9  # titles, heads, blanks
WORKERS_SHARE: Final = 0.6  # of the lines that are left
ROWS_MIN: Final = 3
UNSERVED_MAX: Final = 3


def frame(view: TopView, *, lines: int | None = None) -> RenderableType:
    """``lines``: how many there are; None: as many as it takes."""
    room = None if lines is None else max(2 * ROWS_MIN, lines - FIXED_LINES - min(len(view.unserved), UNSERVED_MAX))
    worker_rows = None if room is None else max(ROWS_MIN, int(room * WORKERS_SHARE))
    workers = _workers(view, worker_rows)
    bucket_rows = None if room is None else max(ROWS_MIN, room - workers.row_count)
    unserved = [Text(unserved_text(kind), style="yellow") for kind in view.unserved[:UNSERVED_MAX]]
    parts: list[RenderableType] = [
        _headline(view),
        _jobs(view),
        *unserved,
        Text(),
        workers,
        Text(),
        _lanes(view, bucket_rows),
    ]
    parts += [
        Text(safe(f"cannot be read: {record.kv} {record.key}: {record.problem}"), style="red")
        for record in view.unreadable
    ]
    return Group(*parts)


def _headline(view: TopView) -> Text:
    alive, slots = len(view.workers), sum(worker.slots for worker in view.workers)
    running, held = sum(worker.running for worker in view.workers), sum(worker.held for worker in view.workers)
    speed = "" if view.finished_per_s is None else f"   {view.finished_per_s:,.1f} jobs/s"
    text = Text(f"{view.cluster}   {alive} workers   {running}/{slots} slots in use   {held} held{speed}", style="bold")
    if view.data_age_s is None:
        text.append(f"\nnothing is known yet: {safe(view.problem)}", style="bold red")
    elif view.problem or view.data_age_s > STALE_S:
        problem = f": {safe(view.problem)}" if view.problem else ""
        text.append(f"\nNATS does not answer; this is {age(view.data_age_s)} old{problem}", style="bold red")
    return text


def _jobs(view: TopView) -> Text:
    if view.jobs is None:
        return Text(f"jobs: {safe(view.jobs_problem) or 'not counted yet'}", style="yellow")
    order = [*STATUS_BY_LABEL, *sorted(view.jobs.keys() - STATUS_BY_LABEL.keys())]
    counts = [f"{safe(label)} {view.jobs[label]:,}" for label in order if view.jobs.get(label)]
    text = Text(f"jobs: {', '.join(counts) or 'none'}; rejected {view.rejected or 0:,}")
    if view.jobs_problem:
        text.append(f"   {age(view.jobs_age_s or 0)} old: {safe(view.jobs_problem)}", style="yellow")
    return text


def _workers(view: TopView, rows_max: int | None) -> Table:
    names = ("WORKER", "STATE", "HEALTH", "RUNNING", "HELD", "JOBS/S", "BEAT", "HOST", "REASON")
    rows = [_worker_row(worker) for worker in sorted(view.workers, key=_worker_order)]
    rows = [_gone_row(gone.worker, len(gone.buckets)) for gone in view.gone] + rows
    return _table(names, rows, rows_max, "workers", right=("RUNNING", "HELD", "JOBS/S", "BEAT"))


def _worker_order(worker: TopWorker) -> tuple[bool, bool, str]:
    return worker.health == "healthy", worker.state == WorkerState.SERVING, worker.worker


def _worker_row(worker: TopWorker) -> tuple[str, ...]:
    rate = "-" if worker.finished_per_s is None else f"{worker.finished_per_s:,.1f}"
    running, beat = f"{worker.running}/{worker.slots}", age(worker.beat_age_s)
    held, reasons = str(worker.held), "; ".join(worker.reasons)
    return (worker.worker, worker.state, worker.health, running, held, rate, beat, worker.host, reasons)


def _gone_row(worker: str, buckets: int) -> tuple[str, ...]:
    return (worker, "gone", "", "", "", "", "", "", f"no heartbeat; {buckets} buckets to be taken over")


def _lanes(view: TopView, rows_max: int | None) -> Table:
    """Buckets that want a look one by one; the others together by lane and priority."""
    special = [bucket for bucket in view.buckets if not _is_plain(bucket)]
    plain = Counter((bucket.lane, bucket.priority) for bucket in view.buckets if _is_plain(bucket))
    rows = [
        (bucket.bucket, bucket.lane, bucket.serves, _state(bucket), bucket.worker, bucket.reason) for bucket in special
    ]
    rows += [
        (f"{count} buckets" if count > 1 else "1 bucket", lane, priority, BucketStatus.ACTIVE.value, "", "")
        for (lane, priority), count in sorted(plain.items())
    ]
    return _table(("BUCKET", "LANE", "PRIORITY", "STATUS", "WORKER", "REASON"), rows, rows_max, "rows")


def _is_plain(bucket: BucketView) -> bool:
    proper = bucket.kind == BucketKind.PROPER and bucket.owner == OwnerState.ALIVE
    return proper and bucket.status == BucketStatus.ACTIVE and not bucket.reason


def _state(bucket: BucketView) -> str:
    parts = [bucket.status]
    if bucket.kind != BucketKind.PROPER:
        parts.append(bucket.kind)
    if bucket.owner != OwnerState.ALIVE:
        parts.append(f"owner {bucket.owner}")
    return ", ".join(parts)


_COLOURS: Final = {"healthy": "green", "degraded": "yellow", "unhealthy": "red", "gone": "red", "halted": "red"} | {
    "fenced": "red",
    "draining": "yellow",
    "stopping": "yellow",
}


def _table(
    names: Sequence[str], rows: Sequence[tuple[str, ...]], rows_max: int | None, what: str, right: Sequence[str] = ()
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if name in right else "left")
    shown = rows if rows_max is None or len(rows) <= rows_max else rows[: rows_max - 1]
    for row in shown:
        table.add_row(*(Text(safe(cell), style=_COLOURS.get(cell, "")) for cell in row))
    if len(shown) < len(rows):
        table.add_row(f"… and {len(rows) - len(shown)} more {what}")
    return table
