"""What the demo shows while it runs, on stderr: a live bar on a terminal, a line a second anywhere else."""

import time
from types import TracebackType
from typing import IO, Final, Self

from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_EVERY_S: Final = 1.0
FILE_WIDTH: Final = 120
NAMES: Final = ("submitted", "recorded", "done")


def console_of(stream: IO[str]) -> Console:
    """As wide as the terminal; a file is as wide as our tables need."""
    return Console(file=stream, width=None if stream.isatty() else FILE_WIDTH, highlight=False)


class Snapshot(Struct, frozen=True):
    """``retrying``: tried before and not ended."""

    submitted: int
    recorded: int
    ended: int
    failed: int
    retrying: int
    jobs_per_s: float

    @property
    def note(self) -> str:
        return f"{self.failed:,} failed · {self.retrying:,} retrying · {self.jobs_per_s:,.0f} jobs/s"


class Display:
    """Use as a context manager; ``update`` as often as you like."""

    def __init__(self, console: Console, jobs: int) -> None:
        self._console = console
        self._jobs = jobs
        self._printed_s = 0.0
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = {name: self._progress.add_task(name, total=self._jobs, note="") for name in NAMES}
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bars:
            self._progress.stop()

    def update(self, now: Snapshot) -> None:
        self._jobs = max(self._jobs, now.submitted)  # --chaos goes on for as long as it takes
        if self._bars:
            for name, count in zip(NAMES, (now.submitted, now.recorded, now.ended), strict=True):
                self._progress.update(self._bars[name], completed=count, total=self._jobs)
            self._progress.update(self._bars["done"], note=now.note)
        elif time.monotonic() - self._printed_s >= LINE_EVERY_S or now.ended == self._jobs:
            self._printed_s = time.monotonic()
            counts = f"submitted {now.submitted:,}  recorded {now.recorded:,}  done {now.ended:,} of {self._jobs:,}"
            self._console.print(f"{counts}  {now.note}")
