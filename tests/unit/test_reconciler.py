"""The order of a pass, with the world behind a fake that writes down what it is asked."""

from __future__ import annotations

import asyncio

import pytest

from jm_core import wire
from jm_core.ends import Held
from jm_core.reconcile import GONE, Out, StreamLook
from jm_core.wire import BucketRecord, WorkerRecord
from jm_master import reconcile
from jm_master.reconcile import Reconciler, hinted_bucket
from jm_master.registry_view import RegistryView
from jm_nats import telemetry
from tests.support.waiting import wait_until

BUCKET = BucketRecord("b", "w", "i", "default", 3, 1, "active")


class World:
    """Ports whose answers a test sets."""

    def __init__(self):
        self.log = []
        self.out = [Out(Held("job", "h", 1, 0, 4, 0, None), 60.0)]
        self.stream = StreamLook(5, 0)
        self.answer = frozenset()
        self.returned = []

    async def rows(self, *_):
        self.log.append("rows")
        return self.out

    async def look(self, *_):
        self.log.append("look")
        return self.stream

    async def held(self, *_):
        self.log.append("held")
        return self.answer

    async def recorded(self):
        self.log.append("recorded")

    async def record(self, ends, **_):
        self.log.append("record")
        self.returned += [end.id for end in ends]


@pytest.fixture
def world():
    return World()


def reconciler(world, *, patience_s=0.0, view=None):
    return Reconciler(world, view or RegistryView(), reconcile_s=30.0, patience_s=patience_s)


async def test_a_first_look_decides_nothing(world):
    assert await reconciler(world).look(BUCKET) == 0
    assert world.log == ["rows"]


async def test_the_stream_then_the_worker_then_the_events_then_the_record(world):
    subject = reconciler(world)
    await subject.look(BUCKET)
    world.log.clear()
    assert await subject.look(BUCKET) == 1
    assert world.log == ["rows", "look", "held", "recorded", "record"]
    assert world.returned == ["job"]


@pytest.mark.parametrize(
    ("field", "value", "last_step"),
    [
        ("stream", StreamLook(5, 1), "look"),
        ("answer", None, "held"),
        ("answer", frozenset({"job"}), "held"),
    ],
    ids=["undelivered messages", "no answer", "held"],
)
async def test_a_step_that_clears_or_doubts_ends_the_pass(world, field, value, last_step):
    subject = reconciler(world)
    await subject.look(BUCKET)
    setattr(world, field, value)
    assert await subject.look(BUCKET) == 0
    assert world.log[-1] == last_step
    assert world.returned == []


async def test_patience_is_kept(world):
    subject = reconciler(world, patience_s=3600.0)
    await subject.look(BUCKET)
    await subject.look(BUCKET)
    assert "look" not in world.log


async def test_a_stream_made_anew_and_empty_needs_no_patience(world):
    world.stream = GONE
    assert await reconciler(world, patience_s=3600.0).look_after_loss(BUCKET) == 1
    assert world.log == ["rows", "look", "held", "recorded", "record"]


async def test_a_stream_made_anew_with_messages_in_it_waits_for_the_usual_pass(world):
    assert await reconciler(world).look_after_loss(BUCKET) == 0
    assert world.log == ["rows", "look"]


@pytest.mark.parametrize(("status", "alive"), [("draining", True), ("lost", True), ("active", False)])
def test_buckets_without_an_owner_to_ask_are_not_looked_at(world, status, alive):
    view = RegistryView()
    view.set_worker("w", wire.encode(WorkerRecord("w", "i" if alive else "other", "host", 1, 0.0, 1, [], [])))
    view.set_bucket("b", wire.encode(BucketRecord("b", "w", "i", "default", 3, 1, status)), 1)
    assert reconciler(world, view=view)._buckets() == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"reconcile": 5}', b"5", b'{"other": "b"}', b"[" * 5000])
def test_a_hint_that_cannot_be_read_is_none(data):
    assert hinted_bucket(data) is None


async def test_however_rare_its_passes_are_the_duty_shows_that_it_lives(world, monkeypatch):
    passed = []
    assert reconcile.IDLE_S < 60
    monkeypatch.setattr(telemetry, "duty_passed", lambda: passed.append(1))
    monkeypatch.setattr(reconcile, "IDLE_S", 0.01)
    rare = Reconciler(world, RegistryView(), reconcile_s=86_400, patience_s=0)
    running = asyncio.ensure_future(rare.run())
    try:
        await wait_until(lambda: len(passed) >= 3, 5, what="it has turned three times")
    finally:
        running.cancel()


def test_a_hint_names_a_bucket():
    assert hinted_bucket(b'{"reconcile": "b-1"}') == "b-1"
