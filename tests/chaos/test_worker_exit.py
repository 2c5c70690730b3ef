"""Workers that are told to go: nothing is lost, no attempt is spent, and what they held starts elsewhere at once."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Final

import pytest

from jm_cli.serving import ECHO_S
from tests.support.app import effect, long_at_first, noop, process_sleeper, swallows_cancellation
from tests.support.effects import percentile
from tests.support.scene import SHIPPED, SHORT, Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from jm_nats import JobClient

ELSEWHERE_S: Final = 1.0
EXIT_S: Final = 1.0  # beyond the drain timeout
HURRY_S: Final = 3.0
INTERRUPTED: Final = 130
LOUD: Final = re.compile(r"^.* (?:WARNING|ERROR|CRITICAL) .*$", re.MULTILINE)
DRAINS: Final = "worker drains"
WORKERS: Final = 5
RATE_PER_S: Final = 200


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_stopped_worker_loses_nothing(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await stopped_under_load(scene, times=2, running=20, held=200, drain_s=2.0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_twenty_stopped_workers_lose_nothing(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHIPPED) as scene:
        await stopped_under_load(scene, times=20, running=100, held=1_000, drain_s=5.0)


async def stopped_under_load(scene: Scene, *, times: int, running: int, held: int, drain_s: float) -> None:
    """A worker is full of jobs that outlive its drain timeout and of jobs that wait behind them; it is told to go."""
    exits_s: list[float] = []
    elsewhere_s: list[float] = []
    await scene.start_coordinator().wait_ready()
    async with scene.client() as client:
        for _ in range(times):
            options = ("--slots", str(running), "--drain-timeout", f"{drain_s:g}")
            victim = await scene.start_worker(*options).wait_ready()
            long, waiting = await full(scene, client, running=running, held=held)
            other = await scene.start_worker(*options).wait_ready()
            asked_s = time.time()
            assert await victim.stop() == 0
            exits_s.append(time.time() - asked_s)
            ids = long + waiting
            assert await scene.ended(ids) == {"succeeded": len(ids)}
            elsewhere_s += [start - asked_s for start in await starts_of(scene, waiting, asked_s)]
            after_s = [start - asked_s - drain_s for start in await starts_of(scene, long, asked_s)]
            assert len(after_s) == running, "each was interrupted, and started again"
            assert max(after_s) <= EXIT_S + ELSEWHERE_S
            await no_attempt_spent(scene, ids)
            assert await other.stop() == 0
    print(  # noqa: T201 - figures for docs/reliability.md
        f"{times} stopped workers with {running} running and {held} held jobs, drain timeout {drain_s:g} s: exit after "
        f"{min(exits_s):.2f} to {max(exits_s):.2f} s; held jobs started "
        f"elsewhere p50 {percentile(elsewhere_s, 0.5):.2f} s, longest {max(elsewhere_s):.2f} s after the signal"
    )
    assert max(exits_s) <= drain_s + EXIT_S
    assert max(elsewhere_s) <= ELSEWHERE_S
    await scene.settled(repeats=True)


async def full(scene: Scene, client: JobClient, *, running: int, held: int) -> tuple[list[str], list[str]]:
    long = await accepted(scene, client, [long_at_first.job({"seconds": 600.0}) for _ in range(running)])
    await scene.wait_running(long)
    waiting = await accepted(scene, client, [effect.job({}) for _ in range(held)])
    query = "SELECT count(*) FROM job WHERE id = ANY($1::uuid[]) AND status = 2"

    async def most_are_held() -> bool:
        return bool(await scene.sql.value(query, waiting) >= held * 8 // 10)

    await wait_until(most_are_held, what="most of the jobs are held")
    return long, waiting


async def accepted(scene: Scene, client: JobClient, jobs) -> list[str]:
    ids = [receipt.job_id for receipt in await client.submit_many(jobs)]
    scene.accepted += ids
    return ids


async def starts_of(scene: Scene, ids: list[str], after_s: float) -> list[float]:
    wanted = set(ids)
    return [run.start_s for run in scene.effects().runs if run.job_id in wanted and run.start_s > after_s]


async def no_attempt_spent(scene: Scene, ids: list[str]) -> None:
    spent = await scene.sql.value("SELECT count(*) FROM job WHERE id = ANY($1::uuid[]) AND attempt - excused > 1", ids)
    lost = await scene.sql.value("SELECT count(*) FROM job WHERE id = ANY($1::uuid[]) AND losses > 0", ids)
    assert (spent, lost) == (0, 0)


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_rolling_restart_under_load_loses_nothing(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await rolled(scene, rounds=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_rolling_restarts_under_load_lose_nothing(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHIPPED) as scene:
        await rolled(scene, rounds=10)


async def rolled(scene: Scene, *, rounds: int) -> None:
    """Five workers, one after the other, at 200 jobs a second of 50 ms each."""
    await scene.start_coordinator().wait_ready()
    workers = [await scene.start_worker().wait_ready() for _ in range(WORKERS)]
    enough = asyncio.Event()
    async with scene.client() as client:
        submitting = asyncio.create_task(steadily(scene, client, enough))
        try:
            for _ in range(rounds):
                for place in range(WORKERS):
                    assert await workers[place].stop() == 0
                    workers[place] = await scene.start_worker().wait_ready()
        finally:
            enough.set()
            await submitting
    effects = await scene.settled()
    await no_attempt_spent(scene, scene.accepted)
    delays_s = effects.delays_s()
    print(  # noqa: T201 - figures for docs/reliability.md
        f"{rounds} rolling restarts of {WORKERS} workers under {len(scene.accepted)} jobs: delay p50 "
        f"{percentile(delays_s, 0.5):.3f} s, p99 {percentile(delays_s, 0.99):.3f} s, longest {max(delays_s):.2f} s"
    )


async def steadily(scene: Scene, client: JobClient, enough: asyncio.Event) -> None:
    batch, began = 20, time.monotonic()
    sent = 0
    while not enough.is_set():
        await accepted(scene, client, [effect.job({"seconds": 0.05}) for _ in range(batch)])
        sent += batch
        await asyncio.sleep(max(0.0, began + sent / RATE_PER_S - time.monotonic()))


@pytest.mark.chaos
async def test_a_second_signal_hurries_it(nats_server, database, cluster_name, tmp_path) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await scene.start_coordinator().wait_ready()
        worker = await scene.start_worker("--drain-timeout", "600").wait_ready()
        async with scene.client() as client:
            ids = await accepted(scene, client, [long_at_first.job({"seconds": 600.0}) for _ in range(5)])
            await scene.wait_running(ids)
            worker.signal(signal.SIGTERM)
            await worker.wait_for_log(DRAINS)
            await asyncio.sleep(ECHO_S)  # sooner it would be taken for an echo of the first
            hurried_s = time.monotonic()
            worker.signal(signal.SIGTERM)
            assert await worker.wait_exit() == INTERRUPTED
            assert time.monotonic() - hurried_s <= HURRY_S
            await scene.start_worker().wait_ready()
            await scene.settled(repeats=True)
            await no_attempt_spent(scene, ids)


@pytest.mark.chaos
async def test_an_init_that_signals_the_group_twice_lets_jobs_end_in_processes_too(
    nats_server, database, cluster_name, tmp_path
) -> None:
    """BR-132: to the worker and to the child that runs the job, and once more 50 ms later."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await scene.start_coordinator().wait_ready()
        worker = await scene.start_worker().wait_ready()
        async with scene.client() as client:
            ids = await accepted(scene, client, [process_sleeper.job({"seconds": 2.0})])
            await scene.wait_for_counts(processing=1)
            os.killpg(worker.pid, signal.SIGTERM)
            await asyncio.sleep(0.05)
            os.killpg(worker.pid, signal.SIGTERM)
            assert await worker.wait_exit() == 0, worker.log_tail()
            assert await scene.ended(ids) == {"succeeded": 1}
            await no_attempt_spent(scene, ids)
            assert await scene.sql.value("SELECT attempt FROM job") == 1, "it was not interrupted"
            await scene.assert_oracles(ids)


