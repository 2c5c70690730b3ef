"""``jm submit``, ``jm job`` and ``jm rejected`` against a running cluster."""

import json
import re
import signal
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta

import nats
import pytest
import uuid_utils

from jm_cli.exits import ExitCode
from tests.conftest import delete_streams, run_apart
from tests.support.cli import Running, jm
from tests.support.cli import environment as cli_environment
from tests.support.processes import APP, COORDINATOR_READY, WORKER_READY, Cluster, Processes, environment
from tests.support.waiting import wait_until

UNKNOWN_ID = "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e"
EXACT = '{"id":1970670598291982290,"n":9007199254740993,"price":1.10}'
HOSTILE = "\x1b[31mred\x1b[0m \x9b1m [bold]markup[/bold] \u202eevil"


@pytest.fixture(scope="module")
def address(nats_server, postgres_server, database_template):
    """One coordinator and one worker for all tests here; what they count they mark."""
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
    """``jm`` for that cluster, in an empty folder."""

    def run_jm(*arguments, stdin=b"", code=ExitCode.OK):
        done = jm(*arguments, cwd=tmp_path, stdin=stdin, JM_NATS_URL=address[0], JM_CLUSTER=address[2])
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        if code is not ExitCode.OK:
            assert done.stderr.splitlines()[-1].startswith("error: ")
        return done

    return run_jm


@pytest.fixture
def mark():
    return uuid.uuid4().hex


def submitted(done):
    """(status, id) of what ``jm submit`` printed."""
    status, job_id = done.stdout.split()
    return status, job_id


async def count(cluster, mark, *, ended=False):
    """Jobs with the mark in their arguments."""
    query = "SELECT count(*) FROM job WHERE args->>'mark' = $1 AND (status = 4 OR NOT $2)"
    return await cluster.sql.value(query, mark, ended)


async def until_ended(cluster, mark, jobs):
    async def all_ended():
        return await count(cluster, mark, ended=True) == jobs

    await wait_until(all_ended, what=f"the end of {jobs} jobs")


# -- one job


async def test_each_receipt_can_be_waited_for(cluster, run):
    status, first = submitted(run("submit", "echo", '{"value": 1}'))
    assert status == "queued"
    status, second = submitted(run("submit", "echo", '{"value": 2}', "--wait", "recorded"))
    assert status == "recorded"
    assert await cluster.sql.value("SELECT count(*) FROM job WHERE id = $1", second) == 1
    done = run("submit", "echo", '{"value": {"a": [1, 2]}}', "--wait", "result")
    assert json.loads(done.stdout) == {"a": [1, 2]}
    assert done.stderr.startswith("recorded ")
    await cluster.ended([first, second])


async def test_json_is_one_document_whatever_is_waited_for(run):
    for wait in ("queued", "recorded", "result"):
        done = run("submit", "echo", "{}", "--wait", wait, "--json")
        assert done.stdout.count("\n") == 1
        found = json.loads(done.stdout)
        assert found["status"] == {"result": "succeeded"}.get(wait, wait)


async def test_every_option_arrives_in_the_record(cluster, run):
    job_id = str(uuid_utils.uuid7())
    options = ["--lane", "mail", "--priority", "high", "--max-attempts", "7", "--timeout", "2m", "--unique-key", "k 1"]
    options += ["--meta", "team=a=b", "--meta", "empty=", "--id", job_id.upper(), "--at", "2031-01-01T09:00:00+05:45"]
    run("submit", "echo", "{}", *options, "--wait", "recorded")
    shown = json.loads(run("job", "show", job_id, "--json").stdout)
    assert shown["id"] == job_id
    assert (shown["lane"], shown["priority"], shown["max_attempts"], shown["timeout_s"]) == ("mail", "high", 7, 120)
    assert (shown["unique_key"], shown["metadata"]) == ("k 1", {"team": "a=b", "empty": ""})
    assert datetime.fromisoformat(shown["run_at"]) == datetime(2031, 1, 1, 3, 15, tzinfo=UTC)
    assert shown["status"] == "on_master"


