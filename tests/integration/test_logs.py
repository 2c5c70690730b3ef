"""What real processes log of real jobs: whose lines they are, and what must never be in them."""

from __future__ import annotations

import asyncio
import json
import urllib.request
import uuid
from contextlib import ExitStack, asynccontextmanager
from urllib.parse import quote

import pytest

from jm_cli.exits import ExitCode
from jm_nats import submission
from jm_nats.embedded import NatsServer
from jm_nats.subjects import Names
from tests.support.cli import Running
from tests.support.otlp import Collector
from tests.support.processes import Cluster, settings
from tests.support.text_client import TextClient
from tests.support.waiting import wait_until

APP = "tests.support.traced_app:jm"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def entries(process):
    return [json.loads(line) for line in process.err().splitlines()]


async def test_every_line_of_a_handler_names_its_job_wherever_it_runs(cluster, tmp_path):
    await cluster.start_coordinator().wait_ready()
    flags = ("--log-format", "json", "--name", "w-1")
    with Running("worker", APP, *flags, cwd=tmp_path, **settings(cluster)) as worker:
        await worker.wait_for("worker ready")
        ids = {}
        async with cluster.client() as client:
            for handler in ("in_task", "in_thread", "in_process"):
                receipt = await client.submit(submission(handler, trace=TRACE))
                ids[handler] = receipt.job_id
        assert await cluster.ended(ids.values()) == {"succeeded": 3}
        assert await worker.end() == ExitCode.OK
        said = entries(worker)
    lines = {entry["message"]: entry for entry in said if entry["logger"] == "shop.handlers"}
    assert len(lines) == 3
    for handler, job_id in ids.items():
        (line,) = [entry for text, entry in lines.items() if text.startswith(handler.replace("_", " a "))]
        facts = {"job_id": job_id, "attempt": 1, "worker": "w-1", "cluster": cluster.name, "trace_id": TRACE[3:35]}
        assert {name: line[name] for name in facts} == facts, handler
    assert {entry.get("worker") for entry in said} == {"w-1"}, "also before and after it serves"
    about_none = [entry for entry in said if entry["logger"] != "shop.handlers"]
    assert not [entry for entry in about_none if "job_id" in entry]


# -- secrets


class Planted(dict):
    """Secrets by where they are put: each is its own, so that a leak names its way."""

    def __missing__(self, place):
        self[place] = f"SESAME-{place}-{uuid.uuid4().hex[:8]}"
        return self[place]

    def leaks(self, **texts):
        return [f"{place} in {w}" for place, secret in self.items() for w, text in texts.items() if secret in text]


@asynccontextmanager
async def secret_cluster(planted, database, cluster_name, tmp_path, *, level, formats):
    """Coordinator and worker that were given every kind of secret; and where their telemetry goes."""
    with ExitStack() as stack:
        users = f'authorization {{ users: [ {{ user: jm, password: "{planted["nats"]}" }} ] }}'
        nats = stack.enter_context(NatsServer(extra_config=users))
        collector = stack.enter_context(Collector())
        url = f"nats://jm:{planted['nats']}@127.0.0.1:{nats.port}"
        dsn = database.replace("postgres@", f"postgres:{quote(planted['postgres'])}@")
        assert planted["postgres"] in dsn
        told = {
            "JM_NATS_URL": url,
            "JM_POSTGRES_DSN": dsn,
            "JM_CLUSTER": cluster_name,
            "JM_OTLP_ENDPOINT": f"http://user:{planted['userinfo']}@127.0.0.1:{collector.port}/?key={planted['query']}",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{planted['header']}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
            "JM_LOG_LEVEL": level,
        }
        command = ("--prometheus-port", "0", "--log-format")
        coordinator, worker = (
            stack.enter_context(Running(*role, *command, kind, cwd=tmp_path, **told))
            for role, kind in zip([("coordinator",), ("worker", APP)], formats, strict=True)
        )
        await coordinator.wait_for("leading")
        await worker.wait_for("worker ready")
        yield url, nats, dsn, collector, coordinator, worker


