"""The one place where Postgres's and asyncpg's errors are told apart. By SQLSTATE and type, never by message text."""

from enum import StrEnum
from typing import Final

from asyncpg import InterfaceError, InternalClientError, PostgresError, UniqueViolationError

from jm_core.errors import JmError


class Fault(StrEnum):
    AWAY = "away"  # no answer, or not the answer of a working primary: drop the connections, ride it out
    CONTENTION = "contention"  # our own statements met: try again at once
    REFUSED = "refused"  # something in the parameters can never be stored: find it by bisecting


class StoreUnavailableError(JmError):
    """Postgres does not answer, or answers that it cannot now. The transaction may or may not be committed."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"Postgres at {where}: {problem}; it will be tried again")
        self.where = where
        self.problem = problem


class StoreContentionError(JmError):
    """Rolled back because of a deadlock or a lock that took too long; nothing was done."""


class RowRefusedError(JmError):
    """Rolled back because one of the rows can never be stored; ``problem`` is Postgres's reason."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class RowExistsError(RowRefusedError):
    """One of the rows, or a key of one, is there already, and the statement makes no provision for that."""


class StoreMisconfiguredError(JmError):
    """The database is there but not what we need: too old, not migrated, no rights. Trying again does not help."""


# SQLSTATE classes and codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
_AWAY_CLASSES: Final = {
    "08",  # connection exception
    "28",  # authorization: passwords are rotated, a proxy may not know us yet
    "53",  # insufficient resources: disk full, too many connections
    "57",  # operator intervention: shutdown, cancel, cannot connect now
    "58",  # system error outside Postgres
}
_AWAY_CODES: Final = {
    "25006",  # read-only: the old primary after a failover (BR-161)
    "25P03",  # idle in transaction timeout
    "3D000",  # no such database: it is being restored
    "XX000",  # internal error; bouncers answer so when their server is away
}
_CONTENTION_CODES: Final = {"40001", "40P01", "55P03"}
_REFUSED_CLASSES: Final = {
    "22",  # data exception
    "23",  # integrity constraint
    "54",  # program limit exceeded: an index entry too large, nested too deep
}


def fault_of(error: BaseException) -> Fault | None:
    """What to do about ``error``; None: it is ours, a bug or a wrong setup."""
    if isinstance(error, PostgresError):
        return _fault_of_state(error.sqlstate or "")
    if isinstance(error, UnicodeError | OverflowError) or (
        isinstance(error, InterfaceError) and isinstance(error, ValueError)
    ):
        return Fault.REFUSED  # asyncpg could not encode a parameter
    if isinstance(error, OSError | TimeoutError | InterfaceError | InternalClientError | EOFError):
        return Fault.AWAY
    return None


def _fault_of_state(state: str) -> Fault | None:
    if state in _CONTENTION_CODES:
        return Fault.CONTENTION
    if state[:2] in _AWAY_CLASSES or state in _AWAY_CODES:
        return Fault.AWAY
    if state[:2] in _REFUSED_CLASSES:
        return Fault.REFUSED
    return None


def translated(error: Exception, where: str) -> Exception:
    """``error`` as one of ours; itself when it is a bug."""
    match fault_of(error):
        case Fault.AWAY:
            return StoreUnavailableError(where, plain(error))
        case Fault.CONTENTION:
            return StoreContentionError(plain(error))
        case Fault.REFUSED:
            return (RowExistsError if isinstance(error, UniqueViolationError) else RowRefusedError)(plain(error))
        case None:
            return _misconfigured(error, where) or error


def _misconfigured(error: Exception, where: str) -> StoreMisconfiguredError | None:
    state = getattr(error, "sqlstate", None)
    if state in {"42P01", "3F000", "42703"}:
        return StoreMisconfiguredError(f"Postgres at {where}: {plain(error)}; run 'jm migrate'")
    if state == "42501":
        return StoreMisconfiguredError(f"Postgres at {where}: {plain(error)}; grant our role the rights")
    if state in {"26000", "42P05"}:
        return StoreMisconfiguredError(
            f"Postgres at {where}: {plain(error)}; behind a bouncer in transaction mode set bouncer=true"
        )
    return None


def plain(error: BaseException) -> str:
    """Postgres's words on one line, without the row they may quote."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:500]
