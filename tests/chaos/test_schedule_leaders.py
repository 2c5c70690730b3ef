"""Schedules of every second while one leader after the other is killed as it plans: no instant is lost or doubled."""

from __future__ import annotations

import asyncio
import itertools
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.app import RUNS_VARIABLE, runs_in
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jm_nats.embedded import NatsServer

KILLED: Final = -signal.SIGKILL
KILLS: Final = 10
EACH: Final = 25  # schedules of each kind
# A short lease, so that the next leader need not wait long; yet longer than a busy machine takes to start a process.
TIMING: Final = {"JM_LEASE_S": "3", "JM_HEARTBEAT_S": "0.5", "JM_TRANSIENT_THRESHOLD_S": "20"}
POINTS: Final = ("plan.before_commit", "plan.after_commit", "assign.after_commit")
AHEAD: Final = f"SELECT 'ahead' || n, 'every', '1s', 'counted', 'allow' FROM generate_series(1, {EACH}) AS n"
AT_INSTANT: Final = f"SELECT 'now' || n, 'every', '1s', 'counted', 'skip' FROM generate_series(1, {EACH}) AS n"


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_leaders_that_are_killed_while_they_plan_lose_and_double_no_instant(
    nats_server: NatsServer, new_database: Callable[[], str], cluster_name: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    async with Cluster(
        nats_server.url, new_database(), cluster_name, **{RUNS_VARIABLE: str(runs)}, **TIMING
    ) as cluster:
        worker = await cluster.start_worker().wait_ready()
        for rows in (AHEAD, AT_INSTANT):
            await cluster.sql.rows(f"INSERT INTO schedule (name, kind, expr, handler, overlap) {rows}")
        for kill, point in zip(range(KILLS), itertools.cycle(POINTS), strict=False):
            victim = cluster.start_coordinator(env={"JM_TEST_CRASH_AT": f"{point}:{1 + kill % 4}"})
            assert await victim.wait_exit() == KILLED, victim.log_tail()
        last = await cluster.start_coordinator().wait_ready()
        until = await cluster.sql.value("SELECT now() + interval '3 seconds'")
        await wait_until(lambda: all_ended(cluster, until), 90, what=f"all instants until {until} are over")
        for schedule in await cluster.sql.rows("SELECT * FROM schedule ORDER BY name"):
            await check(cluster, schedule, until)
        due = {str(row["id"]) for row in await cluster.sql.rows("SELECT id FROM job WHERE occurrence <= $1", until)}
        ran = runs_in(runs)
        print(f"{KILLS} leaders killed: {len(due)} instants became jobs, {len(ran)} runs")  # noqa: T201
        assert len(ran) == len(set(ran)), "a job ran twice although its worker lived"
        assert due <= set(ran)
        assert worker.running
        assert last.running


async def all_ended(cluster: Cluster, until: Any) -> bool:
    left = await cluster.sql.value(
        "SELECT (SELECT count(*) FROM schedule WHERE next_at IS NULL OR next_at <= $1)"
        "     + (SELECT count(*) FROM job WHERE occurrence <= $1 AND status < 4)",
        until,
    )
    await asyncio.sleep(0.2)  # both counts read many rows
    return bool(left == 0)


async def check(cluster: Cluster, schedule: Any, until: Any) -> None:
    """Each second from the first to ``next_at`` is one job, or (overlap skip only) one recorded skip."""
    name = schedule["name"]
    assert schedule["state"] == "active", schedule["error"]
    jobs = await cluster.sql.rows("SELECT occurrence, status FROM job WHERE schedule = $1 ORDER BY occurrence", name)
    instants = [job["occurrence"] for job in jobs]
    assert len(instants) == len(set(instants)) == schedule["runs"], f"{name}: an instant has two jobs"
    assert {job["status"] for job in jobs if job["occurrence"] <= until} == {4}
    skips = await cluster.sql.rows("SELECT * FROM schedule_skip WHERE schedule = $1", name)
    skipped = sum(row["count"] for row in skips)
    assert skipped == schedule["skipped"]
    assert {row["reason"] for row in skips} <= {"overlap"}
    began = min([*instants, *(row["first_at"] for row in skips)])
    assert (schedule["next_at"] - began) / timedelta(seconds=1) == len(instants) + skipped, (
        f"{name}: an instant is lost"
    )
    if schedule["overlap"] == "allow":
        assert skipped == 0
