"""Every command says within ten seconds, in one line and by its exit code, what is not there (BR-206, BR-220)."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from jm_cli.exits import ExitCode
from jm_nats.embedded import NatsServer
from tests.support.cli import Running, jm

LIMIT_S = 10.0
JOB_ID = "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e"
CLIENT_COMMANDS = [
    ["submit", "hello"],
    ["submit", "hello", "{}", "--wait", "recorded", "--json"],
    ["submit", "hello", "{}", "--wait", "result"],
    ["submit", "--file", "-"],
    ["submit", "--file", "-", "--no-check", "--wait", "recorded", "--json"],
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
NATS_COMMANDS = [*CLIENT_COMMANDS, ["worker", "jm_cli.example:jm"], ["coordinator"], ["doctor", "--json"]]
LINES = b'{"handler": "hello"}\n' * 3
PASSWORD = "p@ss/w:rd%21"
ENCODED = "p%40ss%2Fw%3Ard%2521"
FRAGMENTS = ("ss/w", "w:rd", "rd%21", "rd!", "%40ss", "%2521", "sesame")


def named(command):
    return " ".join(command[:2]) + (" --json" if "--json" in command else "")


@contextmanager
def black_hole():
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def check(done, code, *parts, one_line=True):
    assert done.returncode == code, done.stderr
    if one_line:
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def run(command, tmp_path, **variables):
    done = jm(*command, cwd=tmp_path, stdin=LINES, **variables)
    if "doctor" not in command:
        assert done.stdout == ""
    return done


def test_nats_down(tmp_path):
    port = closed_port()
    variables = {
        "JM_NATS_URL": f"nats://127.0.0.1:{port}",
        "JM_POSTGRES_DSN": "postgresql://127.0.0.1:1/x",
        "JM_NATS_CONNECT_TIMEOUT_S": "1",
    }
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda command: run(command, tmp_path, **variables), NATS_COMMANDS))
    for command, done in zip(NATS_COMMANDS, ends, strict=True):
        check(done, ExitCode.NATS, "nats" if "doctor" in command else f"nats://127.0.0.1:{port}")


def test_a_server_that_says_nothing_is_given_up_within_ten_seconds(tmp_path):
    """With the settings as shipped. A busy machine may only make it slower."""
    commands = [["job", "list"], ["worker", "jm_cli.example:jm"], ["coordinator"], ["doctor"], ["migrate"]]
    with black_hole() as nats, black_hole() as postgres, ThreadPoolExecutor(len(commands)) as pool:
        variables = {
            "JM_NATS_URL": f"nats://127.0.0.1:{nats}",
            "JM_POSTGRES_DSN": f"postgresql://jm:{ENCODED}@127.0.0.1:{postgres}/jobs",
        }
        for _ in range(3):
            started = time.monotonic()
            ends = list(pool.map(lambda command: run(command, tmp_path, **variables), commands))
            took_s = time.monotonic() - started
            for command, done in zip(commands, ends, strict=True):
                check(done, ExitCode.POSTGRES if command == ["migrate"] else ExitCode.NATS)
            if took_s < LIMIT_S * max(1, os.getloadavg()[0] / (os.cpu_count() or 1)):
                return
    assert took_s < LIMIT_S


@pytest.mark.parametrize("command", CLIENT_COMMANDS[5:], ids=named)
def test_no_coordinator(command, tmp_path, nats_server, cluster_name):
    done = run(command, tmp_path, JM_NATS_URL=nats_server.url, JM_CLUSTER=cluster_name)
    check(done, ExitCode.NO_COORDINATOR, "jm coordinator")


@pytest.fixture(scope="module")
def locked_nats():
    users = f'authorization {{ users: [ {{ user: jm, password: "{PASSWORD}" }} ] }}'
    with NatsServer(extra_config=users) as server:
        yield server


@pytest.mark.parametrize("debug", ["0", "1"])
@pytest.mark.parametrize("command", NATS_COMMANDS[:1] + NATS_COMMANDS[5:6] + NATS_COMMANDS[-3:], ids=named)
def test_wrong_nats_credentials_are_refused_and_never_shown(command, debug, tmp_path, locked_nats):
    wrong = f"nats://jm:{ENCODED}x@127.0.0.1:{locked_nats.port}"
    dsn = f"postgresql://jm:{ENCODED}@127.0.0.1:1/jobs"
    done = run(command, tmp_path, JM_NATS_URL=wrong, JM_POSTGRES_DSN=dsn, JM_DEBUG=debug)
    check(done, ExitCode.NATS, one_line=debug == "0")
    assert not [part for part in FRAGMENTS if part in done.stdout + done.stderr]


@pytest.mark.parametrize("as_url", [True, False])
def test_right_nats_credentials_are_taken_from_url_and_variables(as_url, tmp_path, locked_nats):
    """Down to the next trouble: there is no coordinator."""
    if as_url:
        variables = {"JM_NATS_URL": f"nats://jm:{ENCODED}@127.0.0.1:{locked_nats.port}"}
    else:
        variables = {"JM_NATS_URL": locked_nats.url, "JM_NATS_USER": "jm", "JM_NATS_PASSWORD": PASSWORD}
    check(run(["job", "list"], tmp_path, **variables), ExitCode.NO_COORDINATOR)


# -- Postgres


@pytest.mark.parametrize("debug", ["0", "1"])
def test_postgres_down(tmp_path, postgres_server, debug):
    port = closed_port()
    dsns = [
        f"postgresql://jm:{ENCODED}@127.0.0.1:{port}/jobs",
        f"postgresql://jm@127.0.0.1:{port}/jobs?password={ENCODED}",
        f"postgresql://postgres:{ENCODED}@127.0.0.1:{postgres_server.port}/no_such_database",
        f"postgresql://jm:{ENCODED}@no-such-host.invalid/jobs",
    ]
    for dsn in dsns:
        done = run(["migrate", "--json"], tmp_path, JM_POSTGRES_DSN=dsn, JM_DEBUG=debug)
        check(done, ExitCode.POSTGRES, "Postgres", one_line=debug == "0")
        assert not [part for part in FRAGMENTS if part in done.stdout + done.stderr]


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_password_that_is_not_escaped_is_not_shown_either(tmp_path, debug):
    """A parser may take parts of it for host, port or database, and quote those."""
    dsn = f"postgresql://jm:{PASSWORD}@127.0.0.1:{closed_port()}/jobs"
    done = run(["migrate"], tmp_path, JM_POSTGRES_DSN=dsn, JM_DEBUG=debug)
    check(done, done.returncode, one_line=debug == "0")
    assert done.returncode in (ExitCode.POSTGRES, ExitCode.USAGE)
    assert not [part for part in FRAGMENTS if part in done.stdout + done.stderr]


async def test_a_coordinator_waits_for_postgres_and_never_shows_its_password(tmp_path, nats_server, cluster_name):
    dsn = f"postgresql://jm:{ENCODED}@127.0.0.1:{closed_port()}/jobs"
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name, "JM_POSTGRES_DSN": dsn}
    options = ("--log-level", "debug", "--log-format", "json")
    with Running("coordinator", *options, cwd=tmp_path, **variables) as process:
        await process.wait_for("waiting for postgres")
        assert await process.end() == ExitCode.OK
        assert not [part for part in FRAGMENTS if part in process.out() + process.err()]
