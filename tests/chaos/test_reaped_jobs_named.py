"""BR-061: who was taken for dead, since when it was silent, and which jobs that cost, is a warning with all three."""

from __future__ import annotations

import re

import pytest

from jm_nats import submission
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chaos

LOST = re.compile(r"WARNING +jm_master\.lost: worker lost  worker=(\S+) buckets=\d+ silent_s=([\d.]+)")
HOW = "(?:handed back|put back by the record)"
REAPED = re.compile(rf"WARNING .*jobs of a lost worker {HOW} .*job_ids=\"?([0-9a-f -]+)")
LEASE_S = 2.0


async def test_a_lost_worker_is_named_with_its_silence_and_its_jobs(nats_server, database, cluster_name):
    quick = {"JM_LEASE_S": f"{LEASE_S:g}", "JM_HEARTBEAT_S": "0.4"}
    async with Cluster(nats_server.url, database, cluster_name, **quick) as cluster:
        await cluster.start_coordinator().wait_ready()
        dying = await cluster.start_worker("--name", "w-dies").wait_ready()
        async with cluster.client() as client:
            jobs = [submission("sleeper", {"seconds": 60}, max_attempts=2) for _ in range(3)]
            receipts = await client.submit_many(jobs, wait="recorded")
        await cluster.wait_for_counts(processing=3)
        await cluster.start_worker("--name", "w-lives").wait_ready()
        dying.kill()

        def reaped():
            found = [REAPED.findall(text) for text in cluster.logs().values()]
            return {job_id for lines in found for line in lines for job_id in line.split()}

        ids = {receipt.job_id for receipt in receipts}
        await wait_until(lambda: reaped() >= ids, what="the names of the jobs", shown=lambda: repr(cluster.logs()))
        [(worker, silent_s)] = [found for text in cluster.logs().values() for found in LOST.findall(text)]
        assert worker == "w-dies"
        assert LEASE_S - 0.5 <= float(silent_s) < LEASE_S + 5
