"""NATS goes away and comes back: handlers run on, nobody is declared lost, nothing runs twice (BR-139, DESIGN 7)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from jm_nats.embedded import NatsServer
from jm_nats.subjects import Names
from tests.support.scene import SHIPPED, SHORT, Scene, Timing
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(200)]

RESUMES_S: Final = 10.0  # BR-139: fetching goes on within this after the return
LONG_JOBS: Final = 20
STOPS: Final = ("stop", "kill")


@pytest.mark.parametrize(
    ("away_s", "timing"),
    [
        pytest.param(1.0, SHORT, id="away 1 s"),
        pytest.param(2 * SHORT.lease_s, SHORT, id="away two leases"),
        *(pytest.param(float(s), SHIPPED, id=f"away {s} s", marks=pytest.mark.soak) for s in (1, 15, 60)),
    ],
)
@pytest.mark.parametrize("how", STOPS)
async def test_a_nats_that_was_away_costs_no_handler_no_worker_and_no_second_run(  # noqa: PLR0917 - fixtures
    how: str, away_s: float, timing: Timing, database: str, cluster_name: str, tmp_path: Path
) -> None:
    with NatsServer() as nats:
        async with Scene(nats.url, database, cluster_name, tmp_path, timing) as scene, scene.client() as client:
            await scene.start(workers=2)
            during = await scene.start_long(client, LONG_JOBS, seconds=away_s / 2)
            beyond = await scene.start_long(client, LONG_JOBS, seconds=away_s + timing.lease_s)
            async with scene.under_load(client):
                await asyncio.to_thread(getattr(nats, how))
                await asyncio.sleep(away_s)  # the fault itself
                await asyncio.to_thread(nats.start)
                resumed_s = await scene.time_to_run(client)
                # Whoever would call somebody lost by mistake would do it within a lease.
                await asyncio.sleep(1.5 * timing.lease_s)
            effects = await scene.settled()
            scene.assert_running()
            assert {run.job_id for run in effects.runs if not run.cancelled} >= {*during, *beyond}
            assert resumed_s <= RESUMES_S


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.soak)])
async def test_a_nats_killed_again_and_again_under_load_loses_and_doubles_nothing(
    kills: int, database: str, cluster_name: str, tmp_path: Path
) -> None:
    with NatsServer() as nats:
        async with Scene(nats.url, database, cluster_name, tmp_path) as scene, scene.client() as client:
            await scene.start(workers=2)
            async with scene.under_load(client, seconds=0.3) as work:
                for _ in range(kills):
                    work.more()
                    await scene.time_to_run(client)
                    await asyncio.to_thread(nats.kill)
                    await asyncio.to_thread(nats.start)
                assert await scene.time_to_run(client) <= RESUMES_S
            await scene.settled()
            scene.assert_running()


@pytest.mark.parametrize("flaps", [10, pytest.param(120, marks=pytest.mark.soak)])
async def test_flapping_leaves_no_crowd_of_consumers_behind(
    flaps: int, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """BR-150: every watch keeps its one consumer, however often it has to start over."""
    with NatsServer() as nats:
        async with Scene(nats.url, database, cluster_name, tmp_path) as scene, scene.client() as client:
            await scene.start(workers=3)
            jetstream = client.link.js
            kvs = Names(cluster_name)

            async def watchers() -> int:
                streams = [f"KV_{kv}" for kv in (kvs.workers_kv, kvs.buckets_kv, kvs.cluster_kv)]
                return sum([(await jetstream.stream_info(stream)).state.consumer_count for stream in streams])

            async def as_before() -> bool:
                return await watchers() == before

            before = 3 + 3 * 2  # the leader watches workers, buckets and the cluster, a worker the last two
            await wait_until(as_before, 10, what=f"{before} consumers")
            for _ in range(flaps):
                await asyncio.to_thread(nats.restart)
                await scene.time_to_run(client)
            await wait_until(as_before, 10, what=f"{before} consumers as before")
            await scene.settled()
            scene.assert_running()
