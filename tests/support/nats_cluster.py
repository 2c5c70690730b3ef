"""Three nats-servers that are one R3 JetStream cluster, with what an operator or a bad day does to it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import nats
import nats.errors

from jm_nats.embedded import NatsServer
from jm_nats.local_server import HOST, PORTS, port_is_free
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from nats.aio.client import Client

NODES: Final = 3
READY_TIMEOUT_S: Final = 40.0
ANSWER_S: Final = 3.0

# sync_interval: "always" is in the configuration that every NatsServer has.
_CONFIG: Final = """\
cluster {{ name: "jm-test", listen: "{host}:{port}", routes: [{routes}] }}
accounts {{
    JM {{ jetstream: enabled, users: [ {{ user: jm, password: jm }} ] }}
    $SYS {{ users: [ {{ user: operator, password: operator }} ] }}
}}
no_auth_user: jm
"""
OPERATOR: Final = {"user": "operator", "password": "operator"}


class NatsCluster:
    """``async with NatsCluster() as cluster``: ready when every node answers for JetStream."""

    def __init__(self, nodes: int = NODES) -> None:
        routes = _free_ports(nodes)
        urls = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
        self.nodes = [
            NatsServer(extra_config=_CONFIG.format(host=HOST, port=port, routes=urls), port=own)
            for port, own in zip(routes, _free_ports(nodes, without=routes), strict=True)
        ]

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(asyncio.to_thread(node.start) for node in self.nodes))
            await self.wait_ready()
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._close)

    @property
    def url(self) -> str:
        """All nodes, for ``JM_NATS_URL``."""
        return ",".join(node.url for node in self.nodes)

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when every node that runs answers for JetStream: there is a meta leader, and all know it."""
        for node in self.nodes:
            if node.running:
                await wait_until(lambda node=node: _serves(node.url), timeout_s, what=f"JetStream of {node.url}")

    async def kill(self, number: int) -> None:
        await asyncio.to_thread(self.nodes[number].kill)

    async def restart(self, number: int) -> None:
        """Start it (again); it may still be catching up when this returns, see ``wait_current``."""
        await asyncio.to_thread(self.nodes[number].start)

    async def wait_current(self, stream: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the stream has a leader and all its replicas are up to date."""

        async def current() -> bool:
            info = await self.ask(f"STREAM.INFO.{stream}")
            cluster = info.get("cluster", {})
            replicas = cluster.get("replicas", [])
            return bool(cluster.get("leader")) and all(r.get("current") and not r.get("offline") for r in replicas)

        await wait_until(current, timeout_s, what=f"all replicas of {stream} up to date")

    async def step_down(self, stream: str, consumer: str | None = None) -> bool:
        """The leader of a stream, or of one of its consumers, resigns. False when just now there is none to do so."""
        what = f"CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}" if consumer else f"STREAM.LEADER.STEPDOWN.{stream}"
        return bool((await self.ask(what)).get("success"))

    async def step_down_meta(self) -> bool:
        """The leader of the cluster's own business: making, changing and removing streams and consumers."""
        return bool((await self.ask("META.LEADER.STEPDOWN", **OPERATOR)).get("success"))

    async def streams(self, prefix: str) -> list[str]:
        names = (await self.ask("STREAM.NAMES")).get("streams") or []
        return [name for name in names if name.startswith(prefix)]

    async def consumers(self, stream: str) -> list[str]:
        return (await self.ask(f"CONSUMER.NAMES.{stream}")).get("consumers") or []

    async def ask(self, path: str, **credentials: str) -> dict[str, Any]:
        """The answer of any node that has one; empty when none has in time."""
        up = [node.url for node in self.nodes if node.running]
        try:
            connection = await _connect(*random.sample(up, len(up)), **credentials)
            try:
                answer = await connection.request(f"$JS.API.{path}", b"", timeout=ANSWER_S)
                return dict(msgspec.json.decode(answer.data))
            finally:
                await connection.close()
        except (nats.errors.Error, OSError, TimeoutError):
            return {}

    def _close(self) -> None:
        for node in self.nodes:
            node.close()


async def _serves(url: str) -> bool:
    try:
        connection = await _connect(url)
        try:
            answer = msgspec.json.decode((await connection.request("$JS.API.INFO", b"", timeout=1)).data)
            return "error" not in answer
        finally:
            await connection.close()
    except (nats.errors.Error, OSError, TimeoutError):
        return False


async def _connect(*urls: str, **credentials: str) -> Client:
    async def quiet(_: Exception) -> None:
        """A node that is just being killed is no news here."""

    return await nats.connect(list(urls), allow_reconnect=False, connect_timeout=2, error_cb=quiet, **credentials)


def _free_ports(count: int, without: list[int] | None = None) -> list[int]:
    """Out of the range that no client connection is given (see ``jm_nats.local_server``)."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if port not in (without or []) and port_is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise AssertionError(f"no {count} free ports")
