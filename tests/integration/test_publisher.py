from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from jm_nats import publisher as publisher_module
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.embedded import NatsServer
from jm_nats.errors import AgentUnavailableError, JetStreamError, NoSuchStreamError, PayloadTooLargeError
from jm_nats.publisher import JetPublisher, PubAck

SOON_S = 10


@pytest.fixture
async def stream(link, cluster_name):
    """A stream of one subject; both of the same name."""
    return await make_stream(link, f"S_{cluster_name}_x")


async def make_stream(link, name, **config):
    await link.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "retention": "limits"} | config)
    return name


async def stored(link, stream):
    """Every payload in the stream."""
    info = await link.js.stream_info(stream)
    return [(await link.js.get_msg(stream, seq)).data for seq in range(1, info.state.last_seq + 1)]


@asynccontextmanager
async def shaky_server():
    """A server to be stopped and paused, a link that comes back quickly, and a publisher that is impatient."""
    with NatsServer() as server:
        config = NatsConfig(servers=(server.url,), reconnect_wait_max_s=0.2)
        async with (
            await connect(config, client_name="publisher") as link,
            JetPublisher(link, attempt_s=0.3) as publisher,
        ):
            yield server, link, publisher


async def test_an_ack_means_stored(link, stream):
    async with JetPublisher(link) as publisher:
        assert await publisher.publish(stream, b"one") == PubAck(stream, 1)
        assert await publisher.publish(stream, b"two", headers={"Jm-X": "v"}) == PubAck(stream, 2)
        message = await link.js.get_msg(stream, 2)
        assert (message.data, message.headers["Jm-X"]) == (b"two", "v")
        assert await publisher.publish(stream, b"") == PubAck(stream, 3)


async def test_the_same_message_id_is_stored_once(link, stream):
    async with JetPublisher(link) as publisher:
        first = await publisher.publish(stream, b"x", msg_id="a")
        assert await publisher.publish(stream, b"x", msg_id="a") == PubAck(stream, first.seq, duplicate=True)
        # Without an id every message is its own.
        assert not (await publisher.publish(stream, b"x")).duplicate
        assert not (await publisher.publish(stream, b"x")).duplicate


async def test_many_at_once_are_all_stored(link, stream):
    async with JetPublisher(link, in_flight_max=50) as publisher:
        most = 0

        async def one(n):
            nonlocal most
            await publisher.publish(stream, b"%d" % n)
            most = max(most, publisher.in_flight)

        await asyncio.gather(*(one(n) for n in range(300)))
        await publisher.flush()
        assert most <= 50
        assert publisher.in_flight == 0
        assert sorted(map(int, await stored(link, stream))) == list(range(300))


# What the server does not take.


async def test_a_message_too_large_is_refused_before_it_is_sent(link, stream):
    # BR-111: sent, it would cost the connection, and the small ones with it.
    async with JetPublisher(link) as publisher:
        limit = link.nc.max_payload
        small = [asyncio.create_task(publisher.publish(stream, b"small")) for _ in range(10)]
        for size in (limit, 8 * limit):
            with pytest.raises(PayloadTooLargeError) as refused:
                await publisher.publish(stream, bytes(size))
            assert refused.value.limit_bytes == limit
            assert refused.value.size_bytes > size  # with its header
            assert str(limit) in str(refused.value)
        await asyncio.gather(*small)
        await publisher.publish(stream, bytes(limit - 200))
        assert link.nc.stats["reconnects"] == 0


async def test_a_subject_without_a_stream_is_an_error_at_once(link):
    async with JetPublisher(link) as publisher:
        began = time.monotonic()
        with pytest.raises(NoSuchStreamError, match="no stream takes this subject"):
            await publisher.publish("no.such.subject", b"x")
        assert time.monotonic() - began < 1


async def test_a_stream_that_appears_meanwhile_gets_it(link, cluster_name, monkeypatch):
    # An election looks like this: the stream is known, and nobody listens.
    name = f"S_{cluster_name}_x"
    async with JetPublisher(link) as publisher:

        async def known(_subject):
            return None

        monkeypatch.setattr(publisher, "_check_stream", known)
        publishing = asyncio.create_task(publisher.publish(name, b"x"))
        await asyncio.sleep(0.1)
        await make_stream(link, name)
        assert await asyncio.wait_for(publishing, SOON_S) == PubAck(name, 1)


async def test_a_refusal_for_good_is_an_error_at_once(link, stream):
    async with JetPublisher(link) as publisher:
        with pytest.raises(JetStreamError, match="wrong last sequence") as refused:
            await publisher.publish(stream, b"x", headers={"Nats-Expected-Last-Sequence": "7"})
        assert refused.value.err_code in (10071, 10164)


async def test_a_full_store_is_reported_with_its_cause(link, cluster_name, monkeypatch):
    # BR-145 wants it within five seconds. The server says so with every attempt, and it may pass.
    assert publisher_module.REFUSED_S + publisher_module.WAIT_MAX_S < 5
    monkeypatch.setattr(publisher_module, "REFUSED_S", 0.3)
    full = await make_stream(link, f"S_{cluster_name}_x", max_msgs=1, discard="new")
    async with JetPublisher(link) as publisher:
        await publisher.publish(full, b"x")
        began = time.monotonic()
        with pytest.raises(AgentUnavailableError, match="maximum messages exceeded"):
            await publisher.publish(full, b"y")
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("subject", ["a b", "a.>", "", "a\r\nPUB x 0\r\n"])
async def test_a_subject_that_would_be_another_is_refused(link, subject):
    async with JetPublisher(link) as publisher:
        with pytest.raises(ValueError, match="cannot be published"):
            await publisher.publish(subject, b"x")
        assert publisher.in_flight == 0


