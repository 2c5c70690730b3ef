"""Jobs cancelled while they run, by the client, with a real worker in this process (CANC of field-cases)."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from jm_core.control import Action
from jm_core.errors import ActionRefusedError, JobFailedError, NoSuchJobError, ResultTimeoutError
from jm_core.model import JobStatus as S
from jm_nats import control_client
from tests.support import control_app
from tests.support.control_app import NOTES_VARIABLE, notes
from tests.support.master import new_id
from tests.support.small_cluster import small_cluster, working
from tests.support.waiting import wait_until

SOON_S: Final = 1.0  # of a cancel of an async handler
MORE_ROUNDS_MAX: Final = 8


@pytest.fixture
def noted(tmp_path, monkeypatch):
    monkeypatch.setenv(NOTES_VARIABLE, str(tmp_path / "notes"))
    return tmp_path / "notes"


@pytest.fixture
async def small(nats_server, database, cluster_name, noted):
    async with small_cluster(nats_server.url, database, cluster_name, cancel_grace_s=0.5) as small:
        yield small


async def running(small, handler, **args):
    job_id = await small.submit(handler, **args)
    await small.reaches(job_id, S.PROCESSING)
    return job_id


async def test_an_async_handler_is_cancelled_within_a_second(small):
    ids = [await small.submit("waits") for _ in range(40)]
    await small.all_reach(ids, S.PROCESSING)

    async def one(job_id):
        begun_s = time.monotonic()
        verdict = await small.client.cancel(job_id, by="ops", reason="enough", wait=20)
        assert (verdict.changed, verdict.status) == (True, "cancelled")
        return time.monotonic() - begun_s

    took_s = sorted([await one(job_id) for job_id in ids])
    print(f"cancel of a running async handler: p50 {took_s[20]:.3f} s, max {took_s[-1]:.3f} s")  # noqa: T201
    assert took_s[-3] < SOON_S, "but for one or two that the machine held up"
    row = await small.sql.job(ids[0])
    assert (row["cancelled_by"], row["cancel_reason"], row["error"]) == ("ops", "enough", "cancelled by ops: enough")
    attempt = await small.sql.row("SELECT * FROM attempt WHERE job_id = $1", ids[0])
    assert (attempt["outcome"], attempt["error"]) == ("cancelled", "cancelled by ops: enough")
    with pytest.raises(JobFailedError, match="ended cancelled: cancelled by ops: enough"):
        await small.client.result(ids[0], timeout=5)


async def test_br191_a_handler_that_ignores_it_and_returns_is_cancelled_and_its_result_noted(
    nats_server, database, cluster_name, noted, tmp_path
):
    """It is told, and returns what it has, before the worker loses patience."""
    async with small_cluster(nats_server.url, database, cluster_name, cancel_grace_s=60.0) as small:
        job_id = await running(small, "ignores", path=str(tmp_path / "go on"))
        await small.client.cancel(job_id)
        await wait_until(lambda: job_id in notes(noted, "cancelled"), what="the handler told")
        (tmp_path / "go on").touch()
        row = await small.reaches(job_id, S.CANCELLED)
        assert row["result"] is None
        attempt = await small.sql.row("SELECT * FROM attempt WHERE job_id = $1", job_id)
        assert attempt["outcome"] == "cancelled"
        assert attempt["error"].endswith('too late to count; late result: {"late":true}')


async def test_br191_a_handler_that_ignores_it_for_longer_is_reported_and_said_to_hold_its_slot(small, tmp_path):
    job_id = await running(small, "ignores", path=str(tmp_path / "go on"))
    await small.client.cancel(job_id, wait=20)
    attempt = await small.sql.row("SELECT * FROM attempt WHERE job_id = $1", job_id)
    assert "ignores cancellation and still holds a slot" in attempt["error"]
    assert small.worker._parts.engine.running == 1
    (tmp_path / "go on").touch()
    await wait_until(lambda: small.worker._parts.engine.running == 0, what="its slot to be free")
    assert (await small.sql.job(job_id))["status"] == S.CANCELLED


async def test_br192_no_retry_after_a_cancel_whatever_the_handler_raises(small, noted):
    job_id = await running(small, "raises_when_cancelled")
    await small.client.cancel(job_id, wait=20)
    attempt = await small.sql.row("SELECT * FROM attempt WHERE job_id = $1", job_id)
    assert attempt["outcome"] == "cancelled"
    assert "ValueError: cleaning up went wrong" in attempt["error"]
    await wait_until(lambda: small.worker._parts.engine.running == 0, what="its end")
    assert notes(noted, "started") == [job_id]


async def test_br194_a_process_is_killed_and_so_are_its_children(small, tmp_path, noted):
    pids_file = tmp_path / "pids"
    job_id = await running(small, "spawns", pids=str(pids_file))
    await wait_until(lambda: job_id in notes(noted, "started"), what="its child")
    pids = [int(pid) for pid in pids_file.read_text().split()]
    assert all(is_alive(pid) for pid in pids)
    await small.client.cancel(job_id, wait=20)
    await wait_until(lambda: not any(is_alive(pid) for pid in pids), what=f"the end of {pids}")
    assert (await small.sql.outcomes(job_id)) == ["cancelled"]


def is_alive(pid: int) -> bool:
    """A zombie that nobody has collected is dead."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return False
    return stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_br195_what_runs_and_what_waits_behind_it_is_cancelled_and_nothing_starts(
    nats_server, database, cluster_name, noted
):
    async with small_cluster(nats_server.url, database, cluster_name, slots=1) as small:
        first = await running(small, "waits")
        others = [await small.submit("waits") for _ in range(20)]
        replies = [reply async for reply in small.client.control(Action.CANCEL, [first, *others], reason="all of them")]
        (reply,) = replies
        assert (reply.action.matched, reply.action.changed, reply.action.refused) == (21, 21, 0)
        await small.all_reach([first, *others], S.CANCELLED)
        await wait_until(lambda: small.worker._parts.engine.held == 0, what="nothing to be held")
        marker = await small.submit("quick")
        await small.reaches(marker, S.SUCCEEDED)
        assert notes(noted, "started") == [first, marker]


