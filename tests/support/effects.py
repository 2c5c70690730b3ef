"""What handlers really did, told by themselves: the side table of oracle O5, in a file.

A line when a run starts and one when it ends, each with the run's fencing token (its dispatch). A run that was killed
has no end. See handler ``effect`` in ``tests.support.app``.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jm_core.model import JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.sql import Sql

EFFECTS_VARIABLE: Final = "JM_TEST_EFFECTS"
START, END, CANCELLED = "start", "end", "cancelled"


def note(kind: str, job_id: str, dispatch: int, at_s: float, due_s: float = 0.0) -> None:
    """Called by the handler."""
    line = f"{kind} {job_id} {dispatch} {os.getpid()} {at_s:.6f} {due_s:.6f}\n"
    with Path(os.environ[EFFECTS_VARIABLE]).open("ab", buffering=0) as file:
        file.write(line.encode())  # a small append is atomic: several workers may share the file


@dataclass
class Run:
    """One execution of a handler."""

    job_id: str
    dispatch: int
    pid: int
    start_s: float
    due_s: float
    end_s: float | None = None  # None: it was killed, or it is not over
    cancelled: bool = False

    @property
    def late_s(self) -> float:
        """After its due time, by the handler's own clock; for runs that were told when they are due."""
        return self.start_s - self.due_s


class Effects:
    """All runs in a file, as of now."""

    def __init__(self, path: Path) -> None:
        self.runs: list[Run] = []
        open_runs: dict[tuple[str, int, int], Run] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            kind, job_id, dispatch, pid, at_s, due_s = line.split()
            key = (job_id, int(dispatch), int(pid))
            if kind == START:
                open_runs[key] = Run(*key, float(at_s), float(due_s))
                self.runs.append(open_runs[key])
            else:
                open_runs[key].end_s = float(at_s)
                open_runs[key].cancelled = kind == CANCELLED

    def executions(self) -> Counter[str]:
        """Starts, by job."""
        return Counter(run.job_id for run in self.runs)

    def repeated(self) -> dict[str, int]:
        """Jobs that ran more than once."""
        return {job_id: times for job_id, times in self.executions().items() if times > 1}

    def delays_s(self) -> list[float]:
        """From a job's making (its id tells when) to its first start, for all that were to start at once."""
        first: dict[str, Run] = {}
        for run in self.runs:
            first.setdefault(run.job_id, run)
        return [run.start_s - made_at_s(run.job_id) for run in first.values() if not run.due_s]

    def running(self) -> list[Run]:
        return [run for run in self.runs if run.end_s is None]

    def overlaps(self) -> list[tuple[Run, Run]]:
        """Two runs of one job that went on at the same time; one without an end went on for ever."""
        found: list[tuple[Run, Run]] = []
        by_job: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.start_s):
            before = by_job.setdefault(run.job_id, [])
            found += [(earlier, run) for earlier in before if earlier.end_s is None or earlier.end_s > run.start_s]
            before.append(run)
        return found


def made_at_s(job_id: str) -> float:
    """A UUID of version 7 begins with the time."""
    return uuid.UUID(job_id).int / (1 << 80) / 1000


async def unfounded(sql: Sql, effects: Effects, accepted_ids: Iterable[str]) -> list[str]:
    """O5 from outside: every recorded success is that of the run with the row's own fencing token, which did end."""
    ended = {(run.job_id, run.dispatch) for run in effects.runs if run.end_s is not None and not run.cancelled}
    query = "SELECT id, dispatch FROM job WHERE id = ANY($1::uuid[]) AND status = $2"
    rows = await sql.rows(query, list(accepted_ids), int(JobStatus.SUCCEEDED))
    return [str(row["id"]) for row in rows if (str(row["id"]), row["dispatch"]) not in ended]


def percentile(values: Iterable[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
