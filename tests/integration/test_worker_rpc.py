"""Questions and orders to a worker over a real NATS: answered each, whatever is asked."""

import asyncio

import msgspec
import pytest

from jm_core import rpc, wire
from jm_core.errors import InvalidNameError
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.embedded import NatsServer
from jm_nats.errors import AgentUnavailableError
from jm_nats.subjects import Names
from jm_nats.worker import rpc as worker_rpc
from jm_nats.worker.rpc import WorkerRpc
from jm_nats.worker_client import NoSuchWorkerError, WorkerRefusedError, accepted, ask
from tests.support.fake_worker import FakeOrders
from tests.support.waiting import wait_until


@pytest.fixture
async def orders(link, names):
    fake = FakeOrders()
    async with WorkerRpc(link, names, "w-1", fake):
        yield fake


def asked(link, names, request):
    return ask(link, names, "w-1", request, timeout_s=5)


async def test_every_question_and_order_reaches_the_worker_and_is_answered(link, names, orders):
    held = await asked(link, names, rpc.Holds("default-high-1", [("a", 1), ("b", 2)]))
    assert held == rpc.Answer(held=["b"])
    opened = await asked(link, names, rpc.OpenFallback("mail", 3, "nobody else"))
    assert opened == rpc.Answer(bucket="mail-fallback")
    for order in (rpc.Retire("default-high-1", "proper one is there"), rpc.Drain(), rpc.Drain(undo=True), rpc.Stop()):
        assert await asked(link, names, order) == rpc.Answer()
    assert await asked(link, names, rpc.Stop(hurry=True)) == rpc.Answer()
    status = (await asked(link, names, rpc.Status())).status
    assert (status.state, status.running[0].handler, status.held) == ("stopping", "sleep", 3)
    assert orders.given == [
        ("holds", "default-high-1"),
        ("open_fallback", "mail", 3, "nobody else"),
        ("retire", "default-high-1", "proper one is there"),
        ("drain", False),
        ("drain", True),
        ("stop", False),
        ("stop", True),
    ]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"op":"explode"}', "explode"),
        (b'{"op":"holds"}', "bucket"),
        (b'{"op":"holds","bucket":"x.y","jobs":[]}', "not a valid name"),
        (b'{"op":"holds","bucket":"somebody-elses","jobs":[]}', "not one of mine"),
        (b'{"op":"retire","bucket":"somebody-elses","reason":""}', "not one of mine"),
        (b'{"op":"open-fallback","lane":"a.b","serves":3,"reason":""}', "not a valid name"),
        (b'{"op":"open-fallback","lane":"a","serves":9,"reason":""}', "priority 9"),
        (b'{"op":"drain","undo":"perhaps"}', "undo"),
    ],
)
async def test_a_request_that_does_not_fit_is_refused_with_the_reason_and_the_next_one_is_answered(
    link, names, orders, payload, says
):
    reply = await link.nc.request(names.worker_rpc("w-1"), payload, timeout=5)
    answer = rpc.decode_answer(reply.data)
    assert says in answer.error
    with pytest.raises(WorkerRefusedError, match="refuses"):
        accepted("w-1", answer)
    assert orders.given == []
    assert (await asked(link, names, rpc.Status())).status is not None


async def test_a_bug_in_an_order_costs_its_asker_an_error_and_not_the_worker(link, names, orders, caplog):
    orders.trouble = ZeroDivisionError("oops")
    answer = await asked(link, names, rpc.Retire("default-high-1", ""))
    assert "unexpected ZeroDivisionError: oops" in answer.error
    assert "order failed" in caplog.text
    orders.trouble = None
    assert await asked(link, names, rpc.Retire("default-high-1", "")) == rpc.Answer()


async def test_an_answer_goes_to_inboxes_only_and_such_an_order_is_not_carried_out(link, names, orders, caplog):
    await link.nc.publish(names.worker_rpc("w-1"), wire.encode(rpc.Stop()), reply=names.submit)
    assert (await asked(link, names, rpc.Status())).status.state == "serving"
    assert "reply not sent" in caplog.text
    assert orders.given == []


async def test_an_order_that_wants_no_answer_is_carried_out(link, names, orders):
    await link.nc.publish(names.worker_rpc("w-1"), wire.encode(rpc.Drain()))
    await wait_until(lambda: orders.given == [("drain", False)])


async def test_a_slow_order_does_not_hold_up_a_question(link, names, orders, monkeypatch):
    go = asyncio.Event()

    async def slow(*_):
        await go.wait()
        return "opened"

    monkeypatch.setattr(orders, "open_fallback", slow)
    opening = asyncio.create_task(asked(link, names, rpc.OpenFallback("mail", 3, "")))
    assert (await asked(link, names, rpc.Status())).status is not None
    assert not opening.done()
    go.set()
    assert (await opening).bucket == "opened"


async def test_more_than_it_can_answer_is_told_so(link, names, orders, monkeypatch):
    monkeypatch.setattr(worker_rpc, "OPEN_MAX", 0)
    assert "ask again later" in (await asked(link, names, rpc.Status())).error


async def test_a_worker_that_never_lived_is_named_at_once(link, names):
    with pytest.raises(NoSuchWorkerError, match="'w-9'") as caught:
        await ask(link, names, "w-9", rpc.Status(), timeout_s=30)
    assert caught.value.worker == "w-9"
    with pytest.raises(InvalidNameError):
        await ask(link, names, "w.9", rpc.Status(), timeout_s=30)


async def test_a_worker_that_has_left_is_not_there(link, names):
    async with WorkerRpc(link, names, "w-1", FakeOrders()):
        await asked(link, names, rpc.Status())
    with pytest.raises(NoSuchWorkerError):
        await asked(link, names, rpc.Status())


async def test_silence_and_gibberish_are_an_agent_that_is_unavailable(link, names):
    async def gibberish(message):
        if message.data == b'{"op":"status"}':
            await message.respond(b"hello?")

    await link.nc.subscribe(names.worker_rpc("w-1"), cb=gibberish)
    with pytest.raises(AgentUnavailableError, match="cannot be read"):
        await asked(link, names, rpc.Status())
    with pytest.raises(AgentUnavailableError, match=r"no answer of worker 'w-1' in 0.05 s"):
        await ask(link, names, "w-1", rpc.Stop(), timeout_s=0.05)


async def test_after_a_restart_of_nats_it_answers_again(cluster_name):
    names = Names(cluster_name)
    with NatsServer() as server:
        config = NatsConfig(servers=(server.url,))
        async with (
            await connect(config, client_name="worker") as link,
            await connect(config, client_name="cli") as cli,
            WorkerRpc(link, names, "w-1", FakeOrders()),
        ):
            await asyncio.to_thread(server.restart)

            async def answered():
                try:
                    return (await ask(cli, names, "w-1", rpc.Status(), timeout_s=1)).status
                except (NoSuchWorkerError, AgentUnavailableError):
                    return None

            assert (await wait_until(answered)).held == 3


def test_what_a_newer_version_adds_to_an_answer_is_ignored():
    newer = msgspec.json.encode({"held": ["a"], "mood": "good"})
    assert rpc.decode_answer(newer) == rpc.Answer(held=["a"])
