from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from jm_core import wire
from jm_core.retry import Fixed
from jm_nats.kv import CasKv
from tests.support.master import coordinating, job, linked, new_id
from tests.support.waiting import wait_until


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


def statuses(receipts):
    return [receipt.status for receipt in receipts]


async def test_a_recorded_job_is_in_postgres_with_every_field(bench, db):
    one = job(
        "email.send",
        args={"n": 1970670598291982290, "x": 1.5},
        lane="mail",
        priority="high",
        max_attempts=7,
        timeout_s=12.5,
        unique_key="k",
        metadata={"who": "me"},
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    (receipt,) = await bench.submit_and_wait(one)
    assert (receipt.id, receipt.status) == (one["id"], "recorded")
    row = await db.fetchrow("SELECT *, args::text AS text FROM job WHERE id = $1", one["id"])
    assert (row["handler"], row["lane"], row["priority"], row["max_attempts"], row["timeout_s"]) == (
        "email.send",
        "mail",
        4,
        7,
        12.5,
    )
    assert (row["status"], row["dispatch"], row["attempt"], row["bucket_id"]) == (1, 0, 0, None)
    assert (row["unique_key"], json.loads(row["metadata"]), row["trace"]) == ("k", {"who": "me"}, one["trace"])
    assert row["text"] == '{"n": 1970670598291982290, "x": 1.5}'
    assert row["run_at"] == row["queued_at"] <= row["recorded_at"]


async def test_receipts_stand_in_the_order_of_the_message(bench, db):
    good, other = job(), job()
    bad = job(priority="urgent")
    receipts = await bench.submit_and_wait(good, bad, good, other)
    assert statuses(receipts) == ["recorded", "rejected", "duplicate", "recorded"]
    assert [receipt.id for receipt in receipts] == [good["id"], bad["id"], good["id"], other["id"]]
    assert "urgent" in receipts[1].reason
    assert receipts[2].existing_id == good["id"]
    assert await db.fetchval("SELECT count(*) FROM job") == 2


async def test_a_second_submission_of_an_id_is_a_duplicate_and_changes_nothing(bench, db):
    one = job(args={"n": 1})
    assert statuses(await bench.submit_and_wait(one)) == ["recorded"]
    (again,) = await bench.submit_and_wait({**one, "args": {"n": 2}})
    assert (again.status, again.existing_id) == ("duplicate", one["id"])
    assert json.loads(await db.fetchval("SELECT args FROM job")) == {"n": 1}


async def test_a_unique_key_is_free_again_once_its_job_has_ended(bench, db):
    first, second, third = (job(unique_key="invoice-1") for _ in range(3))
    assert statuses(await bench.submit_and_wait(first, second)) == ["recorded", "duplicate"]
    (refused,) = await bench.submit_and_wait(third)
    assert (refused.status, refused.existing_id) == ("duplicate", first["id"])
    await db.execute("UPDATE job SET status = 4, finished_at = now()")
    assert statuses(await bench.submit_and_wait(third)) == ["recorded"]


async def test_many_at_once_with_one_key_make_one_job_and_all_are_told_its_id(bench, db):
    answers = await asyncio.gather(*[bench.submit_and_wait(job(unique_key="one")) for _ in range(50)])
    receipts = [receipts[0] for receipts in answers]
    recorded = [receipt for receipt in receipts if receipt.status == "recorded"]
    assert len(recorded) == 1
    assert {receipt.existing_id for receipt in receipts if receipt.status == "duplicate"} == {recorded[0].id}
    assert await db.fetchval("SELECT count(*) FROM job") == 1


async def test_a_job_without_an_id_gets_one_that_its_redelivery_would_get_too(bench, db):
    (receipt,) = await bench.submit_and_wait({"handler": "noop"})
    assert str(await db.fetchval("SELECT id FROM job")) == receipt.id


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"[", b"nul", b"[]", b'{"args": {}}'])
async def test_what_is_no_job_is_kept_in_rejected_with_its_bytes(bench, db, raw):
    (receipt,) = await bench.submit_and_wait(raw=raw)
    assert receipt.status == "rejected"
    row = await db.fetchrow("SELECT * FROM rejected")
    assert (row["raw"], row["raw_bytes"]) == (raw, len(raw))
    assert row["reason"] == receipt.reason


async def test_a_row_that_only_postgres_refuses_is_rejected_alone(bench, db):
    await db.execute("ALTER TABLE job ADD CONSTRAINT t CHECK (handler <> 'refused')")
    jobs = [job() for _ in range(199)]
    bad = job("refused", args={"n": 7})
    jobs.insert(77, bad)
    receipts = await bench.submit_and_wait(*jobs)
    assert [receipt.id for receipt in receipts if receipt.status != "recorded"] == [bad["id"]]
    assert await db.fetchval("SELECT count(*) FROM job") == 199
    row = await db.fetchrow("SELECT * FROM rejected")
    assert (row["job_id"], row["handler"]) == (bad["id"], "refused")
    assert json.loads(row["raw"])["args"] == {"n": 7}
    assert "constraint" in row["reason"]


