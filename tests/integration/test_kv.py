from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from nats.js.api import KeyValueConfig

from jm_core.errors import InvalidNameError
from jm_nats import kv_watch
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.embedded import NatsServer
from jm_nats.errors import AgentUnavailableError, NoSuchStreamError
from jm_nats.kv import CasKv, Changed, Entry, Removed, Snapshot, Stale, Written, parse_key
from jm_nats.provision import ensure_cluster
from jm_nats.publisher import JetPublisher

SOON_S = 10
LEASE_S = 1.0


@pytest.fixture
async def kv(link, names):
    await ensure_cluster(link, names, lease_s=LEASE_S)
    kv = await CasKv.open(link, names.buckets_kv)
    yield kv
    await kv.close()


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, SOON_S)


# Compare and set.


async def test_a_key_is_read_as_it_was_written(kv):
    assert await kv.get("k") is None
    written = await kv.create("k", b"\x00\xff one")
    entry = await kv.get("k")
    assert (entry.key, entry.value, entry.revision) == ("k", b"\x00\xff one", written.revision)
    assert abs((entry.stored_at - datetime.now(UTC)).total_seconds()) < 5
    assert await kv.update("k", b"two", revision=written.revision) == Written(written.revision + 1)
    assert (await kv.get("k")).value == b"two"


async def test_a_lost_race_is_a_value_and_changes_nothing(kv):
    first = await kv.create("k", b"one")
    second = await kv.update("k", b"two", revision=first.revision)
    there = await kv.get("k")
    assert await kv.create("k", b"three") == Stale(there)
    assert await kv.update("k", b"three", revision=first.revision) == Stale(there)
    assert await kv.update("k", b"three", revision=0) == Stale(there)
    assert await kv.delete("k", revision=first.revision) == Stale(there)
    assert await kv.get("k") == there == Entry("k", b"two", second.revision, there.stored_at)
    assert await kv.update("none", b"x", revision=first.revision) == Stale(None)


async def test_one_of_many_wins(kv):
    first = await kv.create("k", b"0")
    outcomes = await asyncio.gather(*(kv.update("k", b"%d" % n, revision=first.revision) for n in range(20)))
    (won,) = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Written)]
    assert (await kv.get("k")).value == b"%d" % won


async def test_a_deleted_key_can_be_created_again(kv):
    first = await kv.create("k", b"one")
    gone = await kv.delete("k", revision=first.revision)
    assert isinstance(gone, Written)
    assert await kv.get("k") is None
    assert await kv.update("k", b"two", revision=first.revision) == Stale(None)
    again = await kv.create("k", b"two")
    assert again.revision > gone.revision
    assert (await kv.get("k")).value == b"two"


async def test_put_needs_no_fence(kv):
    first = await kv.put("k", b"one")
    second = await kv.put("k", b"two")
    assert second.revision > first.revision
    assert (await kv.get("k")).value == b"two"


async def test_a_write_whose_answer_was_lost_knows_itself(link, names, monkeypatch):
    await ensure_cluster(link, names, lease_s=LEASE_S)
    kv = CasKv(link, names.buckets_kv, deadline_s=1)
    lost = []

    async def lose_the_first(publisher, message):
        await (answer(publisher, message) if message.subject in lost else note(message))

    async def note(message):
        lost.append(message.subject)

    answer = JetPublisher._on_answer
    monkeypatch.setattr(JetPublisher, "_on_answer", lose_the_first)
    first = await kv.create("k", b"one")
    second = await kv.update("k", b"two", revision=first.revision)
    assert await kv.get("k") == Entry("k", b"two", second.revision, (await kv.get("k")).stored_at)
    third = await kv.delete("k", revision=second.revision)
    assert isinstance(third, Written)
    assert len(lost) == 3
    await kv.close()


