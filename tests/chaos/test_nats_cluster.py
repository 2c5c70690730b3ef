"""An R3 JetStream cluster whose leaders change all the time: 409s, elections, a node that dies (BR-140, BR-009)."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from jm_nats.subjects import Names
from tests.support.app import effect
from tests.support.nats_cluster import NatsCluster
from tests.support.scene import SHIPPED, Scene, Timing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.effects import Effects

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

PAUSE_MAX_S: Final = 10.0
# After a hard death the followers wait 4 to 9 s before they elect; the leader's own key may be among what waits.
DEATH_PAUSE_MAX_S: Final = 30.0
R3: Final = {"JM_NATS_REPLICAS": "3"}
# An election of three busy processes on a small machine takes a second; a lease has to be longer than that.
TIMING: Final = Timing(6.0, 0.5)
ONE_LANE: Final = ("--lane", "default", "--priority", "medium")  # few buckets: each is three replicas of a stream


@pytest.fixture
async def cluster() -> AsyncIterator[NatsCluster]:
    async with NatsCluster() as cluster:
        yield cluster


async def start(scene: Scene) -> None:
    """The coordinator alone makes the cluster's streams, with its own number of replicas."""
    await scene.start(workers=2, worker_options=ONE_LANE)


@pytest.mark.parametrize(
    ("for_s", "every_s"),
    [(15.0, 0.5), pytest.param(300.0, 5.0, marks=[pytest.mark.soak, pytest.mark.timeout(600)])],
)
async def test_leaders_that_step_down_all_the_time_make_no_pause(  # noqa: PLR0917 - fixtures
    for_s: float, every_s: float, cluster: NatsCluster, database: str, cluster_name: str, tmp_path: Path
) -> None:
    async with Scene(cluster.url, database, cluster_name, tmp_path, TIMING, **R3) as scene, scene.client() as client:
        await start(scene)
        names = Names(cluster_name)
        streams = await cluster.streams(f"JM_{cluster_name}_")
        kvs = [f"KV_{kv}" for kv in (names.workers_kv, names.buckets_kv, names.cluster_kv)]
        for stream in (*streams, *kvs):
            info = await cluster.ask(f"STREAM.INFO.{stream}")
            assert info["config"]["num_replicas"] == 3, stream
        changes = 0
        async with scene.under_load(client):
            await scene.time_to_run(client)
            until = time.monotonic() + for_s
            targets = itertools.cycle([*streams, *kvs])
            while time.monotonic() < until:
                stream = next(targets)
                changes += await cluster.step_down(stream)
                for consumer in await cluster.consumers(stream):
                    if not consumer.startswith("w_"):  # a watcher's own: it has no leader to step down
                        changes += await cluster.step_down(stream, consumer)
                await asyncio.sleep(every_s)
            await cluster.step_down_meta()
            await scene.time_to_run(client)
        effects = await scene.settled()
        scene.assert_running()
        print(f"{changes} leaders changed, the longest pause {longest_pause_s(effects):.2f} s")  # noqa: T201
        assert changes >= 10
        assert longest_pause_s(effects) <= PAUSE_MAX_S


@pytest.mark.parametrize("kills", [1, pytest.param(9, marks=pytest.mark.soak)])
async def test_a_node_that_dies_and_comes_back_costs_a_short_pause(
    kills: int, cluster: NatsCluster, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """Each in turn, the leader of most things among them; what was acknowledged is on two others."""
    async with Scene(cluster.url, database, cluster_name, tmp_path, SHIPPED, **R3) as scene, scene.client() as client:
        await start(scene)
        async with scene.under_load(client):
            for kill in range(kills):
                await scene.time_to_run(client)
                await cluster.kill(kill % len(cluster.nodes))
                assert await scene.time_to_run(client) <= DEATH_PAUSE_MAX_S
                await cluster.restart(kill % len(cluster.nodes))
                for stream in await cluster.streams(f"JM_{cluster_name}_"):
                    await cluster.wait_current(stream)
        effects = await scene.settled()
        scene.assert_running()
        print(f"the longest pause {longest_pause_s(effects):.2f} s")  # noqa: T201
        assert longest_pause_s(effects) <= DEATH_PAUSE_MAX_S


ELECTION_LATE_MAX_S: Final = 5.0


async def test_messages_scheduled_in_a_cluster_that_loses_a_node_all_come_on_time(
    cluster: NatsCluster, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """BR-009: four jobs, the nearest one asked for last, on a replicated work queue; none hides another."""
    async with Scene(cluster.url, database, cluster_name, tmp_path, TIMING, **R3) as scene, scene.client() as client:
        await start(scene)
        due_s = [time.time() + delay_s for delay_s in (12, 16, 20, 9)]
        for at in due_s:
            job = effect.job({"due": at}, run_at=datetime.fromtimestamp(at, UTC))
            scene.accepted.append((await client.submit(job, wait="recorded")).job_id)
        await cluster.kill(0)
        await cluster.restart(0)
        effects = await scene.settled()
        late_s = [run.late_s for run in effects.runs]
        assert len(late_s) == len(due_s)
        assert min(late_s) >= 0
        print(f"late by {max(late_s):.2f} s at most")  # noqa: T201
        # BR-009 allows a second. That is what a whole cluster keeps; one that elects new leaders meanwhile hands what
        # it had scheduled over up to three seconds late (seen: 1.5 s beyond the lead that we give it).
        assert max(late_s) <= ELECTION_LATE_MAX_S


def longest_pause_s(effects: Effects) -> float:
    """Between two starts, while somebody submitted all the time; the end of the scenario is no pause."""
    starts = sorted(run.start_s for run in effects.runs)
    return max(later - earlier for earlier, later in itertools.pairwise(starts))