async def test_a_delay_counts_from_now(cluster, run):
    before = datetime.now(UTC)
    _, job_id = submitted(run("submit", "echo", "{}", "--in", "2h", "--wait", "recorded"))
    run_at = await cluster.sql.value("SELECT run_at FROM job WHERE id = $1", job_id)
    assert before + timedelta(hours=2) <= run_at <= datetime.now(UTC) + timedelta(hours=2)


async def test_arguments_come_from_stdin(run):
    done = run("submit", "echo", "-", "--wait", "result", stdin='{"value": "ü"}')
    assert json.loads(done.stdout) == "ü"


async def test_numbers_keep_their_digits_all_the_way(run):
    done = run("submit", "echo", f'{{"value": {EXACT}}}', "--wait", "result")
    assert "1970670598291982290" in done.stdout
    assert "9007199254740993" in done.stdout
    job_id = done.stderr.split()[1]
    for command in (("job", "show", job_id), ("job", "show", job_id, "--json"), ("job", "list", "--json")):
        shown = run(*command).stdout
        assert "1970670598291982290" in shown
        assert "9007199254740993" in shown


async def test_the_same_id_or_key_again_is_said_to_be_a_duplicate(cluster, run):
    _, job_id = submitted(run("submit", "echo", "{}", "--in", "1h", "--unique-key", "only-one", "--wait", "recorded"))
    assert submitted(run("submit", "echo", "{}", "--id", job_id, "--wait", "recorded")) == ("duplicate", job_id)
    again = submitted(run("submit", "echo", "{}", "--unique-key", "only-one", "--wait", "recorded"))
    assert again == ("duplicate", job_id)
    assert await cluster.sql.value("SELECT count(*) FROM job WHERE unique_key = 'only-one'") == 1


async def test_what_becomes_of_a_taken_key_is_the_callers_choice(cluster, run):
    wait = ("--unique-key", "digest", "--in", "1h", "--wait", "recorded")
    _, first = submitted(run("submit", "echo", "{}", *wait, "--unique-for", "forever"))
    refused = run("submit", "echo", "{}", *wait, "--on-conflict", "reject", code=ExitCode.OUTCOME)
    assert f"its unique key is held by job {first}" in refused.stderr
    status, second = submitted(run("submit", "echo", "{}", *wait, "--on-conflict", "replace"))
    assert (status, second != first) == ("recorded", True)
    assert (await cluster.sql.job(first))["error"] == f"cancelled by unique key: replaced by {second}"


async def test_retention_is_shown_counted_and_run(cluster, run):
    _, job_id = submitted(run("submit", "echo", "{}", "--wait", "recorded"))
    run("job", "wait", job_id)
    shown = {kind["kind"]: kind for kind in json.loads(run("retention", "show", "--json").stdout)["kinds"]}
    assert (shown["succeeded"]["keep_s"], shown["actions"]["keep_s"]) == (30 * 86_400, 365 * 86_400)
    before = shown["succeeded"].get("removed", 0)
    assert run("retention", "run", "--dry-run").stdout == "would remove nothing\n"
    await cluster.sql.rows("UPDATE job SET finished_at = finished_at - interval '31 days' WHERE id = $1", job_id)
    assert run("retention", "run", "--dry-run").stdout == "would remove 1 succeeded\n"
    assert json.loads(run("retention", "run", "--json").stdout) == {"dry_run": False, "removed": {"succeeded": 1}}
    run("job", "show", job_id, code=ExitCode.NOT_FOUND)
    lines = run("retention", "show").stdout.splitlines()
    assert lines[0].split() == ["KIND", "KEPT", "FOR", "REMOVED", "LAST"]
    (line,) = [line.split() for line in lines if line.startswith("succeeded ")]
    assert line[1:3] == ["30d", str(before + 1)]
    assert any(line.startswith("last looked") for line in lines)


