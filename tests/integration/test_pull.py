from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import anyio
import pytest
from nats.aio.msg import Msg

from jm_nats.acks import Meta
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.embedded import NatsServer
from jm_nats.errors import AgentUnavailableError, ConsumerGoneError
from jm_nats.provision import delete_bucket, delete_consumer, ensure_bucket
from jm_nats.pull import PullReader, ReaderClosedError, ack, ack_sync, keep_alive, meta, nak, term
from jm_nats.pull_status import Verdict, judge

SOON_S = 10


@pytest.fixture
async def link(nats_server):
    async with await connect(NatsConfig(servers=(nats_server.url,)), client_name="pull") as link:
        yield link
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("pull ")]


@asynccontextmanager
async def reading(link, names, bucket="b", **settings):
    await ensure_bucket(link, names, bucket)
    options = {"batch": 100, "max_bytes": 1 << 20, "expires_s": 2, "idle_heartbeat_s": 0.5} | settings
    async with PullReader(link, names.bucket_stream(bucket), "run", **options) as reader:
        yield reader


async def publish(link, names, count, *, bucket="b", size=0):
    """Stored when this returns; each message is its number, filled up to ``size``."""
    stream = names.bucket_stream(bucket)
    before = (await link.js.stream_info(stream)).state.last_seq
    for n in range(count):
        await link.nc.publish(names.run(bucket), str(n).encode().ljust(size))
    while (await link.js.stream_info(stream)).state.last_seq < before + count:
        await asyncio.sleep(0.01)


async def take_all(reader, count, *, at_once=1000):
    got = []
    async with asyncio.timeout(SOON_S):
        while len(got) < count:
            messages = await reader.take(at_once)
            assert 1 <= len(messages) <= at_once
            got += messages
            for message in messages:
                ack(message)
    return got


async def emptied(link, names, bucket="b"):
    """Return when the stream is empty: the server works off our acks in its own time."""
    async with asyncio.timeout(SOON_S):
        while (await link.js.stream_info(names.bucket_stream(bucket))).state.messages:
            await asyncio.sleep(0.01)


async def consumer_info(link, names, bucket="b"):
    return await link.js.consumer_info(names.bucket_stream(bucket), "run")


# Reading.


async def test_everything_comes_once_in_order_and_acked_is_gone(link, names):
    async with reading(link, names, batch=50) as reader:
        await publish(link, names, 400)
        got = await take_all(reader, 400, at_once=30)
        assert [int(m.data) for m in got] == list(range(400))
        assert {meta(m).deliveries for m in got} == {1}
        await emptied(link, names)


async def test_a_message_is_there_the_moment_it_is_published(link, names):
    # BR-152: a trickle, with a request for many that stands for long.
    async with reading(link, names, expires_s=30, idle_heartbeat_s=5) as reader:
        delays = []
        for _ in range(20):
            taking = asyncio.create_task(reader.take(10))
            await asyncio.sleep(0)
            began = time.monotonic()
            await link.js.publish(names.run("b"), b"0")
            (message,) = await taking
            delays.append(time.monotonic() - began)
            ack(message)
        assert sorted(delays)[10] < 0.1


async def test_a_cancelled_take_loses_nothing(link, names):
    # BR-007 and BR-121: cancelled while messages arrive, again and again.
    # The reader's own patience, not the short one: a machine that stands still for a second is not part of this.
    async with reading(link, names, batch=20, expires_s=30, idle_heartbeat_s=5) as reader:
        publishing = asyncio.create_task(publish(link, names, 1000))
        got = []
        cancelled = 0
        async with asyncio.timeout(SOON_S):
            while len(got) < 1000:
                taking = asyncio.create_task(reader.take(3))
                for _ in range(cancelled % 4):
                    await asyncio.sleep(0)
                if taking.cancel():
                    cancelled += 1
                try:
                    messages = await taking
                except asyncio.CancelledError:
                    assert taking.cancelled()
                    continue
                got += messages
                for message in messages:
                    ack(message)
        await publishing
        assert cancelled > 5
        assert sorted(int(m.data) for m in got) == list(range(1000))
        assert {meta(m).deliveries for m in got} == {1}


