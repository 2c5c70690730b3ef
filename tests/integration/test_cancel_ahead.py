"""A cancel that comes before its job is saved: the job lies in NATS still."""

from __future__ import annotations

import asyncio

import pytest

from jm_core.control import Action
from jm_core.errors import JobFailedError
from jm_core.model import JobStatus as S
from jm_master import ahead as ahead_module
from jm_master import control as control_module
from jm_master.ahead import Ahead
from jm_master.cancel_store import CancelStore
from jm_master.config import PostgresConfig
from jm_master.control import Control
from jm_master.control_store import AHEAD, ControlStore
from jm_master.database import Database
from jm_master.ledger import Ledger
from jm_master.pg_errors import StoreUnavailableError
from jm_master.registry_view import RegistryView
from jm_master.save_store import SaveStore
from jm_master.saver import Saver
from jm_master.waiters import ResultWaiters
from jm_master.wake import Wake
from jm_nats.client import submission
from tests.support.control_app import NOTES_VARIABLE, notes, quick
from tests.support.master import new_id
from tests.support.small_cluster import small_cluster
from tests.support.waiting import wait_until


@pytest.fixture
def noted(tmp_path, monkeypatch):
    monkeypatch.setenv(NOTES_VARIABLE, str(tmp_path / "notes"))
    return tmp_path / "notes"


@pytest.fixture
async def small(nats_server, database, cluster_name, noted):
    async with small_cluster(nats_server.url, database, cluster_name) as small:
        yield small


@pytest.fixture
def held_up(monkeypatch):
    """Saving waits, at the given step, until told to go on."""
    gate = asyncio.Event()
    waiting = asyncio.Event()

    def at(owner):
        save = owner.save

        async def slowly(self, *args):
            waiting.set()
            await gate.wait()
            return await save(self, *args)

        monkeypatch.setattr(owner, "save", slowly)
        return waiting, gate

    return at


async def cancelled(small, job_id, **how):
    (reply,) = [reply async for reply in small.client.control(Action.CANCEL, [job_id], **how)]
    return reply


async def test_a_job_that_is_cancelled_while_it_is_queued_is_saved_as_cancelled(small, held_up, noted):
    waiting, gate = held_up(Saver)
    receipt = await quick.submit(small.client)
    await asyncio.wait_for(waiting.wait(), 20)
    reply = await cancelled(small, receipt.job_id, by="ops", reason="too late")
    assert reply.action is None
    assert reply.jobs[0].note == AHEAD
    gate.set()
    row = await small.reaches(receipt.job_id, S.CANCELLED)
    assert (row["cancelled_by"], row["cancel_reason"], row["dispatch"]) == ("ops", "too late", 0)
    with pytest.raises(JobFailedError, match="cancelled by ops: too late"):
        await small.client.result(receipt.job_id, timeout=20)
    marker = await small.submit("quick")
    await small.reaches(marker, S.SUCCEEDED)
    assert notes(noted, "started") == [marker]
    (action,) = (await small.client.actions()).actions
    assert (action.actor, action.changed, action.matched) == ("ops", 1, 1)
    assert await small.sql.rows("SELECT * FROM cancel_ahead") == []


async def test_others_of_its_message_are_saved_and_run(small, held_up, noted):
    waiting, gate = held_up(Saver)
    jobs = [quick.job({}) for _ in range(5)]
    receipts = await small.client.submit_many(jobs)
    await asyncio.wait_for(waiting.wait(), 20)
    await cancelled(small, receipts[2].job_id)
    gate.set()
    others = [receipt.job_id for receipt in receipts if receipt is not receipts[2]]
    await small.all_reach(others, S.SUCCEEDED)
    await small.reaches(receipts[2].job_id, S.CANCELLED)
    assert sorted(notes(noted, "started")) == sorted(others)


async def test_a_job_that_is_being_saved_just_then_is_cancelled_soon_after(small, held_up):
    waiting, gate = held_up(SaveStore)
    receipt = await quick.submit(small.client, seconds=50.0)
    await asyncio.wait_for(waiting.wait(), 20)
    await cancelled(small, receipt.job_id, by="ops")
    gate.set()
    await small.reaches(receipt.job_id, S.CANCELLED)
    await wait_until(lambda: nothing_ahead(small), what="nothing to wait for")
    (action,) = (await small.client.actions()).actions
    assert (action.actor, action.changed) == ("ops", 1)


async def nothing_ahead(small):
    return not await small.sql.rows("SELECT * FROM cancel_ahead")


async def test_the_next_leader_knows_of_it(nats_server, database, cluster_name, noted):
    job = quick.job({})
    async with small_cluster(nats_server.url, database, cluster_name) as small:
        await cancelled(small, job.id, by="ops")
    async with small_cluster(nats_server.url, database, cluster_name) as small:
        await small.client.submit(job, wait="recorded")
        await small.reaches(job.id, S.CANCELLED)
        assert notes(noted, "started") == []


