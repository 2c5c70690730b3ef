"""``--otlp-endpoint`` and ``--prometheus-port``: what arrives at a collector, what can be scraped, and that neither of
them can hold a job or the exit up.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from jm_cli import scrapes
from jm_cli.exits import ExitCode
from jm_core import wire
from jm_nats import submission
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.kv import CasKv
from jm_nats.subjects import Names
from tests.support.cli import Running, environment, jm
from tests.support.otlp import Collector, dead_port, silent_port
from tests.support.processes import settings
from tests.support.waiting import wait_until

APP = "tests.support.app:jm"
DRAIN_S = 2.0
SECRET = "sesame-open-0815"


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def is_free(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


async def port_of(process):
    """Which port Prometheus is served on, by its log."""
    await process.wait_for("metrics are served")
    line = next(line for line in process.err().splitlines() if "metrics are served" in line)
    return int(line.rpartition("port=")[2].split()[0])


async def run_jobs(cluster, handler="noop", count=3):
    async with cluster.client() as client:
        receipts = [await client.submit(submission(handler)) for _ in range(count)]
    ids = [receipt.job_id for receipt in receipts]
    await cluster.ended(ids)
    return ids


# -- OTLP


async def test_spans_and_metrics_arrive_with_who_sent_them(cluster, tmp_path):
    with Collector() as collector:
        told = {"JM_OTLP_ENDPOINT": f"{collector.url}/?key={SECRET}", "OTEL_METRIC_EXPORT_INTERVAL": "300"}
        told["OTEL_EXPORTER_OTLP_HEADERS"] = f"x-api-key={SECRET}"
        with (
            Running("coordinator", "--name", "c-1", cwd=tmp_path, **settings(cluster, **told)) as coordinator,
            Running("worker", APP, "--name", "w-1", cwd=tmp_path, **settings(cluster, **told)) as worker,
        ):
            await coordinator.wait_for("leading")
            await worker.wait_for("worker ready")
            ids = await run_jobs(cluster)
            spans = await collector.wait_for_spans(3, "process noop")
            assert await worker.end() == ExitCode.OK
            assert await coordinator.end() == ExitCode.OK
            said = worker.err() + coordinator.err()
    assert {span.attributes["messaging.message.id"] for span in spans} == set(ids)
    resource = spans[0].resource
    assert (resource["service.name"], resource["service.instance.id"]) == ("jobmaster-worker", "w-1")
    assert (resource["jobmaster.cluster"], "service.version" in resource) == (cluster.name, True)
    senders = {(r["service.name"], r["service.instance.id"]) for r in collector.resources}
    assert senders == {("jobmaster-worker", "w-1"), ("jobmaster-coordinator", "c-1")}
    assert "jobmaster.attempts" in collector.metrics
    assert {headers["x-api-key"] for headers in collector.headers} == {SECRET}
    assert {path.partition("?")[0] for path in collector.requests} == {"/v1/traces", "/v1/metrics"}
    assert SECRET not in said


async def test_the_variables_of_opentelemetry_say_who_we_are_and_what_is_left_out(cluster, tmp_path):
    await cluster.start_coordinator().wait_ready()
    with Collector() as collector:
        otel = {
            "OTEL_SERVICE_NAME": "mailer",
            "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=pod-7,deployment.environment.name=test",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        }
        flags = ("--otlp-endpoint", collector.url)
        with Running("worker", APP, *flags, cwd=tmp_path, **settings(cluster, **otel)) as worker:
            await worker.wait_for("worker ready")
            await run_jobs(cluster, count=1)
            (span,) = await collector.wait_for_spans(1)
            assert await worker.end() == ExitCode.OK
    assert span.resource["service.name"] == "mailer"
    assert span.resource["service.instance.id"] == "pod-7"
    assert span.resource["deployment.environment.name"] == "test"
    assert span.resource["jobmaster.cluster"] == cluster.name
    assert collector.metrics == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [dead_port, silent_port], ids=["nobody listens", "never answers"])
async def test_a_collector_that_is_no_help_holds_up_neither_jobs_nor_the_exit(cluster, tmp_path, kind):
    await cluster.start_coordinator().wait_ready()
    with kind() as port:
        told = {
            "JM_OTLP_ENDPOINT": f"http://user:{SECRET}@127.0.0.1:{port}",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_BSP_MAX_QUEUE_SIZE": "64",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16",
            "JM_WORKER_DRAIN_TIMEOUT_S": f"{DRAIN_S:g}",
        }
        with Running("worker", APP, cwd=tmp_path, **settings(cluster, **told)) as worker:
            await worker.wait_for("worker ready")
            before_s = time.monotonic()
            async with cluster.client() as client:  # many times what the queue holds
                receipts = await client.submit_many(submission("noop") for _ in range(2_000))
            await cluster.ended([receipt.job_id for receipt in receipts])
            took_s = time.monotonic() - before_s
            before_s = time.monotonic()
            assert await worker.end() == ExitCode.OK
            exit_s = time.monotonic() - before_s
            lines = worker.err().splitlines()
    assert took_s < 20
    assert exit_s < DRAIN_S + 5, f"{exit_s:.1f} s"
    ours = [line for line in lines if "telemetry" in line]
    assert 0 < len(ours) < 10, "\n".join(ours)
    assert len(lines) < 40
    assert SECRET not in "\n".join(lines)
    print(f"2,000 jobs in {took_s:.1f} s, exit in {exit_s:.1f} s, {len(ours)} lines about telemetry")  # noqa: T201


# -- Prometheus


async def test_what_is_scraped_can_be_read_by_prometheus(cluster, tmp_path):
    await cluster.start_coordinator().wait_ready()
    flags = ("--prometheus-port", "0", "--name", "w-1")
    with Running("worker", APP, *flags, cwd=tmp_path, **settings(cluster)) as worker:
        port = await port_of(worker)
        await worker.wait_for("worker ready")
        await run_jobs(cluster)
        await wait_until(lambda: "jobmaster_attempts" in scraped(port), what="the metric of attempts")
        families = scraped(port)
        assert await worker.end() == ExitCode.OK
    assert families["jobmaster_attempts"].type == "counter"
    assert sum(s.value for s in families["jobmaster_attempts"].samples if s.name.endswith("_total")) == 3
    (target,) = [sample.labels for sample in families["target_info"].samples]
    assert (target["service_name"], target["service_instance_id"]) == ("jobmaster-worker", "w-1")
    assert target["jobmaster_cluster"] == cluster.name
    (start,) = families["process_start_time_seconds"].samples  # alerts tell young totals from old ones by it
    assert abs(time.time() - start.value) < 60


async def taken_over(cluster, name):
    """Another process has the name of a worker: an invariant is broken, and it fails stop."""
    async with await connect(NatsConfig(servers=(cluster.nats_url,)), client_name="test") as link:
        kv = await CasKv.open(link, Names(cluster.name).workers_kv)
        entry = await kv.get(name)
        record = structs.replace(wire.decode_worker(entry.value), incarnation="another", pid=1, host="elsewhere")
        await kv.put(name, wire.encode(record))


def violations(port):
    samples = scraped(port)["jobmaster_invariant_violations"].samples
    return {s.labels["jobmaster_invariant"]: s.value for s in samples if s.name.endswith("_total")}


async def test_a_process_that_failed_stop_is_there_until_it_was_scraped(cluster, tmp_path):
    await cluster.start_coordinator().wait_ready()
    flags = ("--prometheus-port", "0", "--name", "w-1")
    with Running("worker", APP, *flags, cwd=tmp_path, **settings(cluster)) as worker:
        port = await port_of(worker)
        await worker.wait_for("worker ready")
        assert violations(port)["worker_id_taken"] == 0
        await taken_over(cluster, "w-1")
        await worker.wait_for("metrics are served until they were read")
        families = scraped(port)
        assert [sample.value for sample in families["jobmaster_group_health"].samples] == [2]
        assert violations(port)["worker_id_taken"] == 1
        assert await worker.wait_exit() == ExitCode.UNEXPECTED


async def test_a_process_that_failed_stop_and_is_told_to_stop_waits_for_no_scrape(cluster, tmp_path):
    await cluster.start_coordinator().wait_ready()
    with Running("worker", APP, "--prometheus-port", "0", "--name", "w-1", cwd=tmp_path, **settings(cluster)) as worker:
        port = await port_of(worker)
        await worker.wait_for("worker ready")
        scraped(port)
        await taken_over(cluster, "w-1")
        await worker.wait_for("metrics are served until they were read")
        began_s = time.monotonic()
        assert await worker.end() == ExitCode.UNEXPECTED
        assert time.monotonic() - began_s < scrapes.LINGER_S / 4


async def test_each_of_several_processes_has_a_port_of_its_own(cluster, tmp_path):
    await cluster.start_coordinator().wait_ready()
    port = next(port for port in (free_port() for _ in range(50)) if port < 65_000 and is_free(port + 1))
    flags = ("--processes", "2", "--prometheus-port", str(port), "--name", "web")
    with Running("worker", APP, *flags, cwd=tmp_path, **settings(cluster)) as worker:
        await wait_until(lambda: worker.err().count("worker ready") == 2, what="both", shown=worker.err)
        said = [line for line in worker.err().splitlines() if "metrics are served" in line]
        for number in (1, 2):
            scraped(port + number - 1)
            assert any(f"port={port + number - 1} " in line and f"worker=web-{number} " in line for line in said)
        assert await worker.end() == ExitCode.OK


@pytest.mark.parametrize("role", [("worker", APP), ("coordinator",)], ids=lambda role: role[0])
def test_a_port_that_is_taken_is_told_before_anything_starts(tmp_path, role):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        dsn = {"JM_POSTGRES_DSN": "postgresql://127.0.0.1:1/none"}
        done = jm(*role, "--prometheus-port", str(port), "--nats-url", "nats://127.0.0.1:1", cwd=tmp_path, **dsn)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.count("\n") == 1
    assert f"127.0.0.1:{port} cannot be used" in done.stderr
    assert "--prometheus-port" in done.stderr


# Packages are hidden as if they had never been installed.
HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry.exporter") or name.startswith("prometheus_client"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
from jm_cli.app import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", [("worker", APP), ("worker", APP, "--processes", "2"), ("up",)], ids=" ".join)
@pytest.mark.parametrize(
    ("flags", "package"),
    [
        (("--otlp-endpoint", "http://127.0.0.1:4318"), "opentelemetry-exporter-otlp-proto-http"),
        (("--prometheus-port", "0"), "opentelemetry-exporter-prometheus"),
    ],
    ids=["otlp", "prometheus"],
)
def test_what_is_not_installed_is_told_with_the_remedy(tmp_path, command, flags, package):
    done = subprocess.run(
        [sys.executable, "-P", "-c", HIDING, *command, *flags],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert package in done.stderr
    assert "pip install 'jobmaster-nats[telemetry]'" in done.stderr
    assert not (tmp_path / ".jm").exists()
