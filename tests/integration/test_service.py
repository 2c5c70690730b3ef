from __future__ import annotations

import asyncio
import base64
import json
import time

import asyncpg
import pytest
from msgspec import Raw
from nats import errors

from jm_core import api
from jm_nats.driver import SteadyClient
from tests.support.master import coordinating, job, linked, new_id

MISSING = "0190a000-0000-7000-8000-000000000000"


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


async def test_a_job_is_shown_with_exact_digits(bench):
    one = job(args={"id": 1970670598291982290, "n": 9007199254740993}, metadata={"a": "b"})
    await bench.submit_and_wait(one)
    message = await bench.link.nc.request(
        bench.names.api(api.OP_JOB_GET), json.dumps({"id": one["id"].upper()}).encode()
    )
    assert b'"args":{"n": 9007199254740993, "id": 1970670598291982290}' in message.data
    shown = json.loads(message.data)["data"]
    assert (shown["status"], shown["priority"], shown["metadata"]) == ("on_master", "medium", {"a": "b"})


async def test_a_list_is_newest_first_filtered_paged_and_cut(bench, db):
    small = [job(f"h{n % 2}", args={"n": n}) for n in range(6)]
    large = job("h0", args={"text": "x" * 5_000})
    await bench.submit_and_wait(*small, large)
    await db.execute("UPDATE job SET status = 5, finished_at = now() WHERE handler = 'h1'")
    page = (await bench.call(api.OP_JOB_LIST, {"handler": "h0", "limit": 2}))["data"]
    assert page["more"]
    assert [one["id"] for one in page["jobs"]] == sorted([large["id"], *[s["id"] for s in small[::2]]], reverse=True)[
        :2
    ]
    rest = (await bench.call(api.OP_JOB_LIST, {"handler": "h0", "before_id": page["jobs"][-1]["id"]}))["data"]
    assert (len(rest["jobs"]), rest["more"]) == (2, False)
    shown = next(one for one in page["jobs"] + rest["jobs"] if one["id"] == large["id"])
    assert shown["args_cut"]
    assert isinstance(shown["args"], str)
    assert len(shown["args"]) == 1024
    failed = (await bench.call(api.OP_JOB_LIST, {"status": ["failed", "cancelled"], "lane": "default"}))["data"]["jobs"]
    assert {one["handler"] for one in failed} == {"h1"}


async def test_a_long_list_of_long_jobs_fits_one_message(bench):
    for _ in range(10):
        await bench.submit_and_wait(*[job(args={"text": "ü" * 3_000}, trace=None) for _ in range(60)])
    page = (await bench.call(api.OP_JOB_LIST, {"limit": 500}))["data"]
    assert page["more"]
    assert len(page["jobs"]) > 100


async def test_a_result_is_told_when_the_job_ends(bench):
    async with bench.worker() as worker:
        one = job()
        waiting = asyncio.create_task(bench.call(api.OP_JOB_RESULT, {"id": one["id"], "wait_s": 10}))
        await asyncio.sleep(0.2)  # asked for before it is even submitted
        await bench.submit(one)
        runs = await worker.runs(1)
        assert not waiting.done()
        await worker.succeed(runs, result=Raw(b'{"big": 12345678901234567890}'))
        reply = await asyncio.wait_for(waiting, 5)
        assert reply["data"] == {
            "id": one["id"],
            "status": "succeeded",
            "result": {"big": 12345678901234567890},
            "error": None,
        }


async def test_a_result_that_does_not_come_is_answered_with_the_state(bench):
    one = job()
    await bench.submit_and_wait(one)
    started = time.monotonic()
    reply = await bench.call(api.OP_JOB_RESULT, {"id": one["id"], "wait_s": 0.4})
    assert reply["data"]["status"] == "on_master"
    assert time.monotonic() - started >= 0.4
    assert (await bench.call(api.OP_JOB_RESULT, {"id": MISSING, "wait_s": 0}))["data"]["status"] == "unknown"


async def test_attempts_and_counts(bench, db):
    one = job()
    await bench.submit_and_wait(one, job(), job(priority="?"))
    await db.execute(
        "INSERT INTO attempt (job_id, attempt, dispatch, outcome) VALUES ($1, 1, 1, 'timed_out')", one["id"]
    )
    (attempt,) = (await bench.call(api.OP_JOB_ATTEMPTS, {"id": one["id"]}))["data"]["attempts"]
    assert (attempt["outcome"], attempt["dispatch"]) == ("timed_out", 1)
    assert (await bench.call(api.OP_JOB_COUNT, {}))["data"] == {"by_status": {"on_master": 2}, "rejected": 1}


