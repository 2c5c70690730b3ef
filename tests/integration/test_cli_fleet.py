"""``jm worker`` and ``jm bucket`` against real workers, and against one that only talks."""

import asyncio
import json
import signal
import uuid

import pytest

from jm_cli.exits import ExitCode
from jm_core.model import BucketKind, WorkerState
from jm_nats import submission
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.provision import ensure_bucket, ensure_cluster
from jm_nats.subjects import Names
from jm_nats.worker.rpc import RefusedOrderError, WorkerRpc
from tests.conftest import delete_streams, run_apart
from tests.support.cli import Running, jm, jm_many
from tests.support.fake_worker import FakeOrders, bucket_record, put_records, worker_record
from tests.support.processes import APP, WORKER_READY, Cluster, Processes, environment
from tests.support.waiting import wait_until


def run_in(tmp_path, url, cluster):
    """``jm`` for that cluster, in an empty folder, while this event loop goes on."""

    async def run(*arguments, code=ExitCode.OK, **more):
        done = await asyncio.to_thread(jm, *arguments, cwd=tmp_path, JM_NATS_URL=url, JM_CLUSTER=cluster, **more)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        if code is not ExitCode.OK:
            assert done.stderr.splitlines()[-1].startswith("error: ")
        return done

    return run


def fields(done):
    """``name  value`` lines of a record."""
    lines = [line.partition("  ") for line in done.stdout.splitlines()]
    return {name: value.strip() for name, _, value in lines}


# -- real workers


