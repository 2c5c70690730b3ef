"""A connection to the tests' NATS, and the names of a cluster of one's own there."""

from __future__ import annotations

import pytest

from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.subjects import Names
from tests.support.processes import Cluster


@pytest.fixture
async def link(nats_server):
    async with await connect(NatsConfig(servers=(nats_server.url,)), client_name="test") as made:
        yield made


@pytest.fixture
def names(cluster_name):
    return Names(cluster_name)


@pytest.fixture
async def cluster(nats_server, database, cluster_name):
    """Of real processes."""
    async with Cluster(nats_server.url, database, cluster_name) as made:
        yield made
