"""``jm coordinator --health-port``: what it shows while Postgres or NATS is stopped, or swallows everything."""

import asyncio
import signal
from contextlib import asynccontextmanager

import pytest

from jm_cli.exits import ExitCode
from jm_core import limits
from jm_core.health import Fault, Health, Invariant, InvariantViolatedError
from jm_master.config import CoordinatorConfig, PostgresConfig
from jm_master.coordinator import Coordinator
from jm_master.database import Database
from jm_master.embedded import PostgresServer
from jm_master.faults import classify
from jm_master.outbox import Outbox
from jm_nats.config import NatsConfig
from jm_nats.embedded import NatsServer
from tests.support.cli import Running
from tests.support.health import HealthClient
from tests.support.master import FAST, coordinating, job, linked
from tests.support.waiting import wait_until


@pytest.fixture
def postgres():
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server


@pytest.fixture
def nats():
    with NatsServer() as server:
        yield server


def started(tmp_path, nats_url, dsn, cluster, *more, **variables):
    addresses = {"JM_NATS_URL": nats_url, "JM_POSTGRES_DSN": dsn, "JM_CLUSTER": cluster, "JM_LEASE_S": "2"}
    return Running("coordinator", "--health-port", "0", *more, cwd=tmp_path, **addresses, **variables)


async def test_postgres_stopped_is_degraded_then_not_ready_and_well_again_by_itself(
    nats_server, postgres, cluster_name, tmp_path
):
    patience = {"JM_POSTGRES_PATIENCE_S": "6"}
    with started(tmp_path, nats_server.url, postgres.dsn, cluster_name, **patience) as coordinator:
        health = HealthClient(coordinator.err)
        await coordinator.wait_for("leading")
        await health.wait_status("/readyz", 200)
        await asyncio.to_thread(postgres.stop)
        await wait_until(lambda: has_status(health, "degraded"), what="degraded")
        body = await health.wait_status("/readyz", 503)
        assert "postgres: no success for" in body["reasons"][0]
        assert (await health.get("/livez")).status == 200
        await coordinator.wait_for("another coordinator may lead")
        await asyncio.to_thread(postgres.start)
        await health.wait_status("/readyz", 200)
        assert (await health.get("/health")).body["status"] == "healthy"
        assert await coordinator.end() == ExitCode.OK


async def has_status(health, status):
    return (await health.get("/health")).body["status"] == status


async def test_a_postgres_that_swallows_everything_is_not_ready_within_30_s(
    nats_server, postgres, cluster_name, tmp_path
):
    """BR-137: no error comes, and the process ends when told to all the same. Red comes after two thirds of the
    patience, here a shorter one than by default.
    """
    assert limits.POSTGRES_PATIENCE_S * 2 / 3 < 30
    patience = {"JM_POSTGRES_PATIENCE_S": "9"}
    with started(tmp_path, nats_server.url, postgres.dsn, cluster_name, **patience) as coordinator:
        health = HealthClient(coordinator.err)
        await coordinator.wait_for("leading")
        await health.wait_status("/readyz", 200)
        postgres.pause()
        try:
            await health.wait_status("/readyz", 503)
            assert (await health.get("/livez")).status == 200
            assert await coordinator.end(signal.SIGINT, timeout_s=20) == ExitCode.OK
        finally:
            postgres.resume()


async def test_a_leader_whose_own_way_to_postgres_is_broken_lets_another_one_lead(
    nats_server, database, cluster_name, monkeypatch
):
    """Its statements hang, those of the other one do not."""
    config = CoordinatorConfig(lease_s=1.5, poll_s=0.1, postgres_patience_s=2)
    nats = NatsConfig(servers=(nats_server.url,))
    first = Coordinator(nats, PostgresConfig(dsn=database), cluster_name, config)
    stop = asyncio.Event()
    cut_off = hang_when_told(monkeypatch)
    running = asyncio.create_task(first.run(stop))
    await asyncio.wait_for(first.leading.wait(), 20)
    cut_off.set()
    async with coordinating(nats_server.url, database, cluster_name), linked(nats_server.url, cluster_name) as bench:
        receipts = await bench.submit_and_wait(job())
        assert [receipt.status for receipt in receipts] == ["recorded"]
        assert first.board.verdict().health is Health.UNHEALTHY
        stop.set()
        await asyncio.wait_for(running, 20)


