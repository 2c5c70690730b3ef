"""``jm schedule`` and ``client.schedules`` against a running cluster."""

import json
import os
import pty
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from jm_cli.exits import ExitCode
from jm_core.api_schedules import ScheduleState
from jm_core.errors import (
    InvalidScheduleError,
    NoSuchScheduleError,
    ScheduleConflictError,
    ScheduleRefusedError,
)
from jm_core.model import Priority
from tests.conftest import delete_streams, run_apart
from tests.support.cli import environment as cli_environment
from tests.support.cli import jm
from tests.support.processes import APP, COORDINATOR_READY, WORKER_READY, Cluster, Processes, environment
from tests.support.waiting import wait_until

START = "2999-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def address(nats_server, postgres_server, database_template):
    """One coordinator and one worker for all tests here; each test has a schedule of its own."""
    name = f"t{uuid.uuid4().hex[:12]}"
    dsn = postgres_server.create_database(f"jm_{name}", template=database_template)
    with Processes(environment(nats_server.url, dsn, name) | {"JM_SCHEDULE_ZONE": "Europe/Berlin"}) as processes:
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
    """``jm schedule`` for that cluster, in an empty folder."""

    def run_jm(*arguments, stdin=b"", code=ExitCode.OK):
        settings = {"JM_NATS_URL": address[0], "JM_CLUSTER": address[2], "JM_ACTOR": "anna"}
        done = jm("schedule", *arguments, cwd=tmp_path, stdin=stdin, **settings)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        if code is not ExitCode.OK:
            assert done.stderr.splitlines()[-1].startswith("error: ")
        return done

    return run_jm


@pytest.fixture
def name():
    return f"s-{uuid.uuid4().hex[:8]}"


def shown(run, name):
    return json.loads(run("show", name, "--json").stdout)


async def jobs_of(cluster, name, *, status=None):
    query = "SELECT id::text, status, args::text FROM job WHERE schedule = $1 AND ($2::int IS NULL OR status = $2)"
    return await cluster.sql.rows(query, name, status)


async def test_a_schedule_is_made_shown_and_runs(cluster, run, name):
    done = run(
        "add", name, "echo", "--every", "1s", "--args", '{"value": 1.10}', "--metadata", "team=x", "--lane", "default"
    )
    assert done.stdout == f"added {name}\n"
    assert "Every 1 s" in done.stderr

    async def has_run():
        return len(await jobs_of(cluster, name, status=4)) >= 2

    await wait_until(has_run, 30, what="two runs of the schedule")
    view = shown(run, name)
    assert view["spec"]["args"] == {"value": 1.10}
    assert view["spec"]["metadata"] == {"team": "x"}
    assert (view["state"], view["origin"], view["created_by"], view["zone"]) == (
        "active",
        "dynamic",
        "anna",
        "Europe/Berlin",
    )
    record = run("show", name).stdout
    assert "1.10" in record
    assert "Every 1 s" in record
    assert "by anna" in record
    table = run("list", "--handler", "echo", "--prefix", name).stdout
    assert name in table
    assert "every: 1s" in table
    run("delete", name, "--yes")


async def test_the_same_again_is_no_error_and_another_of_the_name_is(run, name):
    same = ("add", name, "noop", "--cron", "0 9 * * MON-FRI", "--tz", "America/New_York")
    run(*same)
    run(*same)
    done = run("add", name, "noop", "--cron", "0 10 * * *", code=ExitCode.OUTCOME)
    assert name in done.stderr
    assert shown(run, name)["spec"]["expr"] == "0 9 * * MON-FRI"


async def test_next_times_are_shown_on_the_schedule_s_own_clock(run, name):
    run("add", name, "noop", "--cron", "30 2 * * *", "--tz", "Asia/Kathmandu")
    view = shown(run, name)
    assert [at[10:] for at in view["upcoming"]] == ["T20:45:00Z"] * 5
    assert run("show", name, "--count", "3").stdout.count("02:30:00+0545") == 3


async def test_what_preview_shows_is_what_the_coordinator_plans(run, name):
    expression = "every month on the last weekday at 12:00"
    after = datetime.now(UTC).isoformat()
    previewed = json.loads(run("preview", expression, "--tz", "Europe/Berlin", "--after", after, "--json").stdout)
    run("add", name, "noop", "--plain", expression)
    assert shown(run, name)["upcoming"] == [each["utc"] for each in previewed["times"]]
    assert shown(run, name)["description"] == previewed["description"]


