"""Handlers that take their worker with them, or hold it up: the others beside them must not pay for it."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.app import blocks_the_loop, effect, kills_its_process, long_at_first
from tests.support.scene import SHIPPED, SHORT, Scene

if TYPE_CHECKING:
    from jm_nats import JobClient

INNOCENT: Final = 60
LONG_S: Final = 45.0  # longer than a life of the worker that is killed; the other one may never be
NAMED: Final = re.compile(r"WARNING .*event loop (?:is|was) blocked.*handler=(\S+)")
WORKER_LOST: Final = "worker lost"


@pytest.mark.chaos
@pytest.mark.timeout(120)
async def test_a_handler_that_blocks_the_loop_does_not_cost_its_worker_the_lease(
    nats_server, database, cluster_name, tmp_path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await blocked(scene)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_handler_that_blocks_the_loop_for_three_leases_as_shipped(
    nats_server, database, cluster_name, tmp_path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHIPPED) as scene:
        await blocked(scene)


async def blocked(scene: Scene) -> None:
    """For three leases, with five others beside it that would have ended meanwhile, and a worker that idles."""
    await scene.start_coordinator().wait_ready()
    worker = await scene.start_worker().wait_ready()
    async with scene.client() as client:
        beside = await scene.start_long(client, 5, seconds=scene.timing.lease_s)
        other = await scene.start_worker().wait_ready()
        jobs = [blocks_the_loop.job({"seconds": 3 * scene.timing.lease_s}, unique_key="one")]
        ids = [receipt.job_id for receipt in await client.submit_many(jobs)]
        scene.accepted += ids
        assert await scene.ended(ids + beside, timeout_s=4 * scene.timing.lease_s + 30) == {"succeeded": 6}
        blocked_one = worker if "blocks_the_loop" in worker.log() else other
        assert set(NAMED.findall(blocked_one.log())) == {"blocks_the_loop"}, "the warning names the handler"
        assert await scene.tombstones("lost") == []
        await scene.settled()
        scene.assert_running()


@pytest.mark.chaos
@pytest.mark.timeout(400)
async def test_a_handler_that_kills_its_process_fails_alone(nats_server, database, cluster_name, tmp_path) -> None:
    """Under a supervisor that starts the worker again. Beside it run jobs that take longer than each of its lives, and
    some that wait for a slot: they all succeed, and none of them is failed or quarantined for its neighbour's sake.
    """
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await scene.start_coordinator().wait_ready()
        supervisor = await scene.start_worker("--processes", "2", "--slots", "20").wait_ready()
        async with scene.client() as client:
            await one_of_sixty_kills(scene, client)
        assert supervisor.running
        assert supervisor.log().count("started again") >= 3


async def one_of_sixty_kills(scene: Scene, client: JobClient) -> None:
    innocent = [long_at_first.job({"seconds": LONG_S}, max_attempts=4) for _ in range(INNOCENT // 2)]
    innocent += [effect.job({"seconds": 0.5}) for _ in range(INNOCENT - len(innocent))]
    ids = [receipt.job_id for receipt in await client.submit_many(innocent)]
    (poison,) = [r.job_id for r in await client.submit_many([kills_its_process.job({}, max_attempts=4)])]

    async def poison_ended() -> bool:
        return bool(await scene.sql.value("SELECT 1 FROM job WHERE id = $1 AND status >= 4", poison))

    # Whatever was beside it twice starts alone, too, 5 s after the one before it: thirty such at worst.
    try:
        async with asyncio.timeout(240):
            while not await poison_ended():
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"not ended: {await scene.unfinished([poison])}") from None
    (row,) = await scene.sql.rows("SELECT status, error, losses, attempt FROM job WHERE id = $1", poison)
    assert (row["status"], row["error"]) == (5, WORKER_LOST)
    assert await scene.ended(ids, timeout_s=90) == {"succeeded": INNOCENT}
    (worst,) = await scene.sql.rows("SELECT max(losses) AS losses FROM job WHERE id <> $1", poison)
    assert worst["losses"] <= 2, "an innocent job was beside it more than twice"
    scene.accepted += ids
    await scene.assert_oracles([*ids, poison])
