"""Is this database what we need? For ``jm doctor`` and for a clear message at start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from jm_core.errors import JmError
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.migrate import check_server_version, current_version, latest_version
from jm_master.pg_errors import StoreMisconfiguredError
from jm_master.queries import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from jm_master.database import Connection


class PostgresCheck(Struct, frozen=True):
    """One finding; ``problem`` is None when all is well. ``where`` never shows credentials."""

    where: str
    server_version: str = ""
    schema_version: int = 0
    schema_wanted: int = 0
    problem: str | None = None
    remedy: str | None = None


async def check_postgres(dsn: str, schema: str = DEFAULT_SCHEMA) -> PostgresCheck:
    """Connect and look. Never raises for what a person can mend: that is the finding.

    Raises:
        InvalidSettingError, InvalidNameError: the DSN or the schema's name itself cannot be used.
    """
    config = PostgresConfig(dsn=dsn, schema=schema, connections_max=1)
    try:
        async with Database(config) as database, database.connection() as connection:
            return await _look(connection, config)
    except JmError as error:
        return PostgresCheck(config.redacted, problem=str(error), remedy="start it, or correct the DSN or its rights")


async def _look(connection: Connection, config: PostgresConfig) -> PostgresCheck:
    await check_server_version(connection, config.redacted)
    server = str(await connection.fetchval("SHOW server_version"))
    found, wanted = await current_version(connection, config.schema), latest_version()
    problem = remedy = None
    if found < wanted:
        problem = f"schema '{config.schema}' is at version {found}, this program needs {wanted}"
        remedy = "run 'jm migrate'"
    elif await connection.fetchval("SHOW transaction_read_only") == "on":
        problem, remedy = "the server is read-only", "connect to the primary"
    return PostgresCheck(config.redacted, server, found, wanted, problem, remedy)


async def require_schema(database: Database) -> None:
    """Raises:
    StoreMisconfiguredError: too old a server or schema.
    StoreUnavailableError: Postgres is away, or read-only for now.
    """
    async with database.connection() as connection:
        found = await _look(connection, database.config)
    if found.problem:
        raise StoreMisconfiguredError(f"Postgres at {found.where}: {found.problem}; {found.remedy}")