def hang_when_told(monkeypatch):
    """Once the event is set, no statement of the first ``Database`` opened after this gets an answer."""
    told = asyncio.Event()
    opened = []
    enter, connection = Database.__aenter__, Database.connection

    async def note(database):
        opened.append(database)
        return await enter(database)

    @asynccontextmanager
    async def maybe_hang(database):
        if told.is_set() and database is opened[0]:
            await asyncio.Event().wait()
        async with connection(database) as real:
            yield real

    monkeypatch.setattr(Database, "__aenter__", note)
    monkeypatch.setattr(Database, "connection", maybe_hang)
    return told


async def test_nats_away_is_shown_and_clears_by_a_real_answer(nats, postgres_server, database, cluster_name, tmp_path):
    with started(tmp_path, nats.url, database, cluster_name) as coordinator:
        health = HealthClient(coordinator.err)
        await coordinator.wait_for("leading")
        await health.wait_status("/readyz", 200)
        nats.stop()
        await wait_until(lambda: has_status(health, "degraded"), what="degraded")
        body = await health.wait_status("/readyz", 503)  # three leases without an election
        assert any("leadership" in reason for reason in body["reasons"])
        assert (await health.get("/livez")).status == 200
        nats.start()
        await health.wait_status("/readyz", 200)
        await wait_until(lambda: has_status(health, "healthy"), what="healthy")
        assert await coordinator.end() == ExitCode.OK


async def test_one_that_waits_for_postgres_at_its_start_is_live_and_not_ready(nats_server, cluster_name, tmp_path):
    nowhere = "postgresql://postgres@127.0.0.1:1/none"
    with started(tmp_path, nats_server.url, nowhere, cluster_name) as coordinator:
        health = HealthClient(coordinator.err)
        await coordinator.wait_for("waiting for postgres")
        assert (await health.get("/livez")).status == 200
        answer = await health.get("/readyz")
        assert (answer.status, answer.body["reasons"]) == (503, ["coordinator: not started yet"])
        assert await coordinator.end() == ExitCode.OK


async def test_a_standby_is_ready(nats_server, database, cluster_name, tmp_path):
    with started(tmp_path, nats_server.url, database, cluster_name) as leader:
        await leader.wait_for("leading")
        with started(tmp_path, nats_server.url, database, cluster_name) as standby:
            await HealthClient(standby.err).wait_status("/readyz", 200)


async def test_a_duty_that_fails_degrades_until_it_runs_again(nats_server, database, cluster_name, monkeypatch, caplog):
    fail = asyncio.Event()
    real = Outbox.run

    async def fails_once(self):
        if not fail.is_set():
            fail.set()
            raise KeyError("a bug")
        await real(self)

    monkeypatch.setattr(Outbox, "run", fails_once)
    async with coordinating(nats_server.url, database, cluster_name) as coordinator:
        await wait_until(fail.is_set, what="the failure")
        await wait_until(lambda: not coordinator.board.verdict().reasons, what="leading again")
    assert "a duty failed; stepping down" in caplog.messages


async def test_a_failed_duty_is_named_on_the_board(nats_server, database, cluster_name, monkeypatch):
    async def fails(self):
        raise KeyError("a bug")

    monkeypatch.setattr(Outbox, "run", fails)
    async with coordinating(nats_server.url, database, cluster_name, leads=False) as coordinator:
        await wait_until(lambda: coordinator.board.verdict().reasons, what="trouble")
        verdict = coordinator.board.verdict()
        assert verdict.health is Health.DEGRADED
        assert verdict.reasons[0].startswith("duty outbox: KeyError: 'a bug'")


async def test_a_broken_invariant_ends_the_coordinator_for_good(nats_server, database, cluster_name, monkeypatch):
    async def violates(self):
        raise InvariantViolatedError(Invariant.AGENT_STORE_CHANGED, "fingerprint a, not b")

    monkeypatch.setattr(Outbox, "run", violates)
    coordinator = Coordinator(NatsConfig(servers=(nats_server.url,)), PostgresConfig(dsn=database), cluster_name, FAST)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - in whatever groups it comes
        await asyncio.wait_for(coordinator.run(asyncio.Event()), 20)
    assert classify(caught.value) is Fault.INVARIANT
    report = coordinator.board.report()
    assert (report.halted, report.health, report.violations) == (True, Health.UNHEALTHY, {"agent_store_changed": 1})
    assert "agent_store_changed" in report.reasons[0]
