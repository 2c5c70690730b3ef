"""The network swallows everything, or one way, or is slow, between one of our processes and a server."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.pg_proxy import PostgresProxy
from tests.support.proxy import TO_SERVER, Proxy
from tests.support.scene import SHIPPED, SHORT, Scene, Timing, becomes_leader
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.processes import JmProcess

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

BOTH_WAYS: Final = ()
DIRECTIONS: Final = {"both ways": BOTH_WAYS, "to NATS only": (TO_SERVER,)}
COMMAND_TIMEOUT_S: Final = 3.0  # until a silent Postgres counts as away; 30 as shipped
AGAIN_S: Final = 10.0
DRAIN_S: Final = 2.0
ENDS_WITHIN_S: Final = 10.0  # 5 s, and as much again for a machine that does other things beside
# A connection that was held up is alive again afterwards, or NAT has forgotten it.
ENDS: Final = {"held up": False, "forgotten": True}


@asynccontextmanager
async def cut_off_worker(scene: Scene, nats_port: int) -> AsyncIterator[tuple[Proxy, JmProcess]]:
    """A coordinator, a worker, and one more whose only way to NATS is through the proxy."""
    async with Proxy(nats_port) as proxy:
        await scene.start(workers=1)
        behind = scene.start_worker(env={"JM_NATS_URL": f"nats://127.0.0.1:{proxy.port}"})
        yield proxy, await behind.wait_ready()


@pytest.mark.parametrize("cut", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("directions", DIRECTIONS.values(), ids=DIRECTIONS)
@pytest.mark.parametrize("timing", [SHORT, pytest.param(SHIPPED, marks=pytest.mark.soak)], ids=["short", "shipped"])
async def test_a_worker_cut_off_for_less_than_its_lease_goes_on_as_if_nothing_was(  # noqa: PLR0917 - fixtures
    timing: Timing,
    directions: tuple[str, ...],
    cut: bool,
    nats_server,
    database: str,
    cluster_name: str,
    tmp_path: Path,
) -> None:
    """Its last beat is up to one heartbeat old when the hole opens, so half a lease is what it surely survives."""
    async with (
        Scene(nats_server.url, database, cluster_name, tmp_path, timing) as scene,
        scene.client() as client,
        cut_off_worker(scene, nats_server.port) as (proxy, _),
    ):
        async with scene.under_load(client):
            await scene.start_long(client, 20, seconds=timing.lease_s)
            proxy.black_hole(*directions)
            await asyncio.sleep(timing.lease_s / 2)  # the fault itself
            await proxy.restore(cut=cut)
            assert await scene.time_to_run(client) <= AGAIN_S
            await asyncio.sleep(1.5 * timing.lease_s)  # whoever would call it lost would do so now
        await scene.settled()
        scene.assert_running()


@pytest.mark.parametrize("cut", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("directions", DIRECTIONS.values(), ids=DIRECTIONS)
@pytest.mark.parametrize("timing", [SHORT, pytest.param(SHIPPED, marks=pytest.mark.soak)], ids=["short", "shipped"])
async def test_a_worker_cut_off_for_longer_than_its_lease_is_replaced_and_its_outcomes_count_no_more(  # noqa: PLR0917
    timing: Timing,
    directions: tuple[str, ...],
    cut: bool,
    nats_server,
    database: str,
    cluster_name: str,
    tmp_path: Path,
) -> None:
    """BR-019: the survivor runs its jobs; the older copy may go on, and what it says changes nothing."""
    async with (
        Scene(nats_server.url, database, cluster_name, tmp_path, timing) as scene,
        scene.client() as client,
        cut_off_worker(scene, nats_server.port) as (proxy, behind),
    ):
        # A stock of jobs beside the long ones, so that the one cut off holds some that have not started.
        await scene.start_long(client, 40, seconds=2.5 * timing.lease_s)
        proxy.black_hole(*directions)
        await wait_until(lambda: scene.tombstones("lost"), 5 * timing.lease_s + 5, what="its buckets are lost")
        await scene.wait_rerun()
        await proxy.restore(cut=cut)
        effects = await scene.settled(repeats=True, lost=True)
        scene.assert_running()
        assert max(effects.executions().values()) == 2
        # It serves again, under buckets of its own.
        await scene.stays_useful(client, behind)


@pytest.mark.parametrize("cut", ENDS.values(), ids=ENDS)
async def test_a_leader_cut_off_from_nats_is_replaced_and_steps_down_by_itself(
    cut: bool, nats_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    async with Proxy(nats_server.port) as proxy, Scene(nats_server.url, database, cluster_name, tmp_path) as scene:
        behind = {"JM_NATS_URL": f"nats://127.0.0.1:{proxy.port}"}
        leader = await scene.start_coordinator(env=behind).wait_ready()
        standby = await scene.start_standby().wait_ready()
        for worker in (scene.start_worker(), scene.start_worker()):
            await worker.wait_ready()
        async with scene.client() as client:
            async with scene.under_load(client):
                await scene.time_to_run(client)
                proxy.black_hole()
                taken_s = await becomes_leader(standby, 3 * scene.timing.lease_s)
                await leader.wait_for_log("leadership lost")
                await scene.time_to_run(client)
                await proxy.restore(cut=cut)
                await scene.time_to_run(client)
                await asyncio.sleep(2 * scene.timing.lease_s)  # two that lead would show by now
            effects = await scene.settled()
        scene.assert_running()
        assert leader.log().count(": leading") == 1
        assert taken_s <= scene.timing.lease_s + 1.5
        # The one that was cut off takes nothing from its successor, also when it comes back in the middle of its end.
        assert max(effects.delays_s()) <= AGAIN_S


@pytest.mark.parametrize("cut", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize(
    ("away_s", "command_timeout_s"),
    [
        pytest.param(1.0, COMMAND_TIMEOUT_S, id="briefly"),
        pytest.param(2 * COMMAND_TIMEOUT_S, COMMAND_TIMEOUT_S, id="until it counts as away"),
        pytest.param(60.0, 30.0, id="60 s as shipped", marks=pytest.mark.soak),
    ],
)
async def test_a_coordinator_cut_off_from_postgres_goes_on_where_it_was(  # noqa: PLR0917 - fixtures
    away_s: float,
    command_timeout_s: float,
    cut: bool,
    nats_server,
    postgres_server,
    database: str,
    cluster_name: str,
    tmp_path: Path,
) -> None:
    """BR-137, BR-160: a silent connection is noticed; the statements under way may or may not have been carried out."""
    async with (
        PostgresProxy(postgres_server.port) as proxy,
        Scene(nats_server.url, database, cluster_name, tmp_path) as scene,
    ):
        scene.processes.env["JM_POSTGRES_DSN"] = proxy.dsn(scene.processes.env["JM_POSTGRES_DSN"])
        scene.processes.env["JM_POSTGRES_COMMAND_TIMEOUT_S"] = f"{command_timeout_s:g}"
        await scene.start(workers=2)
        async with scene.client() as client:
            async with scene.under_load(client):
                await scene.time_to_run(client)
                proxy.black_hole()
                await asyncio.sleep(away_s)  # the fault itself
                await proxy.restore(cut=cut)
                assert await scene.time_to_run(client, timeout_s=60) <= AGAIN_S
            await scene.settled()
        scene.assert_running()


async def test_slow_networks_cost_time_and_nothing_else(
    nats_server, postgres_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """BR-060 in small: every packet takes a twentieth of a lease longer, each way, to both servers."""
    async with (
        PostgresProxy(postgres_server.port) as slow_postgres,
        Proxy(nats_server.port) as slow_nats,
        Scene(nats_server.url, database, cluster_name, tmp_path) as scene,
    ):
        env = scene.processes.env
        env["JM_POSTGRES_DSN"] = slow_postgres.dsn(env["JM_POSTGRES_DSN"])
        env["JM_NATS_URL"] = f"nats://127.0.0.1:{slow_nats.port}"
        await scene.start(workers=2)
        async with scene.client() as client:
            async with scene.under_load(client):
                for proxy in (slow_nats, slow_postgres):
                    proxy.delay(scene.timing.lease_s / 20)
                for _ in range(3):
                    await scene.time_to_run(client)
                await asyncio.sleep(2 * scene.timing.lease_s)  # the fault itself
                for proxy in (slow_nats, slow_postgres):
                    await proxy.restore()
            await scene.settled()
        scene.assert_running()


async def test_a_worker_whose_connections_are_broken_all_the_time_keeps_its_jobs(
    nats_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """Ten resets, one after the other: what was on its way is sent again, and recognised."""
    async with (
        Scene(nats_server.url, database, cluster_name, tmp_path) as scene,
        scene.client() as client,
        cut_off_worker(scene, nats_server.port) as (proxy, _),
    ):
        async with scene.under_load(client) as work:
            for _ in range(10):
                work.more(50)
                await scene.time_to_run(client)
                proxy.cut()
        await scene.settled()
        scene.assert_running()


@pytest.mark.parametrize("server", ["nats", "postgres", "both"])
async def test_a_process_in_a_black_hole_ends_at_its_signal_all_the_same(  # noqa: PLR0917 - fixtures
    server: str, nats_server, postgres_server, database: str, cluster_name: str, tmp_path: Path
) -> None:
    """BR-137: nothing answers and nothing fails; a supervisor's SIGTERM is enough, and no job is lost."""
    async with (
        PostgresProxy(postgres_server.port) as postgres,
        Proxy(nats_server.port) as nats,
        Scene(nats_server.url, database, cluster_name, tmp_path) as scene,
        scene.client() as client,
    ):
        direct = dict(scene.processes.env)
        behind = {
            "JM_POSTGRES_DSN": postgres.dsn(direct["JM_POSTGRES_DSN"]),
            "JM_NATS_URL": f"nats://127.0.0.1:{nats.port}",
            "JM_WORKER_DRAIN_TIMEOUT_S": f"{DRAIN_S:g}",
        }
        coordinator = await scene.start_coordinator(env=behind).wait_ready()
        worker = await scene.start_worker(env=behind).wait_ready()
        await scene.start_long(client, 10, seconds=30)
        for proxy in {"nats": [nats], "postgres": [postgres], "both": [nats, postgres]}[server]:
            proxy.black_hole()
        began = time.monotonic()
        for process in (coordinator, worker):
            process.signal(signal.SIGTERM)
        for process in (coordinator, worker):
            await process.wait_exit(DRAIN_S + ENDS_WITHIN_S)
        print(f"ended after {time.monotonic() - began:.1f} s")  # noqa: T201
        for _ in range(2):
            await scene.start_worker().wait_ready()
        await scene.start_coordinator().wait_ready()
        await scene.settled(repeats=True, lost=True, timeout_s=120)
