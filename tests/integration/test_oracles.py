"""The oracles themselves: each is tripped by a sabotage of its own, and none by a healthy record."""

from __future__ import annotations

import uuid

import nats
import pytest

from jm_core.model import JobStatus
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.provision import ensure_cluster
from jm_nats.subjects import Names
from tests.support.oracles import assert_oracles
from tests.support.sql import Sql
from tests.support.streams import messages_left

QUICKLY_S = 0.05


@pytest.fixture
async def sql(database):
    async with Sql(database) as opened:
        yield opened


@pytest.fixture
def check(nats_server, database, cluster_name):
    async def check(accepted, **options):
        await assert_oracles(database, nats_server.url, cluster_name, accepted, timeout_s=QUICKLY_S, **options)

    return check


async def add_job(sql: Sql, status: JobStatus = JobStatus.SUCCEEDED, **columns: object) -> str:
    """A row that breaks no rule, but for what ``columns`` say."""
    job_id = str(uuid.uuid4())
    row = {"id": job_id, "status": int(status), "attempt": 1, "excused": 0, "max_attempts": 4, "dispatch": 1, **columns}
    names = ", ".join(row)
    values = ", ".join(f"${n}" for n in range(1, len(row) + 1))
    finished_at = "CASE WHEN $2::smallint >= 4 THEN now() END"
    await sql.rows(
        f"INSERT INTO job (handler, args, priority, lane, run_at, timeout_s, queued_at, finished_at, {names})"
        f" VALUES ('noop', '{{}}', 3, 'default', now(), 300, now(), {finished_at}, {values})",
        *row.values(),
    )
    return job_id


async def add_attempt(sql: Sql, job_id: str, dispatch: int, outcome: str, started: str = "-1 minute") -> None:
    await sql.rows(
        "INSERT INTO attempt (job_id, attempt, dispatch, outcome, started_at)"
        f" VALUES ($1, $2::int, $2::int, $3, now() + interval '{started}')",
        job_id,
        dispatch,
        outcome,
    )


async def test_a_healthy_record_trips_nothing(sql, check):
    job_id = await add_job(sql, attempt=2, dispatch=2)
    await add_attempt(sql, job_id, 1, "failed")
    await add_attempt(sql, job_id, 2, "succeeded")
    await check([job_id, await add_job(sql)])


async def test_an_accepted_job_without_a_record_is_found(sql, check):
    lost = str(uuid.uuid4())
    with pytest.raises(AssertionError, match=f"O1: 1 of 2 accepted jobs are not recorded, e.g. .*{lost}"):
        await check([await add_job(sql), lost])


@pytest.mark.parametrize("status", [JobStatus.ON_MASTER, JobStatus.IN_BUCKET, JobStatus.PROCESSING])
async def test_a_job_under_way_is_found(sql, check, status):
    job_id = await add_job(sql, status)
    with pytest.raises(AssertionError, match=f"left over: {{'{status.label}': 1}}"):
        await check([job_id])


async def test_a_job_due_later_may_wait_where_the_test_says_so(sql, check):
    await check([await add_job(sql, JobStatus.ON_MASTER)], may_wait=True)


async def test_an_outbox_row_is_found(sql, check):
    await sql.rows("INSERT INTO outbox (outbox_id, bucket_id, job_ids) VALUES (gen_random_uuid(), 'b', '{}')")
    with pytest.raises(AssertionError, match=r"left over: \{'outbox': 1\}"):
        await check([])


async def test_a_terminal_job_without_an_end_is_found(sql, check):
    job_id = await add_job(sql)
    await sql.rows("UPDATE job SET finished_at = NULL WHERE id = $1", job_id)
    with pytest.raises(AssertionError, match="O3: a terminal job has an end"):
        await check([job_id])


async def test_a_start_after_the_end_is_found(sql, check):
    job_id = await add_job(sql)
    await add_attempt(sql, job_id, 1, "failed", started="1 minute")
    with pytest.raises(AssertionError, match="O3: nothing was started after"):
        await check([job_id])


async def test_too_many_starts_are_found_and_excused_ones_do_not_count(sql, check):
    await check([await add_job(sql, attempt=5, excused=1, max_attempts=4)])
    job_id = await add_job(sql, attempt=5, max_attempts=4)
    with pytest.raises(AssertionError, match="O4: starts that count"):
        await check([job_id])


async def test_too_many_failures_in_the_history_are_found(sql, check):
    job_id = await add_job(sql, JobStatus.FAILED, max_attempts=1, dispatch=2)
    for dispatch, outcome in enumerate(("failed", "worker_lost"), 1):
        await add_attempt(sql, job_id, dispatch, outcome)
    with pytest.raises(AssertionError, match="O4: failures in the history"):
        await check([job_id])


async def test_two_recorded_successes_are_found(sql, check):
    job_id = await add_job(sql, dispatch=2)
    for dispatch in (1, 2):
        await add_attempt(sql, job_id, dispatch, "succeeded")
    with pytest.raises(AssertionError, match="O5: at most one success"):
        await check([job_id])


async def test_a_history_past_the_last_dispatch_or_of_no_job_is_found(sql, check):
    job_id = await add_job(sql)
    await add_attempt(sql, job_id, 2, "failed")
    await add_attempt(sql, str(uuid.uuid4()), 1, "failed")
    with pytest.raises(AssertionError, match=r"O5: a history belongs to a job.*: 2 do not"):
        await check([job_id])


async def test_a_message_left_and_one_unacknowledged_are_found(nats_server, cluster_name, check):
    names = Names(cluster_name)
    link = await connect(NatsConfig(servers=(nats_server.url,)), client_name="test")
    await ensure_cluster(link, names, lease_s=10)
    await link.close()
    assert await messages_left(nats_server.url, cluster_name) == {}

    connection = await nats.connect(nats_server.url)
    jetstream = connection.jetstream()
    await jetstream.publish(names.submit, b"{}")
    await jetstream.publish(names.submit, b"{}")
    reader = await jetstream.pull_subscribe_bind("writer", names.pending_stream)
    await reader.fetch(1)
    await connection.close()

    stream = names.pending_stream
    left = {stream: 2, f"{stream}/writer unacked": 1, f"{stream}/writer pending": 1}
    assert await messages_left(nats_server.url, cluster_name) == left
    with pytest.raises(AssertionError, match=f"left over: {{'{stream}': 2"):
        await check([])
