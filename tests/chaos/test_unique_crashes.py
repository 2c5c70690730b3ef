"""Unique keys while the coordinator is killed between any two steps: one job a key, and nobody is told otherwise."""

from __future__ import annotations

import asyncio
import signal

import pytest

from jm_core.model import JobStatus
from tests.support.app import counted
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

TIMING = {"JM_LEASE_S": "3", "JM_HEARTBEAT_S": "0.5"}
POINTS = ("writer.before_commit", "writer.after_commit", "writer.after_publish", "writer.after_replace")
ROUNDS = 4
SUBMITTERS = 20


@pytest.mark.chaos
@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", POINTS)
async def test_a_key_has_one_job_though_the_writer_dies_exactly_there(point, nats_server, database, cluster_name):
    async with Cluster(nats_server.url, database, cluster_name) as cluster:
        cluster.processes.env |= TIMING
        await (first := cluster.start_coordinator()).wait_ready()
        assert await first.stop() == 0
        async with cluster.client() as client:
            for number in range(ROUNDS):
                await killed_once(cluster, client, point, f"key-{number}")
        rows = await cluster.sql.rows(
            "SELECT id::text, unique_key, status, error, queued_at FROM job ORDER BY queued_at, id"
        )
        by_id = {row["id"]: row for row in rows}
        for number in range(ROUNDS):
            of_key = [row for row in rows if row["unique_key"] == f"key-{number}"]
            (held,) = [row for row in of_key if row["status"] == JobStatus.ON_MASTER]
            assert held["id"] == of_key[-1]["id"]
            for row in of_key[:-1]:
                assert row["status"] == JobStatus.CANCELLED
                heir = row["error"].removeprefix("cancelled by unique key: replaced by ")
                assert by_id[heir]["unique_key"] == row["unique_key"], "replaced by a job that is there"


async def killed_once(cluster, client, point, key):
    """A holder, then many that come at once, of which every second one would replace it; the writer dies among them."""
    jobs = [
        counted.job({}, unique_key=key, delay=3_600, on_conflict="replace" if n % 2 else None)
        for n in range(SUBMITTERS)
    ]
    nth = 2 if point != "writer.after_replace" else 1
    victim = cluster.start_coordinator(env={"JM_TEST_CRASH_AT": f"{point}:{nth}"})
    holder = await client.submit(jobs[0], wait="recorded")
    asking = [asyncio.create_task(client.submit(job, wait="recorded")) for job in jobs[1:]]
    assert await victim.wait_exit() == -signal.SIGKILL, victim.log_tail()
    heir = await cluster.start_coordinator().wait_ready()
    receipts = [holder, *await asyncio.gather(*asking)]
    known = {row["id"] for row in await cluster.sql.rows("SELECT id::text FROM job WHERE unique_key = $1", key)}
    assert {receipt.job_id for receipt in receipts} <= known, "whatever anybody was told is there"
    assert await heir.stop() == 0


@pytest.mark.chaos
@pytest.mark.timeout(120)
async def test_a_key_is_free_although_the_leader_died_between_the_end_and_its_ack(
    nats_server, database, cluster_name, tmp_path
):
    async with Cluster(nats_server.url, database, cluster_name) as cluster:
        cluster.processes.env |= {"JM_TEST_RUNS": str(tmp_path / "runs"), **TIMING}
        await cluster.start_worker().wait_ready()
        victim = cluster.start_coordinator(env={"JM_TEST_CRASH_AT": "recorder.after_commit"})
        async with cluster.client() as client:
            first = await client.submit(counted.job({}, unique_key="k"), wait="recorded")
            assert await victim.wait_exit() == -signal.SIGKILL, victim.log_tail()
            await cluster.start_coordinator().wait_ready()
            ended = "SELECT status = 4 FROM job WHERE id = $1"
            await wait_until(lambda: cluster.sql.value(ended, first.job_id), what="the first job's end")
            second = await client.submit(counted.job({}, unique_key="k"), wait="recorded")
            assert (second.status, second.job_id) != ("duplicate", first.job_id)
            assert await client.result(second.job_id, timeout=20) == 1