async def test_br196_a_thread_is_told_and_reported_as_it_is(small, tmp_path):
    job_id = await running(small, "thread_until_file", path=str(tmp_path / "go on"))
    verdict = await small.client.cancel(job_id, by="ops")
    assert (verdict.status, verdict.changed) == ("processing", True)
    assert "cannot be forced" in verdict.note
    with pytest.raises(ResultTimeoutError, match="takes no notice"):
        await small.client.cancel(job_id, wait=1.0)
    view = await small.client.job(job_id)
    assert (view.status, view.cancelled_by) == ("processing", "ops")
    other = await running(small, "waits")  # the control loop goes on
    await small.client.cancel(other, wait=20)
    (tmp_path / "go on").touch()
    await small.reaches(job_id, S.CANCELLED)
    attempt = await small.sql.row("SELECT * FROM attempt WHERE job_id = $1", job_id)
    assert attempt["error"].endswith('late result: "went on"')


async def test_br196_a_thread_that_looks_stops_at_once(small):
    job_id = await running(small, "thread_looks")
    verdict = await small.client.cancel(job_id, wait=20)
    assert verdict.status == "cancelled"


async def test_br197_b_a_forced_cancel_of_what_a_live_worker_runs_fences_it_off(small, tmp_path):
    job_id = await running(small, "thread_until_file", path=str(tmp_path / "go on"))
    verdict = await small.client.cancel(job_id, by="ops", reason="stuck", force=True)
    assert (verdict.status, verdict.changed) == ("cancelled", True)
    (tmp_path / "go on").touch()
    await wait_until(lambda: small.worker._parts.engine.running == 0, what="its end")
    marker = await small.submit("quick")
    await small.reaches(marker, S.SUCCEEDED)
    row = await small.sql.job(job_id)
    assert (row["status"], row["result"]) == (S.CANCELLED, None)
    (action,) = await small.sql.rows("SELECT * FROM operator_action")
    assert (action["actor"], action["action"], action["reason"], action["changed"]) == ("ops", "cancel", "stuck", 1)


