"""Workers and buckets as their records say, over a real NATS."""

import time

import pytest

from jm_core.errors import ClusterUnknownError
from jm_core.model import BucketKind, WorkerState
from jm_nats.census import OwnerState, read_census, read_stream_facts
from jm_nats.provision import delete_consumer, ensure_bucket, ensure_cluster
from jm_nats.subjects import RUN_CONSUMER, Names
from tests.support.fake_worker import bucket_record, put_records, worker_record


@pytest.fixture
async def names(link, cluster_name):
    """Of a cluster that is there."""
    made = Names(cluster_name)
    await ensure_cluster(link, made, lease_s=60)
    return made


async def test_a_bucket_and_its_worker_are_joined(link, names):
    reasons = ["handler 'x' fails"]
    state = {"state": WorkerState.DRAINING, "health": "degraded", "reasons": reasons, "finished": 17, "priorities": [4]}
    await put_records(link, names, worker_record(**state, running=2, held=3), bucket_record())
    census = await read_census(link, names)
    worker, bucket = census.worker("w-1"), census.bucket("default-high-1")
    assert (worker.state, worker.mode, worker.health, worker.reasons) == ("draining", "execution", "degraded", reasons)
    assert (worker.slots, worker.running, worker.held, worker.finished) == (4, 2, 3, 17)
    assert (worker.buckets, worker.priorities) == (["default-high-1"], ["high"])
    assert 0 <= worker.beat_age_s < 10
    assert 55 < worker.uptime_s < 90
    assert (bucket.status, bucket.priority, bucket.serves, bucket.kind) == ("active", "high", "high", "proper")
    assert (bucket.owner, bucket.worker, bucket.origin) == (OwnerState.ALIVE, "w-1", "w-1")
    assert 55 < bucket.age_s < 90
    assert 0 <= bucket.changed_age_s < 10
    assert (census.gone, census.unreadable) == ([], [])


async def test_the_age_of_a_heartbeat_is_by_the_servers_clock(link, names, monkeypatch):
    await put_records(link, names, worker_record())
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 3600)  # our clock is an hour off
    census = await read_census(link, names)
    assert 0 <= census.worker("w-1").beat_age_s < 10


async def test_an_owner_that_is_gone_or_was_restarted_is_listed_with_its_buckets(link, names):
    await put_records(
        link,
        names,
        worker_record(incarnation="i-2"),
        bucket_record("old", incarnation="i-1"),
        bucket_record("new", incarnation="i-2"),
        bucket_record("orphan", worker="w-0", status="lost"),
    )
    census = await read_census(link, names)
    owners = {view.bucket: view.owner for view in census.buckets}
    assert owners == {"old": OwnerState.RESTARTED, "new": OwnerState.ALIVE, "orphan": OwnerState.GONE}
    assert sorted((gone.worker, gone.buckets) for gone in census.gone) == [("w-0", ["orphan"]), ("w-1", ["old"])]
    assert census.worker("w-1").buckets == ["new"]
    assert census.worker("w-0") is None


async def test_a_fallback_says_what_it_serves_and_why(link, names):
    fallback = {"kind": BucketKind.FALLBACK, "serves": 2, "priority": 5, "reason": "nobody serves mail/low"}
    await put_records(link, names, bucket_record(lane="mail", **fallback))
    [view] = (await read_census(link, names)).buckets
    assert (view.kind, view.priority, view.serves, view.reason) == (
        "fallback",
        "critical",
        "low",
        "nobody serves mail/low",
    )


async def test_an_adopted_bucket_names_who_opened_it(link, names):
    await put_records(link, names, worker_record(draining=["b"]), bucket_record("b", origin="w-0", status="draining"))
    census = await read_census(link, names)
    assert (census.bucket("b").worker, census.bucket("b").origin) == ("w-1", "w-0")
    assert census.worker("w-1").draining == ["b"]


@pytest.mark.parametrize("value", [b"", b"{", b'{"worker": 7}', b'{"worker":"w","state":"dreaming"}'])
async def test_a_record_that_cannot_be_read_is_listed_as_such(link, names, value):
    await put_records(link, names, worker_record(), (names.workers_kv, "w-2", value), (names.buckets_kv, "b-2", value))
    census = await read_census(link, names)
    assert [view.worker for view in census.workers] == ["w-1"]
    assert [(view.kv, view.key) for view in census.unreadable] == [
        (names.workers_kv, "w-2"),
        (names.buckets_kv, "b-2"),
    ]
    assert all(view.problem for view in census.unreadable)


async def test_a_priority_of_a_newer_version_is_shown_as_a_number(link, names):
    await put_records(link, names, bucket_record(priority=6))
    assert (await read_census(link, names)).buckets[0].priority == "6"


async def test_a_cluster_that_is_not_there_is_named_and_not_made(link, cluster_name):
    with pytest.raises(ClusterUnknownError, match=cluster_name):
        await read_census(link, Names(cluster_name))
    streams = await link.api("STREAM.NAMES", {"subject": f"$KV.jm_{cluster_name}_workers.x"})
    assert not streams.get("streams")


async def test_the_stream_s_facts_tell_waiting_unacked_and_scheduled_apart(link, names):
    await ensure_bucket(link, names, "b-1")
    for _ in range(3):
        await link.js.publish(names.run("b-1"), b"[]")
    for number in range(2):
        headers = {"Nats-Schedule": "@at 2099-01-01T00:00:00Z", "Nats-Schedule-Target": names.run("b-1")}
        await link.js.publish(names.sched("b-1", number), b"[]", headers=headers)
    reader = await link.js.pull_subscribe_bind(RUN_CONSUMER, stream=names.bucket_stream("b-1"))
    await reader.fetch(1, timeout=5)
    facts = await read_stream_facts(link, names, "b-1")
    assert (facts.messages, facts.scheduled) == (5, 2)
    assert (facts.pending_runs, facts.unacked_runs, facts.redelivered_runs) == (2, 1, 0)
    assert facts.bytes > 0
    await delete_consumer(link, names.bucket_stream("b-1"), RUN_CONSUMER)
    assert (await read_stream_facts(link, names, "b-1")).pending_runs is None
    assert await read_stream_facts(link, names, "b-2") is None
