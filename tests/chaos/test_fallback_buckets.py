"""A job in a lane that nobody serves: somebody who knows the handler stands in, and says why."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from jm_core.model import BucketKind
from tests.support.app import effect, long_at_first
from tests.support.processes import ROOT
from tests.support.scene import SHORT, Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from jm_core.wire import Submission
    from jm_nats import JobClient

THRESHOLD: Final = {"JM_NO_BUCKET_THRESHOLD_S": "1"}
LANE: Final = "orphaned"


async def bucket_list(scene: Scene) -> Any:
    """What ``jm bucket list --json`` prints."""
    command = (sys.executable, "-m", "jm_cli", "bucket", "list", "--json")
    process = await asyncio.create_subprocess_exec(
        *command, env=scene.processes.env, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(out)


async def fallbacks(scene: Scene) -> list[Any]:
    listed = await bucket_list(scene)
    return [bucket for bucket in listed["buckets"] if bucket["kind"] == BucketKind.FALLBACK]


async def submitted(scene: Scene, client: JobClient, *jobs: Submission) -> list[str]:
    ids = [receipt.job_id for receipt in await client.submit_many(list(jobs))]
    scene.accepted += ids
    return ids


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_a_job_that_nobody_serves_runs_in_a_fallback_bucket_until_somebody_does(
    nats_server, database, cluster_name, tmp_path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        await scene.start_coordinator(env=THRESHOLD).wait_ready()
        stands_in = await scene.start_worker("--lane", "default").wait_ready()
        ids = await submitted(scene, client, *[effect.job({}, lane=LANE) for _ in range(20)])
        assert await scene.ended(ids) == {"succeeded": 20}
        (shown,) = await fallbacks(scene)
        assert (shown["lane"], shown["status"]) == (LANE, "active")
        assert LANE in shown["reason"], "it says why it is there"
        assert "fallback bucket opened" in stands_in.log()
        proper = await scene.start_worker("--lane", LANE).wait_ready()
        await wait_until(lambda: gone(scene), what="the fallback bucket retires")
        more = await submitted(scene, client, effect.job({}, lane=LANE))
        assert await scene.ended(more) == {"succeeded": 1}
        assert {run.pid for run in scene.effects().runs if run.job_id in more} == {proper.pid}
        await scene.settled()


async def gone(scene: Scene) -> bool:
    return not await fallbacks(scene)


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_a_fallback_bucket_whose_worker_dies_is_replaced(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        await scene.start_coordinator(env=THRESHOLD).wait_ready()
        stands_in = await scene.start_worker("--lane", "default").wait_ready()
        ids = await submitted(scene, client, *[long_at_first.job({"seconds": 600.0}, lane=LANE) for _ in range(5)])
        await scene.wait_running(ids)
        await scene.start_worker("--lane", "default").wait_ready()
        stands_in.kill()
        assert await scene.ended(ids) == {"succeeded": 5}
        await scene.settled(repeats=True, lost=True)


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_what_nobody_can_run_is_said_aloud(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        coordinator = await scene.start_coordinator(env=THRESHOLD).wait_ready()
        await scene.start_worker("--lane", "default").wait_ready()
        job = effect.job({}, lane=LANE)
        job.handler = "nobody_knows_it"
        await submitted(scene, client, job)
        await coordinator.wait_for_log("nobody_knows_it")
        assert any("nobody_knows_it" in line for line in coordinator.trouble()), "at level ERROR"
        listed = await bucket_list(scene)
        (unserved,) = listed["unserved"]
        assert (unserved["lane"], unserved["handler"]) == (LANE, "nobody_knows_it")
        assert await scene.sql.counts() == {"on_master": 1}, "it waits, it is not lost"
