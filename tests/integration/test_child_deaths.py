"""How a supervisor learns of a child's death, makes sure of it, and says so: each race has a named winner."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from jm_cli import orphans
from jm_cli.child_ends import ChildEnds
from jm_cli.children import Death
from jm_cli.supervisor import forget_worker, incarnation_of
from jm_core import wire
from jm_core.wire import WorkerRecord
from jm_nats import JobMaster, NatsConfig
from jm_nats.connection import connect
from jm_nats.kv import CasKv, Written
from jm_nats.provision import ensure_cluster
from jm_nats.worker import kin
from tests.support.waiting import wait_until

LEASE_S = 600.0
SPAWN, NEXT = "0a1b", "2c3d"
DEATH = Death(4711, SPAWN)


# What it says.


@pytest.fixture
def app(nats_server, cluster_name):
    made = JobMaster(cluster_name)
    made.use_nats(NatsConfig(servers=(nats_server.url,)), override=True)
    return made


@pytest.fixture
async def kv(app):
    async with await connect(app.nats_config(), client_name="test") as link:
        await ensure_cluster(link, app.names, lease_s=LEASE_S)
        yield CasKv(link, app.names.workers_kv)


def beat(worker, spawn, number=0, **more):
    record = WorkerRecord(worker, incarnation_of(spawn, number), "host", DEATH.pid, 0.0, 1, [], [])
    return wire.encode(replace(record, **more))


async def test_all_workers_of_the_dead_child_go_and_nobody_else_s(app, kv):
    await kv.put("w-1-a", beat("w-1-a", SPAWN, 0))
    await kv.put("w-1-b", beat("w-1-b", SPAWN, 1))
    await kv.put("w-2-a", beat("w-2-a", NEXT, 0))  # the same pid, on another machine
    await kv.put("old", wire.encode(WorkerRecord("old", "f" * 32, "host", DEATH.pid, 0.0, 1, [], [])))
    assert await forget_worker(app, DEATH) == 2
    assert await kv.keys() == ["old", "w-2-a"]


async def between_look_and_delete(monkeypatch, what):
    """``what`` is done once, after the supervisor has looked and before it deletes."""
    delete = CasKv.delete
    done = []

    async def late(self, key, *, revision):
        if not done:
            done.append(await what())
        return await delete(self, key, revision=revision)

    monkeypatch.setattr(CasKv, "delete", late)
    return done


async def test_a_last_beat_that_was_on_its_way_does_not_save_it(app, kv, monkeypatch):
    put = await kv.put("w", beat("w", SPAWN))

    async def it_arrives():
        return await kv.update("w", beat("w", SPAWN, running=1), revision=put.revision)

    done = await between_look_and_delete(monkeypatch, it_arrives)
    assert await forget_worker(app, DEATH) == 1
    assert isinstance(done[0], Written), "the beat was in before the deletion"
    assert await kv.keys() == []


async def test_a_beat_that_comes_after_the_deletion_is_refused(app, kv):
    put = await kv.put("w", beat("w", SPAWN))
    assert await forget_worker(app, DEATH) == 1
    assert not isinstance(await kv.update("w", beat("w", SPAWN), revision=put.revision), Written)
    assert await kv.keys() == []


async def test_who_takes_its_name_over_in_that_moment_keeps_it(app, kv, monkeypatch):
    put = await kv.put("w", beat("w", SPAWN))

    async def taken_over():
        return await kv.update("w", beat("w", NEXT), revision=put.revision)

    await between_look_and_delete(monkeypatch, taken_over)
    assert await forget_worker(app, DEATH) == 0
    assert await kv.keys() == ["w"]


# How it makes sure.


def start(*argv, spawn="", home="", **more):
    """A process in a session of its own, as children are, with a mark."""
    mark = {kin.VARIABLE: f"{spawn}/{home}"} if spawn else {}
    env = {name: value for name, value in os.environ.items() if name != kin.VARIABLE} | mark
    return subprocess.Popen(argv, env=env, start_new_session=True, **more)


def sleeper(**more):
    return start("sleep", "600", **more)


async def test_what_a_dead_child_left_is_killed_and_gone_on_return():
    """One in its session, that takes no notice of a polite signal; one of its pool. What was detached stays."""
    code = "import subprocess as s; print(s.Popen(['sh', '-c', 'trap \"\" TERM; sleep 600']).pid, flush=True)"
    child = start(sys.executable, "-c", code, stdout=subprocess.PIPE)
    pool, daemon = sleeper(spawn=SPAWN, home=kin.POOL), sleeper(spawn=SPAWN, home=str(child.pid))
    stranger = sleeper(spawn=NEXT, home=kin.POOL)
    try:
        with child.stdout:
            left = int(child.stdout.readline())
        child.wait()
        assert is_there(left)
        assert await orphans.ended(pid=child.pid, spawn=SPAWN)
        assert not is_there(left)
        assert pool.wait() == -signal.SIGKILL
        assert daemon.poll() is None
        assert stranger.poll() is None
    finally:
        for process in (pool, daemon, stranger):
            process.kill()
            process.wait()


def is_there(pid):
    try:
        return bool(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return False


async def test_without_proc_it_is_left_to_the_lease(monkeypatch, tmp_path):
    monkeypatch.setattr(orphans, "PROC", tmp_path)
    assert not await orphans.ended(pid=1, spawn=SPAWN)


# How it learns of it.


@pytest.fixture
async def ends():
    with ChildEnds() as made:
        yield made


async def test_the_end_of_a_watched_child_wakes_who_waits(ends):
    child = sleeper()
    assert ends.watch(child.pid)
    assert ends.watch(child.pid), "as often as one likes"
    waiting = asyncio.create_task(ends.wait(asyncio.Event(), 3600))
    child.kill()
    await asyncio.wait_for(waiting, 30)
    child.wait()


async def test_one_that_has_ended_before_it_is_watched_is_told_too(ends):
    child = sleeper()
    child.kill()
    await wait_until(lambda: not is_there(child.pid), what="it is a zombie")
    assert ends.watch(child.pid)
    await asyncio.wait_for(ends.wait(asyncio.Event(), 3600), 30)
    child.wait()


async def test_a_stop_wakes_as_well(ends):
    stop = asyncio.Event()
    waiting = asyncio.create_task(ends.wait(stop, 3600))
    stop.set()
    await asyncio.wait_for(waiting, 30)


async def test_where_the_kernel_does_not_tell_it_says_so(ends, monkeypatch):
    def refused(_pid):
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert not ends.watch(os.getpid())
