"""``jm top`` as a process: over a pipe, on a terminal, while NATS goes and comes back."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess

import pytest

from jm_cli.exits import ExitCode
from jm_nats import submission
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.embedded import NatsServer
from jm_nats.provision import ensure_cluster
from jm_nats.subjects import Names
from tests.support.cli import JM, Running, environment, jm
from tests.support.fake_worker import bucket_record, put_records, worker_record
from tests.support.processes import Cluster
from tests.support.waiting import wait_until


@pytest.fixture
async def quiet(nats_server, cluster_name):
    """A cluster of records alone: no coordinator."""
    names = Names(cluster_name)
    async with await connect(NatsConfig(servers=(nats_server.url,)), client_name="test") as link:
        await ensure_cluster(link, names, lease_s=60)
        await put_records(link, names, worker_record(), bucket_record())
    return {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name}


def documents(running):
    """Those that are written to the end."""
    return [json.loads(line) for line in running.out().splitlines(keepends=True) if line.endswith("\n")]


async def test_one_frame_without_a_terminal(quiet, tmp_path):
    done = jm("top", "--once", cwd=tmp_path, **quiet)
    assert (done.returncode, done.stderr) == (0, "")
    for part in ("1 workers", "w-1", "jobs: no coordinator answers", "default"):
        assert part in done.stdout
    [found] = [json.loads(line) for line in jm("top", "--once", "--json", cwd=tmp_path, **quiet).stdout.splitlines()]
    assert found["workers"][0]["worker"] == "w-1"
    assert (found["jobs"], found["jobs_problem"]) == (None, "no coordinator answers")


async def test_once_without_nats_or_cluster_ends_with_its_code(quiet, tmp_path):
    away = jm("top", "--once", cwd=tmp_path, JM_NATS_URL="nats://127.0.0.1:1", JM_NATS_CONNECT_TIMEOUT_S="0.5")
    assert away.returncode == ExitCode.NATS
    for options in (["--once"], []):
        unknown = jm("top", *options, cwd=tmp_path, **(quiet | {"JM_CLUSTER": "no-such"}))
        assert unknown.returncode == ExitCode.NOT_FOUND
        assert "no-such" in unknown.stderr


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "0.1"])
def test_an_interval_that_is_none_is_refused(interval):
    assert jm("top", "--interval", interval).returncode == ExitCode.USAGE


async def test_a_document_per_interval_with_the_speed_of_real_workers(nats_server, database, cluster_name, tmp_path):
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name}
    async with Cluster(nats_server.url, database, cluster_name, JM_HEARTBEAT_S="0.3") as cluster:
        await cluster.start()
        with Running("top", "--json", "--interval", "0.2", cwd=tmp_path, **variables) as top:
            async with cluster.client() as client:
                receipts = await client.submit_many([submission("noop") for _ in range(500)])
            await cluster.ended([receipt.job_id for receipt in receipts])
            counted = await wait_until(
                lambda: [d for d in documents(top) if d["jobs"] and d["jobs"].get("succeeded") == 500]
            )
            assert counted[0]["data_age_s"] < 5
            assert await top.end(signal.SIGINT) == ExitCode.OK
            assert all(d["finished_per_s"] is None or d["finished_per_s"] >= 0 for d in documents(top))


async def test_it_survives_an_outage_of_nats_and_says_how_old_its_data_are(tmp_path):
    with NatsServer() as server:
        variables = {"JM_NATS_URL": server.url, "JM_CLUSTER": "c", "JM_NATS_CONNECT_TIMEOUT_S": "0.3"}
        await asyncio.to_thread(server.start)
        names = Names("c")
        async with await connect(NatsConfig(servers=(server.url,)), client_name="test") as link:
            await ensure_cluster(link, names, lease_s=60)
            await put_records(link, names, worker_record())
        await asyncio.to_thread(server.stop)
        with Running("top", "--json", "--interval", "0.2", cwd=tmp_path, **variables) as top:
            # Away from the start: waited for.
            await wait_until(lambda: documents(top))
            assert documents(top)[0]["data_age_s"] is None
            await asyncio.to_thread(server.start)
            await wait_until(lambda: documents(top)[-1]["workers"])
            await asyncio.to_thread(server.stop)
            aged = await wait_until(lambda: [d for d in documents(top) if d["workers"] and not d["connected"]])
            assert aged[0]["problem"]
            await wait_until(lambda: documents(top)[-1]["data_age_s"] > aged[0]["data_age_s"])
            await asyncio.to_thread(server.start)
            await wait_until(lambda: documents(top)[-1]["connected"] and not documents(top)[-1]["problem"])
            assert await top.end() == ExitCode.OK


class Terminal:
    """``jm`` on a terminal of its own."""

    def __init__(self, *arguments, cwd, **variables):
        self.keyboard, screen = pty.openpty()
        os.set_blocking(self.keyboard, False)
        env = environment(**variables) | {"TERM": "xterm", "COLUMNS": "140", "LINES": "40"}
        self.process = subprocess.Popen([*JM, *arguments], cwd=cwd, env=env, stdin=screen, stdout=screen, stderr=screen)
        os.close(screen)
        self._seen = b""

    def seen(self):
        with contextlib.suppress(OSError):  # nothing new, or its end
            self._seen += os.read(self.keyboard, 65536)
        return self._seen.decode(errors="replace")

    def press(self, keys):
        os.write(self.keyboard, keys)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.keyboard)


@pytest.mark.parametrize("key", [b"q", b"Q", b"\x03"], ids=["q", "Q", "ctrl-c"])
async def test_on_a_terminal_a_key_ends_it(quiet, tmp_path, key):
    with Terminal("top", cwd=tmp_path, **quiet) as terminal:
        await wait_until(lambda: "w-1" in terminal.seen(), shown=terminal.seen)
        if key == b"\x03":  # what the terminal's driver makes of it, where it is the controlling one
            terminal.process.send_signal(signal.SIGINT)
        else:
            terminal.press(b"x" + key)
        await wait_until(lambda: terminal.seen() and terminal.process.poll() is not None, shown=terminal.seen)
        assert terminal.process.returncode == ExitCode.OK
        assert "\x1b[?1049l" in terminal.seen()  # the screen from before is back
