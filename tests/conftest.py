"""Every run brings its own servers: one NATS and one Postgres for the session, on free ports.

A test that stops or kills a server starts its own: ``with NatsServer() as nats: …``.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import nats
import pytest

from jm_master.embedded import PostgresServer
from jm_nats.embedded import NatsServer
from jm_nats.troubles import forget_troubles
from tests.support.skips import pytest_runtest_makereport  # noqa: F401 - a hook: in CI no tool may be missing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

DATABASE_NUMBERS = itertools.count(1)


@pytest.fixture(autouse=True)
def troubles_are_news() -> None:
    """What another test has logged must not keep this one's log quiet."""
    forget_troubles()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    # A process that dies loses nothing without fsync, only a machine does; the tests kill processes.
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server


@pytest.fixture(scope="session")
def database_template(postgres_server: PostgresServer) -> str:
    """A database with the schema in it, migrated once; every test gets a copy (50 ms)."""
    dsn = postgres_server.create_database("jm_template")
    try:
        migrate = importlib.import_module("jm_master.migrate").migrate
    except ModuleNotFoundError as absent:
        if absent.name != "jm_master.migrate":
            raise
    else:
        run_apart(migrate(dsn))
    return "jm_template"


@pytest.fixture
def new_database(postgres_server: PostgresServer, database_template: str) -> Iterator[Callable[[], str]]:
    """Makes fresh, migrated databases and gives their DSNs; all are dropped after the test."""
    names: list[str] = []

    def create() -> str:
        names.append(f"jm_test_{next(DATABASE_NUMBERS)}")
        return postgres_server.create_database(names[-1], template=database_template)

    yield create
    for name in names:
        postgres_server.drop_database(name)


@pytest.fixture
def database(new_database: Callable[[], str]) -> str:
    """The DSN of a fresh, migrated database."""
    return new_database()


@pytest.fixture
def cluster_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name nobody else uses on the session's NATS; its streams are deleted after the test."""
    name = f"t{uuid.uuid4().hex[:12]}"
    server = request.getfixturevalue("nats_server") if "nats_server" in request.fixturenames else None
    yield name
    if server is not None:
        run_apart(delete_streams(server.url, name))


async def delete_streams(url: str, cluster_name: str) -> None:
    connection = await nats.connect(url, allow_reconnect=False)
    try:
        jetstream = connection.jetstream()
        for info in await jetstream.streams_info():  # the first page is all: every test takes its own away
            if f"_{cluster_name}_" in (info.config.name or ""):
                await jetstream.delete_stream(info.config.name or "")
    finally:
        await connection.close()


def run_apart(work: Coroutine[Any, Any, object]) -> None:
    """Run to the end in a thread, so that no test's event loop is touched."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()
