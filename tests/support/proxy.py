"""A TCP proxy between our processes and a server, with everything a network can do to a connection.

A network that drops packets loses no bytes of a connection that survives: TCP sends them again once it can. So a black
hole here keeps what it is given, and ``restore`` lets it flow; or, where NAT has forgotten the connection by then,
``restore(cut=True)`` breaks what was held up.

Runs in the event loop of the test, on the loopback address.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from jm_nats.local_server import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES: Final = 64 * 1024
QUEUED_MAX: Final = 64  # chunks; then the sender has to wait, as with a full window
TO_SERVER: Final = "to_server"
TO_CLIENT: Final = "to_client"
BOTH: Final = frozenset({TO_SERVER, TO_CLIENT})
# RST instead of FIN: the other side has an error at once, as when a machine that was restarted gets an old packet.
_RESET: Final = struct.pack("ii", 1, 0)


class Proxy:
    """``async with Proxy(server.port) as proxy``; clients connect to ``proxy.port``, which stays the same."""

    def __init__(self, port: int) -> None:
        self.server_port = port
        self.port = 0
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.delay_s = 0.0
        self._open = {TO_SERVER: asyncio.Event(), TO_CLIENT: asyncio.Event()}
        for gate in self._open.values():
            gate.set()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        self.delay_s = 0.0
        for gate in self._open.values():
            gate.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def black_hole(self, *directions: str) -> None:
        """Nothing passes any more, in both directions or in one; connections stay, new ones get no answer."""
        for direction in directions or BOTH:
            self._open[direction].clear()

    async def restore(self, *, cut: bool = False) -> None:
        """All passes again, and new connections are taken; ``cut``: not what was held up meanwhile."""
        if cut:
            self.cut()
        self.delay_s = 0.0
        for gate in self._open.values():
            gate.set()
        if self._listener is None:
            await self._listen()

    def cut(self) -> None:
        """Break every connection."""
        for connection in list(self.connections):
            connection.cut()

    async def refuse(self) -> None:
        """Break every connection and take no new one, as a server that is not there."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self.cut()

    def delay(self, seconds: float) -> None:
        """Every packet takes so much longer, each way."""
        self.delay_s = seconds

    # For subclasses.

    def watcher(self, connection: Connection) -> Watcher:  # noqa: ARG002 - a subclass wants it
        return Watcher()

    async def passable(self, direction: str) -> None:
        """Return when the network lets something through."""
        await self._open[direction].wait()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, HOST, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self.passable(TO_SERVER)
            server = await asyncio.open_connection(HOST, self.server_port)
        except OSError:
            _reset(writer)
            return
        connection = Connection(self, (reader, writer), server)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)


class Watcher:
    """Sees what passes; a subclass may act on it."""

    def sent(self, data: bytes) -> None:
        """By the client."""

    def answered(self, data: bytes) -> bytes:
        """By the server; returns what the client gets of it."""
        return data


class Connection:
    """One client's connection through the proxy."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._watcher = proxy.watcher(self)
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        def to_server(data: bytes) -> bytes:
            self._watcher.sent(data)
            return data

        pumps = [
            asyncio.ensure_future(self._pump(self._client[0], self._server[1], TO_SERVER, to_server)),
            asyncio.ensure_future(self._pump(self._server[0], self._client[1], TO_CLIENT, self._watcher.answered)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self.cut()

    def cut(self) -> None:
        _reset(self._client[1])
        _reset(self._server[1])

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: str,
        through: Callable[[bytes], bytes],
    ) -> None:
        """One direction, to its end. Packets are under way side by side: a delay costs time and no throughput."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_MAX)
        reading = asyncio.ensure_future(self._read(reader, under_way))
        try:
            with suppress(OSError):
                while True:
                    arrives_s, data = await under_way.get()
                    await asyncio.sleep(arrives_s - self._loop.time())
                    await self._proxy.passable(direction)
                    if not data:
                        return
                    writer.write(through(data))
                    await writer.drain()
        finally:
            reading.cancel()

    async def _read(self, reader: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"first"
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            await under_way.put((self._loop.time() + self._proxy.delay_s, data))


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
