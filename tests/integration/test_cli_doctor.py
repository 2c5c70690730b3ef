"""``jm doctor`` finds what is broken, names the remedy, and ends with the code of the first thing."""

import json

import pytest

from jm_cli.exits import ExitCode
from jm_core.wire import Submission
from jm_nats.embedded import NatsServer
from tests.support.cli import jm
from tests.support.processes import Cluster
from tests.support.waiting import wait_until


def doctor(tmp_path, *arguments, **variables):
    """(exit code, state by check, the whole report)."""
    done = jm("doctor", "--json", *arguments, cwd=tmp_path, **variables)
    report = json.loads(done.stdout)
    assert all(finding.get("remedy") for finding in report if finding["state"] == "broken")
    assert done.stderr.count("\n") == (0 if done.returncode == ExitCode.OK else 1)
    return done.returncode, {finding["check"]: finding["state"] for finding in report}, done.stdout


@pytest.fixture
async def cluster(nats_server, database, cluster_name):
    async with Cluster(nats_server.url, database, cluster_name) as made:
        yield made


def settings(cluster):
    return {"JM_NATS_URL": cluster.nats_url, "JM_POSTGRES_DSN": cluster.dsn, "JM_CLUSTER": cluster.name}


async def test_a_cluster_is_looked_at_as_it_grows(cluster, tmp_path):
    everything = settings(cluster)
    code, states, report = doctor(tmp_path, **everything)
    assert code == ExitCode.NATS
    assert states == {"nats": "ok", "streams": "broken", "coordinator": "broken", "workers": "broken", "postgres": "ok"}
    assert "is --cluster misspelt" in report

    worker = await cluster.start_worker().wait_ready()
    code, states, _ = doctor(tmp_path, **everything)
    assert code == ExitCode.NO_COORDINATOR
    assert states == {"nats": "ok", "streams": "ok", "coordinator": "broken", "workers": "ok", "postgres": "ok"}

    await cluster.start_coordinator().wait_ready()
    code, states, report = doctor(tmp_path, **everything)
    assert code == ExitCode.OK
    assert set(states.values()) == {"ok"}
    assert "1 alive" in report
    assert "schema version" in report

    assert await worker.stop() == ExitCode.OK
    code, states, report = doctor(tmp_path, **everything)
    assert code == ExitCode.NO_WORKER
    assert states["workers"] == "broken"
    assert "jm worker MODULE:APP" in report


async def test_due_jobs_that_nobody_serves_are_a_warning_and_break_nothing(cluster, tmp_path):
    await cluster.start()
    async with cluster.client() as client:
        await client.submit(Submission(handler="no-such-handler", lane="nobody"), wait="recorded")
    report = await wait_until(lambda: warned(tmp_path, cluster), what="the warning")
    assert "handler 'no-such-handler' (lane 'nobody', priority medium)" in report
    assert "no live worker knows the handler" in report
    done = jm("doctor", cwd=tmp_path, **settings(cluster))
    assert (done.returncode, "WARNING unserved" in done.stdout) == (ExitCode.OK, True)


def warned(tmp_path, cluster):
    code, states, report = doctor(tmp_path, **settings(cluster))
    assert code == ExitCode.OK
    return report if states.get("unserved") == "warning" else None


async def test_the_report_for_people_names_the_remedies(cluster, tmp_path):
    done = jm("doctor", cwd=tmp_path, **settings(cluster))
    assert done.returncode == ExitCode.NATS
    assert "BROKEN  streams" in done.stdout
    assert "-> " in done.stdout
    assert done.stderr == "error: broken: streams, coordinator, workers\n"


async def test_without_a_dsn_postgres_is_not_looked_at(cluster, tmp_path):
    await cluster.start()
    variables = settings(cluster)
    del variables["JM_POSTGRES_DSN"]
    code, states, _ = doctor(tmp_path, **variables)
    assert (code, states["postgres"]) == (ExitCode.OK, "unknown")


async def test_a_database_without_the_schema_is_found(cluster, postgres_server, tmp_path):
    await cluster.start()
    empty = postgres_server.create_database(f"empty_{cluster.name}")
    code, states, report = doctor(tmp_path, **settings(cluster) | {"JM_POSTGRES_DSN": empty})
    assert (code, states["postgres"]) == (ExitCode.POSTGRES, "broken")
    assert "jm migrate" in report
    postgres_server.drop_database(f"empty_{cluster.name}")


async def test_a_postgres_that_is_away_is_found(cluster, tmp_path):
    await cluster.start()
    code, states, report = doctor(
        tmp_path, **settings(cluster) | {"JM_POSTGRES_DSN": "postgresql://u:sesame@127.0.0.1:1/x"}
    )
    assert (code, states["postgres"]) == (ExitCode.POSTGRES, "broken")
    assert states["coordinator"] == "ok"
    assert "sesame" not in report


def test_a_nats_that_is_away_is_found(tmp_path):
    code, states, report = doctor(tmp_path, JM_NATS_URL="nats://127.0.0.1:1", JM_NATS_CONNECT_TIMEOUT_S="1")
    assert (code, states["nats"], states["workers"]) == (ExitCode.NATS, "broken", "unknown")
    assert "JM_NATS_URL" in report


def test_a_nats_without_jetstream_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "jm_nats.embedded._CONFIG",
        'server_name: "{name}"\nlisten: "{host}:{port}"\nports_file_dir: "{ports}"\n{extra}\n',
    )
    with NatsServer() as server:
        code, states, report = doctor(tmp_path, JM_NATS_URL=server.url, JM_NATS_CONNECT_TIMEOUT_S="2")
    assert (code, states["nats"]) == (ExitCode.NATS, "broken")
    assert "JetStream" in report
    assert "jetstream {}" in report


# -- migrate


def test_migrate_makes_the_schema_once(postgres_server, cluster_name, tmp_path):
    dsn = postgres_server.create_database(f"migrate_{cluster_name}")
    checked = jm("migrate", "--check", "--json", cwd=tmp_path, JM_POSTGRES_DSN=dsn)
    assert checked.returncode == ExitCode.POSTGRES
    assert json.loads(checked.stdout)["version"] == 0
    first = jm("migrate", cwd=tmp_path, JM_POSTGRES_DSN=dsn)
    assert first.returncode == ExitCode.OK
    assert "applied 0001" in first.stdout
    again = jm("migrate", "--json", cwd=tmp_path, JM_POSTGRES_DSN=dsn)
    assert json.loads(again.stdout)["applied"] == []
    assert jm("migrate", "--check", cwd=tmp_path, JM_POSTGRES_DSN=dsn).returncode == ExitCode.OK
    other = jm("migrate", "--schema", "other", "--json", cwd=tmp_path, JM_POSTGRES_DSN=dsn)
    assert json.loads(other.stdout)["applied"]
    postgres_server.drop_database(f"migrate_{cluster_name}")
