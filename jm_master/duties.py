"""The leader's duties as its health board sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jm_core.health import Invariant
from jm_master.leadership import Terms
from jm_master.terms import LostTermError
from jm_nats import telemetry
from jm_nats.health import describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jm_nats.health import HealthBoard


class Duties:
    """Outlives a term: a duty that failed is in trouble until it runs again in a later one."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board
        self._failed: set[str] = set()
        self.terms = Terms()

    async def run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """``work``; what it raises is noted under its name. To lose the term is no failure."""
        telemetry.enter_duty(name)
        try:
            await work()
        except Exception as error:
            failures = _without_lost_term(error)
            if failures is not None:
                self._failed.add(name)
                self._board.trouble(f"duty {name}", describe(failures))
            raise

    def older_term(self, found: int) -> None:
        """Postgres does not know the term that we led in. Said, counted, made up for: ours is later than both."""
        detail = f"Postgres knows term {found}, this process has led in term {self.terms.latest}"
        self._board.violated(Invariant.TERM_WENT_BACK, detail)

    def all_run(self) -> None:
        """Every duty runs: what failed in an earlier term works again."""
        while self._failed:
            self._board.cleared(f"duty {self._failed.pop()}")


def _without_lost_term(error: Exception) -> Exception | None:
    if isinstance(error, ExceptionGroup):
        return error.split(LostTermError)[1]
    return None if isinstance(error, LostTermError) else error
