"""``jm job cancel | requeue | run-now | reschedule | priority``, ``jm job history`` and ``jm audit``."""

from __future__ import annotations

import json
import uuid

import pytest

from jm_cli.exits import ExitCode
from tests.conftest import delete_streams, run_apart
from tests.support.cli import jm
from tests.support.master import new_id
from tests.support.processes import COORDINATOR_READY, WORKER_READY, Cluster, Processes, environment

APP = "tests.support.control_app:jm"
FAR = "30d"
SHAPE = {"action", "jobs", "matched", "by_status"}


@pytest.fixture(scope="module")
def address(nats_server, postgres_server, database_template):
    name = f"t{uuid.uuid4().hex[:12]}"
    dsn = postgres_server.create_database(f"jm_{name}", template=database_template)
    with Processes(environment(nats_server.url, dsn, name)) as processes:
        coordinator = processes.start("coordinator", "coordinator", ready=COORDINATOR_READY)
        worker = processes.start("worker", "worker", APP, ready=WORKER_READY)
        for process in (coordinator, worker):
            run_apart(process.wait_ready())
        yield nats_server.url, dsn, name
    postgres_server.drop_database(f"jm_{name}")
    run_apart(delete_streams(nats_server.url, name))


@pytest.fixture
async def cluster(address):
    async with Cluster(*address) as made:
        yield made


@pytest.fixture
def run(address, tmp_path):
    def run_jm(*arguments, stdin=b"", code=ExitCode.OK, **variables):
        variables = {"JM_ACTOR": "anna", "JM_NATS_URL": address[0], "JM_CLUSTER": address[2]} | variables
        done = jm(*arguments, cwd=tmp_path, stdin=stdin, **variables)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    return run_jm


@pytest.fixture
def submit(run):
    def submit_one(*options, handler="quick"):
        return run("submit", handler, "--wait", "recorded", *options).stdout.split()[1]

    return submit_one


@pytest.fixture
def lane():
    """Jobs of this test only."""
    return f"l{uuid.uuid4().hex[:8]}"


async def test_a_running_job_is_cancelled_and_waited_for(run, submit, cluster):
    job_id = submit(handler="waits")
    await cluster.wait_for_counts(processing=1)
    done = run("job", "cancel", job_id, "--reason", "wrong customer", "--wait", "30s")
    assert done.stdout.splitlines()[1].split() == [job_id, "cancelled", "yes"]
    shown = run("job", "show", job_id).stdout
    assert "cancelled by   anna" in shown
    assert "cancel reason  wrong customer" in shown
    again = run("job", "cancel", job_id)
    assert "it has ended cancelled" in again.stdout


async def test_what_became_of_each_is_shown_also_when_one_does_not_end_in_time(run, submit, cluster, tmp_path):
    path = tmp_path / "go on"
    stuck = submit(json.dumps({"path": str(path)}), handler="thread_until_file")
    waiting = submit("--in", FAR)
    await cluster.wait_for_counts(processing=1)
    done = run("job", "cancel", stuck, waiting, "--wait", "0.5s", code=ExitCode.OUTCOME)
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:]] == [
        [stuck, "processing", "yes"],
        [waiting, "cancelled", "yes"],
    ]
    assert f"job {stuck} was asked to end" in done.stderr
    path.touch()
    assert f"{stuck} cancelled" in run("job", "wait", stuck, code=ExitCode.OUTCOME).stdout


def test_what_cannot_be_done_has_an_exit_code_of_its_own(run, submit):
    job_id, gone = submit("--in", FAR), new_id()
    run("job", "requeue", job_id, gone, code=ExitCode.OUTCOME)
    nothing = run("job", "cancel", gone, code=ExitCode.NOT_FOUND)
    assert nothing.stdout.splitlines()[1].split()[:3] == [gone, "unknown", "no"]
    assert "should it still be queued, it will be saved as cancelled" in nothing.stderr
    assert "no such job on the master" in run("job", "run-now", gone, code=ExitCode.NOT_FOUND).stderr


