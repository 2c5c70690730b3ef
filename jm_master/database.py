"""A small pool of connections to the master, with its errors translated and nothing kept in a session."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import anyio
import asyncpg

from jm_core.agent_names import MAIN, prefix_of
from jm_master.backoff import Backoff
from jm_master.pg_errors import Fault, StoreContentionError, StoreUnavailableError, fault_of, plain, translated

log = logging.getLogger(__name__)
T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from jm_master.config import PostgresConfig

    Connection = asyncpg.Connection[asyncpg.Record]  # generic in the stubs only

# Every hot statement joins a few thousand parameters to rows by primary key. A plan made while the table is empty
# would read the whole table for ever (prepared statements keep it), so the other ways are closed.
_PLANNER: Final = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"}
APPLICATION_NAME: Final = "jobmaster"
CLOSE_S: Final = 2.0  # for what is under way; whoever leads next does it again
GUESTS_MAX: Final = 2  # connections at once for all that people ask
_guests: ContextVar[anyio.Semaphore | None] = ContextVar("guests", default=None)


@contextmanager
def as_guest(limiter: anyio.Semaphore) -> Iterator[None]:
    """Whatever this task asks of a database waits for a turn of the limiter first, and has it for as long as it has the
    connection. Of who asks, not of the store that is asked: duties of the leader use the same ones, unbounded.

    Bound the time outside: the limiter's own wait has no end.
    """
    token = _guests.set(limiter)
    try:
        yield
    finally:
        _guests.reset(token)


class SessionlessConnection(asyncpg.Connection):
    """We keep no session state, so there is nothing to reset; the default would cost a round trip per statement."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """Runs statements; each one is a transaction. Raises the errors of ``pg_errors``, nothing of asyncpg's.

    Args:
        agent: whose leader uses it.
    """

    def __init__(self, config: PostgresConfig, *, agent: str = MAIN) -> None:
        self.config = config
        self.schema = config.schema
        self.where = config.redacted
        self.agent = agent
        self.prefix = prefix_of(agent)  # of our buckets, where they stand in a table
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._away = False

    async def __aenter__(self) -> Self:
        settings = {} if self.config.bouncer else {**_PLANNER, "application_name": APPLICATION_NAME}
        self._pool = await asyncpg.create_pool(
            self.config.dsn,
            min_size=0,  # nothing connects here: a Postgres that is away at start is as good as one away later
            max_size=self.config.connections_max,
            connection_class=SessionlessConnection,
            statement_cache_size=0 if self.config.bouncer else 100,
            timeout=self.config.connect_timeout_s,
            command_timeout=self.config.command_timeout_s,
            server_settings=settings,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        with anyio.move_on_after(CLOSE_S, shield=True) as scope:
            await pool.close()
        if scope.cancelled_caught:
            pool.terminate()

    @property
    def guests_max(self) -> int:
        """How many connections people's questions may take: those that write and record jobs must not wait for them."""
        return max(1, min(GUESTS_MAX, self.config.connections_max - 1))

    def stored(self, bucket: str) -> str:
        """One of our buckets, as it is named in Postgres."""
        return self.prefix + bucket

    def bare(self, stored: str) -> str:
        """The other way round."""
        return stored.removeprefix(self.prefix)

    async def fetch(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        async with self.connection() as connection:
            return await connection.fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> asyncpg.Record | None:
        async with self.connection() as connection:
            return await connection.fetchrow(sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        async with self.connection() as connection:
            return await connection.fetchval(sql, *args)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of our own; errors of what is done with it come out translated."""
        assert self._pool is not None, "not opened"
        try:
            async with (
                _guests.get() or nullcontext(),
                self._pool.acquire(timeout=self.config.connect_timeout_s) as connection,
            ):
                yield connection  # type: ignore[misc]
        except Exception as error:
            if fault_of(error) is Fault.AWAY:
                await self._note_away(plain(error))
            raise translated(error, self.where) from error
        self._note_back()

    async def ride_out(self, action: Callable[[], Awaitable[T]]) -> T:
        """``action``'s result, however long the outage. It must be safe to repeat: an answer may have been lost."""
        away = Backoff(first_s=0.05, cap_s=2.0)
        contention = Backoff(first_s=0.01, cap_s=0.2)
        while True:
            try:
                return await action()
            except StoreContentionError:
                await anyio.sleep(contention.next_s())
            except StoreUnavailableError:
                await anyio.sleep(away.next_s())

    async def _note_away(self, problem: str) -> None:
        """After a failover the open connections may lead to the old primary; a log line only when it begins."""
        if self._pool is not None:
            await self._pool.expire_connections()
        if not self._away:
            self._away = True
            log.warning("postgres away", extra={"postgres": self.where, "problem": problem})

    def _note_back(self) -> None:
        if self._away:
            self._away = False
            log.info("postgres back", extra={"postgres": self.where})
