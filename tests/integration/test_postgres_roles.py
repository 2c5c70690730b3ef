"""deploy/postgres/roles.sql as it is: the owner migrates, a coordinator has rights on rows only, an auditor reads."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from jm_cli.exits import ExitCode
from jm_master.embedded import find_postgres_bin
from jm_master.migrate import latest_version, migrate, schema_version
from tests.conftest import run_apart
from tests.support.app import echo, fail_once, noop
from tests.support.cli import jm
from tests.support.processes import Cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jm_master.embedded import PostgresServer

ROLES: Final = Path(__file__).resolve().parents[2] / "deploy" / "postgres" / "roles.sql"
USERS: Final = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'jm_migrate') THEN
        CREATE USER jm_migrate IN ROLE jobmaster_owner;
        ALTER USER jm_migrate SET role = jobmaster_owner;
        CREATE USER jm_coordinator IN ROLE jobmaster_coordinator;
        CREATE USER jm_auditor IN ROLE jobmaster_auditor;
        CREATE USER jm_stranger;
    END IF;
END $$
"""
DENIED: Final = asyncpg.InsufficientPrivilegeError
DATABASE: Final = "jm_roles"


def apply_roles(dsn: str) -> None:
    psql = [str(find_postgres_bin() / "psql"), dsn, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]
    done = subprocess.run(
        [*psql, "--set=schema=jobmaster", "--file", str(ROLES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def as_user(dsn: str, user: str) -> str:
    scheme, _, rest = dsn.partition("://")
    return f"{scheme}://{user}@{rest.rpartition('@')[2]}"


async def run(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
def dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """Of an empty database."""
    yield postgres_server.create_database(DATABASE)
    postgres_server.drop_database(DATABASE)


@pytest.fixture(scope="module")
def migrated(postgres_server: PostgresServer) -> Iterator[str]:
    """The roles first, then the schema by its owner."""
    dsn = postgres_server.create_database(f"{DATABASE}_migrated")
    apply_roles(dsn)
    run_apart(run(dsn, USERS))
    run_apart(migrate(as_user(dsn, "jm_migrate")))
    yield dsn
    postgres_server.drop_database(f"{DATABASE}_migrated")


async def test_a_coordinator_does_all_of_its_work_with_rights_on_rows_only(
    migrated, nats_server, cluster_name, tmp_path
):
    async with Cluster(nats_server.url, migrated, cluster_name) as cluster:
        env = {"JM_POSTGRES_DSN": as_user(migrated, "jm_coordinator"), "JM_AUTO_MIGRATE": "0"}
        coordinator = await cluster.start_coordinator(env=env).wait_ready()
        await cluster.start_worker().wait_ready()
        async with cluster.client() as client:
            jobs = [*(noop.job({}) for _ in range(300)), fail_once.job({}), echo.job({"value": 1})]
            ids = [receipt.job_id for receipt in await client.submit_many(jobs, wait="recorded")]
            later = (await noop.submit(client, delay=3600.0, wait="recorded")).job_id
            keyed = (await noop.submit(client, unique_key="one", wait="recorded")).job_id
        assert await cluster.ended([*ids, keyed]) == {"succeeded": 303}
        for command in (
            ["job", "priority", later, "--to", "high"],
            ["job", "reschedule", later, "--at", "2099-01-01T00:00:00Z"],
            ["job", "cancel", later],
            ["job", "requeue", later],
            ["schedule", "add", "often", "noop", "--every", "1s"],
            ["cluster", "set", "--disable", "very_low"],
            ["retention", "run"],
        ):
            settings = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name, "JM_ACTOR": "anna"}
            done = await asyncio.to_thread(jm, *command, cwd=tmp_path, **settings)
            assert done.returncode == ExitCode.OK, (command, done.stderr)
        query = "SELECT count(*) FROM job WHERE occurrence IS NOT NULL AND status = 4"
        await wait_until(lambda: cluster.sql.value(query), what="a job of the schedule")
        assert await coordinator.stop() == ExitCode.OK
        assert not cluster.trouble()


async def test_a_coordinator_that_may_not_migrate_says_what_is_missing(dsn, nats_server, cluster_name, tmp_path):
    await asyncio.to_thread(apply_roles, dsn)
    await run(dsn, USERS)
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name}
    variables["JM_POSTGRES_DSN"] = as_user(dsn, "jm_coordinator")
    done = await asyncio.to_thread(jm, "coordinator", "--no-migrate", cwd=tmp_path, **variables)
    assert done.returncode == ExitCode.POSTGRES
    assert "run 'jm migrate'" in done.stderr


@pytest.mark.parametrize(
    ("user", "statement"),
    [
        ("jm_coordinator", "CREATE TABLE jobmaster.own (x int)"),
        ("jm_coordinator", "CREATE TABLE public.own (x int)"),
        ("jm_coordinator", "DROP TABLE jobmaster.job"),
        ("jm_coordinator", "ALTER TABLE jobmaster.job ADD COLUMN x int"),
        ("jm_coordinator", "TRUNCATE jobmaster.job"),
        ("jm_coordinator", "CREATE SCHEMA other"),
        ("jm_coordinator", "CREATE INDEX own ON jobmaster.job (id)"),
        ("jm_auditor", "INSERT INTO jobmaster.setting (key, value) VALUES ('a', 'b')"),
        ("jm_auditor", "UPDATE jobmaster.job SET lane = 'x'"),
        ("jm_auditor", "DELETE FROM jobmaster.job"),
        ("jm_auditor", "SELECT * FROM jobmaster.job FOR UPDATE"),
        ("jm_auditor", "CREATE TABLE jobmaster.own (x int)"),
        ("jm_stranger", "SELECT * FROM jobmaster.job"),
    ],
    ids=lambda text: text.removeprefix("jm_"),
)
async def test_what_is_not_its_work_is_refused(migrated, user, statement):
    with pytest.raises(DENIED):
        await run(as_user(migrated, user), statement)


async def test_an_auditor_reads_everything(migrated):
    assert await schema_version(as_user(migrated, "jm_auditor")) == latest_version()
    tables = "SELECT format('TABLE %I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'jobmaster'"
    connection = await asyncpg.connect(as_user(migrated, "jm_auditor"))
    try:
        queries = [row[0] for row in await connection.fetch(tables)]
        assert len(queries) > 10
        for query in queries:
            await connection.fetch(query)
    finally:
        await connection.close()


async def test_the_file_takes_over_a_schema_that_is_there_already(dsn):
    await migrate(dsn)
    for _ in range(2):
        await asyncio.to_thread(apply_roles, dsn)
    await run(dsn, USERS)
    await run(
        as_user(dsn, "jm_migrate"), "ALTER TABLE jobmaster.job ADD COLUMN more int", "CREATE TABLE jobmaster.n (x int)"
    )
    await run(as_user(dsn, "jm_coordinator"), "DELETE FROM jobmaster.job", "INSERT INTO jobmaster.n VALUES (1)")
    await run(as_user(dsn, "jm_auditor"), "SELECT more FROM jobmaster.job", "SELECT x FROM jobmaster.n")
