"""A connection to the tests' NATS, and the names of a cluster of one's own there."""

from __future__ import annotations

import pytest

from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.subjects import Names


@pytest.fixture
async def link(nats_server):
    async with await connect(NatsConfig(servers=(nats_server.url,)), client_name="test") as made:
        yield made


@pytest.fixture
def names(cluster_name):
    return Names(cluster_name)
