"""The leading coordinator dies, or freezes in the worst moment and wakes up again: one leads, and only one commits.

BR-038, BR-028: whoever was frozen past the lease learns at its next statement that its term is over.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from tests.support.app import effect
from tests.support.scene import SHIPPED, SHORT, Scene, Timing, becomes_leader
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jm_nats import JobClient
    from tests.support.processes import JmProcess

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

# The next one looks at the key every tenth of a lease, and then has its duties to start.
MARGIN_S: Final = 1.5
POINTS: Final = (
    "writer.after_read",
    "writer.before_commit",
    "writer.after_commit",
    "writer.after_publish",
    "assign.after_commit",
    "recorder.after_commit",
)
TIMINGS: Final = [
    pytest.param(SHORT, id="short"),
    pytest.param(SHIPPED, id="as shipped", marks=pytest.mark.soak),
]
# What the one that lost says, whichever of the two it finds out first.
STEPPED_DOWN: Final = ("leadership lost", "stepping down")


@asynccontextmanager
async def two_coordinators(scene: Scene, stop_at: str = "") -> AsyncIterator[tuple[JmProcess, JmProcess]]:
    """(leader, standby) and two workers. The leader freezes at the point ``stop_at``, once there is work."""
    leader = await scene.start_coordinator(env={"JM_TEST_STOP_AT": stop_at} if stop_at else None).wait_ready()
    standby = await scene.start_standby().wait_ready()
    for worker in (scene.start_worker(), scene.start_worker()):
        await worker.wait_ready()
    yield leader, standby


def makes_rounds(jobs: int = 5) -> list:
    """Half of them fail once: saved, recorded, assigned again."""
    return [effect.job({"fail": fail}) for fail in (False, True) for _ in range(jobs)]


async def submit_rounds(scene: Scene, client: JobClient) -> None:
    receipts = await client.submit_many(makes_rounds())
    scene.accepted += [receipt.job_id for receipt in receipts]


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to stop"])
async def test_the_standby_takes_over_within_the_lease_under_load(  # noqa: PLR0917 - fixtures
    how: signal.Signals, timing: Timing, nats_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, timing) as scene, scene.client() as client:
        async with two_coordinators(scene) as (leader, standby), scene.under_load(client) as work:
            await scene.start_long(client, 10, seconds=timing.lease_s)
            work.more()
            await scene.time_to_run(client)
            leader.signal(how)
            await leader.wait_exit()
            taken_s = await becomes_leader(standby, 3 * timing.lease_s)
            await scene.time_to_run(client)
        await scene.settled()
        print(f"{how.name}: taken over in {taken_s:.2f} s")  # noqa: T201
        # Who is told to stop resigns: then nobody waits for a lease.
        assert taken_s <= (timing.lease_s if how is signal.SIGKILL else 0) + MARGIN_S


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("point", POINTS)
async def test_a_leader_frozen_exactly_there_is_replaced_and_commits_nothing_afterwards(  # noqa: PLR0917 - fixtures
    point: str, timing: Timing, nats_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, timing) as scene, scene.client() as client:
        async with two_coordinators(scene, f"{point}:3") as (leader, standby):
            async with scene.under_load(client):
                await until_frozen(scene, client, leader)
                taken_s = await becomes_leader(standby, 3 * timing.lease_s)
                await scene.time_to_run(client)
                leader.resume()
                await wait_until(lambda: any(text in leader.log() for text in STEPPED_DOWN), what="it steps down")
                await scene.time_to_run(client)
                # It stands by again, and takes over when it is its turn: it is none the worse for its sleep.
                standby.kill()
                await wait_until(
                    lambda: leader.log().count(": leading") == 2, 3 * timing.lease_s, what="it leads again"
                )
                await scene.time_to_run(client)
            await scene.settled()
        print(f"{point}: taken over in {taken_s:.2f} s")  # noqa: T201
        assert taken_s <= timing.lease_s + MARGIN_S
        assert await scene.sql.value("SELECT term FROM leader") == 3, "a term for each time that somebody led"


async def until_frozen(scene: Scene, client: JobClient, leader: JmProcess) -> None:
    """Submit until the point is reached; some are reached only by jobs that come by the master."""

    async def frozen() -> bool:
        await submit_rounds(scene, client)
        return psutil.Process(leader.pid).status() == psutil.STATUS_STOPPED

    await wait_until(frozen, what="the leader freezes")


@pytest.mark.parametrize("freezes", [3, pytest.param(20, marks=pytest.mark.soak)])
async def test_leaders_that_freeze_in_turn_leave_one_that_leads(
    freezes: int, nats_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """At any moment, for longer than the lease; whoever leads then is the next to freeze."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path) as scene, scene.client() as client:
        async with two_coordinators(scene) as pair, scene.under_load(client):
            leads, stands_by = pair
            for _ in range(freezes):
                await submit_rounds(scene, client)
                before = stands_by.log().count(": leading")
                leads.pause()
                await wait_until(
                    lambda process=stands_by, n=before: process.log().count(": leading") > n,
                    3 * scene.timing.lease_s,
                    what="the other one leads",
                )
                leads.resume()
                leads, stands_by = stands_by, leads
                await scene.time_to_run(client)
        await scene.settled()
        scene.assert_running()


async def test_everything_frozen_at_once_goes_on_together(
    nats_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """BR-056, a laptop that slept: no process prunes itself or another, and no job runs twice."""
    async with Scene(nats_server.url, database, cluster_name, tmp_path) as scene, scene.client() as client:
        async with two_coordinators(scene), scene.under_load(client):
            await scene.start_long(client, 20, seconds=scene.timing.lease_s)
            for process in scene.processes.all:
                process.pause()
            await asyncio.sleep(2 * scene.timing.lease_s)  # the fault itself
            for process in scene.processes.all:
                process.resume()
            assert await scene.time_to_run(client) <= 30
            await asyncio.sleep(2 * scene.timing.lease_s)  # whoever would call somebody lost would do so now
        await scene.settled()
        scene.assert_running()