async def test_a_take_cancelled_in_the_instant_a_message_arrives_leaves_it_there(link, names):
    async with reading(link, names) as reader:
        await publish(link, names, 1)
        (message,) = await reader.take(1)
        taking = asyncio.create_task(reader.take(1))
        await asyncio.sleep(0)
        await reader._on_message(message)  # wakes it; it has not run yet
        taking.cancel()
        await asyncio.wait({taking})
        assert taking.cancelled()
        assert await reader.take(1) == [message]


async def test_several_takers_share(link, names):
    async with reading(link, names) as reader:
        takers = [asyncio.create_task(take_all(reader, 1)) for _ in range(3)]
        await asyncio.sleep(0)
        for n in range(3):
            await publish(link, names, 1)
            await asyncio.wait(takers[n:], timeout=SOON_S, return_when=asyncio.FIRST_COMPLETED)
            takers.sort(key=lambda task: not task.done())
            assert len([task for task in takers if task.done()]) == n + 1


async def test_an_expired_request_is_replaced(link, names):
    async with reading(link, names, expires_s=0.2, idle_heartbeat_s=0.1) as reader:
        taking = asyncio.create_task(take_all(reader, 1))
        while reader._pulls < 3:
            await asyncio.sleep(0.01)
        await publish(link, names, 1)
        await taking


# Bounds.


async def test_no_more_than_the_batch_is_here_untaken(link, names):
    async with reading(link, names, batch=10) as reader:
        await publish(link, names, 100)
        await until(lambda: reader.buffered == 10)
        assert (await consumer_info(link, names)).num_ack_pending == 10
        await reader.take(4)  # six are left, more than half: no request
        await link.round_trip()
        assert (await consumer_info(link, names)).num_ack_pending == 10
        await reader.take(1)
        await until(lambda: reader.buffered == 10)
        assert (await consumer_info(link, names)).num_ack_pending == 15


async def test_no_more_than_the_bytes_are_here_untaken(link, names):
    async with reading(link, names, max_bytes=10_000) as reader:
        await publish(link, names, 30, size=3000)
        most, got = 0, []
        while len(got) < 30:
            got += await reader.take(1)
            most = max(most, reader._buffered_bytes)
        assert sorted(int(m.data) for m in got) == list(range(30))
        assert 3000 < most <= 10_000


async def test_a_message_larger_than_the_bytes_is_fetched_alone(link, names):
    async with reading(link, names, max_bytes=10_000) as reader:
        await publish(link, names, 2, size=100)
        await publish(link, names, 2, size=50_000)
        await publish(link, names, 2, size=100)
        got = await take_all(reader, 6, at_once=1)
        assert [len(m.data) for m in got] == [100, 100, 50_000, 50_000, 100, 100]


async def test_large_messages_make_no_slow_consumer(link, names):
    # BR-148: nats.py would drop what exceeds its own limit and say so on the error callback.
    async with reading(link, names, max_bytes=4 << 20) as reader:
        await publish(link, names, 20, size=900_000)
        got = await take_all(reader, 20, at_once=1)
        assert {meta(m).deliveries for m in got} == {1}


@pytest.mark.parametrize(("batch", "max_bytes", "expires_s"), [(0, 1, 2), (1, 0, 2), (1, 1, 0.9)])
async def test_bounds_that_make_no_sense_are_refused(link, batch, max_bytes, expires_s):
    with pytest.raises(ValueError, match="or more"):
        PullReader(link, "s", "c", batch=batch, max_bytes=max_bytes, expires_s=expires_s, idle_heartbeat_s=0.5)


# Pause, close.