@pytest.fixture(scope="module")
def real(nats_server):
    """A worker of two lanes, for all tests here; nobody drains it."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with Processes(environment(nats_server.url, "postgresql://nobody@127.0.0.1:1/none", name)) as processes:
        options = ["--name", "web-1", "--lane", "mail,web", "--priority", "high"]
        worker = processes.start("worker", "worker", *options, APP, ready=WORKER_READY)
        run_apart(worker.wait_ready())
        yield nats_server.url, name, worker.pid
    run_apart(delete_streams(nats_server.url, name))


@pytest.fixture
def run_real(real, tmp_path):
    return run_in(tmp_path, real[0], real[1])


async def test_a_real_worker_is_listed_with_its_process_and_buckets(real, run_real):
    [header, line] = (await run_real("worker", "list")).stdout.splitlines()
    assert header.split()[:4] == ["WORKER", "STATE", "HEALTH", "MODE"]
    assert line.split()[:4] == ["web-1", "serving", "healthy", "execution"]
    assert str(real[2]) in line.split()
    listed = json.loads((await run_real("worker", "list", "--json")).stdout)
    [worker] = listed["workers"]
    assert (worker["pid"], len(worker["buckets"]), worker["lanes"]) == (real[2], 2, ["mail", "web"])
    assert 0 <= worker["beat_age_s"] < 10
    assert (listed["gone"], listed["unreadable"]) == ([], [])


async def test_its_buckets_are_listed_and_one_is_shown_with_its_stream(run_real):
    lines = (await run_real("bucket", "list")).stdout.splitlines()
    assert len(lines) == 3
    buckets = json.loads((await run_real("bucket", "list", "--json")).stdout)["buckets"]
    assert {(b["lane"], b["priority"], b["worker"], b["owner"]) for b in buckets} == {
        ("mail", "high", "web-1", "alive"),
        ("web", "high", "web-1", "alive"),
    }
    shown = fields(await run_real("bucket", "show", buckets[0]["bucket"]))
    assert (shown["status"], shown["worker"], shown["messages"]) == ("active", "web-1", "0, 0 B")
    assert (shown["waiting"], shown["unacked"], shown["scheduled"]) == ("0", "0", "0")


async def test_fifty_lists_in_a_row_name_the_same_three_workers(link, names, nats_server, tmp_path):
    """BR-210: from their records, and not from who happens to answer in time; the one in trouble is marked."""
    troubled = worker_record("w-3", health="degraded", reasons=["nats: disconnected"])
    await put_records(link, names, worker_record("w-1"), worker_record("w-2"), troubled)
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": names.cluster}
    lists = await asyncio.to_thread(jm_many, [("worker", "list", "--json")] * 50, cwd=tmp_path, **variables)
    assert {done.returncode for done in lists} == {ExitCode.OK}
    seen = {tuple((w["worker"], w["health"]) for w in json.loads(done.stdout)["workers"]) for done in lists}
    assert seen == {(("w-1", "healthy"), ("w-2", "healthy"), ("w-3", "degraded"))}
    assert len(lists) == 50


@pytest.mark.parametrize("command", [("worker", "show"), ("worker", "drain"), ("worker", "stop"), ("bucket", "show")])
async def test_what_is_not_there_is_named_with_what_is_near_and_nothing_is_made(real, run_real, command):
    async def streams():
        async with await connect(NatsConfig(servers=(real[0],)), client_name="test") as link:
            return (await link.api("STREAM.NAMES"))["streams"]

    before = await streams()
    typed = "web-2" if command[0] == "worker" else "mail-high-none"
    done = await run_real(*command, typed, code=ExitCode.NOT_FOUND)
    assert (
        f"no {command[0]} '{typed}'; did you mean {'web-1' if command[0] == 'worker' else 'mail-high-'}" in done.stderr
    )
    assert await streams() == before


@pytest.mark.parametrize("command", [("worker", "list"), ("bucket", "list"), ("worker", "drain", "w")])
async def test_a_cluster_that_is_not_there_is_named(real, tmp_path, command):
    done = await run_in(tmp_path, real[0], "no-such")(*command, code=ExitCode.NOT_FOUND)
    assert "knows no cluster 'no-such'" in done.stderr


async def test_without_nats_it_is_said(tmp_path):
    run = run_in(tmp_path, "nats://127.0.0.1:1", "c")
    await run("worker", "list", code=ExitCode.NATS, JM_NATS_CONNECT_TIMEOUT_S="0.5")


async def test_a_killed_worker_is_gone_and_its_buckets_say_so(nats_server, cluster_name, tmp_path):
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name, "JM_LEASE_S": "1", "JM_HEARTBEAT_S": "0.3"}
    run = run_in(tmp_path, nats_server.url, cluster_name)
    with Running("worker", APP, "--name", "w-1", "--priority", "low", cwd=tmp_path, **variables) as worker:
        await worker.wait_for("worker ready")
        worker.process.kill()
        await worker.wait_exit()

        async def gone():
            return json.loads((await run("worker", "list", "--json")).stdout)["gone"]

        [found] = await wait_until(gone)
    assert found["worker"] == "w-1"
    assert " gone " in (await run("worker", "list")).stdout
    assert "w-1 (gone)" in (await run("bucket", "list")).stdout
    shown = fields(await run("worker", "show", "w-1"))
    assert shown["state"].startswith("gone: no heartbeat")
    refused = await run("worker", "drain", "w-1", code=ExitCode.NO_WORKER)
    assert "is gone" in refused.stderr


# -- one that only talks


@pytest.fixture
async def names(link, cluster_name):
    """Of a cluster that is there."""
    made = Names(cluster_name)
    await ensure_cluster(link, made, lease_s=60)
    return made


@pytest.fixture
def run(nats_server, names, tmp_path):
    return run_in(tmp_path, nats_server.url, names.cluster)


@pytest.fixture
async def orders(link, names):
    """Its heartbeat follows what it was told, after a moment."""
    fake = FakeOrders()

    async def beat():
        while True:
            await put_records(link, names, worker_record(state=fake.state, running=1))
            await asyncio.sleep(0.05)

    await put_records(link, names, worker_record())
    async with WorkerRpc(link, names, "w-1", fake):
        beating = asyncio.create_task(beat())
        yield fake
        beating.cancel()
        await asyncio.wait({beating})


async def test_show_has_the_jobs_that_run_at_this_moment(link, names, run, orders):
    await put_records(link, names, bucket_record(), bucket_record("old", origin="w-0"))
    done = await run("worker", "show", "w-1")
    shown = fields(done)
    assert (shown["state"], shown["slots"], shown["pid"]) == ("serving", "1 of 4 in use", "4711")
    assert "adopted from w-0" in done.stdout
    assert "running 1, held 3:" in done.stdout
    assert "j-1" in done.stdout
    found = json.loads((await run("worker", "show", "w-1", "--json")).stdout)
    assert found["status"]["running"][0]["handler"] == "sleep"
    assert len(found["buckets"]) == 2
    assert found["problem"] == ""


async def test_drain_returns_when_the_heartbeat_says_so_and_undo_takes_it_back(run, orders):
    done = await run("worker", "drain", "w-1")
    assert done.stdout == "w-1 draining\n"
    assert json.loads((await run("worker", "drain", "w-1", "--undo", "--json")).stdout) == {
        "worker": "w-1",
        "state": "serving",
        "running": 1,
        "held": 0,
    }
    assert orders.given == [("drain", False), ("drain", True)]


async def test_stop_can_be_hurried(run, orders):
    assert (await run("worker", "stop", "w-1", "--hurry")).stdout == "w-1 stopping\n"
    assert orders.given == [("stop", True)]


async def test_wait_is_for_the_end_of_the_worker(link, names, nats_server, tmp_path, orders):
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": names.cluster}
    with Running("worker", "drain", "w-1", "--wait", cwd=tmp_path, **variables) as draining:
        await draining.wait_for("w-1: draining, 1 running")
        assert draining.out() == ""
        orders.state = WorkerState.STOPPING
        await draining.wait_for("w-1: stopping")
        # Another process under its name is not the one that was waited for.
        orders.state = WorkerState.SERVING
        await put_records(link, names, worker_record(incarnation="i-2"))
        # The fake goes on beating; take its place for good.
        while draining.process.poll() is None:
            await put_records(link, names, worker_record(incarnation="i-2"))
            await asyncio.sleep(0.001)
        assert await draining.wait_exit() == ExitCode.OK
        assert draining.out() == "w-1 gone\n"


async def test_ctrl_c_ends_the_wait_and_the_order_stands(names, nats_server, tmp_path, orders):
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": names.cluster}
    with Running("worker", "drain", "w-1", "--wait", cwd=tmp_path, **variables) as draining:
        await draining.wait_for("w-1: draining")
        assert await draining.end(signal.SIGINT) == ExitCode.INTERRUPTED
    assert orders.given == [("drain", False)]


async def test_an_answer_that_was_lost_is_asked_for_again(link, names, run, orders, monkeypatch):
    answered = []

    async def lossy(message):
        answered.append(message)
        if len(answered) > 1:
            await WorkerRpc(link, names, "w-1", orders)._on_request(message)

    await link.nc.subscribe(names.worker_rpc("w-2"), cb=lossy)
    await put_records(link, names, worker_record("w-2", state=WorkerState.DRAINING))
    assert (await run("worker", "drain", "w-2")).stdout == "w-2 draining\n"
    assert len(answered) == 2


async def test_a_worker_that_does_not_answer_is_a_clear_error(link, names, run):
    await put_records(link, names, worker_record("mute"))
    done = await run("worker", "drain", "mute", code=ExitCode.NO_WORKER)
    assert "'mute' does not answer, asked 3 times" in done.stderr
    shown = await run("worker", "show", "mute", code=ExitCode.NO_WORKER)
    assert fields(shown)["state"] == "serving"
    assert "listens" in shown.stderr


async def test_a_refusal_is_told_with_its_reason(run, orders, monkeypatch):
    def refuse(undo):
        raise RefusedOrderError("it is stopping already")

    monkeypatch.setattr(orders, "drain", refuse)
    done = await run("worker", "drain", "w-1", "--undo", code=ExitCode.NO_WORKER)
    assert "refuses: it is stopping already" in done.stderr


async def test_a_fallback_bucket_shows_its_reason_and_a_hostile_one_steers_no_terminal(link, names, run):
    why = "nobody serves mail/low \x1b[31m"
    fallback = {"kind": BucketKind.FALLBACK, "serves": 2, "priority": 5, "reason": why}
    await put_records(link, names, bucket_record("mail-fallback", lane="mail", **fallback))
    listed = (await run("bucket", "list")).stdout
    assert "low at critical" in listed
    assert "nobody serves mail/low \\x1b[31m" in listed
    assert "\x1b" not in listed
    await ensure_bucket(link, names, "mail-fallback")
    assert fields(await run("bucket", "show", "mail-fallback"))["kind"] == "fallback"


async def test_a_record_that_cannot_be_read_is_mentioned(link, names, run):
    await put_records(link, names, (names.workers_kv, "w-8", b"{"), (names.buckets_kv, "b-8", b"{"))
    for command, key in (("worker", "w-8"), ("bucket", "b-8")):
        done = await run(command, "list")
        assert f"cannot be read: jm_{names.cluster}_{command}s {key}" in done.stderr
        shown = await run(command, "show", key, code=ExitCode.UNEXPECTED)
        assert "cannot be read" in shown.stderr


async def test_a_bucket_without_a_stream_is_shown_all_the_same(link, names, run):
    await put_records(link, names, bucket_record())
    shown = fields(await run("bucket", "show", "default-high-1"))
    assert (shown["stream"], shown["worker"]) == ("gone", "w-1 (gone)")


# -- orders to real workers


async def test_a_real_worker_drains_takes_jobs_again_and_drains_to_its_end(
    nats_server, database, cluster_name, tmp_path
):
    run = run_in(tmp_path, nats_server.url, cluster_name)
    go = tmp_path / "go"
    async with Cluster(nats_server.url, database, cluster_name, JM_HEARTBEAT_S="0.3") as cluster:
        await cluster.start_coordinator().wait_ready()
        worker = await cluster.start_worker("--name", "w-1").wait_ready()
        async with cluster.client() as client:
            first = await client.submit(submission("waits_for_file", {"path": str(go)}))
            await wait_until(lambda: list(tmp_path.glob("go.*")), what="the start of the job")
            assert (await run("worker", "drain", "w-1")).stdout == "w-1 draining\n"
            shown = json.loads((await run("worker", "show", "w-1", "--json")).stdout)
            assert [job["id"] for job in shown["status"]["running"]] == [first.job_id]
            assert (await run("worker", "drain", "w-1", "--undo")).stdout == "w-1 serving\n"
            second = await client.submit(submission("noop"))
            assert await cluster.ended([second.job_id]) == {"succeeded": 1}
            draining = asyncio.create_task(run("worker", "drain", "w-1", "--wait"))

            async def is_draining():
                return json.loads((await run("worker", "list", "--json")).stdout)["workers"][0]["state"] == "draining"

            await wait_until(is_draining)
            assert worker.running
            go.touch()
            assert (await draining).stdout == "w-1 gone\n"
            assert await worker.wait_exit() == 0
        assert await cluster.ended([first.job_id]) == {"succeeded": 1}


async def test_a_real_worker_that_is_told_to_hurry_gives_its_job_back(nats_server, database, cluster_name, tmp_path):
    run = run_in(tmp_path, nats_server.url, cluster_name)
    go = tmp_path / "go"
    async with Cluster(nats_server.url, database, cluster_name, JM_HEARTBEAT_S="0.3") as cluster:
        await cluster.start_coordinator().wait_ready()
        worker = await cluster.start_worker("--name", "w-1", "--drain-timeout", "600").wait_ready()
        async with cluster.client() as client:
            job = await client.submit(submission("waits_for_file", {"path": str(go)}))
        await wait_until(lambda: list(tmp_path.glob("go.*")), what="the start of the job")
        assert (await run("worker", "stop", "w-1")).stdout == "w-1 stopping\n"
        assert worker.running
        assert (await run("worker", "stop", "w-1", "--hurry", "--wait")).stdout == "w-1 gone\n"
        await worker.wait_exit()
        go.touch()
        await cluster.start_worker().wait_ready()
        assert await cluster.ended([job.job_id]) == {"succeeded": 1}


async def test_a_lane_that_nobody_serves_gets_a_fallback_that_says_why_and_a_handler_nobody_knows_is_mentioned(
    nats_server, database, cluster_name, tmp_path
):
    run = run_in(tmp_path, nats_server.url, cluster_name)
    settings = {"JM_HEARTBEAT_S": "0.3", "JM_LEASE_S": "3", "JM_NO_BUCKET_THRESHOLD_S": "0.5"}
    async with Cluster(nats_server.url, database, cluster_name, **settings) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            served = await client.submit(submission("noop", lane="nobodys", priority="low"))
            await client.submit(submission("no-such-handler", lane="nobodys"))
        assert await cluster.ended([served.job_id]) == {"succeeded": 1}

        async def mentioned():
            listed = json.loads((await run("bucket", "list", "--json")).stdout)
            return listed if [kind["handler"] for kind in listed["unserved"]] == ["no-such-handler"] else None

        listed = await wait_until(mentioned)
        [fallback] = [bucket for bucket in listed["buckets"] if bucket["kind"] == "fallback"]
        assert (fallback["lane"], fallback["serves"]) == ("nobodys", "low")
        shown = await run("bucket", "list")
        assert fallback["reason"] in shown.stdout
        assert "nobody served lane 'nobodys' at priority low" in fallback["reason"]
        assert "warning: jobs of handler 'no-such-handler', lane 'nobodys'" in shown.stderr
        assert "no-such-handler" in (await run("top", "--once")).stdout