# When the server is away.


@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_every_message_is_stored_once_though_the_server_goes_away(how):
    async with shaky_server() as (server, link, publisher):
        stream = await make_stream(link, "S")

        async def some(worker):
            for n in range(40):
                await publisher.publish(stream, b"%d" % (40 * worker + n))

        workers = [asyncio.create_task(some(worker)) for worker in range(10)]
        await until(lambda: link.nc.stats["in_msgs"] > 50)
        await asyncio.to_thread(server.restart if how == "restart" else server.kill)
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(asyncio.gather(*workers), SOON_S)
        assert sorted(map(int, await stored(link, stream))) == list(range(400))


async def test_an_unanswered_message_is_sent_again_and_stored_once():
    async with shaky_server() as (server, link, publisher):
        stream = await make_stream(link, "S")
        server.pause()
        sent = link.nc.pending_data_size
        publishing = [asyncio.create_task(publisher.publish(stream, b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0.7)  # two attempts each, or three
        server.resume()
        acks = await asyncio.wait_for(asyncio.gather(*publishing), SOON_S)
        assert sent == 0
        await link.round_trip()
        assert sorted(await stored(link, stream)) == [b"0", b"1", b"2"]
        assert sorted(ack.seq for ack in acks) == [1, 2, 3]


async def test_the_deadline_holds_whatever_is_in_the_way(caplog):
    async with shaky_server() as (server, link, publisher):
        stream = await make_stream(link, "S")
        server.pause()
        await expires(publisher, stream, "no answer")
        server.resume()
        await asyncio.to_thread(server.stop)
        await until(lambda: not link.connected)
        await expires(publisher, stream, "not connected")


async def expires(publisher, stream, reason):
    began = time.monotonic()
    with pytest.raises(AgentUnavailableError, match=reason) as late:
        await publisher.publish(stream, b"x", deadline_s=0.4)
    assert 0.3 < time.monotonic() - began < 2
    assert "same message id" in str(late.value)
    assert publisher.in_flight == 0


async def test_what_waits_for_its_turn_has_the_same_deadline():
    async with shaky_server() as (server, link, _):
        stream = await make_stream(link, "S")
        async with JetPublisher(link, in_flight_bytes_max=100_000, deadline_s=0.5) as publisher:
            server.pause()
            began = time.monotonic()
            work = [publisher.publish(stream, bytes(60_000)) for _ in range(5)]
            results = await asyncio.gather(*work, return_exceptions=True)
            assert time.monotonic() - began < 2
            texts = [str(result) for result in results]
            assert sum("too much is in flight" in text for text in texts) >= 3
            assert all(isinstance(result, AgentUnavailableError) for result in results)
            server.resume()
            await publisher.publish(stream, bytes(60_000))


async def test_a_cancelled_publish_leaves_nothing_behind():
    async with shaky_server() as (server, link, publisher):
        stream = await make_stream(link, "S")
        server.pause()
        publishing = asyncio.create_task(publisher.publish(stream, b"x"))
        await until(lambda: publisher.in_flight == 1)
        publishing.cancel()
        await asyncio.wait({publishing})
        assert publisher.in_flight == 0
        await publisher.flush()
        server.resume()
        await publisher.publish(stream, b"y")


async def test_closing_fails_what_is_in_flight():
    async with shaky_server() as (server, link, publisher):
        stream = await make_stream(link, "S")
        server.pause()
        publishing = asyncio.create_task(publisher.publish(stream, b"x"))
        await until(lambda: publisher.in_flight == 1)
        await publisher.close()
        with pytest.raises(AgentUnavailableError, match="closed"):
            await publishing
        with pytest.raises(AgentUnavailableError, match="closed"):
            await publisher.publish(stream, b"x")
        server.resume()


async def test_a_strangers_answer_is_not_taken_for_the_streams(link, stream):
    async def answer(message):
        await message.respond(b"hello")

    stranger = await link.nc.subscribe(stream, cb=answer)
    async with JetPublisher(link) as publisher:
        for n in range(1, 20):
            assert await publisher.publish(stream, b"x") == PubAck(stream, n)
    await stranger.unsubscribe()


async def until(condition):
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.002)


async def test_a_copy_whose_first_is_still_being_stored_is_asked_for_again(link, cluster_name):
    """As a replicated stream says after its leader has changed: neither done nor refused."""
    answers = [b'{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}'] * 2
    answers.append(b'{"stream":"S","seq":7,"duplicate":true}')

    async def answer(message):
        await message.respond(answers.pop(0))

    await link.nc.subscribe(f"{cluster_name}.x", cb=answer)
    async with JetPublisher(link) as publisher:
        assert (await publisher.publish(f"{cluster_name}.x", b"")).seq == 7
    assert not answers
