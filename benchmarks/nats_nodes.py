"""Several NATS servers on this machine that are one JetStream cluster."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import nats
import nats.errors

from jm_nats.embedded import NatsServer
from jm_nats.local_server import HOST, PORTS, port_is_free

READY_TIMEOUT_S = 40.0
POLL_S = 0.1
CONFIG = """\
cluster {{ name: "jm-bench", listen: "{host}:{port}", routes: [{routes}] }}
"""


class NatsNodes:
    """Looks to a benchmark like one server; ``url`` is that of the first."""

    def __init__(self, nodes: list[NatsServer]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        return self.nodes[0].url

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(node.url for node in self.nodes)


@contextmanager
def nats_nodes(count: int) -> Iterator[NatsNodes]:
    """Ready when every server answers for JetStream; with one server it is no cluster."""
    with contextlib.ExitStack() as stack:
        routes = free_ports(2 * count)
        urls = ", ".join(f'"nats://{HOST}:{port}"' for port in routes[:count])
        nodes = [
            NatsServer(extra_config=CONFIG.format(host=HOST, port=route, routes=urls) if count > 1 else "", port=port)
            for route, port in zip(routes[:count], routes[count:], strict=True)
        ]
        for node in nodes:
            stack.callback(node.close)
        # A server of a cluster says that it is ready before it has found the others: all are started at once.
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda node: node.start(), nodes))
        made = NatsNodes(nodes)
        asyncio.run(_until_ready(made))
        yield made


def free_ports(count: int) -> list[int]:
    """Out of the range that no client connection is given (see ``jm_nats.local_server``)."""
    found = [port for port in random.sample(PORTS, 20 * count) if port_is_free(port)][:count]
    if len(found) < count:
        raise SystemExit(f"no {count} free ports")
    return found


async def _until_ready(made: NatsNodes) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    for url in made.urls:
        while not await _answers(url):
            if time.monotonic() > deadline:
                raise SystemExit(f"JetStream of {url} does not answer")
            await asyncio.sleep(POLL_S)


async def _answers(url: str) -> bool:
    try:
        connection = await nats.connect(url, allow_reconnect=False, connect_timeout=2)
        try:
            answer = msgspec.json.decode((await connection.request("$JS.API.INFO", b"", timeout=1)).data)
            return "error" not in answer
        finally:
            await connection.close()
    except (nats.errors.Error, OSError, TimeoutError):
        return False
