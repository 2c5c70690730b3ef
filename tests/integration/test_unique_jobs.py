"""Unique keys against a real Postgres: scope by scope, conflict by conflict, submitter against submitter."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import asyncpg
import pytest

from jm_core import limits
from jm_core.errors import ActionRefusedError, DuplicateJobError, InvalidJobError, JobFailedError
from jm_core.model import JobStatus
from jm_master.queries import named
from jm_master.waiters import ResultWaiters
from jm_nats.client import JobClient, submission
from jm_nats.config import NatsConfig
from tests.support.master import coordinating, job, linked, new_id
from tests.support.server_log import no_deadlock
from tests.support.waiting import wait_until

ENDED = [status for status in JobStatus if status.is_terminal]
LATER = {"delay_s": 3_600}
ROUNDS = 20
SOAK_ROUNDS = 200


@pytest.fixture
async def bench(nats_server, database, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench, coordinating(nats_server.url, database, cluster_name):
        yield bench


@pytest.fixture
async def db(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path TO jobmaster")
    yield connection
    await connection.close()


@pytest.fixture
async def client(nats_server, cluster_name, bench):
    async with JobClient(cluster_name, NatsConfig(servers=(nats_server.url,))) as client:
        yield client


def statuses(receipts):
    return [receipt.status for receipt in receipts]


async def end(db, job_id, status):
    await db.execute("UPDATE job SET status = $2, finished_at = now() WHERE id = $1", job_id, status)


# -- what frees a key, case BR-186


@pytest.mark.parametrize("status", ENDED, ids=[status.label for status in ENDED])
async def test_every_end_frees_a_key_that_is_held_while_unfinished(bench, db, status):
    first, second, third = (job(unique_key="k") for _ in range(3))
    assert statuses(await bench.submit_and_wait(first)) == ["recorded"]
    (refused,) = await bench.submit_and_wait(second)
    assert (refused.status, refused.existing_id) == ("duplicate", first["id"])
    await end(db, first["id"], status)
    assert statuses(await bench.submit_and_wait(third)) == ["recorded"]


@pytest.mark.parametrize("status", ENDED, ids=[status.label for status in ENDED])
async def test_no_end_frees_a_key_before_its_window_has_passed(bench, db, status):
    first, second, third = (job(unique_key="k", unique_for_s=600) for _ in range(3))
    await bench.submit_and_wait(first)
    await end(db, first["id"], status)
    (refused,) = await bench.submit_and_wait(second)
    assert (refused.status, refused.existing_id) == ("duplicate", first["id"])
    await db.execute(
        "UPDATE job SET queued_at = queued_at - interval '601 s', unique_until = unique_until - interval '601 s'"
    )
    (accepted,) = await bench.submit_and_wait(third)
    assert (accepted.status, accepted.id) == ("recorded", third["id"])
    (refused,) = await bench.submit_and_wait(job(unique_key="k"))
    assert refused.existing_id == third["id"]


@pytest.mark.parametrize("status", ENDED, ids=[status.label for status in ENDED])
async def test_the_longest_window_is_as_good_as_for_ever(bench, db, status):
    first = job(unique_key="k", unique_for_s=limits.UNIQUE_FOR_S_MAX)
    await bench.submit_and_wait(first)
    await end(db, first["id"], status)
    assert (await db.fetchval("SELECT unique_until FROM job")).year > datetime.now(UTC).year + 9
    (refused,) = await bench.submit_and_wait(job(unique_key="k"))
    assert refused.existing_id == first["id"]


async def test_an_unfinished_job_holds_its_key_beyond_its_window(bench, db):
    first = job(unique_key="k", unique_for_s=1)
    await bench.submit_and_wait(first)
    await db.execute("UPDATE job SET unique_until = now() - interval '1 h'")
    (refused,) = await bench.submit_and_wait(job(unique_key="k"))
    assert refused.existing_id == first["id"]


async def test_the_window_is_that_of_the_job_that_holds_the_key(bench, db):
    """One without a window, which has ended, is in the way of none; however long the window of the next."""
    first = job(unique_key="k")
    await bench.submit_and_wait(first)
    await end(db, first["id"], JobStatus.SUCCEEDED)
    second = job(unique_key="k", unique_for_s=600)
    assert statuses(await bench.submit_and_wait(second)) == ["recorded"]


async def test_a_window_counts_from_when_nats_stored_the_job(bench, db):
    one = job(unique_key="k", unique_for_s=90)
    await bench.submit_and_wait(one)
    row = await db.fetchrow("SELECT extract(epoch FROM unique_until - queued_at)::float8 AS window_s FROM job")
    assert row["window_s"] == pytest.approx(90, abs=1e-5)


# -- on conflict


async def test_a_rejected_conflict_says_so_and_leaves_nothing_in_rejected(bench, db):
    first, second = job(unique_key="k"), job(unique_key="k", on_conflict="reject")
    await bench.submit_and_wait(first)
    (refused,) = await bench.submit_and_wait(second)
    assert (refused.status, refused.existing_id) == ("duplicate", first["id"])
    assert refused.reason == f"unique_key 'k' is held by job {first['id']}"
    assert await db.fetchval("SELECT count(*) FROM rejected") == 0


async def test_a_retry_of_the_same_id_is_no_conflict(bench):
    one = job(unique_key="k", on_conflict="reject")
    assert statuses(await bench.submit_and_wait(one)) == ["recorded"]
    (again,) = await bench.submit_and_wait(one)
    assert (again.status, again.existing_id, again.reason) == ("duplicate", one["id"], None)


async def test_a_waiting_job_is_replaced_and_says_by_whom(bench, db):
    first = job(unique_key="k", unique_for_s=600, args={"n": 1}, **LATER)
    second = job(unique_key="k", on_conflict="replace", args={"n": 2}, **LATER)
    await bench.submit_and_wait(first)
    (accepted,) = await bench.submit_and_wait(second)
    assert (accepted.status, accepted.id) == ("recorded", second["id"])
    old = await db.fetchrow("SELECT * FROM job WHERE id = $1", first["id"])
    assert (old["status"], old["error"]) == (
        JobStatus.CANCELLED,
        f"cancelled by unique key: replaced by {second['id']}",
    )
    assert old["finished_at"] is not None
    assert old["unique_until"] is None
    assert json.loads(await db.fetchval("SELECT args FROM job WHERE status = 1")) == {"n": 2}


@pytest.mark.parametrize("status", [JobStatus.IN_BUCKET, JobStatus.PROCESSING], ids=["in_bucket", "processing"])
async def test_what_runs_or_is_about_to_is_not_replaced(bench, db, status):
    first = job(unique_key="k")
    await bench.submit_and_wait(first)
    await db.execute("UPDATE job SET status = $1, bucket_id = 'b'", status)
    (refused,) = await bench.submit_and_wait(job(unique_key="k", on_conflict="replace"))
    assert (refused.status, refused.existing_id) == ("duplicate", first["id"])
    assert await db.fetchval("SELECT status FROM job") == status


async def test_what_lies_with_a_worker_and_is_not_due_yet_is_replaced_and_the_worker_is_told(bench, db):
    async with bench.worker():
        first, second = (
            job(unique_key="k", delay_s=300, **({"on_conflict": "replace"} if n else {})) for n in range(2)
        )
        await bench.submit_and_wait(first)
        assert await db.fetchval("SELECT status FROM job") == JobStatus.IN_BUCKET
        (accepted,) = await bench.submit_and_wait(second)
        assert (accepted.status, accepted.id) == ("recorded", second["id"])
        old = await db.fetchrow("SELECT status, cancelled_by, cancel_reason FROM job WHERE id = $1", first["id"])
        assert tuple(old) == (JobStatus.CANCELLED, "unique key", f"replaced by {second['id']}")
        told = "SELECT NOT EXISTS (SELECT FROM cancel_order WHERE told_at IS NULL)"
        await wait_until(lambda: db.fetchval(told), what="the order to its worker")


async def test_a_requeued_job_does_not_take_a_key_that_is_held_beyond_an_end(bench, db, client):
    """The window of the one that came later still runs; then it has passed, and the key is free."""
    first, second = job(unique_key="k"), job(unique_key="k", unique_for_s=600)
    for one in (first, second):
        await bench.submit_and_wait(one)
        await end(db, one["id"], JobStatus.FAILED)
    with pytest.raises(ActionRefusedError, match=second["id"]):
        await client.requeue(first["id"])
    await db.execute("UPDATE job SET unique_until = now() - interval '1 s' WHERE id = $1", second["id"])
    assert (await client.requeue(first["id"])).changed
    (refused,) = await bench.submit_and_wait(job(unique_key="k"))
    assert refused.existing_id == first["id"]


async def test_what_ended_within_its_window_is_not_replaced(bench, db):
    first = job(unique_key="k", unique_for_s=600)
    await bench.submit_and_wait(first)
    await end(db, first["id"], JobStatus.FAILED)
    (refused,) = await bench.submit_and_wait(job(unique_key="k", on_conflict="replace"))
    assert refused.existing_id == first["id"]


async def test_who_waits_for_a_replaced_job_is_told_at_once(bench, client, monkeypatch):
    held, waiting_for = [], ResultWaiters.waiting

    def noted(waiters, *job_ids):
        held.extend(job_ids)
        return waiting_for(waiters, *job_ids)

    monkeypatch.setattr(ResultWaiters, "waiting", noted)
    first = await client.submit(submission("h", unique_key="k", **LATER), wait="recorded")
    waiting = asyncio.create_task(client.result(first.job_id, timeout=20))
    await wait_until(lambda: first.job_id in held, what="the leader to know who waits")
    second = await client.submit(submission("h", unique_key="k", on_conflict="replace", **LATER), wait="recorded")
    with pytest.raises(JobFailedError, match=f"replaced by {second.job_id}"):
        await asyncio.wait_for(waiting, 4)


# -- within one batch


async def test_of_one_message_the_first_holds_the_key_whatever_stands_beside_it(bench, db):
    """Different handlers and lanes: the rows are not written in the order of the message."""
    jobs = [job("a"), job("b", unique_key="k"), job("a", unique_key="k"), job("b", lane="x", unique_key="k"), job("b")]
    receipts = await bench.submit_and_wait(*jobs)
    assert statuses(receipts) == ["recorded", "recorded", "duplicate", "duplicate", "recorded"]
    assert {receipt.existing_id for receipt in receipts[2:4]} == {jobs[1]["id"]}
    assert await db.fetchval("SELECT count(*) FROM job") == 3


async def test_of_one_message_the_windows_and_wishes_of_each_job_count(bench, db):
    jobs = [
        job(unique_key="k", unique_for_s=5, **LATER),
        job(unique_key="k", unique_for_s=500, **LATER),
        job(unique_key="k", on_conflict="replace", unique_for_s=50, **LATER),
        job(unique_key="k", on_conflict="reject", **LATER),
        job(unique_key="k", on_conflict="replace", **LATER),
    ]
    receipts = await bench.submit_and_wait(*jobs)
    assert statuses(receipts) == ["recorded", "duplicate", "recorded", "duplicate", "recorded"]
    assert [receipt.existing_id for receipt in receipts] == [None, jobs[0]["id"], None, jobs[2]["id"], None]
    rows = {str(row["id"]): row for row in await db.fetch("SELECT * FROM job")}
    assert rows.keys() == {jobs[n]["id"] for n in (0, 2, 4)}
    assert rows[jobs[0]["id"]]["error"] == f"cancelled by unique key: replaced by {jobs[2]['id']}"
    assert rows[jobs[2]["id"]]["error"] == f"cancelled by unique key: replaced by {jobs[4]['id']}"
    assert (rows[jobs[4]["id"]]["status"], rows[jobs[4]["id"]]["unique_until"]) == (JobStatus.ON_MASTER, None)


async def test_a_row_that_postgres_refuses_is_found_among_repeated_keys(bench, db):
    await db.execute("ALTER TABLE job ADD CONSTRAINT t CHECK (handler <> 'refused')")
    jobs = [job(unique_key=f"k{n % 7}") for n in range(60)]
    jobs[3] = job("refused", unique_key="k3")
    receipts = await bench.submit_and_wait(*jobs)
    assert statuses(receipts).count("recorded") == 7
    assert statuses(receipts)[3] == "rejected"
    assert (
        await db.fetchval("SELECT count(DISTINCT unique_key) FROM job")
        == await db.fetchval("SELECT count(*) FROM job")
        == 7
    )
    held_by = {
        one["unique_key"]: receipt.id
        for one, receipt in zip(jobs, receipts, strict=True)
        if receipt.status == "recorded"
    }
    for one, receipt in zip(jobs, receipts, strict=True):
        assert receipt.status != "duplicate" or receipt.existing_id == held_by[one["unique_key"]]


async def test_a_message_that_comes_again_is_recorded_and_replaces_nothing_twice(bench, db):
    first, second = job(unique_key="k", **LATER), job(unique_key="k", on_conflict="replace", **LATER)
    await bench.submit_and_wait(first)
    await bench.submit_and_wait(second)
    (again,) = await bench.submit_and_wait(second)
    assert (again.status, again.existing_id) == ("duplicate", second["id"])
    assert await db.fetchval("SELECT status FROM job WHERE id = $1", second["id"]) == JobStatus.ON_MASTER


# -- many at once (BR-183, BR-184)


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(SOAK_ROUNDS, marks=pytest.mark.soak)])
@pytest.mark.parametrize("choice", ["return_existing", "reject"])
async def test_of_64_submitters_at_once_one_makes_the_job_and_all_know_its_id(bench, db, rounds, choice):
    for number in range(rounds):
        key = f"round-{number}"
        jobs = [job(unique_key=key, on_conflict=choice) for _ in range(64)]
        receipts = [one for (one,) in await asyncio.gather(*[bench.submit_and_wait(one) for one in jobs])]
        (made,) = [receipt.id for receipt in receipts if receipt.status == "recorded"]
        assert {receipt.existing_id for receipt in receipts if receipt.status == "duplicate"} == {made}
        assert len(receipts) == 64
    assert await db.fetchval("SELECT count(*) FROM job") == rounds


async def test_of_64_replacing_each_other_one_is_left_and_the_others_say_by_whom(bench, db):
    jobs = [job(unique_key="k", on_conflict="replace", **LATER) for _ in range(64)]
    receipts = [one for (one,) in await asyncio.gather(*[bench.submit_and_wait(one) for one in jobs])]
    rows = await db.fetch("SELECT id::text, status, error, queued_at FROM job ORDER BY queued_at")
    assert {row["id"] for row in rows} == {receipt.id for receipt in receipts if receipt.status == "recorded"}
    (left,) = [row for row in rows if row["status"] == JobStatus.ON_MASTER]
    assert left["id"] == rows[-1]["id"], "the one that NATS stored last"
    known = {row["id"] for row in rows}
    for row in rows[:-1]:
        assert row["status"] == JobStatus.CANCELLED
        assert row["error"].removeprefix("cancelled by unique key: replaced by ") in known


async def test_a_key_in_a_transaction_that_is_rolled_back_is_nobodys(bench, db, database):
    """BR-183: whoever was first gives up; nobody may have been told that it holds the key."""
    stranger = await asyncpg.connect(database)
    gone = new_id()
    transaction = stranger.transaction()
    await transaction.start()
    await stranger.execute(
        "INSERT INTO jobmaster.job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, "
        "queued_at, unique_key) VALUES ($1, 'h', '{}', 1, 3, 'default', now(), 4, 300, now(), 'k')",
        gone,
    )
    asking = [asyncio.create_task(bench.submit_and_wait(job(unique_key="k"))) for _ in range(5)]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    await wait_until(lambda: db.fetchval(waiting), what="a writer that waits for the stranger")
    assert not any(task.done() for task in asking)
    await transaction.rollback()
    receipts = [one for (one,) in await asyncio.gather(*asking)]
    (made,) = [receipt.id for receipt in receipts if receipt.status == "recorded"]
    assert {receipt.existing_id for receipt in receipts if receipt.status == "duplicate"} == {made}
    assert [row["id"] for row in await db.fetch("SELECT id::text FROM job")] == [made]
    await stranger.close()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_stricter_isolation_changes_nothing(nats_server, database, db, cluster_name, isolation):
    name = await db.fetchval("SELECT current_database()")
    await db.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'")
    async with linked(nats_server.url, cluster_name) as bench, coordinating(nats_server.url, database, cluster_name):
        for number in range(5):
            asking = [bench.submit_and_wait(job(unique_key=f"k{number}")) for _ in range(50)]
            receipts = [one for (one,) in await asyncio.gather(*asking)]
            (made,) = [receipt.id for receipt in receipts if receipt.status == "recorded"]
            assert {receipt.existing_id for receipt in receipts if receipt.status == "duplicate"} == {made}
    assert await db.fetchval("SELECT count(*) FROM job") == 5


async def test_batches_that_hold_each_others_keys_do_not_wait_for_each_other(bench, postgres_server):
    """Two batches are saved at once: without care Postgres would have to find the deadlock, after a second."""
    keys = [f"k{n}" for n in range(300)]
    messages = [[job(unique_key=key) for key in (keys if n % 2 else reversed(keys))] for n in range(8)]
    with no_deadlock(postgres_server):
        answers = await asyncio.gather(*[bench.submit_and_wait(*message) for message in messages])
    assert sum(statuses(receipts).count("recorded") for receipts in answers) == 300


async def test_a_deadlock_would_be_seen(postgres_server, database):
    """What the test above, and that of retention, look for."""
    one, other = [await asyncpg.connect(database) for _ in range(2)]
    for connection, number in ((one, 1), (other, 2)):
        await connection.execute("SET deadlock_timeout = '10ms'")
        await connection.execute(f"SELECT pg_advisory_lock({number})")
    asked = [
        asyncio.create_task(one.execute("SELECT pg_advisory_lock(2)")),
        asyncio.create_task(other.execute("SELECT pg_advisory_lock(1)")),
    ]
    watching = no_deadlock(postgres_server)
    watching.__enter__()
    (loser, *_), _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    with pytest.raises(AssertionError, match="deadlock detected"):
        watching.__exit__(None, None, None)
    assert isinstance(loser.exception(), asyncpg.DeadlockDetectedError)
    for connection in (one, other):
        connection.terminate()
    await asyncio.gather(*asked, return_exceptions=True)


# -- ways in


async def test_python_clients_are_told_by_an_error_or_by_the_receipt(client):
    first = await client.submit(submission("h", unique_key="k", unique_for_s=60), wait="recorded")
    same = await client.submit(submission("h", unique_key="k"), wait="recorded")
    assert (same.status, same.job_id) == ("duplicate", first.job_id)
    with pytest.raises(DuplicateJobError) as caught:
        await client.submit(submission("h", unique_key="k", on_conflict="reject"), wait="recorded")
    assert caught.value.existing_id == first.job_id
    again = submission("h", unique_key="other", on_conflict="reject")
    assert (await client.submit(again, wait="recorded")).status == "recorded"
    assert (await client.submit(again, wait="recorded")).job_id == again.id, "a retry is no conflict"


async def test_a_conflict_that_nobody_would_be_told_of_is_refused_early(client):
    with pytest.raises(InvalidJobError, match=r"on_conflict.*recorded"):
        await client.submit(submission("h", unique_key="k", on_conflict="reject"))


async def test_the_holder_of_a_key_is_found_by_its_index(db):
    """As the planner is set in our sessions: the condition of `find_clashes` is the index's own."""
    await db.execute("SET enable_seqscan = off")
    sql = named("save")["find_clashes"].replace("$1", f"ARRAY['{new_id()}']").replace("$2", "ARRAY['k']")
    plan = [row[0] for row in await db.fetch(f"EXPLAIN {sql}")]
    assert any("job_key_held" in line for line in plan), plan