async def test_an_absent_kv_and_an_absent_server_are_told_apart(names, link):
    with pytest.raises(NoSuchStreamError):
        await CasKv.open(link, names.buckets_kv)
    with pytest.raises(AgentUnavailableError, match="not found"):
        await CasKv(link, names.buckets_kv, deadline_s=0.3).entries()
    with NatsServer() as server:
        async with await connect(NatsConfig(servers=(server.url,)), client_name="kv") as other:
            await ensure_cluster(other, names, lease_s=LEASE_S)
            kv = CasKv(other, names.buckets_kv, deadline_s=0.3)
            server.pause()
            with pytest.raises(AgentUnavailableError):
                await kv.put("k", b"x")
            with pytest.raises(AgentUnavailableError, match="listed"):
                await kv.entries()
            server.resume()
            await kv.close()


# Keys.


@pytest.mark.parametrize("key", ["a", "handler.email.send", "w-1_2=", "A" * 200])
async def test_a_key_that_is_taken_is_listed_by_everybody(link, kv, names, key):
    await kv.create(key, b"x")
    assert await kv.keys() == [key]
    stock = await link.js.key_value(names.buckets_kv)
    assert await stock.keys() == [key]
    assert (await stock.get(key)).value == b"x"


BAD_KEYS = ["", "a..b", ".a", "a.", "web:1", "pod~1", "node&1", "::1", "_kv_x", "a b", "a*", ">", "a\n", "ü", "a/b"]


@pytest.mark.parametrize("key", [*BAD_KEYS, "A" * 201])
async def test_a_key_that_some_client_cannot_use_is_refused(link, key):
    with pytest.raises(InvalidNameError, match="key"):
        parse_key(key)
    kv = CasKv(link, "none")
    for call in (kv.get(key), kv.put(key, b""), kv.create(key, b""), kv.update(key, b"", revision=1)):
        with pytest.raises(InvalidNameError):
            await call


# Listing and watching.


async def test_a_listing_has_what_is_there_and_leaves_no_consumer(link, kv, names):
    assert await kv.entries() == []
    for n in range(300):
        await kv.put(f"k{n:03}", b"%d" % n)
    removed = await kv.get("k007")
    await kv.delete("k007", revision=removed.revision)
    entries = await kv.entries()
    assert [entry.key for entry in entries] == [f"k{n:03}" for n in range(300) if n != 7]
    assert entries[0].value == b"0"
    assert (await link.js.stream_info(f"KV_{names.buckets_kv}")).state.consumer_count == 0


async def test_a_watch_gives_everything_and_then_every_change(kv):
    first = await kv.create("a", b"1")
    async with kv.watch() as changes:
        assert await soon(anext(changes)) == Snapshot((await kv.get("a"),))
        second = await kv.update("a", b"2", revision=first.revision)
        assert await soon(anext(changes)) == Changed(await kv.get("a"))
        third = await kv.delete("a", revision=second.revision)
        assert await soon(anext(changes)) == Removed("a", third.revision, expired=False)
        await kv.put("b", b"1")
        assert await soon(anext(changes)) == Changed(await kv.get("b"))


async def test_a_watch_of_an_empty_kv_begins_at_once(kv):
    async with kv.watch() as changes:
        assert await soon(anext(changes)) == Snapshot(())


async def test_a_watch_sees_what_nats_own_client_does(link, kv, names):
    stock = await link.js.key_value(names.buckets_kv)
    async with kv.watch() as changes:
        await soon(anext(changes))
        await stock.put("a", b"1")
        assert isinstance(await soon(anext(changes)), Changed)
        await stock.delete("a")
        assert isinstance(await soon(anext(changes)), Removed)
        await stock.put("a", b"2")
        await stock.purge("a")
        assert [type(await soon(anext(changes))) for _ in range(2)] == [Changed, Removed]


async def test_a_watch_sees_an_expiry_soon_after_the_lease(link, kv, names):
    workers = CasKv(link, names.workers_kv)
    async with workers.watch() as changes:
        await soon(anext(changes))
        loop = asyncio.get_running_loop()
        put = await workers.put("w", b"1")
        began = loop.time()
        assert (await soon(anext(changes))).entry.revision == put.revision
        for _ in range(2):  # renewed: it does not expire
            await asyncio.sleep(0.6 * LEASE_S)
            put = await workers.put("w", b"1")
            began = loop.time()
            assert (await soon(anext(changes))).entry.revision == put.revision
        gone = await soon(anext(changes))
        assert (gone.key, gone.expired) == ("w", True)
        assert 0.9 * LEASE_S < loop.time() - began < LEASE_S + 1.5
        assert await workers.entries() == []
        assert await workers.get("w") is None
        assert await workers.update("w", b"2", revision=put.revision) == Stale(None)
        assert isinstance(await workers.create("w", b"2"), Written)


