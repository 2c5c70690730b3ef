from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from jm_core.errors import InvalidNameError, InvalidSettingError
from jm_master.checks import check_postgres
from jm_master.embedded import PostgresServer
from jm_master.migrate import MigrationBlockedError, all_migrations, latest_version, migrate, schema_version
from jm_master.pg_errors import StoreUnavailableError

ROOT = Path(__file__).parents[2]
MIGRATE = "import asyncio,sys; from jm_master.migrate import migrate; print(len(asyncio.run(migrate(sys.argv[1]))))"


@pytest.fixture
def empty_database(postgres_server):
    name = f"jm_empty_{time.monotonic_ns()}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


def start_migrating(dsn: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", MIGRATE, dsn], stdout=subprocess.PIPE, text=True, env=env)


async def test_an_empty_database_gets_every_table_once(empty_database):
    assert await schema_version(empty_database) == 0
    assert await migrate(empty_database) == [m.name for m in all_migrations()]
    assert await migrate(empty_database) == []
    assert await schema_version(empty_database) == latest_version()


async def test_two_schemas_live_in_one_database(empty_database):
    await migrate(empty_database)
    assert await migrate(empty_database, schema="second") == [m.name for m in all_migrations()]
    connection = await asyncpg.connect(empty_database)
    await connection.execute("UPDATE second.leader SET term = 7")
    assert await connection.fetchval("SELECT term FROM jobmaster.leader") == 0
    await connection.close()


def test_eight_processes_at_once_apply_each_file_once(empty_database):
    processes = [start_migrating(empty_database) for _ in range(8)]
    applied = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert sum(applied) == len(all_migrations())


def test_one_that_is_killed_in_the_middle_leaves_nothing_in_the_way(empty_database):
    for delay_s in (0.2, 0.25, 0.3, 0.35, 0.4, 0.45):
        process = start_migrating(empty_database)
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    asyncio.run(migrate(empty_database))
    assert asyncio.run(schema_version(empty_database)) == latest_version()


async def test_a_blocked_migration_names_who_blocks_it_and_can_be_repeated(empty_database):
    blocker = await asyncpg.connect(empty_database)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("SELECT pg_advisory_xact_lock(hashtext('jobmaster.migrate'), hashtext('jobmaster'))")
    with pytest.raises(MigrationBlockedError, match=f"pid {blocker.get_server_pid()} "):
        await migrate(empty_database, lock_timeout_s=1.5)
    await transaction.rollback()
    await blocker.close()
    assert await migrate(empty_database) != []


async def test_a_server_that_is_away_is_named_without_its_password():
    with pytest.raises(StoreUnavailableError) as caught:
        await migrate("postgresql://jm:p@ss%2Fword@127.0.0.1:1/prod")
    assert "127.0.0.1:1/prod" in str(caught.value)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("schema", ["", "Jobs", "a-b", "a.b", 'a"b', "pg_jobs", "x" * 64, "1a"])
async def test_a_schema_name_that_would_need_quoting_is_refused(schema, empty_database):
    with pytest.raises(InvalidNameError):
        await migrate(empty_database, schema=schema)


async def test_a_dsn_of_another_kind_is_refused_without_being_shown():
    with pytest.raises(InvalidSettingError) as caught:
        await migrate("mysql://secret@host/db")
    assert "secret" not in str(caught.value)


async def test_the_check_says_what_is_missing_and_what_to_do(empty_database):
    found = await check_postgres(empty_database)
    assert (found.schema_version, found.remedy) == (0, "run 'jm migrate'")
    await migrate(empty_database)
    assert (await check_postgres(empty_database)).problem is None


def old_postgres() -> Path | None:
    named = os.environ.get("JM_POSTGRES_OLD_BIN")
    candidates = [Path(named)] if named else sorted(Path("/usr/lib/postgresql").glob("1[4-7]/bin"))
    return next((c for c in candidates if shutil.which("initdb", path=str(c))), None)


async def test_the_schema_fits_an_older_postgres():
    binaries = old_postgres()
    if binaries is None:
        pytest.skip("no PostgreSQL 14 to 17 here; set JM_POSTGRES_OLD_BIN to its bin folder")
    with PostgresServer(bin_directory=binaries) as server:
        await asyncio.wait_for(migrate(server.dsn), 30)
        assert await schema_version(server.dsn) == latest_version()
