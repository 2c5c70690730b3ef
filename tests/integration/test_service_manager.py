"""What a process tells systemd, over a socket as systemd's: ready, alive, stopping; nothing once it is not alive."""

import asyncio
import os
import socket
import time

import pytest

from jm_cli.exits import ExitCode
from jm_cli.service_manager import ServiceManager, notifying
from jm_nats.embedded import NatsServer
from jm_nats.health import HealthBoard
from tests.support.cli import Running
from tests.support.waiting import wait_until

APP = "tests.support.app:jm"
WATCHDOG_S = 0.3


class Manager:
    """The other end, in a folder of the test's or (with ``@``) in no file system."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.setblocking(False)
        self._heard: list[str] = []

    def heard(self) -> list[str]:
        """Every line since the beginning."""
        while True:
            try:
                self._heard += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self._heard

    async def wait_for(self, line: str, timeout_s: float = 30) -> None:
        await wait_until(lambda: line in self.heard(), timeout_s, what=line, shown=self.heard)

    async def wait_silence(self, for_s: float) -> None:
        """Until nothing has come for so long: a watchdog of that time would have ended the process."""
        last, since_s = len(self.heard()), time.monotonic()

        def is_silent() -> bool:
            nonlocal last, since_s
            if len(self.heard()) != last:
                last, since_s = len(self._heard), time.monotonic()
            return time.monotonic() - since_s > for_s

        await wait_until(is_silent, what="silence", shown=self.heard)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@jm-test-{os.getpid()}-{id(request)}")
    yield made
    made.close()


@pytest.fixture
def board():
    return HealthBoard("shop", "worker")


def told(manager, watchdog_s=WATCHDOG_S):
    return ServiceManager(manager.address, watchdog_s)


async def test_it_is_told_of_the_start_the_work_and_the_stop(manager, board):
    stop = asyncio.Event()
    async with notifying(told(manager), [board], stop):
        await manager.wait_for("EXTEND_TIMEOUT_USEC=30000000")
        assert "READY=1" not in manager.heard()
        board.started()
        await manager.wait_for("READY=1")
        before = manager.heard().count("WATCHDOG=1")
        await wait_until(lambda: manager.heard().count("WATCHDOG=1") > before + 2, what="signs of life")
        assert "STOPPING=1" not in manager.heard()
        stop.set()
        await manager.wait_for("STOPPING=1")
        draining = manager.heard().count("WATCHDOG=1")
        await wait_until(lambda: manager.heard().count("WATCHDOG=1") > draining, what="life while it drains")
    assert manager.heard().count("READY=1") == 1


async def test_an_outage_is_no_reason_for_silence(manager, board):
    board.started()
    board.trouble("nats", "disconnected")
    board.cycle("beat", 0.0)  # unhealthy at once: red for readiness, not for liveness
    async with notifying(told(manager), [board], asyncio.Event()):
        await wait_until(lambda: manager.heard().count("WATCHDOG=1") > 3, what="signs of life")


async def test_what_has_failed_for_good_gives_no_sign_of_life(manager, board, caplog):
    board.started()
    async with notifying(told(manager), [board], asyncio.Event()):
        await manager.wait_for("WATCHDOG=1")
        board.halt("the lease is another's")
        await manager.wait_silence(WATCHDOG_S)
    (record,) = [r for r in caplog.records if r.message.startswith("not alive")]
    assert "the lease is another's" in record.reason


async def test_a_stuck_event_loop_gives_no_sign_of_life_and_one_that_turns_again_does(manager, board):
    board.started()
    async with notifying(told(manager), [board], asyncio.Event(), stall_limit_s=0.1):
        await manager.wait_for("WATCHDOG=1")
        time.sleep(3)  # noqa: ASYNC251 - that is the fault: more than a tick and the limit
        at_the_end = len(manager.heard())
        time.sleep(2 * WATCHDOG_S)  # noqa: ASYNC251
        assert len(manager.heard()) == at_the_end
        await wait_until(lambda: len(manager.heard()) > at_the_end, what="a sign of life again")


async def test_without_a_watchdog_it_is_told_of_start_and_stop_only(manager, board):
    board.started()
    async with notifying(told(manager, None), [board], asyncio.Event()):
        await manager.wait_for("READY=1")
    assert manager.heard() == ["READY=1", "STOPPING=1"]


async def test_a_manager_that_is_gone_costs_nothing(manager, board):
    manager.close()
    board.started()
    ran = False
    async with notifying(ServiceManager("/nonexistent/notify", WATCHDOG_S), [board], asyncio.Event()):
        ran = True
    assert ran


@pytest.mark.parametrize(
    ("variables", "watchdog_s"),
    [
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"}, 30.0),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "0"}, None),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "x"}, None),
        ({"NOTIFY_SOCKET": "/run/x"}, None),
    ],
    ids=["ours", "ours-by-pid", "anothers", "zero", "nonsense", "none"],
)
def test_the_environment_says_whether_there_is_a_watchdog(variables, watchdog_s):
    environment = {**variables, "PATH": "/bin"}
    manager = ServiceManager.from_environment(environment)
    assert manager is not None
    assert manager.watchdog_s == watchdog_s
    assert environment == {"PATH": "/bin"}, "a child must not speak for us"


@pytest.mark.parametrize("variables", [{}, {"NOTIFY_SOCKET": "vsock:2:1234"}, {"WATCHDOG_USEC": "1"}])
def test_without_a_socket_nobody_is_told(variables):
    assert ServiceManager.from_environment(dict(variables)) is None


def settings(manager, nats_url, cluster, **more):
    address = {"JM_NATS_URL": nats_url, "JM_CLUSTER": cluster, "NOTIFY_SOCKET": manager.address}
    return address | {"WATCHDOG_USEC": "1500000"} | more


async def test_a_coordinator_asks_for_time_until_it_leads(manager, database, cluster_name, tmp_path):
    server = NatsServer()
    try:
        server.start()
        url = server.url
        server.stop()
        variables = settings(manager, url, cluster_name, JM_POSTGRES_DSN=database)
        with Running("coordinator", cwd=tmp_path, **variables) as coordinator:
            await manager.wait_for("EXTEND_TIMEOUT_USEC=30000000")
            assert "READY=1" not in manager.heard()
            server.start()
            await manager.wait_for("READY=1")
            alive = manager.heard().count("WATCHDOG=1")
            await wait_until(lambda: manager.heard().count("WATCHDOG=1") > alive, what="signs of life")
            assert "STOPPING=1" not in manager.heard()
            assert await coordinator.end() == ExitCode.OK
            assert "STOPPING=1" in manager.heard()
    finally:
        server.close()


async def test_only_the_supervisor_of_several_workers_speaks(manager, nats_server, database, cluster_name, tmp_path):
    variables = settings(manager, nats_server.url, cluster_name, JM_POSTGRES_DSN=database)
    with (
        Running("coordinator", cwd=tmp_path, **variables | {"NOTIFY_SOCKET": ""}) as coordinator,
        Running("worker", APP, "--processes", "2", cwd=tmp_path, **variables) as workers,
    ):
        await coordinator.wait_for("leading")
        await wait_until(lambda: workers.err().count("worker ready") == 2, what="both", shown=workers.err)
        assert await workers.end() == ExitCode.OK
        assert manager.heard().count("READY=1") == 1
        assert not [line for line in manager.heard() if line.startswith("EXTEND")], "a worker would begin with that"
