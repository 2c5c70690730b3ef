"""NATS with nothing but a TCP connection: what a foreign client needs at the very least, and no library."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import suppress
from typing import Any, Final, Self
from urllib.parse import urlsplit

CONNECT: Final = 'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"none"}'
CRLF: Final = b"\r\n"
TIMEOUT_S: Final = 20.0
INBOX: Final = "_INBOX.text"


class TextClient:
    """Use as ``async with TextClient(url) as client``. Answers to a subscribed subject are kept until asked for."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._messages: dict[str, asyncio.Queue[bytes]] = defaultdict(asyncio.Queue)
        self._controls: asyncio.Queue[str] = asyncio.Queue()
        self._inboxes = 0

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    # -- the protocol

    async def send(self, *lines: str | bytes) -> None:
        """Lines as they are, each ended with CR LF."""
        raw = [line.encode() if isinstance(line, str) else line for line in lines]
        self._writer.write(b"".join(line + CRLF for line in raw))
        await self._writer.drain()

    async def control(self) -> str:
        """The next line that is neither a message nor a PING: INFO, PONG, +OK or -ERR."""
        return await asyncio.wait_for(self._controls.get(), TIMEOUT_S)

    async def message(self, subject: str) -> bytes:
        """The next payload that arrived on ``subject``."""
        return await asyncio.wait_for(self._messages[subject].get(), TIMEOUT_S)

    def arrived(self, subject: str) -> int:
        """How many payloads nobody has asked for yet."""
        return self._messages[subject].qsize()

    # -- what the page says to do with it

    async def log_in(self) -> Self:
        assert (await self.control()).startswith("INFO ")
        await self.send(CONNECT, "PING")
        assert await self.control() == "PONG"
        await self.send(f"SUB {INBOX}.> 1")
        return self

    def inbox(self) -> str:
        self._inboxes += 1
        return f"{INBOX}.{self._inboxes}"

    async def publish(self, subject: str, payload: bytes | object, *, reply: str = "", **headers: str) -> None:
        """``payload`` as it is when it is bytes, else as JSON; headers are named ``nats_msg_id="…"``."""
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        to = f"{subject} {reply}".strip()
        if not headers:
            await self.send(f"PUB {to} {len(body)}", body)
            return
        named = {name.replace("_", "-").title(): value for name, value in headers.items()}
        head = b"NATS/1.0\r\n" + b"".join(f"{name}: {value}\r\n".encode() for name, value in named.items()) + CRLF
        await self.send(f"HPUB {to} {len(head)} {len(head) + len(body)}", head + body)

    async def queued(self, subject: str, payload: bytes | object, **headers: str) -> dict[str, Any]:
        """Publish; the PubAck."""
        reply = self.inbox()
        await self.publish(subject, payload, reply=reply, **headers)
        ack: dict[str, Any] = json.loads(await self.message(reply))
        assert "error" not in ack, ack
        return ack

    async def recorded(self, subject: str, payload: bytes | object, **headers: str) -> list[dict[str, Any]]:
        """Publish; the writer's receipts."""
        inbox = self.inbox()
        await self.queued(subject, payload, jm_receipt_to=inbox, **headers)
        receipts: list[dict[str, Any]] = json.loads(await self.message(inbox))["receipts"]
        return receipts

    async def request(self, subject: str, payload: object) -> dict[str, Any]:
        reply = self.inbox()
        await self.publish(subject, payload, reply=reply)
        answer: dict[str, Any] = json.loads(await self.message(reply))
        return answer

    # -- reading

    async def _read(self) -> None:
        while line := (await self._reader.readline()).decode().rstrip("\r\n"):
            verb, *words = line.split(" ")
            if verb == "PING":
                await self.send("PONG")
            elif verb == "MSG":
                self._messages[words[0]].put_nowait(await self._payload(int(words[-1])))
            elif verb == "HMSG":  # in here: no responders
                self._messages[words[0]].put_nowait((await self._payload(int(words[-1])))[int(words[-2]) :])
            else:
                self._controls.put_nowait(line)

    async def _payload(self, size: int) -> bytes:
        return (await self._reader.readexactly(size + len(CRLF)))[:size]