async def test_it_is_forgotten_after_an_hour_and_there_is_a_bound(small, monkeypatch):
    monkeypatch.setattr(ahead_module, "IDS_MAX", 1)
    notes_of = [(await cancelled(small, new_id())).jobs[0].note for _ in range(2)]
    assert notes_of == [AHEAD, "no such job on the master"]
    await small.sql.rows("UPDATE cancel_ahead SET at = now() - interval '61 minutes'")
    await wait_until(lambda: nothing_ahead(small), what="it is forgotten")
    assert (await cancelled(small, new_id())).jobs[0].note == AHEAD


async def test_what_has_come_makes_room_for_others_at_once(small, monkeypatch):
    monkeypatch.setattr(ahead_module, "IDS_MAX", 1)

    async def finds_nothing(_):
        return []

    monkeypatch.setattr(Ahead, "come", finds_nothing)
    for _ in range(3):
        job = quick.job({})
        assert (await cancelled(small, job.id)).jobs[0].note == AHEAD
        await small.client.submit(job, wait="recorded")
        await small.reaches(job.id, S.CANCELLED)


async def test_what_has_come_makes_room_also_where_the_answer_was_lost(small, monkeypatch):
    monkeypatch.setattr(ahead_module, "IDS_MAX", 1)
    save, tries = SaveStore.save, []

    async def unanswered_at_first(self, batch):
        answer = await save(self, batch)
        tries.append(answer)
        if len(tries) == 1:
            raise StoreUnavailableError("here", "the answer is lost")
        return answer

    monkeypatch.setattr(SaveStore, "save", unanswered_at_first)
    job = quick.job({})
    await cancelled(small, job.id)
    await small.client.submit(job, wait="recorded")
    await small.reaches(job.id, S.CANCELLED)
    assert [answer.cancelled for answer in tries[:2]] == [[job.id], []]

    async def is_remembered():
        return (await cancelled(small, new_id())).jobs[0].note == AHEAD

    await wait_until(is_remembered, what="room for another one")


async def test_who_waits_for_a_job_that_is_saved_as_cancelled_is_told(small, held_up, monkeypatch):
    waiting, gate = held_up(Saver)
    receipt = await quick.submit(small.client)
    await asyncio.wait_for(waiting.wait(), 20)
    await cancelled(small, receipt.job_id, by="ops", reason="too late")
    told, registered, waits, ended = set(), asyncio.Event(), ResultWaiters.waiting, ResultWaiters.ended

    def noted(self, *job_ids):
        registered.set()
        return waits(self, *job_ids)

    def telling(self, job_ids):
        told.update(job_ids := list(job_ids))
        ended(self, job_ids)

    monkeypatch.setattr(ResultWaiters, "waiting", noted)
    monkeypatch.setattr(ResultWaiters, "ended", telling)
    result = asyncio.create_task(small.client.result(receipt.job_id, timeout=20))
    await asyncio.wait_for(registered.wait(), 20)
    gate.set()
    with pytest.raises(JobFailedError, match="cancelled by ops: too late"):
        await result
    assert receipt.job_id in told


async def test_a_job_that_is_cancelled_before_it_comes_takes_nobodys_place(small):
    holder = await small.submit_with("quick", unique_key="k", delay_s=3_000.0)
    job = submission("quick", {}, unique_key="k", on_conflict="replace", delay_s=3_000.0)
    await cancelled(small, job.id)
    receipt = await small.client.submit(job, wait="recorded")
    assert receipt.job_id == holder
    assert (await small.sql.job(holder))["status"] == S.ON_MASTER
    assert await small.sql.rows("SELECT * FROM job WHERE id = $1", job.id) == []


async def test_what_another_agent_s_leader_remembers_is_known_here_soon(database, monkeypatch):
    """A job that is cancelled ahead may be saved by whichever agent it was submitted to."""
    monkeypatch.setattr(control_module, "OTHERS_LOOK_S", 0.01)
    here, there, added = new_id(), new_id(), new_id()
    async with (
        Database(PostgresConfig(dsn=database)) as main,
        Database(PostgresConfig(dsn=database), agent="east") as east,
    ):
        ours, theirs = Ahead(main, 1), Ahead(east, 2)
        cancels = CancelStore(main, 1)
        store = ControlStore(main, 1, cancels, ours)
        parts = {"ledger": Ledger(RegistryView()), "view": RegistryView(), "assign": Wake()}
        duty = asyncio.create_task(Control(main, store, None, None, ours, others=lambda: True, **parts).run())
        async with east.connection() as connection:
            theirs.add(await theirs.remember(connection, [here, there], action_id=new_id(), by="ops", reason=""))
        await wait_until(lambda: ours.ids == {here, there}, what="both known here")
        await theirs.settled([here])
        await wait_until(lambda: ours.ids == {there}, what="one settled there")
        duty.cancel()
        await asyncio.wait({duty})
        real = main.fetch

        async def slow(*args):
            rows = await real(*args)
            ours.add([added])  # committed since
            return rows

        monkeypatch.setattr(main, "fetch", slow)
        await ours.load()
        assert ours.ids == {there, added}
