"""A Postgres that is put back to an earlier backup, under workers that go on: what docs/operations.md says of each job.

The backup is a real ``pg_dump`` of the running database, the restore a real ``pg_restore``.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from jm_master.embedded import find_postgres_bin
from tests.support.app import effect
from tests.support.effects import EFFECTS_VARIABLE, START
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from jm_nats import JobClient

pytestmark = pytest.mark.slow

HOUR_S: Final = 3600.0
JOBS: Final = 10
TICK_S: Final = 2


async def run_program(name: str, *arguments: str) -> None:
    """A program of Postgres, to its end."""
    process = await asyncio.create_subprocess_exec(
        str(find_postgres_bin() / name), *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()


async def recorded(client: JobClient, *, delay_s: float) -> list[str]:
    """Ids of jobs that are due so much later."""
    jobs = [effect.job({}, delay=delay_s) for _ in range(JOBS)]
    receipts = await asyncio.gather(*[client.submit(job, wait="recorded") for job in jobs])
    return [receipt.job_id for receipt in receipts]


@pytest.mark.timeout(180)
async def test_after_a_restore_what_the_backup_holds_runs_and_what_it_lacks_has_no_record(
    nats_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    dump, effects = tmp_path / "yesterday.dump", tmp_path / "effects"
    async with Cluster(nats_server.url, database, cluster_name, **{EFFECTS_VARIABLE: str(effects)}) as cluster:
        coordinator = await cluster.start_coordinator().wait_ready()
        worker = await cluster.start_worker().wait_ready()
        async with cluster.client() as client:
            ended = await recorded(client, delay_s=0)
            await cluster.ended(ended)
            later, meanwhile = await recorded(client, delay_s=HOUR_S), await recorded(client, delay_s=6)
            await client.schedules.add("tick", "effect", every=f"{TICK_S}s")
            await wait_until(lambda: ticks_of(cluster, ended_only=True), what="the first jobs of the schedule")
            planned = await ticks_of(cluster)
            await run_program("pg_dump", "--format=custom", f"--file={dump}", f"--dbname={database}")
            await cluster.ended(meanwhile)
            new_ended = await recorded(client, delay_s=0)
            await cluster.ended(new_ended)
            new_later, new_soon = await recorded(client, delay_s=HOUR_S), await recorded(client, delay_s=12)

            assert await coordinator.stop() == 0
            queued = [(await client.submit(effect.job({}))).job_id for _ in range(JOBS)]
            await run_program("pg_restore", "--clean", "--if-exists", f"--dbname={database}", str(dump))
            coordinator = await cluster.start_coordinator("--reconcile", "1").wait_ready()
            await cluster.ended([*meanwhile, *queued], timeout_s=40)
            await wait_until(lambda: runs_of(effects, new_soon) == JOBS, what="runs of what lay with the worker")

            await wait_until(
                lambda: has_ended_since(cluster, planned[0] + timedelta(seconds=30)), 60, what="ticks go on"
            )
            ticks = await ticks_of(cluster)
        assert ticks[: len(planned)] == planned, "what was planned ahead is in the backup"
        gaps = {after - before for before, after in pairwise(ticks)}
        assert gaps == {timedelta(seconds=TICK_S)}, "each instant is one job"

        counts = [await cluster.sql.counts(ids) for ids in (ended, later, meanwhile, queued)]
        assert counts == [{"succeeded": JOBS}, {"on_master": JOBS}, {"succeeded": JOBS}, {"succeeded": JOBS}]
        runs = [runs_of(effects, ids) for ids in (ended, later, meanwhile, queued)]
        assert runs == [JOBS, 0, 2 * JOBS, JOBS], "what ran after the backup runs again, with the same idempotency key"
        assert [await cluster.sql.counts(ids) for ids in (new_ended, new_later, new_soon)] == [{}, {}, {}]
        assert [runs_of(effects, ids) for ids in (new_ended, new_later, new_soon)] == [JOBS, 0, JOBS]
        assert worker.running
        assert coordinator.running


async def ticks_of(cluster: Cluster, *, ended_only: bool = False) -> list[datetime]:
    """The instants of the schedule that have a job, in order."""
    query = "SELECT occurrence FROM job WHERE schedule = 'tick' AND (NOT $1 OR status = 4) ORDER BY occurrence"
    return [row["occurrence"] for row in await cluster.sql.rows(query, ended_only)]


async def has_ended_since(cluster: Cluster, instant: datetime) -> bool:
    return bool([at for at in await ticks_of(cluster, ended_only=True) if at >= instant])


def runs_of(effects: Path, job_ids: list[str]) -> int:
    """How many runs of these jobs began, as their handler noted it."""
    lines = [line.split() for line in effects.read_text().splitlines()] if effects.exists() else []
    return sum(words[0] == START and words[1] in job_ids for words in lines)