async def test_br190_what_the_api_said_is_what_became_of_it(small, race_count):
    """Cancels at random times around the end of the job."""
    said = {}
    latest_s = 0.05

    async def one():
        job_id = await small.submit("quick", seconds=0.02)
        await asyncio.sleep(random.uniform(0.0, latest_s))
        try:
            verdict = await small.client.cancel(job_id, wait=20)
        except ActionRefusedError:
            said[job_id] = S.SUCCEEDED
        else:
            said[job_id] = S.CANCELLED
            assert verdict.status == "cancelled"

    for _ in range(race_count // 50):
        await asyncio.gather(*[one() for _ in range(50)])
    for _ in range(MORE_ROUNDS_MAX):
        if len(set(said.values())) == 2:  # or the race was none
            break
        latest_s *= 2
        await asyncio.gather(*[one() for _ in range(50)])
    rows = await small.sql.rows("SELECT id::text, status FROM job")
    assert {row["id"]: row["status"] for row in rows} == said
    assert set(said.values()) == {S.SUCCEEDED, S.CANCELLED}


@pytest.fixture(params=[300, pytest.param(2_000, marks=pytest.mark.soak)])
def race_count(request):
    return request.param


async def test_too_late_is_said(small):
    job_id = await small.submit("quick")
    await small.reaches(job_id, S.SUCCEEDED)
    with pytest.raises(ActionRefusedError, match="it has ended succeeded"):
        await small.client.cancel(job_id)


async def test_a_job_that_was_only_queued_is_waited_for(small):
    receipt = await control_app.waits.submit(small.client, seconds=600)
    verdict = await small.client.cancel(receipt.job_id, wait=20)
    assert verdict.status == "cancelled"
    await small.reaches(receipt.job_id, S.CANCELLED)


async def test_a_job_that_is_nowhere_is_no_job(small, monkeypatch):
    monkeypatch.setattr(control_client, "RECORDED_WITHIN_S", 0.5)
    with pytest.raises(NoSuchJobError, match="is not on the master"):
        await small.client.cancel(new_id())
    assert await small.sql.rows("SELECT * FROM operator_action") == []


async def test_a_held_job_of_a_worker_that_stops_is_not_run_elsewhere(nats_server, database, cluster_name, noted):
    """Cancelled, and handed back by a worker that was never told."""
    async with small_cluster(nats_server.url, database, cluster_name, works=False) as small:
        async with working(nats_server.url, cluster_name, slots=1, drain_timeout_s=1.0) as deaf:
            deaf._parts.engine.cancel = lambda _: 0
            first = await running(small, "waits")
            held = await small.submit("waits")
            await small.reaches(held, S.IN_BUCKET)
            await small.client.cancel(held)
        await small.client.cancel(first)
        before = notes(noted, "started")
        async with working(nats_server.url, cluster_name):
            marker = await small.submit("quick")
            await small.reaches(marker, S.SUCCEEDED)
            await small.all_reach([first, held], S.CANCELLED)
        assert notes(noted, "started") == [*before, marker]


@pytest.mark.parametrize("how", ["cancel", "reschedule"])
async def test_br193_the_message_of_a_job_for_later_is_taken_out_of_its_stream(small, how):
    """Where it is the job's alone; one that it shares is dropped by the worker when it comes."""
    due = datetime.now(UTC) + timedelta(seconds=300)
    alone = await small.submit_with("quick", run_at=due)
    at = datetime.now(UTC) + timedelta(seconds=400)
    receipts = await small.client.submit_many([control_app.quick.job({}, run_at=at) for _ in range(2)], wait="recorded")
    shared = [receipt.job_id for receipt in receipts]
    await small.all_reach([alone, *shared], S.IN_BUCKET)
    (bucket,) = small.worker._parts.buckets.own

    async def messages():
        info = await small.client.link.api(f"STREAM.INFO.{small.client.names.bucket_stream(bucket)}")
        return info["state"]["messages"]

    await wait_until(lambda: equals(messages, 2), what="both messages to be there")
    if how == "cancel":
        await small.client.cancel(alone)
    else:
        await small.client.reschedule(alone, datetime.now(UTC) + timedelta(days=1))
    await wait_until(lambda: equals(messages, 1), what="its message to be gone")
    assert datetime.now(UTC) < due, "taken out, not delivered"
    await small.client.cancel(shared[0])
    await small.client.cancel(shared[1])
    await wait_until(lambda: equals(messages, 0), what="the other to be gone")


async def equals(ask, wanted):
    return await ask() == wanted
