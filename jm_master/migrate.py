"""Bring the schema up to date. Any number of processes may try at once (BR-212); a blocked one says by whom (BR-215).

Each file is applied in a transaction that first takes an advisory lock and then looks which version is there: whoever
dies in the middle leaves nothing behind, whoever comes second finds the work done. The lock ends with the transaction,
so this works behind a bouncer too.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import anyio
import asyncpg
from msgspec import Struct

from jm_core.errors import JmError
from jm_master.config import PostgresConfig
from jm_master.pg_errors import StoreMisconfiguredError, plain, translated
from jm_master.queries import DEFAULT_SCHEMA, in_schema

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jm_master.database import Connection

log = logging.getLogger(__name__)

SERVER_VERSION_MIN: Final = 140_000
LOCK_TIMEOUT_S: Final = 30.0
BLOCKER_POLL_S: Final = 0.25
_file = re.compile(r"(\d{4})_\w+\.sql")


class MigrationBlockedError(JmError):
    """Somebody held a lock for too long. Nothing was changed; running it again is safe.

    Args:
        pids: backends in the way, with what ``pg_stat_activity`` says of them.
    """

    def __init__(self, where: str, version: int, blockers: list[str]) -> None:
        by = f"blocked by {'; '.join(blockers)}" if blockers else "blocked by a lock"
        super().__init__(
            f"migration {version:04} on {where} gave up after {LOCK_TIMEOUT_S:g} s, {by}; "
            "end that transaction (SELECT pg_terminate_backend(pid)) and run it again"
        )
        self.blockers = blockers


class Migration(Struct, frozen=True):
    version: int
    name: str
    sql: str


async def migrate(dsn: str, schema: str = DEFAULT_SCHEMA, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> list[str]:
    """Apply what is missing; returns the names of the files that *this* call applied.

    Raises:
        MigrationBlockedError, StoreUnavailableError, StoreMisconfiguredError (Postgres older than 14, no rights),
        InvalidNameError, InvalidSettingError.
    """
    config = PostgresConfig(dsn=dsn, schema=schema)
    applied = []
    async with _connected(config) as connection:
        await check_server_version(connection, config.redacted)
        for migration in all_migrations(schema):
            if await _apply(connection, config, migration, lock_timeout_s):
                applied.append(migration.name)
                log.info("migration applied", extra={"migration": migration.name, "schema": schema})
    return applied


async def schema_version(dsn: str, schema: str = DEFAULT_SCHEMA) -> int:
    """The version of the schema that is there; 0: none."""
    async with _connected(PostgresConfig(dsn=dsn, schema=schema)) as connection:
        return await current_version(connection, schema)


def latest_version() -> int:
    return max(m.version for m in all_migrations())


def all_migrations(schema: str = DEFAULT_SCHEMA) -> list[Migration]:
    """In order, numbered without a gap."""
    folder = files("jm_master").joinpath("sql", "schema")
    found = sorted((item.name, item) for item in folder.iterdir() if _file.fullmatch(item.name))
    migrations = [
        Migration(int(name[:4]), name.removesuffix(".sql"), in_schema(item.read_text(encoding="utf-8"), schema))
        for name, item in found
    ]
    assert [m.version for m in migrations] == list(range(1, len(migrations) + 1)), "migrations have a gap"
    return migrations


async def current_version(connection: Connection, schema: str) -> int:
    """0 when there is no table of ours yet."""
    if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.migration") is None:
        return 0
    return int(await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {schema}.migration"))  # noqa: S608


async def check_server_version(connection: Connection, where: str) -> None:
    number = int(await connection.fetchval("SHOW server_version_num"))
    if number < SERVER_VERSION_MIN:
        version = f"{number // 10_000}.{number % 10_000}"
        raise StoreMisconfiguredError(f"Postgres at {where} is version {version}; 14 or newer is needed: upgrade it")


async def _apply(connection: Connection, config: PostgresConfig, migration: Migration, timeout_s: float) -> bool:
    pid = connection.get_server_pid()
    async with _watching(config, pid) as blockers:
        try:
            async with connection.transaction():
                return await _apply_locked(connection, config.schema, migration, timeout_s)
        except asyncpg.LockNotAvailableError:
            raise MigrationBlockedError(config.redacted, migration.version, blockers) from None


async def _apply_locked(connection: Connection, schema: str, migration: Migration, timeout_s: float) -> bool:
    await connection.execute(f"SET LOCAL lock_timeout = {int(timeout_s * 1000)}")
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext('jobmaster.migrate'), hashtext($1))", schema)
    if await current_version(connection, schema) >= migration.version:
        return False
    await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    await connection.execute(
        f"CREATE TABLE IF NOT EXISTS {schema}.migration (version int PRIMARY KEY, name text NOT NULL,"
        " applied_at timestamptz NOT NULL DEFAULT now())"
    )
    await connection.execute(migration.sql)
    await connection.execute(
        f"INSERT INTO {schema}.migration (version, name) VALUES ($1, $2)",  # noqa: S608 - a checked identifier
        migration.version,
        migration.name,
    )
    return True


@asynccontextmanager
async def _watching(config: PostgresConfig, pid: int) -> AsyncIterator[list[str]]:
    """Who stands in the way of backend ``pid``, as far as a second connection sees it."""
    blockers: list[str] = []
    watcher = asyncio.create_task(_note_blockers(config, pid, blockers))  # no task group: errors come out as they are
    try:
        yield blockers
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})


async def _note_blockers(config: PostgresConfig, pid: int, blockers: list[str]) -> None:
    await anyio.sleep(BLOCKER_POLL_S)  # the usual case is over by then and costs no second connection
    try:
        async with _connected(config) as connection:
            while True:
                rows = await connection.fetch(
                    "SELECT pid, state, left(query, 80) AS query FROM pg_stat_activity"
                    " WHERE pid = ANY(pg_blocking_pids($1))",
                    pid,
                )
                if rows:
                    blockers[:] = [f"pid {row['pid']} ({row['state']}: {row['query']})" for row in rows]
                await anyio.sleep(BLOCKER_POLL_S)
    except JmError as error:
        log.debug("cannot look for blockers", extra={"problem": plain(error)})


@asynccontextmanager
async def _connected(config: PostgresConfig) -> AsyncIterator[Connection]:
    try:
        connection = await asyncpg.connect(config.dsn, timeout=config.connect_timeout_s, statement_cache_size=0)
    except Exception as error:
        raise translated(error, config.redacted) from error
    try:
        yield connection
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise translated(error, config.redacted) from error
    finally:
        with anyio.move_on_after(5, shield=True):
            await connection.close()
