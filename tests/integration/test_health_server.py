"""The health port: three paths, no other method, nothing a slow client could do to it, and an answer always."""

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from jm_core.errors import InvalidSettingError
from jm_nats import health_server
from jm_nats.health import HealthBoard
from jm_nats.health_server import HealthServer
from tests.support.waiting import wait_until


@pytest.fixture
def board():
    board = HealthBoard("shop", "worker")
    board.started()
    return board


@pytest.fixture
def server(board):
    with HealthServer([board], redact=lambda text: text.replace("sesame", "***")) as server:
        yield server


def ask(server, path, method="GET"):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers, answer.read()


async def get(server, path):
    status, _, body = await asyncio.to_thread(ask, server, path)
    return status, json.loads(body)


@pytest.fixture
async def ticking(server):
    task = asyncio.create_task(server.tick())
    yield server
    task.cancel()


async def test_all_is_green_when_all_is_well(ticking):
    assert await get(ticking, "/livez") == (200, {"ok": True, "reasons": []})
    assert await get(ticking, "/readyz?verbose=1") == (200, {"ok": True, "reasons": []})
    status, body = await get(ticking, "/health")
    assert (status, body["status"], body["live"], body["ready"]) == (200, "healthy", True, True)
    assert [(group["name"], group["kind"], group["health"]) for group in body["groups"]] == [
        ("shop", "worker", "healthy")
    ]


async def test_an_outage_is_red_for_readiness_and_never_for_liveness(ticking, board):
    board.trouble("nats", "disconnected")
    assert (await get(ticking, "/readyz"))[0] == 200
    assert (await get(ticking, "/health"))[1]["status"] == "degraded"
    board.cycle("beat", 0.0)
    assert (await get(ticking, "/readyz"))[0] == 503
    assert (await get(ticking, "/health"))[0] == 503
    assert (await get(ticking, "/livez"))[0] == 200


async def test_a_halt_is_red_and_says_why_without_secrets(ticking, board):
    board.halt("the password is sesame")
    for path in ("/livez", "/readyz", "/health"):
        status, body = await get(ticking, path)
        assert status == 503
        assert "halted: the password is ***" in json.dumps(body)


async def test_it_answers_while_the_event_loop_is_blocked(board):
    """Green at first, red for liveness once the stall limit is over, green again when the loop turns."""
    with HealthServer([board], stall_limit_s=0.5) as server, ThreadPoolExecutor(1) as pool:
        ticking = asyncio.create_task(server.tick())
        await asyncio.sleep(0)
        asked = pool.submit(until_red, server)
        first, last = asked.result(20)  # nothing else runs in this thread meanwhile
        assert first[0] == 200
        assert last[0] == 503
        assert b"event loop is stuck" in last[2]
        await wait_until(lambda: is_green(server), what="liveness")
        ticking.cancel()


def until_red(server):
    first = last = ask(server, "/livez")
    while last[0] == 200:
        last = ask(server, "/livez")
    return first, last


async def is_green(server):
    return (await get(server, "/livez"))[0] == 200


def test_head_has_no_body(server):
    status, headers, body = ask(server, "/livez", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize("path", ["/", "/healthz", "/livez/", "/../etc/passwd", "/%2e"])
def test_other_paths_are_not_there(server, path):
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_refused(server, method):
    status, headers, _ = ask(server, "/livez", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_requests_are_not_logged(server, caplog):
    caplog.set_level("INFO")
    ask(server, "/livez")
    ask(server, "/nothing")
    assert caplog.records == []


def test_slow_clients_hold_up_nobody_and_are_cut_off(server, monkeypatch):
    monkeypatch.setattr(health_server, "REQUEST_S", 0.6)
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10)]
    try:
        for connection in slow:
            connection.sendall(b"GET /li")
        assert ask(server, "/livez")[0] == 200
        for connection in slow:
            connection.settimeout(10)
            assert b"200" not in connection.recv(1000)
    finally:
        for connection in slow:
            connection.close()


def test_too_many_at_once_are_turned_away_and_later_ones_served(server, monkeypatch):
    monkeypatch.setattr(health_server, "REQUEST_S", 0.6)
    crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(health_server.REQUESTS_MAX + 20)]
    try:
        crowd[-1].settimeout(10)
        assert crowd[-1].recv(1000) == b""
    finally:
        for connection in crowd:
            connection.close()
    deadline_s = time.monotonic() + 10
    while True:
        try:
            assert ask(server, "/livez")[0] == 200
        except OSError:
            assert time.monotonic() < deadline_s
        else:
            return


def test_what_is_no_http_costs_nothing(server, capfd):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"\x16\x03\x01\x00\x00\r\n\r\n")
        connection.settimeout(10)
        connection.recv(1000)
    assert ask(server, "/livez")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_is_named(server, board):
    with pytest.raises(InvalidSettingError, match=f"127.0.0.1:{server.port}"):
        HealthServer([board], port=server.port)
    with pytest.raises(InvalidSettingError, match="70000"):
        HealthServer([board], port=70_000)


def test_the_port_is_free_again_after_it(board):
    with HealthServer([board]) as first:
        port = first.port
    with HealthServer([board], port=port) as second:
        assert ask(second, "/livez")[0] == 200