async def test_waiting_for_jobs_prints_each_as_it_ends(cluster, run):
    ids = [submitted(run("submit", "echo", f'{{"value": {n}}}', "--wait", "recorded"))[1] for n in range(3)]
    done = run("job", "wait", *ids, ids[0], "--timeout", "30")
    assert sorted(done.stdout.splitlines()) == sorted(f"{job_id} succeeded {n}" for n, job_id in enumerate(ids))
    shown = json.loads(run("job", "wait", *ids, "--json").stdout)["jobs"]
    assert shown == [{"id": one, "status": "succeeded", "result": n, "error": None} for n, one in enumerate(ids)]
    _, failing = submitted(run("submit", "always_fails", "{}", "--wait", "recorded"))
    done = run("job", "wait", ids[0], failing, code=ExitCode.OUTCOME)
    assert f"{failing} failed RuntimeError: it always fails" in done.stdout.splitlines()
    assert "1 of 2 jobs have not succeeded" in done.stderr
    _, later = submitted(run("submit", "echo", "{}", "--in", "1h", "--wait", "recorded"))
    done = run("job", "wait", ids[0], later, "--timeout", "0.5", "--json", code=ExitCode.OUTCOME)
    assert [one["id"] for one in json.loads(done.stdout)["jobs"]] == [ids[0]]
    assert later in done.stderr
    run("job", "wait", "0190a000-0000-7000-8000-000000000000", "--timeout", "0.5", code=ExitCode.NOT_FOUND)


async def test_watching_a_job_prints_a_line_for_every_change(cluster, run):
    _, job_id = submitted(run("submit", "steps", '{"steps": 3}', "--wait", "recorded"))
    lines = run("job", "watch", job_id, "--timeout", "30").stdout.splitlines()
    assert lines[-1].startswith("succeeded")
    assert len(lines) == len(set(lines))
    _, job_id = submitted(run("submit", "steps", '{"steps": 3}', "--wait", "recorded"))
    states = [json.loads(line) for line in run("job", "watch", job_id, "--json").stdout.splitlines()]
    assert {state["id"] for state in states} == {job_id}
    assert states[-1]["status"] == "succeeded"
    assert {"2 of 3", "3 of 3"} & {state.get("note") for state in states}
    _, failing = submitted(run("submit", "always_fails", "{}", "--wait", "recorded"))
    done = run("job", "watch", failing, code=ExitCode.OUTCOME)
    assert done.stdout.splitlines()[-1].startswith("failed")
    _, later = submitted(run("submit", "echo", "{}", "--in", "1h", "--wait", "recorded"))
    run("job", "watch", later, "--timeout", "0.5", code=ExitCode.OUTCOME)


async def test_a_job_that_fails_ends_with_its_own_code(run):
    done = run("submit", "always_fails", "{}", "--wait", "result", code=ExitCode.OUTCOME)
    job_id = done.stderr.split()[1]
    line = f"error: job {job_id} ended failed: RuntimeError: it always fails; see 'jm job show {job_id}'"
    assert done.stderr.splitlines()[1:] == [line]
    assert done.stdout == ""
    shown = run("job", "show", job_id)
    assert "failed" in shown.stdout
    assert "RuntimeError: it always fails" in shown.stdout
    attempts = json.loads(run("job", "attempts", job_id, "--json").stdout)["attempts"]
    assert [a["outcome"] for a in attempts] == ["failed", "failed"]
    table = run("job", "attempts", job_id).stdout
    assert table.count("RuntimeError: it always fails") == 2


async def test_a_job_nobody_can_run_is_quarantined(run):
    done = run("submit", "echo", '{"wrong_name": 1}', "--wait", "result", code=ExitCode.OUTCOME)
    assert "quarantined" in done.stderr


async def test_patience_has_an_end_and_the_job_goes_on(run):
    done = run("submit", "sleeper", '{"seconds": 30}', "--wait", "result", "--wait-timeout", "1", code=ExitCode.OUTCOME)
    assert "it goes on" in done.stderr


