from __future__ import annotations

import asyncio

import pytest
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig

from jm_nats import provision
from jm_nats.ensure import Created, KeptNewer, Unchanged, Updated, differences, ensure_consumer, ensure_stream
from jm_nats.errors import AgentUnavailableError, ConfigConflictError, JetStreamError, NoSuchStreamError
from jm_nats.js_api import ask
from jm_nats.provision import (
    delete_bucket,
    delete_consumer,
    ensure_bucket,
    ensure_cluster,
    ensure_cluster_at_start,
)


async def config(link, stream):
    return (await link.api(f"STREAM.INFO.{stream}"))["config"]


async def consumer(link, stream, name):
    return (await link.api(f"CONSUMER.INFO.{stream}.{name}"))["config"]


async def test_a_cluster_is_made_once_and_then_left_alone(link, names):
    first = await ensure_cluster(link, names, lease_s=10)
    again = await ensure_cluster(link, names, lease_s=10)
    assert set(first) == {
        names.pending_stream,
        names.events_stream,
        f"{names.pending_stream}/writer",
        f"{names.events_stream}/recorder",
        f"KV_{names.workers_kv}",
        f"KV_{names.buckets_kv}",
        f"KV_{names.cluster_kv}",
    }
    assert set(first.values()) == {Created()}
    assert set(again.values()) == {Unchanged()}


@pytest.mark.parametrize(("silences", "is_made"), [(2, True), (3, False)])
async def test_a_leader_that_is_just_being_elected_is_asked_again(link, names, monkeypatch, silences, is_made):
    """In a NATS cluster nobody answers for a stream without a leader; each silence here is one such question."""
    ask, silent = link.api, iter(range(silences))

    async def api(path, body=None, **options):
        if path.startswith("STREAM.INFO") and next(silent, None) is not None:
            raise AgentUnavailableError(link.server, f"no answer to {path}", remedy="wait")
        return await ask(path, body, **options)

    monkeypatch.setattr(link, "api", api)
    if is_made:
        assert await ensure_stream(link, StreamConfig(name=names.pending_stream, subjects=[names.submit])) == Created()
    else:
        with pytest.raises(AgentUnavailableError):
            await ensure_stream(link, StreamConfig(name=names.pending_stream, subjects=[names.submit]))


async def test_the_live_configuration_is_the_contracts(link, names):
    await ensure_cluster(link, names, lease_s=10)
    pending, workers = await config(link, names.pending_stream), await config(link, f"KV_{names.workers_kv}")
    assert (pending["retention"], pending["storage"], pending["duplicate_window"]) == ("workqueue", "file", 120 * 10**9)
    assert workers["max_age"] == 10 * 10**9
    assert workers["subject_delete_marker_ttl"] > 0
    assert workers["max_msgs_per_subject"] == 1
    writer = await consumer(link, names.pending_stream, "writer")
    assert (writer["ack_wait"], writer["max_ack_pending"], writer["max_deliver"]) == (20 * 10**9, -1, -1)
    assert "inactive_threshold" not in writer


async def test_nats_own_client_finds_the_kvs_usable(link, names):
    await ensure_cluster(link, names, lease_s=10)
    for name in (names.workers_kv, names.buckets_kv, names.cluster_kv):
        kv = await link.js.key_value(name)
        revision = await kv.create("k", b"1")
        assert await kv.update("k", b"2", last=revision) > revision
        assert (await kv.get("k")).value == b"2"
        assert await kv.keys() == ["k"]


async def test_two_processes_may_provision_at_once(link, names):
    outcomes = await asyncio.gather(*(ensure_cluster(link, names, lease_s=10) for _ in range(8)))
    assert all(outcome in (Created(), Unchanged()) for done in outcomes for outcome in done.values())


