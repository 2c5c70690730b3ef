"""What the chaos did and what became of the promises, read from Postgres by SQL."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from jm_cli.demo import queries
from jm_cli.demo.accounting import Submitted
from jm_cli.demo.chaos import Chaos, Fault
from jm_cli.demo.executions import read_executions

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]  # generic in the stubs only


class FaultRow(Struct, frozen=True):
    """``hit``: jobs in its hands; ``moved``: those of them that had to run elsewhere (for NATS: to start at all);
    ``recovery_s``: from the fault to the start of the last of them, None: there was none.
    """

    fault: str
    process: str
    lasted_s: float | None
    hit: int
    moved: int
    recovery_s: float | None
    promised_s: float | None

    @property
    def kept(self) -> bool:
        return self.promised_s is None or self.recovery_s is None or self.recovery_s <= self.promised_s


class ChaosReport(Struct, frozen=True):
    """``twice_run`` and ``twice_started`` are no broken promise: execution is at least once, recording exactly once."""

    lease_s: float
    faults: list[FaultRow]
    jobs: int
    lost: int
    recorded_twice: int
    stale_refused: int  # runs that came to an end whose outcome was not taken: another dispatch was live
    twice_run: int  # jobs whose handler came to its end more than once
    twice_started: int
    lost_attempts: int  # rows worker_lost in table attempt

    def broken(self) -> list[str]:
        """The promises that were not kept, a sentence each."""
        found = []
        if self.lost:
            found.append(f"{self.lost} jobs that NATS had acknowledged were lost")
        if self.recorded_twice:
            found.append(f"{self.recorded_twice} jobs have more than one recorded effect")
        found += [
            f"{row.fault} {row.process}: its jobs ran elsewhere after {row.recovery_s:.1f} s, promised are "
            f"{row.promised_s:g} s"
            for row in self.faults
            if not row.kept
        ]
        return found


async def read_chaos(
    connection: "Connection", chaos: Chaos, submitted: Submitted, executions: Path, *, lease_s: float
) -> ChaosReport:
    """Puts the executions beside the jobs, in table ``demo_execution``, and asks."""
    await connection.execute(queries.EXECUTION_TABLE)
    rows = [execution.row for execution in read_executions(executions)]
    await connection.executemany(queries.EXECUTION_INSERT, rows)
    ids = [*submitted.flaky, *submitted.plain, *submitted.no_ops]
    lost = await connection.fetchval(queries.LOST, ids) + await connection.fetchval(queries.LOST_RAW, submitted.raw)
    counts = await connection.fetchrow(queries.EXECUTED)
    assert counts is not None, "an aggregate without GROUP BY has one row"
    return ChaosReport(
        lease_s=lease_s,
        faults=[await _fault_row(connection, fault) for fault in chaos.faults],
        jobs=submitted.jobs,
        lost=lost,
        recorded_twice=await connection.fetchval(queries.RECORDED_TWICE),
        lost_attempts=await connection.fetchval(queries.LOST_ATTEMPTS),
        **dict(counts),
    )


async def _fault_row(connection: "Connection", fault: Fault) -> FaultRow:
    began = datetime.fromtimestamp(fault.at, UTC)
    ids, dispatches = list(fault.hit), list(fault.hit.values())
    query = queries.STARTED_AFTER if fault.promised_s is None else queries.STARTED_ELSEWHERE
    found = await connection.fetchrow(query, ids, dispatches, began)
    assert found is not None, "an aggregate without GROUP BY has one row"
    lasted_s = None if fault.over_at is None else round(fault.over_at - fault.at, 2)
    return FaultRow(fault.name, fault.process, lasted_s, len(ids), found["jobs"], found["last_s"], fault.promised_s)
