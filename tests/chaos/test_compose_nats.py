"""The NATS nodes of compose.yaml, with their own configuration, under a coordinator, workers and jobs."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from jm_nats.config import NatsConfig, parse_servers
from jm_nats.connection import connect
from jm_nats.errors import AgentError
from tests.support import compose_file
from tests.support.compose_file import PASSWORD, USER, ComposeNats
from tests.support.scene import SHIPPED, Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.fixture
async def nats_nodes() -> AsyncIterator[ComposeNats]:
    async with ComposeNats() as nodes:
        yield nodes


async def test_the_compose_files_nats_keeps_three_synced_copies_and_outlives_a_node(
    nats_nodes: ComposeNats, database: str, cluster_name: str, tmp_path: Path
) -> None:
    replicas = compose_file.load()["services"]["coordinator"]["environment"]["JM_NATS_REPLICAS"]
    settings = {"JM_NATS_REPLICAS": replicas}
    async with (
        Scene(nats_nodes.url, database, cluster_name, tmp_path, SHIPPED, **settings) as scene,
        scene.client() as client,
    ):
        await scene.start(workers=2, worker_options=("--lane", "default", "--priority", "medium"))
        for node in nats_nodes.nodes:
            assert (await monitored(node.monitoring_url, "jsz?config=true"))["config"]["sync_always"] is True
        async with scene.under_load(client):
            await scene.time_to_run(client)
            streams = await nats_nodes.streams(f"JM_{cluster_name}_")
            assert len(streams) > 2  # the front door, the events, and buckets
            for stream in streams:
                assert (await nats_nodes.ask(f"STREAM.INFO.{stream}"))["config"]["num_replicas"] == 3, stream
            await nats_nodes.kill(0)
            await scene.time_to_run(client)
            await nats_nodes.restart(0)
            for stream in streams:
                await nats_nodes.wait_current(stream)
        await scene.settled()
        scene.assert_running()


async def test_nobody_gets_in_without_the_password(nats_nodes: ComposeNats) -> None:
    url = nats_nodes.nodes[0].url.replace(f"{USER}:{PASSWORD}@", "")
    with pytest.raises(AgentError, match="credentials"):
        await connect(NatsConfig(servers=parse_servers(url)), client_name="stranger")


async def monitored(url: str, path: str) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}/{path}", timeout=5) as answer:
            return dict(json.load(answer))

    return await asyncio.to_thread(read)
