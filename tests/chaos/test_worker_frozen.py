"""Workers that freeze past their lease and wake up: others have done their jobs, and nothing of theirs counts (P3)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest
from msgspec import Raw

from jm_core import wire
from jm_core.model import AttemptOutcome, JobStatus
from jm_core.wire import EventBatch, Finished
from jm_master.record_store import WITHOUT_FENCE
from tests.support.app import effect, exclusive_effect, thread_effect
from tests.support.master import linked
from tests.support.proxy import Proxy
from tests.support.scene import SHIPPED, SHORT, Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from jm_nats import JobClient
    from tests.support.processes import JmProcess

GIVEN_UP: Final = "bucket is not ours any more"
JOBS: Final = 6


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_frozen_worker_that_wakes_up_changes_nothing(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        assert await zombies(scene, times=3) == 0
        await scene.settled(repeats=True, lost=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_fifty_frozen_workers_that_wake_up_change_nothing(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHIPPED) as scene:
        accepted = await zombies(scene, times=50)
        print(f"50 frozen workers: {accepted} stale effects accepted")  # noqa: T201 - a figure for the record
        assert accepted == 0
        await scene.settled(repeats=True, lost=True)


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_without_the_fence_the_same_scenario_accepts_stale_effects(
    nats_server, database, cluster_name, tmp_path
) -> None:
    """Else the two tests above could not fail."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT, **{WITHOUT_FENCE: "yes"}) as scene:
        assert await zombies(scene, times=1) > 0


async def zombies(scene: Scene, *, times: int) -> int:
    """Freeze a worker whose handlers are about to end, let another one do the jobs, wake it up. How many of its late
    outcomes were taken for the jobs' own.
    """
    stale = 0
    await scene.start_coordinator().wait_ready()
    async with scene.client() as client:
        for _ in range(times):
            zombie = await scene.start_worker().wait_ready()
            ids = await run_by(scene, client, zombie)
            helper = await scene.start_worker().wait_ready()
            assert await scene.ended(ids, timeout_s=scene.timing.lease_s + 60) == {"succeeded": len(ids)}
            zombie.resume()
            await zombie.wait_for_log(GIVEN_UP)
            await threads_have_ended(scene, ids, zombie.pid)
            await late_word(scene, ids)
            # It serves again: a bucket of its own, and its word on new jobs counts.
            await helper.stop()
            await scene.time_to_run(client)
            await scene.ended(scene.accepted[-1:])  # so what was reported before is applied, or refused
            stale += await stale_results(scene, ids)
            assert await zombie.stop() == 0
    return stale


async def run_by(scene: Scene, client: JobClient, zombie: JmProcess) -> list[str]:
    """Jobs whose handlers the worker runs when it is frozen; they would end while it is."""
    short_s = scene.timing.lease_s / 2
    jobs = [handler.job({"seconds": short_s}) for handler in (effect, thread_effect) for _ in range(JOBS // 2)]
    ids = [receipt.job_id for receipt in await client.submit_many(jobs)]
    scene.accepted += ids
    await scene.wait_running(ids)
    zombie.pause()
    return ids


async def late_word(scene: Scene, ids: list[str]) -> None:
    """Whether it got to report before it heard that its bucket was gone is a matter of milliseconds: what it would have
    said is said here, too.
    """
    now_s = time.time()
    said = [Finished(i, 1, 1, AttemptOutcome.SUCCEEDED, now_s - 1, now_s, Raw(b"1")) for i in ids]
    async with linked(scene.nats_url, scene.name, lease_s=scene.timing.lease_s) as bench:
        await bench.publisher.publish(bench.names.events("late"), wire.encode(EventBatch("late", 1, "zombie", said)))


async def threads_have_ended(scene: Scene, ids: list[str], pid: int) -> None:
    """What runs in threads cannot be cancelled: it ends, and reports."""

    def ended() -> bool:
        return all(run.end_s is not None for run in scene.effects().runs if run.pid == pid and run.job_id in ids)

    await wait_until(ended, what="the zombie's handlers end")


async def stale_results(scene: Scene, ids: list[str]) -> int:
    """A handler returns its dispatch number; the recorded one must be the row's own."""
    query = "SELECT count(*) FROM job WHERE id = ANY($1::uuid[]) AND status = $2 AND result::text::int <> dispatch"
    return int(await scene.sql.value(query, ids, int(JobStatus.SUCCEEDED)))


@pytest.mark.chaos
@pytest.mark.timeout(120)
async def test_an_exclusive_handler_is_cancelled_before_anybody_else_may_run_its_job(
    nats_server, database, cluster_name, tmp_path
) -> None:
    """Its worker is cut off from NATS; others go on and may overlap: an outage must not cost an hour's work."""
    async with (
        Proxy(nats_server.port) as proxy,
        Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene,
    ):
        await scene.start_coordinator().wait_ready()
        cut_off = await scene.start_worker(env={"JM_NATS_URL": f"nats://127.0.0.1:{proxy.port}"}).wait_ready()
        async with scene.client() as client:
            jobs = [handler.job({"seconds": 3 * scene.timing.lease_s}) for handler in (exclusive_effect, effect)]
            exclusive, other = [receipt.job_id for receipt in await client.submit_many(jobs)]
            scene.accepted += [exclusive, other]
            await scene.wait_running(scene.accepted)
            await scene.start_worker().wait_ready()
            proxy.black_hole()
            await scene.ended(scene.accepted)
            await proxy.restore()
        await cut_off.wait_for_log(GIVEN_UP)
        effects = await scene.settled(repeats=True, lost=True)
        assert {first.job_id for first, _ in effects.overlaps()} == {other}
        first, second = [run for run in effects.runs if run.job_id == exclusive]
        assert first.cancelled
        assert first.end_s is not None
        assert first.end_s < second.start_s
