"""Every command says within ten seconds, in one line and by its exit code, what is not there (BR-206, BR-220)."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from jm_cli.exits import ExitCode
from jm_master.embedded import PostgresServer
from jm_nats.embedded import NatsServer
from tests.support.cli import Running, jm, jm_many
from tests.support.waiting import wait_until

LIMIT_S = 10.0
JOB_ID = "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e"
READING = [
    ["job", "list"],
    ["job", "list", "--json"],
    ["job", "show", JOB_ID],
    ["job", "show", JOB_ID, "--json"],
    ["job", "attempts", JOB_ID],
    ["job", "attempts", JOB_ID, "--json"],
    ["rejected", "list"],
    ["rejected", "list", "--json"],
    ["rejected", "show", "1"],
    ["rejected", "show", "1", "--json"],
]
WRITING = [
    ["submit", "hello"],
    ["submit", "hello", "{}", "--wait", "recorded", "--json"],
    ["submit", "hello", "{}", "--wait", "result"],
    ["submit", "--file", "-"],
    ["submit", "--file", "-", "--no-check", "--wait", "recorded", "--json"],
]
SERVING = [["worker", "jm_cli.example:jm"], ["coordinator"]]
NATS_COMMANDS = [*READING, *WRITING, *SERVING, ["doctor", "--json"]]
LINES = '{"handler": "hello"}\n' * 3
PASSWORD = "p@ss/w:rd%21"
ENCODED = "p%40ss%2Fw%3Ard%2521"
FRAGMENTS = ("ss/w", "w:rd", "rd%21", "rd!", "%40ss", "%2521", "sesame")


@contextmanager
def black_hole():
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def check(done, code, *parts, debug="0"):
    """The last line says it; processes that go on log to stderr, too, and everything does so when debugged."""
    assert done.returncode == code, done.stderr
    *logged, said = done.stderr.splitlines()
    assert said.startswith("error: ")
    assert not logged or debug == "1" or done.args[1:] in SERVING
    assert done.stdout == "" or "doctor" in done.args
    for part in parts:
        assert part in said


def test_nats_down(tmp_path):
    port = closed_port()
    variables = {
        "JM_NATS_URL": f"nats://127.0.0.1:{port}",
        "JM_POSTGRES_DSN": "postgresql://127.0.0.1:1/x",
        "JM_NATS_CONNECT_TIMEOUT_S": "0.3",
    }
    for done in jm_many(NATS_COMMANDS, cwd=tmp_path, stdin=LINES, **variables):
        check(done, ExitCode.NATS, "nats" if "doctor" in done.args else f"nats://127.0.0.1:{port}")


def test_a_server_that_says_nothing_is_given_up_within_ten_seconds(tmp_path):
    """With the settings as shipped. A busy machine may make it slower, but nothing else may."""
    commands = [["job", "list"], *SERVING, ["doctor"], ["migrate"]]
    with black_hole() as nats, black_hole() as postgres, ThreadPoolExecutor(len(commands)) as pool:
        variables = {
            "JM_NATS_URL": f"nats://127.0.0.1:{nats}",
            "JM_POSTGRES_DSN": f"postgresql://jm:{ENCODED}@127.0.0.1:{postgres}/jobs",
        }
        started = time.monotonic()
        for done in pool.map(lambda command: jm_many([command], cwd=tmp_path, **variables)[0], commands):
            check(done, ExitCode.POSTGRES if "migrate" in done.args else ExitCode.NATS)
        assert time.monotonic() - started < LIMIT_S * max(1, os.getloadavg()[0])


def test_no_coordinator(tmp_path, nats_server, cluster_name):
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name}
    for done in jm_many(READING, cwd=tmp_path, **variables):
        check(done, ExitCode.NO_COORDINATOR, "jm coordinator")


def test_a_cluster_that_nobody_knows(tmp_path, nats_server, cluster_name):
    """BR-208: a name, and no timeout."""
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name}
    for done in jm_many(WRITING, cwd=tmp_path, stdin=LINES, **variables):
        check(done, ExitCode.NOT_FOUND, cluster_name)


@pytest.fixture(scope="module")
def locked_nats():
    users = f'authorization {{ users: [ {{ user: jm, password: "{PASSWORD}" }} ] }}'
    with NatsServer(extra_config=users) as server:
        yield server


@pytest.mark.parametrize("debug", ["0", "1"])
def test_wrong_nats_credentials_are_refused_and_never_shown(debug, tmp_path, locked_nats):
    variables = {
        "JM_NATS_URL": f"nats://jm:{ENCODED}x@127.0.0.1:{locked_nats.port}",
        "JM_POSTGRES_DSN": f"postgresql://jm:{ENCODED}@127.0.0.1:1/jobs",
        "JM_DEBUG": debug,
    }
    commands = [["job", "list"], ["submit", "hello"], *SERVING, ["doctor", "--json"]]
    for done in jm_many(commands, cwd=tmp_path, **variables):
        check(done, ExitCode.NATS, debug=debug)
        check_no_secret(done)


@pytest.mark.parametrize("as_url", [True, False])
def test_right_nats_credentials_are_taken_from_url_and_variables(as_url, tmp_path, locked_nats):
    """Down to the next trouble: there is no coordinator."""
    if as_url:
        variables = {"JM_NATS_URL": f"nats://jm:{ENCODED}@127.0.0.1:{locked_nats.port}"}
    else:
        variables = {"JM_NATS_URL": locked_nats.url, "JM_NATS_USER": "jm", "JM_NATS_PASSWORD": PASSWORD}
    check(jm("job", "list", cwd=tmp_path, **variables), ExitCode.NO_COORDINATOR)


# -- Postgres


@pytest.mark.parametrize("debug", ["0", "1"])
def test_postgres_down(tmp_path, postgres_server, debug):
    """As a flag here; the variable is tried by the others."""
    port = closed_port()
    dsns = [
        f"postgresql://jm:{ENCODED}@127.0.0.1:{port}/jobs",
        f"postgresql://jm@127.0.0.1:{port}/jobs?password={ENCODED}",
        f"postgresql://postgres:{ENCODED}@127.0.0.1:{postgres_server.port}/no_such_database",
        f"postgresql://jm:{ENCODED}@no-such-host.invalid/jobs",
    ]
    commands = [["migrate", "--json", "--dsn", dsn] for dsn in dsns]
    for done in jm_many(commands, cwd=tmp_path, JM_DEBUG=debug):
        check(done, ExitCode.POSTGRES, "Postgres", debug=debug)
        check_no_secret(done)


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_password_that_is_not_escaped_is_not_shown_either(tmp_path, debug):
    """A parser may take parts of it for host, port or database, and quote those."""
    dsn = f"postgresql://jm:{PASSWORD}@127.0.0.1:{closed_port()}/jobs"
    done = jm("migrate", cwd=tmp_path, JM_POSTGRES_DSN=dsn, JM_DEBUG=debug)
    assert done.returncode in (ExitCode.POSTGRES, ExitCode.USAGE)
    check(done, done.returncode, debug=debug)
    check_no_secret(done)


def check_no_secret(done):
    assert not [part for part in FRAGMENTS if part in done.stdout + done.stderr]


@pytest.mark.slow
async def test_a_running_cluster_without_postgres(tmp_path, nats_server, cluster_name):
    """Jobs are still taken; whoever asks for more is told, whether Postgres is gone or silent (DESIGN P5)."""
    with PostgresServer() as postgres:
        variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name}
        with Running("coordinator", cwd=tmp_path, JM_POSTGRES_DSN=postgres.dsn, **variables) as coordinator:
            await coordinator.wait_for("leading")
            await wait_until(lambda: jm("job", "list", cwd=tmp_path, **variables).returncode == 0, what="an answer")
            for away, back in ((postgres.pause, postgres.resume), (postgres.stop, postgres.start)):
                away()
                assert jm("submit", "hello", cwd=tmp_path, **variables).returncode == ExitCode.OK
                for done in jm_many([READING[0], READING[3]], cwd=tmp_path, **variables):
                    check(done, ExitCode.POSTGRES, "Postgres")
                waiting = ["submit", "hello", "{}", "--wait", "recorded", "--wait-timeout", "1"]
                check(jm(*waiting, cwd=tmp_path, **variables), ExitCode.NO_COORDINATOR, "safe in NATS")
                back()


async def test_a_coordinator_waits_for_postgres_and_never_shows_its_password(tmp_path, nats_server, cluster_name):
    dsn = f"postgresql://jm:{ENCODED}@127.0.0.1:{closed_port()}/jobs"
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name, "JM_POSTGRES_DSN": dsn}
    options = ("--log-level", "debug", "--log-format", "json")
    with Running("coordinator", *options, cwd=tmp_path, **variables) as process:
        await process.wait_for("waiting for postgres")
        assert await process.end() == ExitCode.OK
        assert not [part for part in FRAGMENTS if part in process.out() + process.err()]
