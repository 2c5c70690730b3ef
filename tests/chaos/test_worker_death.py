"""Workers that die: everything they held runs elsewhere, in time, and its effect is recorded once (P3, P4).

The ordinary run does each a few times with a short lease; ``pytest -m soak`` does the full counts with the defaults.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.app import effect, long_at_first
from tests.support.effects import percentile
from tests.support.scene import SHIPPED, SHORT, Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from jm_nats import JobClient
    from tests.support.processes import JmProcess

IN_TIME_S: Final = 2.0  # beyond the lease (P4)
LONG_S: Final = 3_000.0


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_killed_worker_costs_seconds(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await killed_one_of_three(scene, times=2, running=40, held=400)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_twenty_killed_workers_cost_seconds_each(nats_server, database, cluster_name, tmp_path) -> None:
    """200 running and 2,000 held jobs, defaults as shipped, 20 times."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHIPPED) as scene:
        await killed_one_of_three(scene, times=20, running=200, held=2_000)


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_all_workers_killed_and_new_ones_started(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await killed_all(scene, times=1, running=40, held=200)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_all_workers_killed_five_times(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHIPPED) as scene:
        await killed_all(scene, times=5, running=200, held=2_000)


class Fill:
    """What lies in one worker: ``running`` jobs, and ``held`` that wait for a slot or for their time."""

    def __init__(self, running: list[str], held: list[str]) -> None:
        self.running = running
        self.held = held

    @property
    def ids(self) -> list[str]:
        return self.running + self.held


async def filled(scene: Scene, client: JobClient, *, running: int, held: int) -> Fill:
    """Fill the only worker: jobs that end by themselves only at a second attempt take its slots; a quarter of the
    others waits for one (of which a worker that has shown nothing yet is given a thousand at most), the rest is due in
    half a lease.
    """
    long = [receipt.job_id for receipt in await client.submit_many([
        long_at_first.job({"seconds": LONG_S}) for _ in range(running)
    ])]  # fmt: skip
    await scene.wait_running(long)
    due_s = time.time() + scene.timing.lease_s / 2
    waiting = [effect.job({}) for _ in range(held // 4)]
    later = [effect.job({"due": due_s}, delay=scene.timing.lease_s / 2) for _ in range(held - len(waiting))]
    others = [receipt.job_id for receipt in await client.submit_many([*waiting, *later])]
    scene.accepted += long + others
    await wait_until(lambda: in_buckets(scene, others, held * 9 // 10), 30, what="most of the jobs are held")
    return Fill(long, others)


async def in_buckets(scene: Scene, ids: list[str], count: int) -> bool:
    query = "SELECT count(*) FROM job WHERE id = ANY($1::uuid[]) AND status IN (2, 3)"
    return bool(await scene.sql.value(query, ids) >= count)


async def killed_one_of_three(scene: Scene, *, times: int, running: int, held: int) -> None:
    recovered_s: list[float] = []
    await scene.start_coordinator().wait_ready()
    async with scene.client() as client:
        for _ in range(times):
            victim = await scene.start_worker("--slots", str(running)).wait_ready()
            fill = await filled(scene, client, running=running, held=held)
            others = [scene.start_worker("--slots", str(running)) for _ in range(2)]
            for other in others:
                await other.wait_ready()
            killed_s = time.time()
            victim.kill()
            recovered_s += await recovered(scene, fill, killed_s)
            await all_stopped(others)
    report("one of three workers killed", times, recovered_s, scene)
    await scene.settled(repeats=True, lost=True)


async def killed_all(scene: Scene, *, times: int, running: int, held: int) -> None:
    """Counted from the kill, too: new workers are there before the lease is over."""
    recovered_s: list[float] = []
    await scene.start_coordinator().wait_ready()
    async with scene.client() as client:
        for _ in range(times):
            victims = [await scene.start_worker("--slots", str(running)).wait_ready()]
            fill = await filled(scene, client, running=running, held=held)
            victims.append(await scene.start_worker("--slots", str(running)).wait_ready())
            killed_s = time.time()
            for victim in victims:
                victim.kill()
            others = [await scene.start_worker("--slots", str(running)).wait_ready() for _ in range(2)]
            recovered_s += await recovered(scene, fill, killed_s)
            await all_stopped(others)
    report("all workers killed", times, recovered_s, scene)
    await scene.settled(repeats=True, lost=True)


async def recovered(scene: Scene, fill: Fill, killed_s: float) -> list[float]:
    """Seconds from the kill (or the due time, if that was later) to each job's start elsewhere; all have ended then."""
    assert await scene.ended(fill.ids, timeout_s=scene.timing.lease_s + 60) == {"succeeded": len(fill.ids)}
    wanted, executions = set(fill.ids), scene.effects().executions()
    repeated = {job_id for job_id, times in scene.effects().repeated().items() if job_id in wanted}
    assert repeated == set(fill.running), "only what was running may have run twice, and it did"
    assert all(executions[job_id] == 1 for job_id in fill.held)
    starts = {run.job_id: run for run in scene.effects().runs if run.job_id in wanted and run.start_s > killed_s}
    assert starts.keys() >= set(fill.running)
    return [run.start_s - max(killed_s, run.due_s) for run in starts.values()]


async def all_stopped(workers: list[JmProcess]) -> None:
    assert await asyncio.gather(*[worker.stop() for worker in workers]) == [0] * len(workers)


def report(what: str, times: int, recovered_s: list[float], scene: Scene) -> None:
    limit_s = scene.timing.lease_s + IN_TIME_S
    print(  # noqa: T201 - a figure for docs/reliability.md
        f"{what}, {times} times, lease {scene.timing.lease_s:g} s: {len(recovered_s)} jobs ran elsewhere, "
        f"p50 {percentile(recovered_s, 0.5):.2f} s, p99 {percentile(recovered_s, 0.99):.2f} s, "
        f"longest {max(recovered_s):.2f} s after the kill (limit {limit_s:g} s)"
    )
    assert max(recovered_s) <= limit_s
