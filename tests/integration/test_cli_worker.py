"""``jm worker`` and ``jm coordinator`` as processes: signals, exit codes, logs, telemetry."""

import asyncio
import json
import signal

import pytest

from jm_cli.exits import ExitCode
from jm_cli.serving import ECHO_S
from jm_core.errors import JmError
from jm_nats import JobClient, NatsConfig, submission
from jm_nats.embedded import NatsServer
from tests.integration.test_cli_down import ENCODED, FRAGMENTS, PASSWORD
from tests.support.cli import Running
from tests.support.processes import settings
from tests.support.waiting import wait_until

APP = "tests.support.app:jm"


async def running_job(cluster, path):
    """A job that runs until ``path`` is there; returns its id once it does."""
    async with cluster.client() as client:
        receipt = await client.submit(submission("waits_for_file", {"path": str(path)}))
    await wait_until(lambda: list(path.parent.glob(f"{path.name}.*")), what="the start of the job")
    return receipt.job_id


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
async def test_a_signal_drains_and_the_running_job_ends_well(cluster, tmp_path, number):
    await cluster.start_coordinator().wait_ready()
    with Running("worker", APP, cwd=tmp_path, **settings(cluster)) as worker:
        await worker.wait_for("worker ready")
        go = tmp_path / "go"
        job_id = await running_job(cluster, go)
        worker.process.send_signal(number)
        await worker.wait_for("send it again to hurry")
        assert worker.process.poll() is None
        go.touch()
        assert await worker.wait_exit() == ExitCode.OK
        assert worker.out() == ""
    assert await cluster.ended([job_id]) == {"succeeded": 1}


async def test_a_second_signal_hurries_and_the_job_goes_back(cluster, tmp_path):
    await cluster.start_coordinator().wait_ready()
    go = tmp_path / "go"
    with Running("worker", APP, "--drain-timeout", "600", cwd=tmp_path, **settings(cluster)) as worker:
        await worker.wait_for("worker ready")
        job_id = await running_job(cluster, go)
        worker.process.send_signal(signal.SIGTERM)
        await worker.wait_for("send it again to hurry")
        await asyncio.sleep(ECHO_S)  # sooner it would be taken for an echo of the first
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.wait_exit(timeout_s=20) == ExitCode.INTERRUPTED
    go.touch()
    with Running("worker", APP, cwd=tmp_path, **settings(cluster)) as successor:
        await successor.wait_for("worker ready")
        assert await cluster.ended([job_id]) == {"succeeded": 1}
        assert await successor.end() == ExitCode.OK


async def test_a_worker_that_still_looks_for_nats_ends_at_once(tmp_path):
    variables = {"JM_NATS_URL": "nats://127.0.0.1:1", "JM_NATS_CONNECT_TIMEOUT_S": "600"}
    with Running("worker", "jm_cli.example:jm", "--log-level", "debug", cwd=tmp_path, **variables) as worker:
        await worker.wait_for("nats")
        assert await worker.end(timeout_s=10) == ExitCode.INTERRUPTED


async def test_a_coordinator_ends_with_0_whether_it_leads_or_stands_by(cluster, tmp_path):
    with Running("coordinator", cwd=tmp_path, **settings(cluster)) as first:
        await first.wait_for("lead")
        with Running("coordinator", cwd=tmp_path, **settings(cluster)) as second:
            await second.wait_for("process starts  role=coordinator")
            assert await second.end() == ExitCode.OK
        assert await first.end(signal.SIGINT) == ExitCode.OK
        assert first.out() == ""


async def test_the_log_is_json_lines_when_asked(cluster, tmp_path):
    await cluster.start_coordinator().wait_ready()
    with Running("worker", APP, "--log-format", "json", cwd=tmp_path, **settings(cluster)) as worker:
        await worker.wait_for("worker ready")
        assert await worker.end() == ExitCode.OK
        entries = [json.loads(line) for line in worker.err().splitlines()]
    [ready] = [entry for entry in entries if entry["message"] == "worker ready"]
    assert ready["level"] == "info"
    assert ready["buckets"] == 10


