"""Several clusters on one NATS, in one database and in one process: nothing of one is seen by the other."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from jm_core.cluster import ClusterChange
from jm_core.errors import InvalidNameError, InvalidSettingError, NoSuchJobError
from jm_master.config import PostgresConfig
from jm_master.coordinator import Coordinator
from jm_master.queries import schema_of, schemas_of
from jm_nats import JobClient, JobContext, JobMaster, NatsConfig
from jm_nats.client import submission
from tests.conftest import delete_streams
from tests.support.in_process import working
from tests.support.master import FAST, new_id
from tests.support.processes import COORDINATOR_READY, ROOT, WORKER_READY, Processes, environment
from tests.support.sql import Sql
from tests.support.waiting import wait_until

TABLES = ("job", "attempt", "outbox", "rejected", "bucket", "setting", "cluster_change")


@pytest.mark.parametrize(
    ("template", "cluster", "schema"),
    [("jobmaster", "Shop-1", "jobmaster"), ("jm_{cluster}", "Shop-1", "jm_shop_1"), ("{cluster}", "a", "a")],
)
def test_a_schema_may_be_derived_from_the_cluster_s_name(template, cluster, schema):
    assert schema_of(template, cluster) == schema


@pytest.mark.parametrize("template", ["{clutser}", "pg_{cluster}", "jm {cluster}", "{cluster}" * 9, ""])
def test_what_is_no_schema_is_refused(template):
    with pytest.raises(InvalidNameError, match="schema"):
        schema_of(template, "abcdefgh")


@pytest.mark.parametrize("clusters", [("a", "b"), ("a-b", "a_b")], ids=["plain", "alike"])
def test_two_clusters_never_share_a_schema(clusters):
    template = "jobmaster" if clusters == ("a", "b") else "jm_{cluster}"
    with pytest.raises(InvalidSettingError, match=r"would share.*\{cluster\}"):
        schemas_of(template, clusters)
    assert schemas_of("x_{cluster}", ("a", "b")) == {"a": "x_a", "b": "x_b"}


@dataclass
class One:
    """A cluster with its coordinator and worker, and what its handler saw."""

    app: JobMaster
    sql: Sql
    ran: list[str]

    def client(self):
        return self.app.client()


@asynccontextmanager
async def one_cluster(nats_url, dsn, name):
    app = JobMaster(name, nats=NatsConfig(servers=(nats_url,)))
    ran: list[str] = []

    @app.handler("whose")
    async def whose(ctx: JobContext) -> str:
        ran.append(ctx.job_id)
        return name

    schema = schema_of("jm_{cluster}", name)
    coordinator = Coordinator(app.nats_config(), PostgresConfig(dsn=dsn, schema=schema), name, FAST)
    stop = asyncio.Event()
    running = asyncio.create_task(coordinator.run(stop))
    try:
        await asyncio.wait_for(coordinator.leading.wait(), 20)
        async with working(app), Sql(dsn, schema) as sql:
            yield One(app, sql, ran)
    finally:
        stop.set()
        await asyncio.wait_for(running, 10)


async def test_two_clusters_in_one_process_and_database_live_whole_lives_apart(nats_server, database, cluster_name):
    names = [f"{cluster_name}-a", f"{cluster_name}-b"]
    ids = [new_id() for _ in range(50)]
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(one_cluster(nats_server.url, database, name)) for name in names]
        clients = [await stack.enter_async_context(one.client()) for one in both]

        async def all_of(client):
            """The same ids and the same unique key in both: they meet nowhere."""
            jobs = [submission("whose", id=job_id) for job_id in ids]
            jobs[0].unique_key = "the only one"
            receipts = await client.submit_many(jobs, wait="recorded")
            return [receipt.status for receipt in receipts], [await client.result(i, timeout=20) for i in ids]

        ends = await asyncio.gather(*map(all_of, clients))
        for one, (statuses, results) in zip(both, ends, strict=True):
            assert set(statuses) == {"recorded"}
            assert set(results) == {one.app.cluster}
            assert sorted(one.ran) == sorted(ids)
            assert await one.sql.counts() == {"succeeded": len(ids)}

        # What is set, and what is known, of one is not of the other.
        await clients[0].api.change_cluster(ClusterChange(mode="passive", disable=["high"], by="ann"))
        mine = (await both[0].app.handlers["whose"].submit(clients[0], wait="recorded")).job_id
        theirs = (await both[1].app.handlers["whose"].submit(clients[1])).job_id
        assert await clients[1].result(theirs, timeout=20) == names[1]
        assert (await clients[0].job(mine)).status == "on_master"
        assert (await clients[1].api.cluster()).settings.revision == 0
        with pytest.raises(NoSuchJobError):
            await clients[0].job(theirs)
        await clients[0].api.change_cluster(ClusterChange(mode="active", by="ann"))
        assert await clients[0].result(mine, timeout=20) == names[0]
    async with Sql(database) as untouched:
        counts = {table: await untouched.value(f"SELECT count(*) FROM jobmaster.{table}") for table in TABLES}
        assert counts == dict.fromkeys(TABLES, 0), "the default schema is nobody's here"
    for name in names:
        await delete_streams(nats_server.url, name)


APPS = """
from jm_nats import JobMaster
{}
@{}.handler("whose")
async def whose_{}() -> str:
    return "{}"
"""


@pytest.fixture
def folder(tmp_path, cluster_name):
    names = {letter: f"{cluster_name}-{letter}" for letter in "ab"}
    for letter, name in names.items():
        made = f'{letter} = JobMaster("{name}")'
        (tmp_path / f"app_{letter}.py").write_text(APPS.format(made, letter, letter, name))
    return tmp_path, list(names.values())


@pytest.mark.parametrize("full", [False, True], ids=["coordinator-and-worker", "mode-full"])
async def test_the_command_line_serves_several_clusters_by_one_process(nats_server, database, folder, full):
    path, names = folder
    env = environment(nats_server.url, database, "unused") | {
        "PYTHONPATH": f"{path}:{ROOT}:{ROOT / 'cli'}",
        "JM_POSTGRES_SCHEMA": "jm_{cluster}",
    }
    targets = ["app_a:a", "app_b:b"]
    with Processes(env) as processes:
        if full:
            worker = processes.start("worker", "worker", *targets, "--mode", "full", ready=WORKER_READY)
            await wait_until(
                lambda: worker.log().count(COORDINATOR_READY) == 2, what="both lead", shown=worker.log_tail
            )
        else:
            coordinator = processes.start("coordinator", "coordinator", "--cluster", ",".join(names), ready="")
            await wait_until(
                lambda: coordinator.log().count(COORDINATOR_READY) == 2, what="both lead", shown=coordinator.log_tail
            )
            worker = processes.start("worker", "worker", *targets, ready=WORKER_READY)
        await wait_until(lambda: worker.log().count(WORKER_READY) == 2, what="both serve", shown=worker.log_tail)
        for name in names:
            async with JobClient(name, NatsConfig(servers=(nats_server.url,))) as client:
                receipt = await client.submit(submission("whose"))
                assert await client.result(receipt.job_id, timeout=20) == name
        assert [await process.stop() for process in processes.all] == [0] * len(processes.all)
    async with Sql(database) as sql:
        found = await sql.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'jm\\_%' ORDER BY 1")
        assert [row["nspname"] for row in found] == [schema_of("jm_{cluster}", name) for name in names]