async def test_the_coordinator_refuses_a_handler_that_nobody_has(run, name):
    done = run("add", name, "ecko", "--every", "5m", code=ExitCode.USAGE)
    assert "did you mean echo" in done.stderr
    run("show", name, code=ExitCode.NOT_FOUND)


async def test_a_dry_run_shows_the_next_times_and_sends_nothing(run, name):
    arguments = ("add", name, "noop", "--cron", "0 0 13 * 5", "--tz", "UTC", "--start", START, "--dry-run")
    done = run(*arguments)
    assert " OR " in done.stdout
    assert done.stdout.count("2999-") == 10  # five times, in the zone and in UTC
    times = json.loads(run(*arguments, "--json").stdout)["times"]
    assert len(times) == 5
    assert all(each["utc"] > START for each in times)
    run("show", name, code=ExitCode.NOT_FOUND)


async def test_pause_and_resume_are_on_record(run, name):
    run("add", name, "noop", "--every", "1m", "--paused")
    assert shown(run, name)["state"] == "paused"
    assert run("resume", name).stdout == f"resumed {name}\n"
    assert shown(run, name)["state"] == "active"
    done = run("pause", name, "--reason", "quarter end", "--by", "bob")
    assert done.stdout == f"paused {name}\n"
    view = shown(run, name)
    assert (view["state"], view["paused_by"]) == ("paused", "bob")
    assert "upcoming" not in view
    assert name in run("list", "--state", "paused", "--limit", "500").stdout


async def test_an_edit_changes_what_it_names_and_clears_what_it_is_told_to(run, name):
    run("add", name, "noop", "--cron", "0 9 * * *", "--tz", "Asia/Tokyo", "--lane", "default", "--max-runs", "9")
    run(
        "edit",
        name,
        "--cron",
        "30 9 * * *",
        "--clear",
        "tz",
        "--overlap",
        "skip",
        "--args",
        '{"n": 2}',
        "--metadata",
        "a=b",
    )
    view = shown(run, name)
    assert (view["spec"]["expr"], view["zone"], view["spec"]["overlap"]) == ("30 9 * * *", "Europe/Berlin", "skip")
    assert (view["spec"]["args"], view["spec"]["metadata"]) == ({"n": 2}, {"a": "b"})
    assert (view["spec"]["lane"], view["spec"]["max_runs"], view["updated_by"]) == ("default", 9, "anna")
    stale = str(view["revision"] - 1)
    run("edit", name, "--lane", "other", "--revision", stale, code=ExitCode.OUTCOME)
    assert shown(run, name)["spec"]["lane"] == "default"
    run("edit", name, "--cron", "0 0 31 2 *", code=ExitCode.USAGE)
    run("edit", name, "--handler", "nobody-has-it", code=ExitCode.USAGE)
    assert shown(run, name)["revision"] == view["revision"]


async def test_run_now_makes_one_job_with_its_own_arguments(cluster, run, name):
    run("add", name, "echo", "--cron", "0 0 1 1 *", "--args", '{"value": 1}', "--paused")
    job_id = run("run-now", name, "--args", '{"value": 2}').stdout.strip()

    async def has_ended():
        return [row for row in await jobs_of(cluster, name, status=4) if row["id"] == job_id]

    await wait_until(has_ended, 30, what="the job of run-now")
    assert [json.loads(row["args"]) for row in await jobs_of(cluster, name)] == [{"value": 2}]
    assert json.loads(run("run-now", name, "--json").stdout)["job_id"] != job_id


async def test_delete_asks_a_person_and_nobody_else(address, run, name, tmp_path):
    run("add", name, "noop", "--every", "1m")
    run("delete", name, code=ExitCode.USAGE)
    assert asked(address, tmp_path, name, "n\n") == (ExitCode.USAGE, True)
    assert shown(run, name)["state"] == "active"
    assert asked(address, tmp_path, name, "y\n") == (ExitCode.OK, True)
    run("show", name, code=ExitCode.NOT_FOUND)
    run("delete", name, "--yes", code=ExitCode.NOT_FOUND)


def asked(address, folder, name, answer):
    """(exit code, whether the question was put) of a delete at a terminal."""
    ours, theirs = pty.openpty()
    variables = cli_environment(JM_NATS_URL=address[0], JM_CLUSTER=address[2])
    command = [sys.executable, "-P", "-m", "jm_cli", "schedule", "delete", name]
    process = subprocess.Popen(command, cwd=folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, answer.encode())
    said = b""
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:  # Linux: the other side is closed
        pass
    os.close(ours)
    return process.wait(timeout=60), f"Delete schedule '{name}'".encode() in said