async def test_a_job_due_now_goes_straight_into_a_bucket(bench, db):
    async with bench.worker() as worker:
        await settled(bench, db, worker)
        jobs = [job(args={"n": n}) for n in range(450)]
        await bench.submit(*jobs)
        runs = await worker.runs(450)
        assert {run.id for run in runs} == {one["id"] for one in jobs}
        assert {(run.dispatch, run.attempt, run.max_attempts) for run in runs} == {(1, 1, 4)}
        rows = await db.fetch(
            "SELECT status, dispatch, bucket_id, count(*) FROM job WHERE handler = 'noop' GROUP BY 1, 2, 3"
        )
        assert [tuple(row) for row in rows] == [(2, 1, worker.bucket, 450)]
        await wait_until(lambda: outbox_is_empty(db), what="an empty outbox")


async def test_a_job_due_later_waits_in_nats_and_comes_a_little_early(bench, db):
    async with bench.worker() as worker:
        await settled(bench, db, worker)
        due = datetime.now(UTC) + timedelta(seconds=3.2)
        await bench.submit(job(run_at=due.isoformat()), job(run_at=(due + timedelta(hours=1)).isoformat()))
        (run,) = await worker.runs(1)
        early_s = due.timestamp() - time.time()
        assert 0 < early_s < 3.0, early_s
        assert run.run_at == pytest.approx(due.timestamp(), abs=1e-3)
        assert await db.fetchval("SELECT count(*) FROM job WHERE status = 1") == 1  # the other is an hour off
        assert await worker.nothing_comes(0.5)


async def test_a_delay_counts_from_when_nats_stored_the_message(bench, db):
    await bench.submit_and_wait(job(delay_s=3600))
    delay = await db.fetchval("SELECT run_at - queued_at FROM job")
    assert abs(delay - timedelta(hours=1)) <= timedelta(microseconds=1)


async def test_jobs_without_a_bucket_for_their_lane_wait_on_the_master(bench, db):
    async with bench.worker(lane="other") as worker:
        assert statuses(await bench.submit_and_wait(job())) == ["recorded"]
        assert await db.fetchval("SELECT status FROM job") == 1
        assert await worker.nothing_comes(0.3)


async def test_large_jobs_leave_in_messages_that_fit(bench, db):
    async with bench.worker() as worker:
        await settled(bench, db, worker)
        for _ in range(5):
            await bench.submit(*[job(args={"text": "x" * 120_000}) for _ in range(4)])
        runs = await worker.runs(20)
        assert len({run.id for run in runs}) == 20


async def test_the_handler_s_defaults_fill_in_what_a_foreign_client_leaves_out(bench, db, cluster_name):
    defaults = wire.HandlerDefaults("mail", "critical", 9, 77.0, Fixed(1.0))
    await CasKv(bench.link, bench.names.cluster_kv).put("handler.mail.send", wire.encode(defaults))

    async def filled_in():
        await bench.submit_and_wait({"handler": "mail.send"})
        row = await db.fetchrow("SELECT lane, priority, max_attempts, timeout_s FROM job ORDER BY recorded_at DESC")
        return tuple(row) == ("mail", 5, 9, 77.0)

    await wait_until(filled_in, what="the handler's defaults")


async def test_redelivered_messages_are_recorded_again_not_duplicates(nats_server, database, cluster_name, db):
    """Saved, not acked, then the next leader gets the same message: the sender is told the truth both times."""
    async with linked(nats_server.url, cluster_name) as bench:
        one = job()
        inbox = bench.link.nc.new_inbox()
        subscription = await bench.link.nc.subscribe(inbox)
        await bench.submit(one, job(priority="?"), receipt_to=inbox)
        # The first writer saves and dies before its ack: played by writing what it would have written.
        info = await bench.link.api(f"STREAM.MSG.GET.{bench.names.pending_stream}", {"seq": 1})
        await db.execute(
            "INSERT INTO job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at)"
            " VALUES ($1, 'noop', '{}', 1, 3, 'default', now(), 4, 300, $2)",
            one["id"],
            datetime.fromisoformat(info["message"]["time"]),
        )
        async with coordinating(nats_server.url, database, cluster_name):
            message = await subscription.next_msg(timeout=20)
        receipts = json.loads(message.data)["receipts"]
        assert [receipt["status"] for receipt in receipts] == ["recorded", "rejected"]
        assert await db.fetchval("SELECT count(*) FROM rejected") == 1


async def outbox_is_empty(db) -> bool:
    return await db.fetchval("SELECT count(*) FROM outbox") == 0


async def settled(bench, db, worker) -> None:
    """Return once the leader knows the worker: a first job has arrived."""
    await bench.submit({"handler": "noop", "id": new_id(), "metadata": {"warm": "up"}})
    runs = await worker.runs(1)
    await worker.succeed(runs)
    await wait_until(lambda: is_recorded(db, runs[0].id), what="the first job")
    await db.execute("DELETE FROM job")


async def is_recorded(db, job_id) -> bool:
    return await db.fetchval("SELECT status FROM job WHERE id = $1", job_id) == 4