async def test_a_pause_cuts_off_and_loses_nothing(link, names):
    # Fifty pauses, each a little later after the request has left: some meet messages on their way.
    async with reading(link, names, batch=20) as reader:
        await publish(link, names, 600)
        got = []
        for n in range(50):
            await until(lambda n=n: reader._pulls > n)
            await asyncio.sleep(0.0001 * (n % 25))
            await reader.pause()
            here = reader.buffered
            await link.round_trip()
            assert reader.buffered == here
            if here:
                got += await take_all(reader, here)
            if len(got) == 600:
                break
            reader.resume()
        reader.resume()
        if len(got) < 600:
            got += await take_all(reader, 600 - len(got))
        # One that got lost would come again after the ack wait of 30 s. (One that the server was about to send, and
        # found nobody for, counts as delivered, and comes at once.)
        assert sorted(int(m.data) for m in got) == list(range(600))


async def test_what_was_not_taken_goes_back_at_once(link, names):
    async with reading(link, names, batch=10) as reader:
        await publish(link, names, 10)
        await until(lambda: reader.buffered == 10)
    async with reading(link, names) as another:
        got = await take_all(another, 10)  # its ack wait is 30 s
    assert {meta(m).deliveries for m in got} == {2}


async def test_a_reader_that_ends_by_cancellation_takes_nothing_more(link, names):
    """anyio cancels again at every await: the leader's readers ended so when it stepped down, and went on taking."""
    stream = names.bucket_stream("b")
    with anyio.CancelScope() as scope:
        async with reading(link, names) as reader:
            while not (await link.js.consumer_info(stream, "run")).num_waiting:
                await asyncio.sleep(0.01)
            scope.cancel()
            await anyio.sleep_forever()
    await publish(link, names, 1)
    async with asyncio.timeout(SOON_S), reading(link, names) as successor:
        assert len(await successor.take(1)) == 1
    assert reader.buffered == 0


async def test_a_closed_reader_says_so(link, names):
    async with reading(link, names) as reader:
        taking = asyncio.create_task(reader.take(1))
        await asyncio.sleep(0)
    with pytest.raises(ReaderClosedError):
        await taking
    with pytest.raises(ReaderClosedError):
        await reader.take(1)
    await reader.close()


# What happens to consumer, server and connection.


async def test_a_deleted_consumer_is_told_and_a_new_one_read(link, names):
    told = []
    async with reading(link, names, on_gone=told.append) as reader:
        await publish(link, names, 3)
        await until(lambda: reader.buffered == 3)
        assert await delete_consumer(link, names.bucket_stream("b"), "run")
        async with asyncio.timeout(SOON_S):
            while not told:
                await asyncio.sleep(0.01)
        with pytest.raises(ConsumerGoneError, match="Consumer Deleted"):
            await reader.take(10)
        assert [error.consumer for error in told] == ["run"]
        await ensure_bucket(link, names, "b")
        reader.resume()
        got = await take_all(reader, 3)
        assert [int(m.data) for m in got] == [0, 1, 2]


async def test_a_consumer_deleted_between_two_requests_is_found_missing(link, names):
    async with reading(link, names) as reader:
        await reader.pause()
        assert await delete_consumer(link, names.bucket_stream("b"), "run")
        reader.resume()
        with pytest.raises(ConsumerGoneError, match="consumer not found"):
            await asyncio.wait_for(reader.take(1), SOON_S)


async def test_a_deleted_stream_is_told(link, names):
    async with reading(link, names) as reader:
        taking = asyncio.create_task(reader.take(1))
        await until(lambda: reader._pull)
        await link.round_trip()
        await delete_bucket(link, names, "b")
        with pytest.raises(ConsumerGoneError):
            await asyncio.wait_for(taking, SOON_S)


async def test_silence_is_noticed(link, names):
    # The server hears that nobody listens, and we do not hear that: as if a request had got lost on the way.
    async with reading(link, names, expires_s=0.4, idle_heartbeat_s=0.1) as reader:
        taking = asyncio.create_task(reader.take(1))
        await until(lambda: reader._pull)
        await link.nc.send_unsubscribe(reader._subscription)
        await publish(link, names, 1)
        assert [m.data for m in await asyncio.wait_for(taking, SOON_S)] == [b"0"]