def page_of(process):
    """Its metrics, as they are scraped."""
    line = next(line for line in process.err().splitlines() if "metrics are served" in line)
    port = json.loads(line)["port"] if line.startswith("{") else int(line.rpartition("port=")[2].split()[0])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def bad_jobs(planted):
    """Jobs that go wrong in every way, each with a secret in whatever it carries."""
    yield submission("fails_at_first", {"secret": planted["exception"]}, metadata={"token": planted["metadata"]})
    yield submission("raises_with_args", {"secret": planted["task"]}, max_attempts=1)
    yield submission("raises_in_thread", {"secret": planted["thread"]}, max_attempts=1)
    yield submission("raises_in_process", {"secret": planted["process"]}, max_attempts=1)
    yield submission("returns_what_cannot_be_stored", {"secret": planted["result"]}, max_attempts=1)
    yield submission("in_task", {"wrong": planted["arguments"]})
    yield submission("takes_a_number", {"number": planted["number"]})
    yield submission("nobody-knows-it", {"secret": planted["unknown"]})
    yield submission("in_task", unique_key=planted["unique"])


@pytest.mark.slow
@pytest.mark.parametrize(("level", "formats"), [("info", ("json", "console")), ("debug", ("console", "json"))])
async def test_no_secret_and_no_payload_is_logged_traced_or_measured(database, cluster_name, tmp_path, level, formats):
    planted = Planted()
    async with (
        secret_cluster(planted, database, cluster_name, tmp_path, level=level, formats=formats) as made,
        Cluster(made[0], database, cluster_name) as cluster,
    ):
        _, nats, _, collector, coordinator, worker = made
        async with cluster.client() as client:
            jobs = list(bad_jobs(planted))
            ids = [(await client.submit(job)).job_id for job in jobs]
            later = await client.submit(submission("in_task", delay_s=3600), wait="recorded")
            await client.cancel(later.job_id, reason=planted["reason"])
            counts = await cluster.ended(ids)
        assert counts == {"succeeded": 2, "failed": 4, "quarantined": 3}
        nats.restart()  # the words of a lost connection
        async with cluster.client() as client:
            again = await client.submit(submission("in_task"))
            await cluster.ended([again.job_id])
        await wait_until(lambda: collector.named("process in_task"), what="the spans")
        await wait_until(lambda: collector.metrics, what="the metrics")
        pages = "".join([await asyncio.to_thread(page_of, process) for process in (coordinator, worker)])
        assert await worker.end() == ExitCode.OK
        assert await coordinator.end() == ExitCode.OK
        said = {"coordinator": coordinator.err() + coordinator.out(), "worker": worker.err() + worker.out()}
        wire = b"".join(collector.bodies).decode("latin-1")
    assert "quarantined" in said["worker"]
    assert len(planted) > 14
    leaks = planted.leaks(**said, spans_and_metrics=wire, scraped=pages)
    assert leaks == []
    assert "process fails_at_first" in wire
    assert planted.leaks(check="x" + planted["exception"]) == ["exception in check"], "the check itself can find one"


async def test_a_message_that_cannot_be_read_is_not_shown(cluster, tmp_path):
    secret = f"SESAME-{uuid.uuid4().hex}"
    with Running("coordinator", "--log-level", "debug", cwd=tmp_path, **settings(cluster)) as coordinator:
        await coordinator.wait_for("leading")
        async with TextClient(cluster.nats_url) as raw:
            await raw.log_in()
            for body in (f'{{"handler": "{secret}', f'{{"handler": "{secret} x"}}', f'["{secret}"]'):
                (receipt,) = await raw.recorded(Names(cluster.name).submit, body.encode())
                assert receipt["status"] == "rejected"
        assert await coordinator.end() == ExitCode.OK
        assert secret not in coordinator.err()
