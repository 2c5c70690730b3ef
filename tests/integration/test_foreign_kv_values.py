"""Somebody who may only submit has JetStream write into the KVs: its acknowledgement goes to whatever reply subject was
named. A whole cluster goes on, with its leader, whatever stands there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from jm_core import kv_records
from jm_nats.config import NatsConfig, parse_servers
from jm_nats.connection import connect
from jm_nats.kv import CasKv
from jm_nats.subjects import Names
from tests.support.app import noop
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from jm_nats.connection import NatsLink
    from jm_nats.kv import Entry

SHORT: Final = {"JM_LEASE_S": "3", "JM_HEARTBEAT_S": "1"}
MENDED_WITHIN_S: Final = 15.0
ROUNDS: Final = 3
GARBAGE: Final = {
    "no json": b"\xff\x00 no json at all",
    "too deep": b"[" * 100_000,
    "another object": b'{"holder": 7, "bucket": null, "revision": "x"}',
}


@pytest.fixture
async def cluster(nats_server, database, cluster_name):
    async with Cluster(nats_server.url, database, cluster_name, **SHORT) as started:
        yield await started.start(workers=2)


@pytest.fixture
async def link(cluster):
    config = NatsConfig(servers=parse_servers(cluster.nats_url))
    async with await connect(config, client_name="test") as opened:
        yield opened


def reads(kv: str, entry: Entry) -> bool:
    """Whether it is what our own processes write."""
    if kv.endswith("_workers"):
        return kv_records.worker_at(entry.key, entry.value) is not None
    if kv.endswith("_buckets"):
        return kv_records.bucket_at(entry.key, entry.value) is not None
    if entry.key == "settings":
        return kv_records.settings_at(entry.value) is not None
    if entry.key == "leader":
        return kv_records.leader_at(entry.value) is not None
    if entry.key == "agent":
        return kv_records.fingerprint_at(entry.value) is not None
    return kv_records.handler_at(entry.value) is not None


async def everything(link: NatsLink, names: Names) -> list[tuple[str, Entry]]:
    kvs = (names.workers_kv, names.buckets_kv, names.cluster_kv)
    return [(kv, entry) for kv in kvs for entry in await CasKv(link, kv).entries()]


def spoken_on(names: Names, keys: set[tuple[str, str]]) -> list[str]:
    """What is no KV, and one of ours listens to."""
    buckets = [key for kv, key in keys if kv == names.buckets_kv]
    workers = [key for kv, key in keys if kv == names.workers_kv]
    found = [subject for bucket in buckets for subject in (names.run(bucket), names.ctl(bucket), names.events(bucket))]
    return [*found, *map(names.worker_rpc, workers), names.submit, names.wake, names.api("job-cancel")]


async def acknowledged_into(link: NatsLink, names: Names, subject: str) -> None:
    """As the least privileged user can: what is published is refused as a job, its acknowledgement is stored."""
    await link.nc.publish(names.submit, b"{}", reply=subject)


async def all_read(link: NatsLink, names: Names, *, but: tuple[str, ...] = ()) -> bool:
    return all(reads(kv, entry) for kv, entry in await everything(link, names) if entry.key not in but)


async def leader_of(link: NatsLink, names: Names) -> str:
    entry = await CasKv(link, names.cluster_kv).get("leader")
    leader = None if entry is None else kv_records.leader_at(entry.value)
    return "" if leader is None else leader.holder


async def works(cluster: Cluster) -> None:
    async with cluster.client() as client:
        receipts = await client.submit_many([noop.job({}) for _ in range(50)])
    assert await cluster.ended([receipt.job_id for receipt in receipts], MENDED_WITHIN_S) == {"succeeded": 50}


@pytest.mark.timeout(180)
async def test_a_cluster_goes_on_whatever_is_written_over_each_of_its_keys(cluster, link, cluster_name):
    names = Names(cluster_name)
    await works(cluster)
    leader = await leader_of(link, names)
    attacked = {(kv, entry.key) for kv, entry in await everything(link, names)}
    attacked |= {(names.cluster_kv, "settings"), (names.cluster_kv, "agent")}
    assert {key for _, key in attacked} >= {"leader", "agent", "settings", "handler.noop"}
    for _ in range(ROUNDS):
        for kv, key in attacked:
            await acknowledged_into(link, names, f"$KV.{kv}.{key}")
        for subject in spoken_on(names, attacked):
            await acknowledged_into(link, names, subject)
        await works(cluster)
        for value in GARBAGE.values():
            for kv, key in attacked:
                await link.nc.publish(f"$KV.{kv}.{key}", value)
            await works(cluster)
    # The fingerprint is read, and mended, by who stands for election next; all else by its owner at once.
    mended = lambda: all_read(link, names, but=("agent",))  # noqa: E731
    await wait_until(mended, MENDED_WITHIN_S, what="each key written again by its owner")
    assert await leader_of(link, names) == leader, "nobody had to take over"
    assert all(process.running for process in cluster.processes.all)
    lines = [line for lines in cluster.trouble().values() for line in lines]
    assert not [line for line in lines if "undecodable" not in line]  # that is what the messages beside the KVs are


@pytest.mark.timeout(180)
async def test_who_leads_next_mends_what_a_dead_cluster_cannot(cluster, link, cluster_name):
    """All have died, and there is nobody whom a key belongs to."""
    names = Names(cluster_name)
    await works(cluster)
    for process in cluster.processes.all:
        process.kill()
    stale = await everything(link, names)
    for kv, entry in stale:
        await acknowledged_into(link, names, f"$KV.{kv}.{entry.key}")
    await asyncio.gather(cluster.start_coordinator().wait_ready(), cluster.start_worker().wait_ready())
    await works(cluster)
    mended = lambda: all_read(link, names)  # noqa: E731
    await wait_until(mended, 2 * MENDED_WITHIN_S, what="no record of the dead is left that cannot be read")


@pytest.mark.timeout(120)
async def test_jobs_of_a_bucket_whose_record_was_overwritten_as_its_worker_died_are_run(cluster, link, cluster_name):
    names = Names(cluster_name)
    async with cluster.client() as client:
        later = [(await noop.submit(client, delay=6.0)).job_id for _ in range(20)]
    workers = [process for process in cluster.processes.all if process.name.startswith("worker")]
    workers[0].kill()
    for entry in await CasKv(link, names.buckets_kv).entries():
        await acknowledged_into(link, names, f"$KV.{names.buckets_kv}.{entry.key}")
    assert await cluster.ended(later, 60) == {"succeeded": 20}
    await works(cluster)
