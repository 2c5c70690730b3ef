"""Children of ``jm worker --processes`` that are killed: what they held runs again long before their lease is over, and
nothing of theirs runs beside it. The lease is ten minutes here: whoever waited for it would fail.
"""

from __future__ import annotations

import os
import signal
from typing import Final

import pytest

from tests.support import family_app
from tests.support.app import effect, long_at_first
from tests.support.family_app import in_a_thread, in_the_pool
from tests.support.processes import WORKER_READY
from tests.support.scene import Scene, Timing
from tests.support.waiting import wait_until

PATIENT: Final = Timing(lease_s=600.0, heartbeat_s=2.0)
SLOTS: Final = 20
FAMILY_APP: Final = "tests.support.family_app:jm"


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_what_a_killed_child_held_runs_again_without_its_lease(
    nats_server, database, cluster_name, tmp_path
) -> None:
    async with Scene(nats_server.url, database, cluster_name, tmp_path, PATIENT) as scene:
        await scene.start_coordinator().wait_ready()
        supervisor = scene.start_worker("--processes", "3", "--slots", str(SLOTS))
        await all_ready(supervisor, 3)
        async with scene.client() as client:
            made = [long_at_first.job({"seconds": PATIENT.lease_s}) for _ in range(SLOTS)]
            made += [effect.job({}, delay=3.0) for _ in range(2 * SLOTS)]
            ids = [receipt.job_id for receipt in await client.submit_many(made)]
        scene.accepted += ids
        await scene.wait_running(ids[:SLOTS])
        ran_by: dict[int, list[str]] = {}
        for run in scene.effects().running():
            ran_by.setdefault(run.pid, []).append(run.job_id)
        for kills, (pid, theirs) in enumerate(ran_by.items(), start=1):  # in turn: there is always a survivor
            os.kill(pid, signal.SIGKILL)
            await scene.ended(theirs, timeout_s=60)
            await all_ready(supervisor, 3 + kills)
        assert len(await scene.tombstones("lost")) >= len(ran_by), "their buckets were declared lost"
        await scene.settled(repeats=True, lost=True)


async def all_ready(supervisor, count: int) -> None:
    await wait_until(
        lambda: supervisor.log().count(WORKER_READY) >= count, what=f"{count} are ready", shown=supervisor.log_tail
    )


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("handler", [in_the_pool, in_a_thread], ids=["pool", "thread"])
async def test_nothing_of_a_killed_child_runs_beside_the_next_attempt(
    nats_server, database, cluster_name, tmp_path, handler
) -> None:
    """Neither the handler, in a process of its own and exclusive, nor what it has started."""
    note = tmp_path / "family"
    async with Scene(nats_server.url, database, cluster_name, tmp_path, PATIENT) as scene:
        await scene.start_coordinator().wait_ready()
        supervisor = scene.start_worker("--processes", "2", app=FAMILY_APP)
        await all_ready(supervisor, 2)
        async with scene.client() as client:
            receipt = await client.submit(handler.job({"note": str(note)}))
            await wait_until(note.exists, what="the handler has started its process")
            first, helper = map(int, note.read_text().split())
            assert family_app.runs(first)
            assert family_app.runs(helper)
            os.kill(await worker_of(scene, receipt.job_id), signal.SIGKILL)
            assert await scene.ended([receipt.job_id], timeout_s=60) == {"succeeded": 1}
            assert await client.result(receipt.job_id) == [], "of the first attempt these still ran"


async def worker_of(scene: Scene, job_id: str) -> int:
    """The pid of the child that runs it: its made-up name says it (host-pid-random)."""

    async def runs() -> str:
        return await scene.sql.value("SELECT worker_id FROM job WHERE id = $1::uuid AND status = 3", job_id) or ""

    name = await wait_until(runs, what="the start is recorded")
    return int(name.rsplit("-", 2)[1])
