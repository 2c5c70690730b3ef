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
    Row("`kill -9` of the worker: all 1,000 jobs have ended after, s", "recovery", "recovery_s", "least", 1),
    Row("not run after two minutes", "recovery", "lost", "least"),
    Row("ended more than once", "recovery", "duplicates", "least"),
    Row("starts beyond one of a job", "recovery", "started_again", "least"),
)


INCOMPLETE: Final = "`*`: not every job of one of its rounds was seen in time."
FAILED: Final = "`†`: a round of it failed and has no figures"


def _cells(result: dict[str, Any], peer: str, row: Row) -> dict[str, dict[str, Any]]:
    cells = result.get("cells", {})
    return {key: cell for key, cell in cells.items() if key.rsplit("/", 1)[0] == f"{peer}/{row.workload}"}


def values(result: dict[str, Any], peer: str, row: Row) -> list[float]:
    return [cell[row.key] for cell in _cells(result, peer, row).values() if cell.get(row.key) is not None]


def marks(result: dict[str, Any], peer: str, row: Row) -> str:
    """What is to be said of a figure: it may be the best of its row only if that is nothing."""
    cells = _cells(result, peer, row).values()
    incomplete = any(cell.get("complete") is False for cell in cells)
    return ("*" if incomplete else "") + ("†" if any("error" in cell for cell in cells) else "")


def of(result: dict[str, Any]) -> str:
    """Markdown. ``-``: no figure; the marks are explained below the table."""
    peers = list(result["peers"])
    lines = [f"| | {' | '.join(peers)} |", f"|---|{'---|' * len(peers)}"]
    shown = ""
    for row in ROWS:
        medians = {peer: statistics.median(found) for peer in peers if (found := values(result, peer, row))}
        marked = {peer: marks(result, peer, row) for peer in peers}
        shown += "".join(marked.values())
        whole = [median for peer, median in medians.items() if not marked[peer]]
        best = (max if row.best == "most" else min)(whole, default=None)
        texts = [_text(row, medians.get(peer), best, marked[peer]) for peer in peers]
        lines.append(f"| {row.title} | {' | '.join(texts)} |")
    if "*" in shown:
        lines += ["", INCOMPLETE]
    if "†" in shown:
        failed = [key for key, cell in result["cells"].items() if "error" in cell and key.split("/")[0] in peers]
        lines += ["", f"{FAILED}: {', '.join(failed)}."]
    if result.get("skipped"):
        lines += ["", *[f"Left out: {name}, {reason}." for name, reason in result["skipped"].items()]]
    return "\n".join(lines)


def _text(row: Row, value: float | None, best: float | None, marked: str) -> str:
    if value is None:
        return f"-{marked}"
    text = f"{value:,.{row.digits}f}"
    return f"**{text}**" if value == best and not marked else f"{text}{marked}"


def add_peers(result: dict[str, Any], present: dict[str, Any], skipped: dict[str, str], order: list[str]) -> None:
    """Who takes part now, beside those that a result has from before; nobody is both a column and left out."""
    peers = result.get("peers", {}) | present
    result["peers"] = {name: peers[name] for name in order if name in peers}
    reasons = result.get("skipped", {}) | skipped
    result["skipped"] = {name: reason for name, reason in reasons.items() if name not in peers}