async def test_an_interrupt_while_waiting_ends_with_130(cluster, tmp_path):
    variables = {"JM_NATS_URL": cluster.nats_url, "JM_CLUSTER": cluster.name}
    with Running("submit", "sleeper", "{}", "--wait", "result", cwd=tmp_path, **variables) as process:
        await process.wait_for("recorded ")
        assert await process.end(signal.SIGINT) == ExitCode.INTERRUPTED
        assert process.err().splitlines()[-1] == "error: interrupted"


# -- looking at jobs


async def test_jobs_are_listed_newest_first_with_filters_and_pages(cluster, run):
    ids = [submitted(run("submit", "echo", "{}"))[1] for _ in range(3)]
    ids.append(submitted(run("submit", "greet", '{"name": "x"}'))[1])
    ids.append(submitted(run("submit", "raises", '{"kind": "plain"}', "--max-attempts", "1"))[1])
    await cluster.ended(ids)

    def listed(*filters):
        return [job["id"] for job in json.loads(run("job", "list", "--json", *filters).stdout)["jobs"]]

    assert listed("--limit", "5") == ids[::-1]
    assert listed("--handler", "echo", "--limit", "3") == ids[2::-1]
    assert listed("--handler", "greet", "--lane", "mail", "--priority", "high") == [ids[3]]
    assert listed("--status", "failed,quarantined")[0] == ids[4]
    assert listed("--status", "failed", "--status", "succeeded", "--limit", "2") == ids[:2:-1]
    assert listed("--limit", "2", "--before", ids[3]) == ids[2:0:-1]
    first_page = run("job", "list", "--limit", "2")
    assert first_page.stderr == f"there are more: --before {ids[3]}\n"
    assert re.findall(r"^[0-9a-f-]{36}", first_page.stdout, re.MULTILINE) == [ids[4], ids[3]]


async def test_an_empty_list_is_no_error(run):
    done = run("job", "list", "--handler", "nobody")
    assert (done.stdout, done.stderr) == ("", "no such jobs\n")
    assert json.loads(run("job", "list", "--handler", "nobody", "--json").stdout) == {"jobs": [], "more": False}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
async def test_what_does_not_exist_is_said_to(run, as_json):
    """BR-207: never a success."""
    for command in (("job", "show", UNKNOWN_ID), ("job", "attempts", UNKNOWN_ID), ("rejected", "show", "12345")):
        done = run(*command, *as_json, code=ExitCode.NOT_FOUND)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert command[-1] in done.stderr


async def test_text_from_jobs_cannot_steer_the_terminal(cluster, run):
    args = json.dumps({"value": HOSTILE}, ensure_ascii=False)
    done = run("submit", "echo", args, "--meta", f"note={HOSTILE}", "--wait", "result")
    job_id = done.stderr.split()[1]
    for shown in (done, run("job", "show", job_id), run("job", "show", job_id, "--json"), run("job", "list")):
        assert not [char for char in "\x1b\x9b\u202e" if char in shown.stdout + shown.stderr]
    assert "[bold]markup[/bold]" in run("job", "show", job_id).stdout
    assert json.loads(run("job", "show", job_id, "--json").stdout)["result"] == HOSTILE


async def test_what_was_rejected_can_be_looked_at(cluster, run):
    done = run("rejected", "list")
    assert (done.stdout, done.stderr) == ("", "nothing was rejected\n")
    connection = await nats.connect(cluster.nats_url)
    subject = f"jm.{cluster.name}.submit"
    for data in (b'{"handler": "echo", "priority": "urgent"}', f"not json {HOSTILE}".encode(), b"\xff\xfe"):
        await connection.publish(subject, data)
    await connection.close()

    async def arrived():
        return await cluster.sql.value("SELECT count(*) FROM rejected") == 3

    await wait_until(arrived, what="three rejections")
    listed = run("rejected", "list").stdout
    assert "priority" in listed
    found = json.loads(run("rejected", "list", "--json", "--limit", "2").stdout)
    assert found["more"] is True
    assert len(found["rejected"]) == 2
    numbers = [r["rejected_id"] for r in json.loads(run("rejected", "list", "--json").stdout)["rejected"]]
    assert numbers == sorted(numbers, reverse=True)
    texts = [run("rejected", "show", str(number)).stdout for number in numbers]
    assert any("urgent" in text for text in texts)
    assert any("base64" in text for text in texts)
    assert not [char for char in "\x1b\x9b\u202e" if char in "".join([listed, *texts])]


