"""The demo's result, read back from Postgres by SQL. As JSON it is what ``--json`` prints; ``tables`` draws it."""

import platform
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from jm_cli.demo import queries
from jm_cli.demo.accounting import Record, Submitted, is_unparsable, problems, shown
from jm_cli.demo.chaos_report import ChaosReport
from jm_core.model import JobStatus

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]  # generic in the stubs only


class HandlerRow(Struct, frozen=True):
    """``jobs_per_s``: from the first job stored by NATS to the last one ended. ``start_*``: from stored (or due, where
    that is later) to started, of the ``first_attempts`` jobs that were tried once.
    """

    handler: str
    jobs: int
    succeeded: int
    failed: int
    other: int
    jobs_per_s: float | None
    first_attempts: int = 0
    start_p50_ms: float | None = None
    start_p99_ms: float | None = None


class Lateness(Struct, frozen=True):
    """Of the jobs with a due time: started minus due."""

    jobs: int
    early: int
    p50_ms: float | None
    p99_ms: float | None


class Retries(Struct, frozen=True):
    """What table ``attempt`` holds; a clean first success leaves no row there."""

    retried_jobs: int
    failed_attempts: int
    attempts: int


class Totals(Struct, frozen=True):
    files: int
    lines: int
    functions: int
    classes: int


class LongFunction(Struct, frozen=True):
    name: str
    lines: int
    path: str
    line: int


class Report(Struct):
    """``submitted``, ``made_to_fail``, ``wall_s`` and ``steps_s`` are the demo's own; the rest is from Postgres."""

    ok: bool
    problems: list[str]
    submitted: int
    made_to_fail: int  # at their first attempt
    handlers: list[HandlerRow]
    lateness: Lateness
    retries: Retries
    rejected: dict[str, int]  # reason -> messages
    totals: Totals
    longest: list[LongFunction]
    unparsable: list[str]
    postgres: str
    python: str
    wall_s: float = 0.0
    steps_s: dict[str, float] = field(default_factory=dict)
    chaos: ChaosReport | None = None

    @property
    def recorded(self) -> int:
        return sum(row.jobs for row in self.handlers)


async def read_report(connection: "Connection", submitted: Submitted) -> Report:
    records = [Record(*row) for row in await connection.fetch(queries.RECORDS)]
    rejected = {row["reason"]: row["messages"] for row in await connection.fetch(queries.REJECTED)}
    found = problems(submitted, records)
    found += await _no_op_problems(connection, submitted.no_ops)
    found += [f"rejected {messages} times: {reason}" for reason, messages in rejected.items()]
    return Report(
        ok=not found,
        problems=shown(found),
        submitted=submitted.jobs,
        made_to_fail=len(submitted.flaky),
        handlers=await _handler_rows(connection),
        lateness=Lateness(**await _row(connection, queries.LATENESS)),
        retries=Retries(**await _row(connection, queries.RETRIES)),
        rejected=rejected,
        totals=Totals(**await _row(connection, queries.TOTALS)),
        longest=[LongFunction(*row) for row in await connection.fetch(queries.LONGEST)],
        unparsable=sorted(r.path or "" for r in records if is_unparsable(r)),
        postgres=await connection.fetchval(queries.VERSION),
        python=platform.python_version(),
    )


def add_chaos(report: Report, chaos: ChaosReport, trouble: str) -> None:
    """A promise that was broken is a problem, and so is a fault that was not carried out."""
    report.chaos = chaos
    report.problems += [*([trouble] if trouble else []), *chaos.broken()]
    report.ok = not report.problems


async def _handler_rows(connection: "Connection") -> list[HandlerRow]:
    delays = {row["handler"]: row for row in await connection.fetch(queries.START_DELAYS)}
    rows = []
    for row in await connection.fetch(queries.HANDLERS):
        delay = delays.get(row["handler"])
        measured = (delay["jobs"], delay["p50_ms"], delay["p99_ms"]) if delay else (0, None, None)
        rows.append(HandlerRow(*row.values(), *measured))
    return rows


async def _no_op_problems(connection: "Connection", ids: list[str]) -> list[str]:
    if not ids:
        return []
    found = [
        f"job {row['id']} (no-op): {JobStatus(row['status']).label}"
        for row in await connection.fetch(queries.NO_OPS_MISSING, ids)
    ]
    count = await connection.fetchval(queries.NO_OPS_COUNT)
    if count != len(ids):
        found.append(f"{len(ids)} no-ops submitted, {count} in Postgres")
    return found


async def _row(connection: "Connection", sql: str) -> dict[str, Any]:
    row = await connection.fetchrow(sql)
    assert row is not None, "an aggregate without GROUP BY has one row"
    return dict(row)
