"""The table of a result: a row for each measure, a column for each peer, the best of each row in bold."""

import statistics
from typing import Any, Final, Literal, NamedTuple


class Row(NamedTuple):
    title: str
    workload: str
    key: str
    best: Literal["most", "least"]
    digits: int = 0


ROWS: Final = (
    Row("submit one by one, jobs/s", "submit", "one_per_s", "most"),
    Row("submit in bulk, jobs/s", "submit", "bulk_per_s", "most"),
    Row("drain of queued no-op jobs, jobs/s", "submit", "drain_per_s", "most"),
    Row("submit to kept record, jobs/s", "lifecycle", "lifecycle_per_s", "most"),
    Row("5 ms of waiting, 100 at once, jobs/s", "sleepers", "sleep_per_s", "most"),
    Row("submit to start, at rest, p50 ms", "lifecycle", "idle_p50_ms", "least", 1),
    Row("submit to start, at rest, p99 ms", "lifecycle", "idle_p99_ms", "least", 1),
    Row("submit to start, at half its rate, p50 ms", "lifecycle", "half_p50_ms", "least", 1),
    Row("submit to start, at half its rate, p99 ms", "lifecycle", "half_p99_ms", "least", 1),
    Row("`kill -9` of the worker: all 1,000 jobs have run after, s", "recovery", "recovery_s", "least", 1),
    Row("lost after a minute", "recovery", "lost", "least"),
    Row("run twice", "recovery", "duplicates", "least"),
)


def values(result: dict[str, Any], peer: str, row: Row) -> list[float]:
    cells = result.get("cells", {})
    rounds = [cell for key, cell in cells.items() if key.rsplit("/", 1)[0] == f"{peer}/{row.workload}"]
    return [cell[row.key] for cell in rounds if cell.get(row.key) is not None]


def of(result: dict[str, Any]) -> str:
    """Markdown. ``-``: no figure; ``*``: not every job of one of its rounds was seen in time."""
    peers = list(result["peers"])
    lines = [f"| | {' | '.join(peers)} |", f"|---|{'---|' * len(peers)}"]
    for row in ROWS:
        medians = {peer: statistics.median(found) for peer in peers if (found := values(result, peer, row))}
        best = (max if row.best == "most" else min)(medians.values(), default=None)
        texts = [_text(result, peer, row, medians.get(peer), best) for peer in peers]
        lines.append(f"| {row.title} | {' | '.join(texts)} |")
    if result.get("skipped"):
        lines += ["", *[f"Left out: {name}, {reason}." for name, reason in result["skipped"].items()]]
    return "\n".join(lines)


def _text(result: dict[str, Any], peer: str, row: Row, value: float | None, best: float | None) -> str:
    if value is None:
        return "-"
    text = f"{value:,.{row.digits}f}"
    cells = [c for k, c in result["cells"].items() if k.rsplit("/", 1)[0] == f"{peer}/{row.workload}"]
    mark = "*" if row.workload != "recovery" and any(c.get("complete") is False for c in cells) else ""
    return f"**{text}**{mark}" if value == best else f"{text}{mark}"