@pytest.mark.parametrize("how", ["restart", "kill", "long pause"])
async def test_reading_goes_on_after_the_server_was_away(names, how):
    # BR-139: with messages taken and not acked, in the buffer, and in the stream.
    with NatsServer() as server:
        config = NatsConfig(servers=(server.url,), reconnect_wait_max_s=0.2, ping_interval_s=0.3)
        async with await connect(config, client_name="pull") as link, reading(link, names, batch=20) as reader:
            await publish(link, names, 100)
            first = await reader.take(5)
            if how == "long pause":
                server.pause()
                await until(lambda: not link.connected)
                server.resume()
            else:
                await asyncio.to_thread(server.restart if how == "restart" else server.kill)
                await asyncio.to_thread(server.start)
            await asyncio.wait_for(link.wait_connected(), SOON_S)
            for message in first:
                ack(message)
            began = time.monotonic()
            numbers = {int(m.data) for m in first}
            while len(numbers) < 100:
                # (What is on the wire when it breaks comes again after the ack wait of 30 s; here nothing is.)
                for message in await asyncio.wait_for(reader.take(50), SOON_S):
                    numbers.add(int(message.data))
                    ack(message)
            assert time.monotonic() - began < SOON_S
            await emptied(link, names)


async def test_nothing_is_asked_of_a_server_that_turns_us_away_faster_than_the_wait_grows(link, names):
    async with reading(link, names, expires_s=30, idle_heartbeat_s=5) as reader:
        await until(lambda: reader._pull)
        before = reader._pulls
        began = time.monotonic()
        while time.monotonic() - began < 0.7:
            if reader._pull is not None:
                await status(link, reader, "409", "Leadership Change")
            await asyncio.sleep(0.005)
        assert 3 <= reader._pulls - before <= 6  # after 0.05, 0.1, 0.2, 0.4 s, less jitter
        await publish(link, names, 1)
        assert len(await take_all(reader, 1)) == 1


async def status(link, reader, code, description):
    """What a server in trouble would send."""
    headers = {"Status": code, "Description": description}
    await link.nc.publish(f"{reader._inbox}.{reader._pulls}", headers=headers)


async def test_a_status_about_an_old_request_is_ignored(link, names):
    async with reading(link, names, expires_s=30, idle_heartbeat_s=5) as reader:
        await until(lambda: reader._pull)
        headers = {"Status": "409", "Description": "Consumer Deleted"}
        await link.nc.publish(f"{reader._inbox}.0", headers=headers)
        await link.round_trip()
        await publish(link, names, 1)
        assert len(await take_all(reader, 1)) == 1
        assert reader._pulls == 1


async def test_a_bug_in_the_reader_is_no_silence(link, names, monkeypatch, caplog):
    async with reading(link, names) as reader:
        monkeypatch.setattr(reader, "_until_woken", None)
        with pytest.raises(Exception, match="failed"):
            await asyncio.wait_for(take_all(reader, 1), SOON_S)
    assert "failed" in caplog.text


@pytest.mark.parametrize(
    ("code", "description", "verdict"),
    [
        ("100", "Idle Heartbeat", Verdict.ALIVE),
        ("404", "No Messages", Verdict.USED_UP),
        ("408", "Request Timeout", Verdict.USED_UP),
        ("409", "Batch Completed", Verdict.USED_UP),
        ("409", "Message Size Exceeds MaxBytes", Verdict.TOO_BIG),
        ("409", "Consumer Deleted", Verdict.GONE),
        ("409", "Consumer is push based", Verdict.GONE),
        ("409", "Leadership Change", Verdict.LATER),
        ("409", "Server Shutdown", Verdict.LATER),
        ("409", "Exceeded MaxWaiting", Verdict.LATER),
        ("409", "Exceeded MaxAckPending", Verdict.LATER),
        ("409", "Exceeded MaxRequestBatch of 5", Verdict.LATER),
        ("400", "Bad Request", Verdict.LATER),
        ("503", "", Verdict.DOUBT),
        ("599", "", Verdict.LATER),
    ],
)
def test_every_status_has_a_meaning(code, description, verdict):
    assert judge(code, description) is verdict


