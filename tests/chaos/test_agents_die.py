"""Two agents under one master, and everything of one of them is killed at once: its NATS, coordinator and worker.

The other one's jobs go on meanwhile. What the dead one held waits for it, or runs on the other once somebody has said
that it will not come back.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from jm_nats.embedded import NatsServer
from tests.support import oracles
from tests.support.app import effect, long_at_first
from tests.support.cli import jm
from tests.support.effects import unfounded
from tests.support.scene import SHORT, Scene
from tests.support.streams import messages_left
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.processes import JmProcess

LONG: Final = 10  # of the dead agent's jobs, these ran when it died
SHORT_JOBS: Final = 200
LATER: Final = 50
LIVE_S: Final = 25.0  # jm_master.agents.LIVE_S and more


@asynccontextmanager
async def two_agents(
    main_nats: NatsServer, east_nats: NatsServer, dsn: str, name: str, folder: Path
) -> AsyncIterator[tuple[Scene, Scene]]:
    """Scenes of one cluster: they share the database and the file of effects."""
    async with (
        Scene(main_nats.url, dsn, name, folder, SHORT) as main,
        Scene(east_nats.url, dsn, name, folder, SHORT, JM_AGENT="east") as east,
    ):
        for scene in (main, east):
            await scene.start_coordinator().wait_ready()
        yield main, east


async def load_east(main: Scene, east: Scene) -> list[str]:
    """Recorded jobs of which some run at east, some wait there for a slot, some are due there later."""
    async with east.client() as client:
        jobs = [long_at_first.job({"seconds": 600.0}, lane="mail") for _ in range(LONG)]
        jobs += [effect.job({}, lane="mail") for _ in range(SHORT_JOBS)]
        jobs += [effect.job({}, lane="mail", delay=20.0) for _ in range(LATER)]
        receipts = await asyncio.gather(*[client.submit(job, wait="recorded") for job in jobs])
    ids = [receipt.job_id for receipt in receipts]
    await main.wait_running(ids[:LONG])
    return ids


async def kill_all_of(east: Scene, nats: NatsServer) -> None:
    for process in east.processes.all:
        process.kill()
    await asyncio.to_thread(nats.kill)


async def main_goes_on(main: Scene) -> list[str]:
    """New jobs are recorded, run and end there."""
    async with main.client() as client:
        receipts = await client.submit_many([effect.job({}) for _ in range(SHORT_JOBS)], wait="recorded")
    ids = [receipt.job_id for receipt in receipts]
    assert await main.ended(ids, timeout_s=30) == {"succeeded": SHORT_JOBS}
    return ids


async def everything_ran_once(main: Scene, ids: list[str], *, may_repeat: set[str]) -> None:
    assert await main.ended(ids, timeout_s=90) == {"succeeded": len(ids)}
    effects = main.effects()
    assert await unfounded(main.sql, effects, ids) == [], "O5: successes that no run explains"
    assert set(effects.repeated()) <= may_repeat, "only what ran when it died may have run twice"
    assert await oracles.missing(main.sql, ids) == []
    for rule, query in oracles._RULES.items():
        assert await main.sql.rows(query, 4) == [], rule


@pytest.mark.chaos
@pytest.mark.timeout(240)
async def test_the_other_agent_goes_on_and_takes_over_once_the_dead_one_is_given_up(
    nats_server: NatsServer, database: str, cluster_name: str, tmp_path: Path
) -> None:
    with NatsServer() as east_nats:
        async with two_agents(nats_server, east_nats, database, cluster_name, tmp_path) as (main, east):
            await east.start_worker("--slots", str(LONG), "--lane", "mail").wait_ready()
            await main.start_worker("--slots", "50").wait_ready()
            ids = await load_east(main, east)
            before = await main_goes_on(main)
            await kill_all_of(east, east_nats)
            after = await main_goes_on(main)
            assert await main.sql.value("SELECT count(*) FROM job WHERE bucket_id LIKE 'east/%' AND status < 4") > LONG

            await main.start_worker("--slots", "50", "--lane", "mail").wait_ready()
            text = await given_up(main)
            assert "agent east given up" in text
            await everything_ran_once(main, [*ids, *before, *after], may_repeat=set(ids[:LONG]))
            held = await main.sql.value("SELECT count(*) FROM attempt WHERE error LIKE '%given up%'")
            assert held >= LONG, "what ran is recorded as interrupted, and cost no attempt"
            assert await main.sql.value("SELECT max(attempt - excused) FROM job") == 1


async def given_up(scene: Scene) -> str:
    """``jm cluster give-up-agent``, once its leader has been silent for long enough."""
    variables = {"JM_NATS_URL": scene.nats_url, "JM_CLUSTER": scene.name}
    command = ("cluster", "give-up-agent", "east", "--yes", "--by", "test")

    async def try_it() -> str:
        done = await asyncio.to_thread(jm, *command, **variables)
        return done.stdout if done.returncode == 0 else ""

    return str(await wait_until(try_it, LIVE_S, what="east given up"))


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("store", ["kept", "lost"])
async def test_an_agent_that_comes_back_finishes_what_it_had(
    nats_server: NatsServer, database: str, cluster_name: str, tmp_path: Path, store: str
) -> None:
    """With its store as it was; or with an empty one, by --accept-agent-loss."""
    with NatsServer() as east_nats:
        async with two_agents(nats_server, east_nats, database, cluster_name, tmp_path) as (main, east):
            await east.start_worker("--slots", str(LONG), "--lane", "mail").wait_ready()
            await main.start_worker("--slots", "50").wait_ready()
            ids = await load_east(main, east)
            await kill_all_of(east, east_nats)
            after = await main_goes_on(main)
            if store == "lost":
                await asyncio.to_thread(shutil.rmtree, east_nats.directory / "jetstream")
            await asyncio.to_thread(east_nats.start)
            options = ["--accept-agent-loss"] if store == "lost" else []
            back: JmProcess = east.start_coordinator(*options)
            await back.wait_ready()
            await east.start_worker("--slots", "50", "--lane", "mail").wait_ready()
            await everything_ran_once(main, [*ids, *after], may_repeat=set(ids[:LONG]))
            assert main.trouble() == {}, "the other agent has noticed nothing"
            await wait_until(lambda: nothing_left(east), 60, what="east's streams empty")


async def nothing_left(scene: Scene) -> bool:
    return not await messages_left(scene.nats_url, scene.name)
