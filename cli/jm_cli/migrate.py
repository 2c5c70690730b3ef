"""``jm migrate``: brings the master's schema up to date."""

from typing import Annotated, Final

import typer

from jm_cli import local_env
from jm_cli.exits import CliError, ExitCode
from jm_cli.options import expanded
from jm_cli.render import print_json, print_line
from jm_cli.running import run_briefly
from jm_cli.settings import ClusterOptions, JsonFlag, PostgresOptions

LOOK_TIMEOUT_S: Final = 6.0
LOCK_TIMEOUT_S: Final = 30.0


def add_to(root: typer.Typer) -> None:
    root.command("migrate")(migrate)


@expanded
def migrate(
    *,
    postgres: PostgresOptions,
    cluster: ClusterOptions,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 4 if something is to be done.")
    ] = False,
    lock_timeout: Annotated[
        float, typer.Option("--lock-timeout", metavar="SECONDS", help="How long to wait for somebody's lock.")
    ] = LOCK_TIMEOUT_S,
    as_json: JsonFlag = False,
) -> None:
    """Create or upgrade the schema. Any number of processes may do it at once; running it again does nothing.

    Examples:
        JM_POSTGRES_DSN=postgresql://jm@db/jobs jm migrate
        jm migrate --schema 'jm_{cluster}' --cluster shop
    """
    from jm_master.queries import schema_of  # noqa: PLC0415

    local = local_env.find()
    dsn, schema = postgres.required_dsn(local), schema_of(postgres.schema, cluster.name(local))
    applied, version, wanted = run_briefly(_migrate(dsn, schema, check=check, lock_timeout_s=lock_timeout))
    if as_json:
        print_json({"applied": applied, "version": version, "wanted": wanted})
    elif version >= wanted:
        print_line(f"schema '{schema}' is at version {version}" + "".join(f"\napplied {name}" for name in applied))
    if version < wanted:
        message = f"schema '{schema}' is at version {version}, this program needs {wanted}; run 'jm migrate'"
        raise CliError(ExitCode.POSTGRES, message)


async def _migrate(dsn: str, schema: str, *, check: bool, lock_timeout_s: float) -> tuple[list[str], int, int]:
    import asyncio  # noqa: PLC0415

    from jm_master.migrate import latest_version, migrate, schema_version  # noqa: PLC0415

    # First a look, with an end: a migration may take long, finding out that nobody answers may not.
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            version = await schema_version(dsn, schema)
    except TimeoutError:
        message = f"Postgres does not answer within {LOOK_TIMEOUT_S:g} s; start it, or correct --dsn"
        raise CliError(ExitCode.POSTGRES, message) from None
    applied: list[str] = []
    if not check:
        applied = await migrate(dsn, schema, lock_timeout_s=lock_timeout_s)
        version = max(version, latest_version())
    return applied, version, latest_version()