@pytest.mark.chaos
async def test_ten_thousand_short_jobs_are_no_reason_for_a_warning(
    nats_server, database, cluster_name, tmp_path
) -> None:
    """BR-058: normal races are not worth anybody's attention."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHIPPED) as scene:
        await scene.start_coordinator().wait_ready()
        workers = [await scene.start_worker().wait_ready() for _ in range(2)]
        async with scene.client() as client:
            ids = await accepted(scene, client, [noop.job({}) for _ in range(10_000)])
            assert await scene.ended(ids, timeout_s=60) == {"succeeded": 10_000}
        assert [await worker.stop() for worker in workers] == [0, 0]
        loud = [line for process in scene.processes.all for line in LOUD.findall(process.log())]
        assert loud == [], "also being told to stop is a normal thing"


@pytest.mark.chaos
async def test_a_handler_that_swallows_its_cancellation_is_named_and_holds_nobody_up(
    nats_server, database, cluster_name, tmp_path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, SHORT) as scene:
        await scene.start_coordinator().wait_ready()
        worker = await scene.start_worker("--drain-timeout", "1").wait_ready()
        async with scene.client() as client:
            (stubborn,) = await accepted(scene, client, [swallows_cancellation.job({})])
            await scene.wait_running([stubborn])
            asked_s = time.monotonic()
            assert await worker.stop() == 0
            assert time.monotonic() - asked_s <= 1.0 + EXIT_S
            (line,) = [line for line in worker.log().splitlines() if "handlers ignore cancellation" in line]
            assert f"swallows_cancellation {stubborn}" in line
            await scene.start_worker().wait_ready()
            assert await scene.ended([stubborn]) == {"succeeded": 1}
            await scene.assert_oracles([stubborn])
            await no_attempt_spent(scene, [stubborn])
