"""Asking a process's health port."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.support.waiting import TIMEOUT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

PORT: Final = re.compile(r"health is served.*?\bport\S*?[=:]\s*(\d+)")


class Answer(NamedTuple):
    status: int
    body: Any


class HealthClient:
    """Of the process whose log is ``log()``; it was started with ``--health-port 0``."""

    def __init__(self, log: Callable[[], str]) -> None:
        self._log = log
        self.port = 0

    async def wait_port(self) -> None:
        match = await wait_until(lambda: PORT.search(self._log()), what="the health port in the log", shown=self._log)
        self.port = int(match[1])

    async def get(self, path: str) -> Answer:
        if not self.port:
            await self.wait_port()
        return await asyncio.to_thread(ask, self.port, path)

    async def wait_status(self, path: str, status: int, timeout_s: float = TIMEOUT_S) -> Any:
        """The body, once ``path`` answers with ``status``."""
        last = Answer(0, None)

        async def has_it() -> bool:
            nonlocal last
            last = await self.get(path)
            return last.status == status

        await wait_until(has_it, timeout_s, what=f"{status} of {path}", shown=lambda: f"{last}\n{self._log()[-3000:]}")
        return last.body


def ask(port: int, path: str) -> Answer:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return Answer(answer.status, json.loads(answer.read()))
    except urllib.error.HTTPError as answer:
        return Answer(answer.code, json.loads(answer.read()))