async def test_a_bucket_has_its_stream_two_consumers_and_an_end(link, names):
    made = await ensure_bucket(link, names, "b1")
    assert list(made.values()) == [Created()] * 3
    assert list((await ensure_bucket(link, names, "b1")).values()) == [Unchanged()] * 3
    stream = names.bucket_stream("b1")
    live = await config(link, stream)
    assert live["allow_msg_schedules"]
    assert live["duplicate_window"] == 300 * 10**9
    assert (await consumer(link, stream, "run"))["filter_subject"] == names.run("b1")
    assert (await consumer(link, stream, "ctl"))["filter_subject"] == names.ctl("b1")
    assert (await consumer(link, stream, "run"))["ack_wait"] == 10 * 10**9
    assert await delete_consumer(link, stream, "run")
    assert not await delete_consumer(link, stream, "run")
    assert await delete_bucket(link, names, "b1")
    assert not await delete_bucket(link, names, "b1")
    assert not await delete_consumer(link, stream, "run")


async def test_a_scheduled_message_arrives_on_the_run_subject(link, names):
    await ensure_bucket(link, names, "b1")
    headers = {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": names.run("b1")}
    await link.js.publish(names.sched("b1", 1), b"later", headers=headers)
    reader = await link.js.pull_subscribe_bind("run", names.bucket_stream("b1"))
    (message,) = await reader.fetch(1, timeout=5)
    assert (message.subject, message.data) == (names.run("b1"), b"later")
    assert message.headers["Nats-Scheduler"] == names.sched("b1", 1)


async def test_a_changed_wish_reaches_the_live_stream_and_consumer(link, cluster_name):
    name = f"S_{cluster_name}_x"
    stream = StreamConfig(name=name, subjects=[f"{cluster_name}.a"], duplicate_window=10)
    worker = ConsumerConfig(durable_name="c", ack_wait=10, max_deliver=5)
    await ensure_stream(link, stream)
    assert await ensure_consumer(link, name, worker) == Created()

    assert await ensure_stream(link, stream.evolve(duplicate_window=20)) == Updated(
        ("duplicate_window: 10000000000 -> 20000000000",)
    )
    assert await ensure_consumer(link, name, worker.evolve(ack_wait=20, max_deliver=-1)) == Updated(
        ("ack_wait: 10000000000 -> 20000000000", "max_deliver: 5 -> -1")
    )
    assert (await config(link, name))["duplicate_window"] == 20 * 10**9
    assert (await consumer(link, name, "c"))["ack_wait"] == 20 * 10**9
    # And back, as after a roll-back.
    assert isinstance(await ensure_stream(link, stream), Updated)
    assert isinstance(await ensure_consumer(link, name, worker), Updated)


async def test_another_lease_reaches_the_live_kv(link, names):
    await ensure_cluster(link, names, lease_s=10)
    for lease_s in (5, 20):
        outcomes = await ensure_cluster(link, names, lease_s=lease_s)
        changed = {name for name, outcome in outcomes.items() if outcome != Unchanged()}
        assert changed == {f"KV_{names.workers_kv}"}
        assert (await config(link, f"KV_{names.workers_kv}"))["max_age"] == lease_s * 10**9


async def test_what_an_operator_added_stays(link, cluster_name):
    stream = StreamConfig(name=f"S_{cluster_name}_x", subjects=[cluster_name], duplicate_window=10)
    await ensure_stream(link, stream)
    live = await config(link, stream.name)
    await link.api(f"STREAM.UPDATE.{stream.name}", live | {"max_bytes": 10**9, "metadata": {"team": "billing"}})
    assert await ensure_stream(link, stream) == Unchanged()
    assert isinstance(await ensure_stream(link, stream.evolve(duplicate_window=20)), Updated)
    live = await config(link, stream.name)
    assert live["max_bytes"] == 10**9
    assert live["metadata"]["team"] == "billing"


async def test_a_change_that_nats_refuses_shows_the_difference(link, cluster_name):
    stream = StreamConfig(name=f"S_{cluster_name}_x", subjects=[cluster_name])
    await ensure_stream(link, stream)
    with pytest.raises(ConfigConflictError) as refused:
        await ensure_stream(link, stream.evolve(retention=RetentionPolicy.WORK_QUEUE, duplicate_window=20))
    assert refused.value.diff == (
        'retention: "limits" -> "workqueue"',
        "duplicate_window: 120000000000 -> 20000000000",
    )
    for part in (stream.name, *refused.value.diff, "can not change retention"):
        assert part in str(refused.value)
    assert (await config(link, stream.name))["duplicate_window"] == 120 * 10**9


async def test_an_inactivity_threshold_is_taken_off_a_work_consumer(link, cluster_name):
    stream = StreamConfig(name=f"S_{cluster_name}_x", subjects=[cluster_name])
    await ensure_stream(link, stream)
    await link.js.add_consumer(stream.name, durable_name="c", inactive_threshold=30)
    outcome = await ensure_consumer(link, stream.name, ConsumerConfig(durable_name="c"))
    assert outcome == Updated(("inactive_threshold: 30000000000 -> 0",))


async def test_a_newer_layout_is_left_alone(link, names, monkeypatch):
    monkeypatch.setattr(provision, "LAYOUT", provision.LAYOUT + 1)
    monkeypatch.setattr(provision, "BUCKET_ACK_WAIT_S", 45.0)
    await ensure_bucket(link, names, "b1")
    monkeypatch.undo()
    assert set((await ensure_bucket(link, names, "b1")).values()) == {KeptNewer(provision.LAYOUT + 1)}
    assert (await consumer(link, names.bucket_stream("b1"), "run"))["ack_wait"] == 45 * 10**9


async def test_a_start_waits_for_an_election_and_not_for_ever(link, names, monkeypatch):
    """BR-140's kind: connected, and nobody who leads yet."""
    silent = AgentUnavailableError(link.server, "no answer to STREAM.INFO in 5 s", remedy="look")
    answers = [silent, silent]

    async def api(path, body=None, *, timeout_s=5.0):
        if answers:
            raise answers.pop()
        return await ask(link.nc, link.server, path, body, timeout_s=timeout_s)

    monkeypatch.setattr(provision, "START_PAUSE_S", 0.01)
    monkeypatch.setattr(link, "api", api)
    assert Created() in (await ensure_cluster_at_start(link, names, lease_s=10)).values()
    answers += [silent] * 1000
    monkeypatch.setattr(provision, "START_PATIENCE_S", 0.05)
    with pytest.raises(AgentUnavailableError, match="no answer"):
        await ensure_cluster_at_start(link, names, lease_s=10)


async def test_what_cannot_be_made_says_why(link, names):
    await ensure_cluster(link, names, lease_s=10)
    taken = StreamConfig(name=f"S_{names.cluster}_x", subjects=[names.submit])
    with pytest.raises(JetStreamError, match="overlap"):
        await ensure_stream(link, taken)
    with pytest.raises(NoSuchStreamError):
        await ensure_consumer(link, "S_no_such", ConsumerConfig(durable_name="c"))
    with pytest.raises(JetStreamError, match="non-clustered"):
        await ensure_bucket(link, names, "b1", replicas=3)


def test_more_replicas_than_asked_for_are_no_difference():
    assert differences({"num_replicas": 3}, {"num_replicas": 1}) == ()
    assert differences({"num_replicas": 1}, {"num_replicas": 3}) == ("num_replicas: 1 -> 3",)


def test_what_the_server_leaves_out_is_no_difference():
    assert differences({}, {"max_age": 0, "no_ack": False, "description": ""}) == ()
    assert differences({"subjects": ["b", "a"]}, {"subjects": ["a", "b"]}) == ()
    assert differences({"metadata": {"x": "1", "_nats.ver": "2"}}, {"metadata": {"x": "1"}}) == ()