# -- files


async def test_a_file_s_jobs_all_run(cluster, run, tmp_path, mark):
    jobs = [{"handler": "noop", "args": {"mark": mark, "n": n}, "priority": "low"} for n in range(2000)]
    (tmp_path / "jobs.ndjson").write_bytes(ndjson(*jobs))
    done = run("submit", "--file", "jobs.ndjson", "--wait", "recorded")
    assert done.stdout == "2000 recorded\n"
    assert done.stderr == ""
    assert await count(cluster, mark) == 2000
    await until_ended(cluster, mark, 2000)


@pytest.mark.parametrize("options", [[], ["--no-check"]])
async def test_a_pipe_s_jobs_all_run(cluster, run, options, mark):
    done = run("submit", "--file", "-", "--json", *options, stdin=ndjson(*[marked(mark)] * 500))
    assert json.loads(done.stdout)["queued"] == 500
    await until_ended(cluster, mark, 500)


@pytest.mark.parametrize("as_stdin", [True, False])
async def test_one_bad_line_and_nothing_is_queued(cluster, run, tmp_path, as_stdin, mark):
    lines = ndjson(*[marked(mark)] * 700, marked(mark) | {"prioritty": "high"}, marked(mark))
    (tmp_path / "jobs.ndjson").write_bytes(lines)
    name = "-" if as_stdin else "jobs.ndjson"
    done = run("submit", "--file", name, "--json", stdin=lines, code=ExitCode.USAGE)
    assert done.stdout == ""
    assert done.stderr == "error: line 701: field 'prioritty': no such field; did you mean 'priority'?\n"
    run("submit", "noop", json.dumps({"mark": mark}), "--wait", "recorded")  # whatever was queued before is there now
    assert await count(cluster, mark) == 1


async def test_without_the_check_what_was_queued_is_said(cluster, run, mark):
    lines = ndjson(*[marked(mark)] * 700) + b"nonsense\n" + ndjson(marked(mark))
    done = run("submit", "--file", "-", "--no-check", stdin=lines, code=ExitCode.USAGE)
    assert done.stderr.startswith("error: line 701: ")
    assert "700 queued before it" in done.stderr
    await until_ended(cluster, mark, 700)
    run("submit", "--file", "-", "--no-check", "--skip", "701", "--wait", "recorded", stdin=lines)
    assert await count(cluster, mark) == 701


async def test_duplicates_of_a_file_are_counted(cluster, run, mark):
    lines = ndjson(*[marked(mark) | {"id": str(uuid.uuid4())} for _ in range(50)])
    assert run("submit", "--file", "-", "--wait", "recorded", stdin=lines).stdout == "50 recorded\n"
    assert run("submit", "--file", "-", "--wait", "recorded", stdin=lines).stdout == "50 duplicate\n"
    assert await count(cluster, mark) == 50


async def test_an_empty_file_is_no_error(run):
    assert run("submit", "--file", "-").stdout == "0 queued\n"


def test_a_closed_pipe_is_no_error_to_talk_about(run, address, tmp_path):
    """As in ``jm job list | head -1``."""
    run("submit", "echo", "{}", "--wait", "recorded")
    command = f"'{sys.executable}' -P -m jm_cli job list --json | true; exit ${{PIPESTATUS[0]}}"
    env = cli_environment(JM_NATS_URL=address[0], JM_CLUSTER=address[2])
    done = subprocess.run(["/bin/bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.PIPE_CLOSED, b"")


def ndjson(*jobs):
    return b"".join(json.dumps(job).encode() + b"\n" for job in jobs)


def marked(mark):
    return {"handler": "noop", "args": {"mark": mark}}
