"""Is every job that was submitted in Postgres, once, and ended as it should? Pure; the rows come from ``RECORDS``."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from jm_core.model import JobStatus

SHOWN_MAX: Final = 20


class Submitted(Struct):
    """What NATS has acknowledged: ids by handler, and the path for those published without an id."""

    flaky: set[str] = field(default_factory=set)
    plain: dict[str, str] = field(default_factory=dict)  # id -> handler
    raw: list[str] = field(default_factory=list)
    no_ops: list[str] = field(default_factory=list)

    @property
    def jobs(self) -> int:
        return len(self.flaky) + len(self.plain) + len(self.raw) + len(self.no_ops)


class Record(Struct, frozen=True):
    """A row of table ``job``."""

    id: str
    handler: str
    path: str | None
    status: int
    attempt: int
    error: str | None


def problems(submitted: Submitted, records: Iterable[Record]) -> list[str]:
    """Everything that is not as it should be, a sentence each; empty: every job is accounted for.

    A file that does not parse ends ``failed`` on purpose; every other job succeeds, and not at the first attempt where
    that was made to fail. No-ops are looked for by SQL.
    """
    by_id = {record.id: record for record in records}
    found = []
    for job_id in submitted.flaky:
        found += _of_one(job_id, "parse", by_id.pop(job_id, None), attempt_min=2)
    for job_id, handler in submitted.plain.items():
        found += _of_one(job_id, handler, by_id.pop(job_id, None))
    return found + _of_raw(submitted.raw, by_id)


def _of_raw(paths: Iterable[str], left: Mapping[str, Record]) -> list[str]:
    """Nobody knows the ids of these: what is left over must be exactly they."""
    found = []
    times = Counter(record.path for record in left.values() if record.handler == "parse")
    wanted = set(paths)
    found += [f"{path}: published over a socket, recorded {times[path]} times" for path in wanted if times[path] != 1]
    for record in left.values():
        if record.handler == "parse" and record.path in wanted:
            found += _of_one(record.id, "parse", record)
        else:
            found.append(f"job {record.id} ({record.handler}): nobody submitted it")
    return found


def _of_one(job_id: str, handler: str, record: Record | None, *, attempt_min: int = 1) -> list[str]:
    if record is None:
        return [f"job {job_id} ({handler}): acknowledged by NATS, not in Postgres"]
    name = f"job {job_id} ({handler}{f' {record.path}' if record.path else ''})"
    if record.attempt < attempt_min:
        return [f"{name}: {_label(record)} at attempt {record.attempt}, which was made to fail"]
    if record.status == JobStatus.SUCCEEDED or is_unparsable(record):
        return []
    return [f"{name}: {_label(record)}{f', {record.error.splitlines()[0]}' if record.error else ''}"]


def is_unparsable(record: Record) -> bool:
    """The one failure that belongs to the demo: the standard library keeps a few broken files for its tests."""
    return record.status == JobStatus.FAILED and (record.error or "").startswith("NoRetry: this Python cannot parse")


def _label(record: Record) -> str:
    return JobStatus(record.status).label


def shown(found: list[str]) -> list[str]:
    """The first ones; a thousand lines of the same help nobody."""
    if len(found) <= SHOWN_MAX:
        return found
    return [*found[:SHOWN_MAX], f"… and {len(found) - SHOWN_MAX} more"]
