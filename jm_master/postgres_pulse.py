"""Whether Postgres takes our writes, asked every few seconds: for the health board, and for a leader that is cut off.

Statements of the duties do not tell: with packets dropped on the way they wait half a minute each, without an error
(BR-137), and an idle coordinator has none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from jm_core.errors import JmError
from jm_nats.pace import tick

if TYPE_CHECKING:
    from jm_master.database import Database
    from jm_nats.health import HealthBoard

NAME: Final = "postgres"
ASK_S: Final = 2.0
SILENT_S: Final = 5.0  # a question that has waited for so long is a trouble
READ_ONLY: Final = "SELECT current_setting('transaction_read_only') = 'on'"


class CutOffError(JmError):
    """No answer from Postgres for so long that somebody else had better lead."""

    def __init__(self, silent_s: float) -> None:
        super().__init__(f"Postgres has taken no write of ours for {silent_s:.0f} s: another coordinator may lead")
        self.silent_s = silent_s


class PostgresPulse:
    def __init__(self, database: Database, board: HealthBoard, *, patience_s: float) -> None:
        self._database = database
        self._board = board
        self._patience_s = patience_s
        self._answered_s = time.monotonic()
        self._ask_s = min(ASK_S, patience_s / 10)
        self._silent_s = min(SILENT_S, patience_s / 4)

    async def run(self) -> None:
        """Ask until cancelled. A question is never given up by us: asyncpg's own limits end it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._notice_silence)
            while True:
                await self.ask()
                await tick(self._ask_s)

    async def ask(self) -> bool:
        """One question; whether Postgres would take a write."""
        try:
            read_only = await self._database.fetchval(READ_ONLY)
        except JmError as error:
            self._board.trouble(NAME, str(error))
            return False
        if read_only:
            self._board.trouble(NAME, f"Postgres at {self._database.where} is read-only")
            return False
        self._answered_s = time.monotonic()
        self._board.cycle(NAME, self._patience_s * 2 / 3)
        self._board.cleared(NAME)
        return True

    async def wait_answer(self) -> None:
        """Return when it takes writes: before that, to lead would be of no use to anybody."""
        while not await self.ask():  # noqa: ASYNC110 - Postgres tells nobody that it is back
            await anyio.sleep(self._ask_s)

    async def raise_when_cut_off(self) -> None:
        """Raises:
        CutOffError: no write has been possible for ``patience_s``.
        """
        while (silent_s := time.monotonic() - self._answered_s) < self._patience_s:  # noqa: ASYNC110 - a deadline that moves
            await anyio.sleep(self._patience_s - silent_s)
        raise CutOffError(silent_s)

    async def _notice_silence(self) -> None:
        while True:
            await tick(self._silent_s / 4)
            if time.monotonic() - self._answered_s > self._silent_s + self._ask_s:
                self._board.trouble(NAME, f"no answer from Postgres at {self._database.where}")
