"""Two processes of one name, and processes that disagree about the lease: told apart, and told so."""

from __future__ import annotations

import time
from typing import Final

import pytest

from tests.support.app import effect
from tests.support.scene import SHORT, Scene
from tests.support.waiting import wait_until

USAGE: Final = 2
HALTED: Final = 1


@pytest.mark.chaos
async def test_a_second_worker_of_a_name_is_refused_and_the_first_goes_on(
    nats_server, database, cluster_name, tmp_path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        await scene.start_coordinator().wait_ready()
        first = await scene.start_worker("--name", "mailer").wait_ready()
        second = scene.start_worker("--name", "mailer")
        assert await second.wait_exit() == USAGE, second.log_tail()
        assert "the worker id 'mailer' is taken" in second.log()
        assert f"process {first.pid} on" in second.log()
        await scene.time_to_run(client)
        scene.assert_running(first)
        await scene.settled()


@pytest.mark.chaos
async def test_a_killed_worker_can_be_started_again_under_its_name_at_once(
    nats_server, database, cluster_name, tmp_path
) -> None:
    """Its old process is seen to be dead, and what that one held is not waited for until the lease has ended."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        await scene.start_coordinator(env={"JM_LEASE_S": "10"}).wait_ready()
        slow = {"JM_LEASE_S": "10", "JM_HEARTBEAT_S": "2"}
        first = await scene.start_worker("--name", "mailer", env=slow).wait_ready()
        ids = await scene.start_long(client, 5, seconds=2.0)
        first.kill()
        killed_s = time.monotonic()
        await scene.start_worker("--name", "mailer", env=slow).wait_ready()
        await wait_until(lambda: len(scene.effects().runs) == 2 * len(ids), what="its jobs run again")
        assert time.monotonic() - killed_s < 8, "somebody waited for the lease"
        await scene.settled(repeats=True, lost=True)


@pytest.mark.chaos
async def test_a_frozen_worker_whose_name_was_given_to_another_halts(
    nats_server, database, cluster_name, tmp_path
) -> None:
    """The invariant is named, its jobs are the other one's."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        await scene.start_coordinator().wait_ready()
        zombie = await scene.start_worker("--name", "mailer").wait_ready()
        ids = await scene.start_long(client, 5, seconds=scene.timing.lease_s)
        zombie.pause()
        await scene.start_worker("--name", "mailer").wait_ready()
        assert await scene.ended(ids) == {"succeeded": 5}
        zombie.resume()
        assert await zombie.wait_exit() == HALTED, zombie.log_tail()
        assert "worker_id_taken" in zombie.log()
        await scene.time_to_run(client)
        await scene.settled(repeats=True, lost=True)


@pytest.mark.chaos
async def test_a_process_with_another_lease_is_refused_while_workers_live(
    nats_server, database, cluster_name, tmp_path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene, scene.client() as client:
        await scene.start_coordinator().wait_ready()
        worker = await scene.start_worker("--name", "mailer").wait_ready()
        other = {"JM_LEASE_S": "30", "JM_HEARTBEAT_S": "2"}
        for stranger in (scene.start_worker(env=other), scene.start_coordinator(env=other)):
            assert await stranger.wait_exit() == USAGE, stranger.log_tail()
            assert "set JM_LEASE_S=2" in stranger.log()
        (receipt,) = await client.submit_many([effect.job({})])
        scene.accepted.append(receipt.job_id)
        await scene.settled()
        scene.assert_running(worker)


@pytest.mark.chaos
async def test_a_lease_shorter_than_three_heartbeats_is_refused(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        worker = scene.start_worker("--lease", "2", "--heartbeat", "1")
        assert await worker.wait_exit() == USAGE
        assert "a lease must be at least three heartbeats" in worker.log()
