"""The leader's duties as its health board sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jm_core.health import Invariant, InvariantViolatedError
from jm_master.terms import LostTermError
from jm_nats.health import describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jm_nats.health import HealthBoard


class Duties:
    """Outlives a term: a duty that failed is in trouble until it runs again in a later one."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board
        self._failed: set[str] = set()
        self._term = 0

    async def run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """``work``; what it raises is noted under its name. To lose the term is no failure."""
        try:
            await work()
        except Exception as error:
            failures = _without_lost_term(error)
            if failures is not None:
                self._failed.add(name)
                self._board.trouble(f"duty {name}", describe(failures))
            raise

    def took(self, term: int) -> None:
        """Raises:
        InvariantViolatedError: this process has led with a later one: Postgres was restored from a copy.
        """
        if term <= self._term:
            detail = f"the term is {term}, this process has led in term {self._term}"
            raise InvariantViolatedError(Invariant.TERM_WENT_BACK, detail)
        self._term = term

    def all_run(self) -> None:
        """Every duty runs: what failed in an earlier term works again."""
        while self._failed:
            self._board.cleared(f"duty {self._failed.pop()}")


def _without_lost_term(error: Exception) -> Exception | None:
    if isinstance(error, ExceptionGroup):
        return error.split(LostTermError)[1]
    return None if isinstance(error, LostTermError) else error
