"""The chaos demo's SQL finds what it promises to find: each oracle is tripped by a sabotaged row."""

import io
import uuid
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from jm_cli.demo import queries
from jm_cli.demo.accounting import Submitted
from jm_cli.demo.chaos import Chaos, Fault
from jm_cli.demo.chaos_report import read_chaos
from jm_cli.demo.display import console_of
from jm_cli.demo.executions import END, EXECUTIONS_VARIABLE, START, note

T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def connection(database):
    made = await asyncpg.connect(database)
    yield made
    await made.close()


async def add_job(connection, *, status=4, dispatch=1, bucket=None, started_s=0.0, path=None):
    job_id = str(uuid.uuid4())
    await connection.execute(
        "INSERT INTO jobmaster.job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s,"
        " queued_at, dispatch, bucket_id, started_at) VALUES ($1, $2, $3, $4, 3, 'default', $5, 4, 60, $5, $6, $7, $8)",
        job_id,
        "parse" if path else "step",
        f'{{"path": "{path}"}}' if path else "{}",
        status,
        T0,
        dispatch,
        bucket,
        T0 + timedelta(seconds=started_s),
    )
    return job_id


async def add_attempt(connection, job_id, dispatch, outcome, started_s=0.0):
    await connection.execute(
        "INSERT INTO jobmaster.attempt (job_id, attempt, dispatch, outcome, started_at) VALUES ($1, 1, $2, $3, $4)",
        job_id,
        dispatch,
        outcome,
        T0 + timedelta(seconds=started_s),
    )


@pytest.fixture
def read(connection, tmp_path, monkeypatch):
    path = tmp_path / "executions.txt"
    monkeypatch.setenv(EXECUTIONS_VARIABLE, str(path))

    async def read_them(*faults, **submitted):
        chaos = Chaos(console_of(io.StringIO()))
        chaos.faults = list(faults)
        return await read_chaos(connection, chaos, Submitted(**submitted), path, lease_s=3.0)

    return read_them


async def test_a_job_that_is_missing_or_has_not_ended_is_lost(connection, read):
    ended, waits = await add_job(connection), await add_job(connection, status=1)
    await add_job(connection, path="a.py")
    plain = dict.fromkeys([ended, waits, str(uuid.uuid4())], "step")
    found = await read(plain=plain, raw=["a.py", "b.py"])
    assert (found.jobs, found.lost) == (5, 3)
    assert "3 jobs that NATS had acknowledged were lost" in found.broken()


async def test_two_recorded_successes_of_a_job_are_found(connection, read):
    fine = await add_job(connection, dispatch=2)
    await add_attempt(connection, fine, 1, "worker_lost")
    await add_attempt(connection, fine, 2, "succeeded")
    assert (await connection.fetchval(queries.RECORDED_TWICE)) == 0
    twice = await add_job(connection, dispatch=2)
    await add_attempt(connection, twice, 1, "succeeded")
    await add_attempt(connection, twice, 2, "succeeded")
    stale = await add_job(connection, dispatch=2)  # a clean success leaves no row: this one is of another dispatch
    await add_attempt(connection, stale, 1, "succeeded")
    found = await read()
    assert (found.recorded_twice, found.lost_attempts) == (2, 1)


async def test_an_end_under_an_old_dispatch_is_a_refused_effect(connection, read):
    job_id = await add_job(connection, dispatch=2)
    for dispatch in (1, 2):
        note(START, job_id, dispatch)
        note(END, job_id, dispatch)
    killed = await add_job(connection, dispatch=2)
    note(START, killed, 1)
    note(START, killed, 2)
    note(END, killed, 2)
    found = await read()
    assert (found.stale_refused, found.twice_run, found.twice_started) == (1, 1, 2)
    assert found.broken() == []


async def test_recovery_is_from_the_fault_to_the_last_first_start_elsewhere(connection, read):
    by_itself = await add_job(connection, dispatch=1, started_s=-1)
    moved = await add_job(connection, dispatch=2, started_s=4)
    again = await add_job(connection, dispatch=4, started_s=30)  # moved at 5, and again much later
    await add_attempt(connection, again, 2, "worker_lost", started_s=5)
    hit = {by_itself: 1, moved: 1, again: 1}
    [row] = (await read(Fault("kill -9", "worker-1", T0.timestamp(), 5.0, hit, T0.timestamp() + 2))).faults
    assert (row.hit, row.moved, row.recovery_s, row.lasted_s, row.kept) == (3, 2, 5.0, 2.0, True)


async def test_after_a_restart_of_nats_it_is_the_last_job_that_could_not_start(connection, read):
    before = await add_job(connection, started_s=-1)
    waited = await add_job(connection, started_s=1.5)
    fault = Fault("restart", "nats", T0.timestamp(), None, {before: 1, waited: 0}, T0.timestamp() + 1)
    [row] = (await read(fault)).faults
    assert (row.hit, row.moved, row.recovery_s, row.kept) == (2, 1, 1.5, True)


async def test_a_job_has_left_its_bucket_only_when_it_ended_or_runs_under_a_later_dispatch(connection):
    async def elsewhere(job_id, dispatch):
        return await connection.fetchval(queries.ALL_ELSEWHERE, [job_id], [dispatch])

    assert await elsewhere(await add_job(connection, status=4), 1)
    assert await elsewhere(await add_job(connection, status=3, dispatch=2), 1)
    assert not await elsewhere(await add_job(connection, status=3, dispatch=1), 1)
    assert not await elsewhere(await add_job(connection, status=2, dispatch=2), 1)
    assert not await elsewhere(await add_job(connection, status=1, dispatch=1), 1)