async def test_a_pending_key_that_vanishes_does_not_stop_the_listing(link, kv, names, monkeypatch):
    # Counted when the consumer was made, purged before it was read: nothing will ever come.
    monkeypatch.setattr(kv_watch, "QUIET_MAX_S", 0.1)
    stream = f"KV_{names.buckets_kv}"
    await kv.put("a", b"1")
    api = link.api

    async def purge_after_create(path, body=None, **more):
        answer = await api(path, body, **more)
        if path.startswith("CONSUMER.CREATE"):
            await api(f"STREAM.PURGE.{stream}")
        return answer

    monkeypatch.setattr(link, "api", purge_after_create)
    assert await soon(kv.entries()) == []


@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_a_watch_survives_the_server_and_forgets_what_went_meanwhile(names, how):
    with NatsServer() as server:
        config = NatsConfig(servers=(server.url,), reconnect_wait_max_s=0.2)
        async with await connect(config, client_name="kv") as link:
            await ensure_cluster(link, names, lease_s=LEASE_S)
            kv = CasKv(link, names.buckets_kv)
            await kv.put("stays", b"1")
            leaves = await kv.put("leaves", b"1")
            async with kv.watch() as changes:
                assert len((await soon(anext(changes))).entries) == 2
                for _ in range(2):
                    await asyncio.to_thread(server.restart if how == "restart" else server.kill)
                    await asyncio.to_thread(server.start)
                    snapshot = await soon(anext(changes))
                    assert isinstance(snapshot, Snapshot)
                assert {entry.key for entry in snapshot.entries} == {"stays", "leaves"}
                await kv.delete("leaves", revision=leaves.revision)
                assert isinstance(await soon(anext(changes)), Removed)
            await kv.close()


async def test_a_watch_survives_a_broken_connection_and_misses_nothing(link, kv, names):
    # The server stays, and so does the consumer: what it sent into the broken connection is gone.
    await kv.put("a", b"1")
    async with kv.watch() as changes:
        await soon(anext(changes))
        for n in range(3):
            await link.nc.force_reconnect()
            await kv.put("a", b"%d" % n)
            while not isinstance(change := await soon(anext(changes)), Snapshot):
                pass  # it may have come before the connection broke
            assert [entry.value for entry in change.entries] == [b"%d" % n]
        assert (await link.js.stream_info(f"KV_{names.buckets_kv}")).state.consumer_count == 1  # BR-150


async def test_a_watch_whose_consumer_is_deleted_starts_over(link, kv, names):
    await kv.put("a", b"1")
    async with kv.watch() as changes:
        await soon(anext(changes))
        await link.api(f"CONSUMER.DELETE.KV_{names.buckets_kv}.{changes._name}")
        assert await soon(anext(changes)) == Snapshot((await kv.get("a"),))


async def test_a_watch_that_misses_a_message_starts_over(kv):
    await kv.put("a", b"1")
    async with kv.watch() as changes:
        await soon(anext(changes))
        changes._reading._consumer_seq -= 1  # as if one more had been sent to us
        await kv.put("b", b"1")
        snapshot = await soon(anext(changes))
        assert [entry.key for entry in snapshot.entries] == ["a", "b"]


async def test_a_cancelled_watch_loses_no_change(kv):
    async with kv.watch() as changes:
        await soon(anext(changes))
        for n in range(20):
            waiting = asyncio.create_task(anext(changes))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            await kv.put("k", b"%d" % n)
            if not waiting.cancelled():
                continue
            assert (await soon(anext(changes))).entry.value == b"%d" % n


async def test_a_kv_made_by_nats_own_client_serves_as_well(link, cluster_name):
    name = f"t_{cluster_name}_kv"
    await link.js.create_key_value(KeyValueConfig(bucket=name))
    kv = await CasKv.open(link, name)
    assert isinstance(await kv.create("a", b"1"), Written)
    assert await kv.keys() == ["a"]
    await kv.close()