def test_a_filter_is_counted_confirmed_and_worked_off(run, submit, lane):
    ids = [submit("--in", FAR, "--lane", lane) for _ in range(3)]
    dry = run("job", "cancel", "--in-lane", lane, "--dry-run")
    assert dry.stdout == "cancel would be about 3 jobs (on_master 3)\n"
    dry_document = json.loads(run("job", "cancel", "--in-lane", lane, "--dry-run", "--json").stdout)
    assert dry_document == {"action": None, "jobs": [], "matched": 3, "by_status": {"on_master": 3}}
    assert "--expect 3" in dry.stderr
    unsure = run("job", "cancel", "--in-lane", lane, code=ExitCode.USAGE)
    assert "confirm with --yes, or --expect 3" in unsure.stderr
    wrong = run("job", "cancel", "--in-lane", lane, "--expect", "2", code=ExitCode.OUTCOME)
    assert "3 jobs match, 2 were expected" in wrong.stderr
    done = run("job", "cancel", "--in-lane", lane, "--expect", "3", "--reason", "r", "--json")
    document = json.loads(done.stdout)
    assert (set(document), document["jobs"]) == (SHAPE, [])
    assert (document["matched"], document["by_status"]) == (3, {"on_master": 3})
    view = document["action"]
    assert (view["matched"], view["changed"], view["actor"], view["reason"]) == (3, 3, "anna", "r")
    listed = json.loads(run("job", "list", "--lane", lane, "--json").stdout)["jobs"]
    assert {job["id"]: job["status"] for job in listed} == dict.fromkeys(ids, "cancelled")
    again = run("job", "requeue", "--in-lane", lane, "--yes", "--at", "2099-01-01T00:00:00Z")
    assert again.stdout == "requeue: 3 of 3 jobs\n"
    assert "jm audit show" in again.stderr


def test_ids_come_from_a_pipe(run, submit, lane):
    ids = [submit("--in", FAR, "--lane", lane) for _ in range(3)]
    piped = "\n".join(f"{job_id} more words" for job_id in ids) + "\n\n"
    done = run("job", "priority", "--ids-from", "-", "--to", "high", "--json", stdin=piped)
    reply = json.loads(done.stdout)
    assert [job["id"] for job in reply["jobs"]] == ids
    assert reply["action"]["changed"] == 3
    assert (set(reply), reply["matched"], reply["by_status"]) == (SHAPE, 3, {"on_master": 3})
    listed = json.loads(run("job", "list", "--lane", lane, "--json").stdout)["jobs"]
    assert {job["priority"] for job in listed} == {"high"}


def test_a_waiting_job_is_rescheduled_and_run_now(run, submit, address):
    job_id = submit("--in", FAR)
    run("job", "reschedule", job_id, "--at", "2099-01-01T00:00:00Z")
    assert json.loads(run("job", "show", job_id, "--json").stdout)["run_at"] == "2099-01-01T00:00:00Z"
    run("job", "run-now", job_id, "--by", "ben")

    async def ended():
        async with Cluster(*address) as cluster:
            assert await cluster.ended([job_id]) == {"succeeded": 1}

    run_apart(ended())
    history = run("job", "history", job_id).stdout.splitlines()
    assert [line.split()[2] for line in history[1:]][:4] == ["queued", "recorded", "reschedule", "run-now"]
    told = json.loads(run("job", "history", job_id, "--json").stdout)
    assert [entry["by"] for entry in told["entries"] if entry["what"] == "run-now"] == ["ben"]


def test_the_record_of_actions_is_listed_and_shown(run, submit):
    job_id = submit("--in", FAR)
    run("job", "cancel", job_id, "--reason", "for the record", "--by", "carla")
    listed = json.loads(run("audit", "list", "--of", "carla", "--json").stdout)["actions"]
    assert [(a["action"], a["reason"], a["changed"]) for a in listed] == [("cancel", "for the record", 1)]
    shown = run("audit", "show", listed[0]["action_id"]).stdout
    assert "carla" in shown
    assert job_id in shown
    table = run("audit", "list", "--of", "carla", "--action", "cancel").stdout.splitlines()
    assert table[1].split()[0] == listed[0]["action_id"]
    assert run("audit", "show", new_id(), code=ExitCode.NOT_FOUND).stdout == ""
    assert "no such actions" in run("audit", "list", "--of", "nobody").stderr


def test_who_acts_is_user_and_host_when_nothing_is_said(run, submit):
    job_id = submit("--in", FAR)
    run("job", "cancel", job_id, JM_ACTOR="")
    shown = json.loads(run("job", "show", job_id, "--json").stdout)
    assert "@" in shown["cancelled_by"]


def test_a_dry_run_by_ids_does_nothing(run, submit):
    job_id = submit("--in", FAR)
    done = run("job", "cancel", job_id, "--dry-run")
    assert done.stdout.splitlines()[1].split() == [job_id, "on_master", "yes"]
    assert json.loads(run("job", "show", job_id, "--json").stdout)["status"] == "on_master"
