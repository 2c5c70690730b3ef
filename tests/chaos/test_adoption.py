"""Adopters that die or race, and buckets whose stream, consumer or record is taken away under their worker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import nats
import pytest

from jm_core.model import BucketStatus
from jm_nats.kv import CasKv
from jm_nats.subjects import RUN_CONSUMER, Names
from tests.chaos.test_worker_death import all_stopped, filled
from tests.support.app import effect, long_at_first
from tests.support.master import linked
from tests.support.scene import SHORT, Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from jm_nats import JobClient
    from tests.support.processes import JmProcess

KILLED: Final = -9
BUCKETS: Final = 10  # of a worker: two lanes, five priorities
ADOPTED: Final = re.compile(r"bucket adopted +bucket=(\S+)")


@pytest.mark.chaos
@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", ["adopter.after_claim", "adopter.after_returned"])
async def test_an_adopter_that_dies_in_the_middle_is_followed_by_another(
    point, nats_server, database, cluster_name, tmp_path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await scene.start_coordinator().wait_ready()
        async with scene.client() as client:
            victim = await scene.start_worker("--slots", "20").wait_ready()
            fill = await filled(scene, client, running=20, held=200)
            adopter = await scene.start_worker(env={"JM_TEST_CRASH_AT": point}).wait_ready()
            victim.kill()
            assert await adopter.wait_exit() == KILLED, adopter.log_tail()
            await scene.start_worker().wait_ready()
            assert await scene.ended(fill.ids) == {"succeeded": len(fill.ids)}
            # Whoever died second had started nothing of the first one's: what it had handed back came to it again.
            await scene.settled(repeats=True, lost=True)


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_of_several_adopters_one_wins_each_bucket(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await scene.start_coordinator().wait_ready()
        async with scene.client() as client:
            victim = await scene.start_worker("--slots", "20").wait_ready()
            fill = await filled(scene, client, running=20, held=200)
            rivals = [await scene.start_worker("--mode", mode).wait_ready() for mode in ("drain", "drain", "execution")]
            victim.kill()
            assert await scene.ended(fill.ids) == {"succeeded": len(fill.ids)}
            await scene.settled(repeats=True, lost=True)
            # The jobs end sooner than the empty buckets.
            await wait_until(lambda: all_buried(scene, BUCKETS), what="every bucket of the dead worker is gone")
            adopted = [bucket for rival in rivals for bucket in ADOPTED.findall(rival.log())]
            assert len(adopted) == len(set(adopted)), "a bucket was adopted twice"
            buried = {row["bucket_id"] for row in await scene.sql.rows("SELECT bucket_id FROM bucket")}
            assert buried == set(adopted), "the record alone took none of them back"
            only_drained = [rival.pid for rival in rivals[:2]]
            assert all(run.pid not in only_drained for run in scene.effects().runs), "a drain worker ran something"
            await all_stopped(rivals)


async def all_buried(scene: Scene, count: int) -> bool:
    return bool(await scene.sql.value("SELECT count(*) = $1 FROM bucket", count))


async def one_bucket(scene: Scene) -> str:
    """The one that medium jobs of the default lane go to."""
    async with linked(scene.nats_url, scene.name, lease_s=scene.timing.lease_s) as bench:
        names = await CasKv(bench.link, bench.names.buckets_kv).keys()
    (bucket,) = [name for name in names if name.startswith("default-medium-")]
    return bucket


async def busy(scene: Scene, client: JobClient) -> tuple[JmProcess, str]:
    """A worker whose 10 slots run, with 200 jobs waiting behind them in its bucket."""
    await scene.start_coordinator(env={"JM_RECONCILE_S": "1"}).wait_ready()
    worker = await scene.start_worker("--slots", "10").wait_ready()
    long = [r.job_id for r in await client.submit_many([effect.job({"seconds": 3.0}) for _ in range(10)])]
    await scene.wait_running(long)
    others = [r.job_id for r in await client.submit_many([effect.job({}) for _ in range(200)])]
    scene.accepted += long + others
    return worker, await one_bucket(scene)


@pytest.mark.chaos
@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ["stream", "consumer"])
async def test_a_bucket_whose_stream_or_consumer_was_deleted_is_made_anew(
    what, nats_server, database, cluster_name, tmp_path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        worker, bucket = await busy(scene, client)
        stream = Names(scene.name).bucket_stream(bucket)
        connection = await nats.connect(scene.nats_url)
        try:
            if what == "stream":
                await connection.jetstream().delete_stream(stream)
            else:
                await connection.jetstream().delete_consumer(stream, RUN_CONSUMER)
        finally:
            await connection.close()
        await worker.wait_for_log("bucket was damaged, made anew")
        assert await scene.time_to_run(client) < 5
        await scene.settled()
        scene.assert_running()
        assert await one_bucket(scene) == bucket


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_workers_survive_the_purge_of_their_registry(nats_server, database, cluster_name, tmp_path) -> None:
    """Both KVs, twenty jobs running (BR-044): nobody is disturbed. Then the worker dies: all twenty are found."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        await scene.start_coordinator().wait_ready()
        worker = await scene.start_worker().wait_ready()
        bucket = await one_bucket(scene)
        long = [r.job_id for r in await client.submit_many([long_at_first.job({"seconds": 600.0}) for _ in range(20)])]
        scene.accepted += long
        await scene.wait_running(long)
        names = Names(scene.name)
        connection = await nats.connect(scene.nats_url)
        try:
            for kv in (names.workers_kv, names.buckets_kv):
                await connection.jetstream().purge_stream(f"KV_{kv}")
        finally:
            await connection.close()
        await worker.wait_for_log("the registry had lost our bucket")
        await scene.time_to_run(client)
        assert await one_bucket(scene) == bucket
        assert await scene.tombstones("lost") == []
        assert scene.effects().repeated() == {}
        worker.kill()
        await scene.start_worker().wait_ready()
        assert await scene.ended(long) == {"succeeded": 20}
        await scene.settled(repeats=True, lost=True)


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_one_bucket_of_a_live_worker_can_be_taken_and_the_worker_goes_on(
    nats_server, database, cluster_name, tmp_path
) -> None:
    """As by a leader that was wrong: the jobs of that bucket are cancelled, the others and the worker go on."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        await scene.start_coordinator().wait_ready()
        worker = await scene.start_worker().wait_ready()
        taken_from = await one_bucket(scene)
        long = [r.job_id for r in await client.submit_many([long_at_first.job({"seconds": 600.0}) for _ in range(5)])]
        scene.accepted += long
        await scene.wait_running(long)
        await take(scene, taken_from)
        await worker.wait_for_log("bucket is not ours any more")
        assert await scene.ended(long) == {"succeeded": 5}
        runs = [run for run in scene.effects().runs if run.job_id in long]
        assert [run.cancelled for run in sorted(runs, key=lambda run: run.start_s)] == [True] * 5 + [False] * 5
        await wait_until(lambda: scene.tombstones("lost"), what="the tombstone")
        assert await one_bucket(scene) != taken_from
        scene.assert_running(worker)
        await scene.settled(repeats=True, lost=True)


async def take(scene: Scene, bucket: str) -> None:
    from msgspec.structs import replace  # noqa: PLC0415

    from jm_core import wire  # noqa: PLC0415

    async with linked(scene.nats_url, scene.name, lease_s=scene.timing.lease_s) as bench:
        kv = CasKv(bench.link, bench.names.buckets_kv)
        entry = await kv.get(bucket)
        assert entry is not None
        lost = replace(wire.decode_bucket(entry.value), status=BucketStatus.LOST.value, was_lost=True)
        await kv.update(bucket, wire.encode(lost), revision=entry.revision)