async def test_rejected_messages_are_listed_and_shown_with_their_bytes(bench):
    await bench.submit_and_wait(raw=b"\xff\x00")
    await bench.submit_and_wait(raw='{"handler": "ü"}'.encode())
    listed = (await bench.call(api.OP_REJECTED_LIST, {"limit": 1}))["data"]
    assert listed["more"]
    assert "raw" not in listed["rejected"][0]
    number = listed["rejected"][0]["rejected_id"]
    assert (await bench.call(api.OP_REJECTED_GET, {"rejected_id": number}))["data"]["raw"] == '{"handler": "ü"}'
    older = (await bench.call(api.OP_REJECTED_LIST, {"before": number}))["data"]["rejected"]
    shown = (await bench.call(api.OP_REJECTED_GET, {"rejected_id": older[0]["rejected_id"]}))["data"]
    assert (base64.b64decode(shown["raw"]), shown["raw_base64"]) == (b"\xff\x00", True)


@pytest.mark.parametrize(
    ("operation", "request_", "code"),
    [
        (api.OP_JOB_GET, {"id": MISSING}, "not_found"),
        (api.OP_JOB_GET, {"id": "7"}, "bad_request"),
        (api.OP_JOB_GET, {}, "bad_request"),
        (api.OP_JOB_GET, b"[" * 5_000, "bad_request"),
        (api.OP_JOB_GET, b"\xff", "bad_request"),
        (api.OP_JOB_LIST, {"status": ["finished"]}, "bad_request"),
        (api.OP_JOB_LIST, {"priority": "urgent"}, "bad_request"),
        (api.OP_JOB_LIST, {"before_id": "x"}, "bad_request"),
        (api.OP_JOB_LIST, {"handler": "a\0b"}, "bad_request"),
        (api.OP_REJECTED_GET, {"rejected_id": 5}, "not_found"),
        (api.OP_REJECTED_GET, {"rejected_id": 2**70}, "bad_request"),
        ("no-such-thing", {}, "bad_request"),
    ],
)
async def test_every_bad_request_is_answered_with_its_reason(bench, operation, request_, code):
    reply = await bench.call(operation, request_)
    assert reply["error"]["code"] == code
    assert reply["error"]["message"]
    assert "data" not in reply


async def test_requests_are_answered_while_others_wait(bench):
    waiting = [asyncio.create_task(bench.call(api.OP_JOB_RESULT, {"id": new_id(), "wait_s": 5})) for _ in range(300)]
    await asyncio.sleep(0.3)
    started = time.monotonic()
    assert "data" in await bench.call(api.OP_JOB_COUNT, {})
    assert time.monotonic() - started < 2
    for task in waiting:
        task.cancel()


async def test_a_reply_goes_to_an_inbox_and_nowhere_else(bench, caplog):
    """Else whoever may ask could have us delete a stream, or submit in our name."""
    caplog.set_level("DEBUG", "jm_master.service")  # the first is a warning
    stream = bench.names.pending_stream
    for reply in (f"$JS.API.STREAM.DELETE.{stream}", bench.names.submit, "_INBOX.a.*", "a.b"):
        await bench.link.nc.publish(bench.names.api(api.OP_JOB_COUNT), b"{}", reply=reply)
    counts = (await bench.call(api.OP_JOB_COUNT, {}))["data"]
    assert counts["rejected"] == 0
    info = await bench.link.api(f"STREAM.INFO.{stream}")
    assert info["state"]["last_seq"] == 0
    assert len([record for record in caplog.records if record.message == "reply not sent"]) == 4


async def test_a_reply_that_cannot_be_sent_costs_nobody_else_their_answer(bench, monkeypatch):
    publish = SteadyClient.publish

    async def fail_once(client, subject, *args, **kwargs):
        if subject == "_INBOX.fails":
            raise errors.OutboundBufferLimitError
        return await publish(client, subject, *args, **kwargs)

    monkeypatch.setattr(SteadyClient, "publish", fail_once)
    await bench.link.nc.publish(bench.names.api(api.OP_JOB_COUNT), b"{}", reply="_INBOX.fails")
    await bench.call(api.OP_JOB_COUNT, {})
    await bench.call(api.OP_JOB_COUNT, {})