async def test_flags_come_before_what_the_application_says(cluster, tmp_path):
    (tmp_path / "elsewhere.py").write_text(
        "from jm_nats import JobMaster\n"
        f"jm = JobMaster('{cluster.name}', servers='nats://127.0.0.1:1')\n"
        "@jm.handler('x')\nasync def x() -> None: ...\n"
    )
    quick = {"JM_NATS_CONNECT_TIMEOUT_S": "1"}
    with Running("worker", "elsewhere", cwd=tmp_path, **settings(cluster, **quick)) as by_variable:
        assert await by_variable.wait_exit() == ExitCode.NATS
    with Running("worker", "elsewhere", "--nats-url", cluster.nats_url, cwd=tmp_path) as by_flag:
        await by_flag.wait_for("worker ready")
        assert await by_flag.end() == ExitCode.OK


async def test_settings_come_from_variables_too(cluster, tmp_path):
    variables = {"JM_APP": APP, "JM_WORKER_LANES": "mail other", "JM_WORKER_PRIORITIES": "high", "JM_WORKER_ID": "w-7"}
    variables["JM_WORKER_SLOT"] = "5"
    with Running("worker", cwd=tmp_path, **settings(cluster, **variables)) as worker:
        await worker.wait_for("worker=w-7 buckets=2")
        assert "did_you_mean=JM_WORKER_SLOTS" in worker.err()
        assert await worker.end() == ExitCode.OK


# -- telemetry


async def test_spans_and_metrics_are_exported_when_otel_is_asked_for(cluster, tmp_path):
    await cluster.start_coordinator().wait_ready()
    otel = {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "console"}
    with Running("worker", APP, cwd=tmp_path, **settings(cluster, **otel)) as worker:
        await worker.wait_for("worker ready")
        async with cluster.client() as client:
            receipt = await client.submit(submission("noop"))
        await cluster.ended([receipt.job_id])
        assert await worker.end() == ExitCode.OK
        assert "process noop" in worker.out()
        assert "messaging.process.duration" in worker.out()
        assert "jobmaster-worker" in worker.out()


@pytest.mark.parametrize("otel", [{}, {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}])
async def test_without_otel_nothing_is_exported(cluster, tmp_path, otel):
    with Running("worker", APP, cwd=tmp_path, **settings(cluster, **otel)) as worker:
        await worker.wait_for("worker ready")
        assert await worker.end() == ExitCode.OK
        assert worker.out() == ""


async def test_an_exporter_that_is_not_installed_is_named(cluster, tmp_path):
    asked = settings(cluster, OTEL_TRACES_EXPORTER="no-such-exporter")
    with Running("worker", APP, cwd=tmp_path, **asked) as worker:
        assert await worker.wait_exit() == ExitCode.USAGE
        assert "OTEL_TRACES_EXPORTER" in worker.err()


# -- secrets


async def test_no_log_of_a_whole_life_shows_a_secret(postgres_server, database, cluster_name, tmp_path):
    """BR-220: boot, work, an outage of NATS, a stop; everything logged, both formats."""
    users = f'authorization {{ users: [ {{ user: jm, password: "{PASSWORD}" }} ] }}'
    with NatsServer(extra_config=users) as nats:
        url = f"nats://jm:{ENCODED}@127.0.0.1:{nats.port}"
        dsn = database.replace("postgres@", f"postgres:{ENCODED}@")
        variables = {"JM_NATS_URL": url, "JM_POSTGRES_DSN": dsn, "JM_CLUSTER": cluster_name, "JM_DEBUG": "1"}
        with (
            Running("coordinator", "--log-level", "debug", cwd=tmp_path, **variables) as coordinator,
            Running("worker", APP, "--log-level", "debug", "--log-format", "json", cwd=tmp_path, **variables) as worker,
        ):
            await coordinator.wait_for("lead")
            await worker.wait_for("worker ready")
            async with JobClient(cluster_name, NatsConfig(servers=(url,))) as client:
                receipt = await client.submit(submission("raises", {"kind": "plain"}, max_attempts=1))
                nats.restart()
                await wait_until(lambda: client.link.connected, what="the connection")
                await wait_until(lambda: ended(client, receipt.job_id), what="the end of the job")
            assert await worker.end() == ExitCode.OK
            assert await coordinator.end() == ExitCode.OK
            shown = worker.err() + worker.out() + coordinator.err() + coordinator.out()
    assert len(shown) > 1000
    assert not [part for part in FRAGMENTS if part in shown]


async def ended(client, job_id):
    try:
        return (await client.job(job_id)).finished_at
    except JmError:
        return None
