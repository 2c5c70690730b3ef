"""The NATS store is deleted under a running cluster (P6): nothing that was recorded is lost, and nobody goes on as if
nothing had happened.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import pytest

from jm_nats.embedded import NatsServer
from tests.support.app import effect, long_at_first
from tests.support.scene import SHORT, Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.processes import JmProcess

REFUSES: Final = "not leading"
NATS_EXIT: Final = 3
PORT: Final = re.compile(r"health is served .*port=(\d+)")


def lose(nats: NatsServer) -> None:
    nats.kill()
    shutil.rmtree(nats.directory / "jetstream")
    nats.start()


def health_of(process: JmProcess) -> dict[str, Any] | None:
    """What its health port says, green or red; None before it is open."""
    found = PORT.search(process.log())
    if found is None:
        return None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/health", timeout=5) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as red:
        return json.load(red)
    except OSError:
        return None


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_a_deleted_store_is_refused_and_once_accepted_every_recorded_job_runs(
    postgres_server, database: str, cluster_name: str, tmp_path
) -> None:
    with NatsServer() as nats:
        async with Scene(nats.url, database, cluster_name, tmp_path, SHORT) as scene:
            coordinator = await scene.start_coordinator("--health-port", "0").wait_ready()
            worker = await scene.start_worker("--slots", "10").wait_ready()
            async with scene.client() as client:
                jobs = [long_at_first.job({"seconds": 600.0}) for _ in range(10)]
                jobs += [effect.job({}) for _ in range(100)]
                jobs += [effect.job({}, delay=8.0) for _ in range(100)]
                jobs += [effect.job({}, lane="nobody-serves-it-yet") for _ in range(50)]
                receipts = await asyncio.gather(*[client.submit(job, wait="recorded") for job in jobs])
                scene.accepted += [receipt.job_id for receipt in receipts]
                await scene.wait_for_counts(processing=10)
            await asyncio.to_thread(lose, nats)
            await coordinator.wait_for_log(REFUSES)
            await wait_until(lambda: is_said(coordinator), what="its health port says why")
            assert coordinator.running, "it looks again: the right store may come back"

            refused = scene.start_coordinator()
            assert await refused.wait_exit() == NATS_EXIT
            assert "--accept-agent-loss" in refused.log()
            assert await coordinator.stop() == 0

            began_s = time.monotonic()
            await scene.start_coordinator("--accept-agent-loss").wait_ready()
            await scene.start_worker("--lane", "default,nobody-serves-it-yet", "--slots", "50").wait_ready()
            await scene.settled(repeats=True, lost=True)
            print(f"{len(scene.accepted)} recorded jobs, lost 0, after {time.monotonic() - began_s:.1f} s")  # noqa: T201
            scene.assert_running(worker)
            repeated = set(scene.effects().repeated())
            assert repeated <= set(scene.accepted[:10]), "only what was running may have run twice"


def is_said(coordinator: JmProcess) -> bool:
    health = health_of(coordinator)
    if health is None:
        return False
    (group,) = health["groups"]
    return group["health"] != "healthy" and group["violations"].get("agent_store_changed", 0) > 0
