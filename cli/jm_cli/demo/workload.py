"""What the demo submits, and the record that each job must end with."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from jm_cli.demo.app import STDLIB

NOT_STDLIB: Final = frozenset({"site-packages", "dist-packages"})
REMINDERS: Final = 40
REMINDERS_FROM_S: Final = 2.0
REMINDERS_SPREAD_S: Final = 4.0
PINGS: Final = 60
PINGS_PER_S: Final = 20
# Of the files. One is even where the other is odd, so no file is both.
FLAKY_EVERY, FLAKY_FIRST = 40, 2
RAW_EVERY, RAW_FIRST = 50, 1


class Workload(Struct, frozen=True):
    """Files by their path below the standard library; each is in one of the three lists."""

    plain: list[str]
    flaky: list[str]  # their first attempt fails
    raw: list[str]  # published over a bare socket, without an id
    reminders: int
    pings: int
    no_ops: int

    @property
    def files(self) -> int:
        return len(self.plain) + len(self.flaky) + len(self.raw)

    @property
    def jobs(self) -> int:
        return self.files + self.reminders + self.pings + self.no_ops


def workload(files: list[str], *, no_ops: int = 0) -> Workload:
    """Spread the files over the ways to submit and to fail."""
    flaky, raw = files[FLAKY_FIRST::FLAKY_EVERY], files[RAW_FIRST::RAW_EVERY]
    special = {*flaky, *raw}
    plain = [path for path in files if path not in special]
    return Workload(plain, flaky, raw, reminders=REMINDERS, pings=PINGS, no_ops=no_ops)


def stdlib_files(limit: int | None = None) -> list[str]:
    """Every ``.py`` file of the standard library, or ``limit`` of them spread evenly over it; in order of path."""
    found = sorted(_python_files())
    if limit is None or limit >= len(found):
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def _python_files() -> Iterator[str]:
    for folder, below, names in os.walk(STDLIB):
        below[:] = [name for name in below if name not in NOT_STDLIB]  # not even looked into
        yield from (str((Path(folder) / name).relative_to(STDLIB)) for name in names if name.endswith(".py"))


def reminder_delays_s(count: int) -> list[float]:
    """Seconds from now, evenly spread."""
    return [REMINDERS_FROM_S + REMINDERS_SPREAD_S * i / count for i in range(count)]