# Answers.


async def test_answers_do_what_they_say(link, names):
    async with reading(link, names) as reader:
        await publish(link, names, 4)
        acked, back, later, never = await take_all_unacked(reader, 4)
        await ack_sync(acked)
        nak(back)
        nak(later, delay_s=0.2)
        term(never)
        began = time.monotonic()
        again = await take_all(reader, 2)
        assert [m.data for m in again] == [back.data, later.data]
        assert time.monotonic() - began >= 0.15
        await emptied(link, names)


async def take_all_unacked(reader, count):
    got = []
    while len(got) < count:
        got += await reader.take(count)
    return got


async def test_keep_alive_postpones_the_redelivery(link, names):
    stream = names.bucket_stream("b")
    await ensure_bucket(link, names, "b")
    await delete_consumer(link, stream, "run")
    await link.js.add_consumer(stream, durable_name="run", filter_subject=names.run("b"), ack_wait=0.4)
    options = {"batch": 10, "max_bytes": 1000}
    async with PullReader(link, stream, "run", **options) as reader:
        await publish(link, names, 2)
        kept, dropped = await take_all_unacked(reader, 2)
        again = asyncio.create_task(reader.take(10))
        while not again.done():
            keep_alive(kept)
            await asyncio.sleep(0.1)
        assert [m.data for m in await again] == [dropped.data]
        ack(kept)


async def test_what_is_here_untaken_can_be_kept(link, names):
    stream = names.bucket_stream("b")
    await ensure_bucket(link, names, "b")
    await delete_consumer(link, stream, "run")
    await link.js.add_consumer(stream, durable_name="run", filter_subject=names.run("b"), ack_wait=0.4)
    async with PullReader(link, stream, "run", batch=10, max_bytes=1000) as reader:
        await publish(link, names, 2)
        for _ in range(12):  # three ack waits, and the request still stands
            reader.keep_alive()
            await asyncio.sleep(0.1)
        assert [m.data for m in await take_all_unacked(reader, 2)] == [b"0", b"1"]
        assert reader.buffered == 0


async def test_an_unconfirmed_ack_is_reported(names):
    with NatsServer() as server:
        config = NatsConfig(servers=(server.url,))
        async with await connect(config, client_name="pull") as link, reading(link, names) as reader:
            await publish(link, names, 1)
            (message,) = await reader.take(1)
            server.pause()
            with pytest.raises(AgentUnavailableError, match="come again"):
                await ack_sync(message, timeout_s=0.1)
            server.resume()


def test_the_facts_of_a_delivery_are_read_from_both_forms():
    facts = Meta(stream_seq=12, deliveries=3, timestamp_ns=1796038515748593499, pending=7, consumer_seq=45)
    short = "$JS.ACK.S.c.3.12.45.1796038515748593499.7"
    long = "$JS.ACK.hub.acchash.S.c.3.12.45.1796038515748593499.7.rnd"
    for reply in (short, long, long.removesuffix(".rnd")):
        assert meta(Msg(_client=None, reply=reply)) == facts
    for reply in ("", "_INBOX.x", "$JS.ACK.S.c.3.12.45", "$JS.API.a.b.c.d.e.f.g"):
        with pytest.raises(ValueError, match="reply subject"):
            meta(Msg(_client=None, reply=reply))


def test_a_message_that_is_from_no_consumer_cannot_be_acked():
    with pytest.raises(ValueError, match="'s' expects no ack"):
        ack(Msg(_client=None, subject="s"))


async def until(condition):
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.001)
