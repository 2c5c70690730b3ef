"""Retention while its leaders are killed between two steps, and beside others who would like to lead."""

from __future__ import annotations

import signal

import pytest

from tests.support.processes import Cluster
from tests.support.server_log import no_deadlock
from tests.support.waiting import wait_until

ROWS = 20_000
FILL = """
    INSERT INTO job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at, recorded_at,
                     finished_at)
    SELECT gen_random_uuid(), 'h', '{}', CASE WHEN n % 10 = 0 THEN 1 ELSE 5 END, 3, 'default', at, 4, 300, at, at,
           CASE WHEN n % 10 > 0 THEN at END
      FROM (SELECT n, now() - interval '90 days' AS at FROM generate_series(1, $1::int) AS n) AS u"""
ATTEMPTS = """
    INSERT INTO attempt (job_id, attempt, dispatch, outcome)
    SELECT id, 1, 1, 'failed' FROM job WHERE status = 5 AND handler = 'h'"""
KILLS = 4


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_leaders_killed_between_two_steps_leave_no_orphan_and_the_next_goes_on(
    nats_server, postgres_server, database, cluster_name
):
    with no_deadlock(postgres_server):
        await _kill_and_look(nats_server.url, database, cluster_name)


async def _kill_and_look(nats_url, database, cluster_name):
    async with Cluster(nats_url, database, cluster_name) as cluster:
        cluster.processes.env |= {"JM_LEASE_S": "1.2", "JM_HEARTBEAT_S": "0.3"}
        await cluster.sql.rows(FILL, ROWS)
        await cluster.sql.rows(ATTEMPTS)
        ended = "SELECT count(*) FROM job WHERE status = 5"
        before = await cluster.sql.value(ended)
        for _ in range(KILLS):
            victim = cluster.start_coordinator(env={"JM_TEST_CRASH_AT": "retention.after_commit:3"})
            assert await victim.wait_exit() == -signal.SIGKILL, victim.log_tail()
            now = await cluster.sql.value(ended)
            assert now < before, "each of them has got on with it"
            before = now
            orphans = "SELECT count(*) FROM attempt AS a WHERE NOT EXISTS (SELECT FROM job WHERE id = a.job_id)"
            assert await cluster.sql.value(orphans) == 0
        for _ in range(4):  # one leads, the others would
            cluster.start_standby()
        await wait_until(lambda: cluster.sql.value(f"SELECT ({ended}) = 0"), timeout_s=90, what="the end")
        assert await cluster.sql.value("SELECT count(*) FROM job WHERE status = 1") == ROWS // 10, "and nothing else"
        assert await cluster.sql.value("SELECT count(*) FROM attempt") == 0
        assert await cluster.sql.value("SELECT removed FROM retention WHERE kind = 'failed'") == ROWS - ROWS // 10
