"""The leader's teller of cancels without servers: what follows from a cancel, however its commit was heard of."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from jm_core.control import CancelOrder
from jm_core.model import JobStatus
from jm_master import cancel as cancel_module
from jm_master.cancel import Canceller
from jm_master.cancel_store import Found, Waiting
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.ledger import Ledger
from jm_master.pg_errors import StoreUnavailableError
from jm_master.registry_view import RegistryView
from jm_master.waiters import ResultWaiters


class Store:
    """Table ``cancel_order`` in a list; one that was told stays until it is looked at again."""

    def __init__(self):
        self.rows = []
        self.looks = 0

    def add(self, job_id, *, cancelled=True):
        now_s = time.time()
        self.rows.append(Waiting("b", CancelOrder(job_id, 1, "why"), 0, now_s if cancelled else None))

    async def orders(self, count_max):
        self.looks += 1
        return self.rows[:count_max]

    async def mark_told(self, orders):
        told = {order.id for order in orders}
        self.rows = [row for row in self.rows if row.order.id not in told]

    async def forget_orders(self):
        return len(self.rows)


class Publisher:
    async def publish(self, subject, data):
        assert subject.endswith("ctl")
        assert data


class Scene:
    def __init__(self):
        self.ledger = Ledger(RegistryView())
        self.waiters = ResultWaiters()
        self.store = Store()
        names = SimpleNamespace(ctl=lambda bucket: f"{bucket}.ctl")
        database = Database(PostgresConfig(dsn="postgresql://u@localhost/x"))
        self.canceller = Canceller(database, self.store, Publisher(), names, ledger=self.ledger, waiters=self.waiters)

    def lying(self):
        return self.ledger.outstanding().get("b", 0)


@pytest.fixture
async def scene():
    scene = Scene()
    scene.ledger.give("b", 5, now_s=0.0)
    return scene


def found(job_id):
    return Found(
        job_id, "h", JobStatus.IN_BUCKET, JobStatus.CANCELLED, asked_before=False, bucket="b", worker=None, dispatch=1,
        run_at=time.time(),
    )  # fmt: skip


async def test_a_cancel_whose_commit_was_not_answered_gives_credit_back_and_tells_who_waits(scene):
    await scene.canceller.tell_once()
    with scene.waiters.waiting("lost") as ended:
        scene.store.add("lost")
        await scene.canceller.tell_once()
        assert ended.is_set()
    assert scene.lying() == 4
    await scene.canceller.tell_once()
    assert scene.lying() == 4


async def test_what_was_answered_gives_credit_back_once(scene):
    await scene.canceller.tell_once()
    scene.store.add("known")
    scene.canceller.committed([found("known")])
    assert scene.lying() == 4
    await scene.canceller.tell_once()
    assert scene.lying() == 4
    assert scene.canceller._followed == set()


async def test_what_only_was_asked_to_end_holds_its_credit(scene):
    await scene.canceller.tell_once()
    scene.store.add("running", cancelled=False)
    await scene.canceller.tell_once()
    assert scene.lying() == 5


async def test_what_the_last_leader_left_untold_is_not_in_the_ledger_of_the_next_one(scene):
    scene.store.add("before")
    await scene.canceller.tell_once()
    assert (scene.lying(), scene.store.rows) == (5, [])


@pytest.mark.timeout(30)
async def test_orders_beyond_a_pass_are_told_at_once(scene, monkeypatch):
    monkeypatch.setattr(cancel_module, "ORDERS_MAX", 2)
    monkeypatch.setattr(cancel_module, "RETELL_S", 3_600.0)
    for n in range(7):
        scene.store.add(f"job-{n}")
    duty = asyncio.create_task(scene.canceller.run())
    async with asyncio.timeout(10):
        while scene.store.rows:
            await asyncio.sleep(0.01)
    duty.cancel()
    assert scene.store.looks == 4


@pytest.mark.timeout(30)
async def test_it_is_looked_for_orders_that_nobody_has_heard_of(scene, monkeypatch):
    """Written by another agent's leader, or in a transaction whose commit was not answered."""
    monkeypatch.setattr(cancel_module, "RETELL_S", 0.01)
    duty = asyncio.create_task(scene.canceller.run())
    async with asyncio.timeout(10):
        while scene.store.looks < 3:
            await asyncio.sleep(0.01)
        scene.store.add("unheard of")
        while scene.store.rows:
            await asyncio.sleep(0.01)
    duty.cancel()
    assert scene.lying() == 4


@pytest.mark.timeout(30)
async def test_an_unanswered_cancel_has_the_orders_looked_at_at_once(scene, monkeypatch):
    monkeypatch.setattr(cancel_module, "RETELL_S", 3_600.0)

    def away():
        raise StoreUnavailableError("here", "the answer is lost")

    monkeypatch.setattr(scene.canceller._database, "connection", away)
    duty = asyncio.create_task(scene.canceller.run())
    async with asyncio.timeout(10):
        while not scene.store.looks:
            await asyncio.sleep(0.01)
        scene.store.add("job")
        with pytest.raises(StoreUnavailableError):
            await scene.canceller.cancel(["job"], by="ops", reason="")
        while scene.store.rows:
            await asyncio.sleep(0.01)
    duty.cancel()
    assert scene.store.looks == 2