async def test_skips_are_listed_with_their_reason(cluster, run, name):
    run("add", name, "waits_for_file", "--every", "1s", "--overlap", "skip", "--args", '{"path": "/no/such/file"}')

    async def was_skipped():
        return await cluster.sql.value("SELECT count(*) FROM schedule_skip WHERE schedule = $1", name)

    await wait_until(was_skipped, 30, what="a skipped time")
    found = json.loads(run("skips", name, "--json").stdout)["skips"]
    assert {skip["reason"] for skip in found} == {"overlap"}
    table = run("skips", name, "--reason", "overlap").stdout
    assert "overlap" in table
    assert found[0]["detail"] in table
    assert run("skips", name, "--reason", "misfire").stdout == ""
    run("delete", name, "--yes")


async def test_why_goes_on_record_with_every_change(cluster, run, name):
    who = ("--by", "bob", "--reason", "why not")
    run("add", name, "noop", "--every", "1h", *who)
    run("edit", name, "--every", "2h", *who)
    run("run-now", name, *who)
    run("delete", name, "--yes", *who)
    rows = await cluster.sql.rows("SELECT * FROM operator_action WHERE scope->>'schedule' = $1 ORDER BY at", name)
    assert [row["action"] for row in rows] == [f"schedule-{verb}" for verb in ("add", "edit", "run-now", "delete")]
    assert {(row["actor"], row["reason"]) for row in rows} == {("bob", "why not")}


async def test_the_client_does_what_the_command_line_does(cluster, name):
    async with cluster.client() as client:
        schedules = client.schedules
        start = datetime(2999, 1, 1, 9, tzinfo=UTC)
        added = await schedules.add(
            name, "echo", {"value": 1}, rrule="FREQ=DAILY", zone="UTC", starts_at=start, misfire="skip", by="carl"
        )
        assert (added.state, added.created_by) == (ScheduleState.ACTIVE, "carl")
        assert added.upcoming[:2] == [start, start + timedelta(days=1)]
        assert (await schedules.get(name, upcoming=1)).upcoming == [start]
        assert [view.spec.name async for view in schedules.all(name_prefix=name)] == [name]
        edited = await schedules.edit(name, every=timedelta(hours=1), zone=None, jitter=60, priority=Priority.HIGH)
        assert (edited.spec.kind, edited.spec.expr, edited.spec.zone) == ("every", "3600", None)
        assert (edited.spec.jitter_s, edited.spec.priority) == (60, "high")
        assert (await schedules.pause(name, reason="why")).state is ScheduleState.PAUSED
        assert (await schedules.resume(name)).state is ScheduleState.ACTIVE
        request_id = str(uuid.uuid4())
        job_id = await schedules.run_now(name, args={"value": 5}, request_id=request_id)
        assert await schedules.run_now(name, args={"value": 5}, request_id=request_id) == job_id == request_id
        assert await client.result(job_id, timeout=30) == 5
        assert (await schedules.skips(name)).skips == []
        assert (await schedules.delete(name)).spec.name == name
        with pytest.raises(NoSuchScheduleError, match=name):
            await schedules.get(name)


async def test_the_client_s_errors_have_types(cluster, name):
    async with cluster.client() as client:
        schedules = client.schedules
        with pytest.raises(InvalidScheduleError, match="position 1"):
            await schedules.add(name, "echo", cron="61 * * * *")
        with pytest.raises(InvalidScheduleError, match="exactly one"):
            await schedules.add(name, "echo")
        with pytest.raises(InvalidScheduleError, match="no such field"):
            await schedules.add(name, "echo", every=60, colour="red")
        with pytest.raises(InvalidScheduleError, match="jitter_s"):
            await schedules.add(name, "echo", every=60, jitter="much")
        with pytest.raises(InvalidScheduleError, match="starts_at"):
            await schedules.add(name, "echo", every=60, starts_at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(ScheduleRefusedError, match="did you mean echo"):
            await schedules.add(name, "ecko", every=60)
        await schedules.add(name, "echo", every=60)
        with pytest.raises(ScheduleConflictError, match=name):
            await schedules.add(name, "echo", every=61)
        with pytest.raises(ScheduleConflictError, match="revision"):
            await schedules.edit(name, every=61, revision=99)
        await schedules.delete(name)
