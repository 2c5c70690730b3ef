"""Two agents, each a NATS of its own, under one master: what they share, and what each leaves alone. Real servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from jm_cli.exits import ExitCode, exit_code_of
from jm_core.api_control import AuditQuery
from jm_core.cluster import AgentGiveUp, ClusterChange
from jm_core.errors import ActionRefusedError, InvalidJobError, InvalidNameError, NoSuchAgentError
from jm_core.model import Priority
from jm_master import agents
from jm_master.agent_store import AgentStore, AgentStoreChangedError, SharedAgentError
from jm_master.agents import Agents
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.dispatch_store import DispatchStore
from jm_master.leadership import take_term
from jm_master.registry_view import RegistryView
from jm_master.terms import LostTermError
from jm_nats.embedded import NatsServer
from tests.support.in_process import Shop, working
from tests.support.master import FAST, coordinating, job, linked
from tests.support.sql import Sql
from tests.support.waiting import wait_until

EAST = replace(FAST, agent="east")


@pytest.fixture(scope="module")
def east_nats():
    with NatsServer() as server:
        yield server


@pytest.fixture
async def sql(database):
    async with Sql(database) as found:
        yield found


@dataclass
class Both:
    """A coordinator for each agent, and an application that can be served on either."""

    main: object
    east: object
    shop: Shop  # its clients and workers use main's NATS
    east_shop: Shop


@asynccontextmanager
async def both_leading(nats_server, east_nats, database, cluster_name, **changes):
    async with (
        coordinating(nats_server.url, database, cluster_name, replace(FAST, **changes)) as main,
        coordinating(east_nats.url, database, cluster_name, replace(EAST, **changes)) as east,
    ):
        yield Both(main, east, Shop(cluster_name, nats_server.url), Shop(cluster_name, east_nats.url))


@pytest.fixture
async def both(nats_server, east_nats, database, cluster_name):
    async with both_leading(nats_server, east_nats, database, cluster_name) as made:
        yield made


async def test_a_job_runs_where_its_lane_is_served_whichever_agent_took_it_and_both_answer_for_it(both, sql):
    async with working(both.east_shop.app, lanes=("only-east",)), both.shop.app.client() as client:
        ids = [(await both.shop.note.submit(client, lane="only-east")).job_id for _ in range(20)]
        async with asyncio.timeout(15):
            await asyncio.gather(*[client.result(job_id) for job_id in ids])
        assert Counter(both.east_shop.ran) == Counter(ids)
        async with both.east_shop.app.client() as east_client:
            views = [await one.job(ids[0]) for one in (client, east_client)]
            assert {view.status for view in views} == {"succeeded"}
            assert {view.bucket.partition("/")[0] for view in views} == {"east"}
            assert await east_client.result(ids[0], timeout=5) is None
        listed = (await client.api.cluster()).agents
        assert [agent.agent for agent in listed] == ["east", "main"]
        assert all(agent.seen_at is not None and agent.holder for agent in listed)


async def test_workers_of_both_agents_share_what_waits_and_each_job_runs_once(both, sql):
    async with (
        working(both.shop.app, slots=5),
        working(both.east_shop.app, slots=5),
        both.shop.app.client() as client,
        both.east_shop.app.client() as east_client,
    ):
        jobs = [both.shop.note.jobs({"seconds": 0.01} for _ in range(1_000)) for _ in range(2)]
        receipts = await asyncio.gather(client.submit_many(jobs[0]), east_client.submit_many(jobs[1]))
        ids = [receipt.job_id for some in receipts for receipt in some]

        async def ended():
            return (await sql.counts(ids)).get("succeeded") == len(ids)

        await wait_until(ended, 60, what="the end of all")
        assert Counter([*both.shop.ran, *both.east_shop.ran]) == Counter(ids)
        assert both.shop.ran
        assert both.east_shop.ran
        assert await sql.value("SELECT count(*) FROM attempt") == 0


async def test_a_handler_that_only_another_agent_s_worker_knows_is_not_quarantined_and_has_its_defaults(both, sql):
    @both.east_shop.app.handler("east_only", max_attempts=7, priority=Priority.HIGH)
    async def east_only() -> str:
        return "east"

    config = {"priorities": (Priority.MEDIUM, Priority.HIGH)}
    async with (
        working(both.shop.app, **config),
        linked(both.shop.app.nats_config().servers[0], both.shop.app.cluster) as bench,
    ):
        view = both.main.registry.view
        async with working(both.east_shop.app, **config):
            await wait_until(lambda: "east_only" in view.elsewhere.handlers, what="main's leader told of it")
            sent = job("east_only")
            assert [r.status for r in await bench.submit_and_wait(sent)] == ["recorded"]

            async def ended():
                return await sql.counts([sent["id"]]) == {"succeeded": 1}

            await wait_until(ended, what="it ran on the other agent")
            row = await sql.job(sent["id"])
            assert (row["max_attempts"], row["priority"]) == (7, int(Priority.HIGH))
        # Its agent's worker is gone: the job waits for it, rather than be quarantined by one that does not know it.
        late = job("east_only", priority="high")
        assert [r.status for r in await bench.submit_and_wait(late)] == ["recorded"]
        known = job("note")
        assert [r.status for r in await bench.submit_and_wait(known)] == ["recorded"]
        await wait_until(lambda: known["id"] in both.shop.ran, what="a job that main can run")
        assert await sql.counts([late["id"]]) == {"on_master": 1}


async def test_a_schedule_of_a_handler_that_only_another_agent_knows_is_added_and_runs_there(both, sql):
    @both.east_shop.app.handler("east_only", lane="far", timeout=7.0)
    async def east_only() -> None: ...

    view = both.main.registry.view
    async with working(both.east_shop.app, lanes=("far",)), both.shop.app.client() as client:
        await wait_until(lambda: "east_only" in view.elsewhere.handlers, what="main's leader told of it")
        await client.schedules.add("far-off", "east_only", cron="* * * * *")
        job_id = await client.schedules.run_now("far-off")
        await client.result(job_id, timeout=20)
        row = await sql.job(job_id)
        assert (row["lane"], row["timeout_s"], row["bucket_id"].partition("/")[0]) == ("far", 7.0, "east")


async def test_a_lane_of_one_agent_and_a_handler_of_the_other_get_a_stand_in(
    nats_server, east_nats, database, cluster_name, sql
):
    """East serves the lane and leaves the job to main, whose workers know it: main must not leave it to east."""
    async with both_leading(nats_server, east_nats, database, cluster_name, no_bucket_threshold_s=0.5) as both:

        @both.shop.app.handler("main_only")
        async def main_only() -> str:
            return "main"

        @both.east_shop.app.handler("far_too")
        async def far_too() -> None: ...

        view, far = both.main.registry.view, both.east.registry.view
        route = ("far", Priority.MEDIUM)
        async with (
            working(both.shop.app),
            working(both.east_shop.app, lanes=("far",)),
            both.shop.app.client() as client,
        ):
            await wait_until(lambda: "main_only" in far.elsewhere.handlers, what="east's leader told of the handler")
            await wait_until(lambda: route in view.elsewhere.live["east"].routes, what="main's told of the lane")
            job_id = (await main_only.submit(client, lane="far")).job_id
            assert await client.result(job_id, timeout=20) == "main"
            assert (await sql.job(job_id))["bucket_id"] in view.buckets


async def test_each_agent_leads_for_itself_and_terms_are_never_the_same(both, nats_server, database, sql):
    rows = {row["agent"]: row["term"] for row in await sql.rows("SELECT agent, term FROM leader")}
    assert set(rows) == {"main", "east"}
    async with (
        Database(PostgresConfig(dsn=database), agent="west") as west,
        Database(PostgresConfig(dsn=database), agent="north") as north,
    ):
        terms = await asyncio.gather(*[take_term(one, "h") for one in [west, north] * 20])
        assert len({*terms, *rows.values()}) == 42
        forgotten = await take_term(west, "h", after=500)
        assert forgotten > 1_000, "beside others a forgotten term is outdone by far"
    assert {row["agent"]: row["term"] for row in await sql.rows("SELECT * FROM leader")}["main"] == rows["main"]
    async with linked(nats_server.url, both.shop.app.cluster) as bench:
        assert [r.status for r in await bench.submit_and_wait(job())] == ["recorded"], "main's leader still writes"


async def test_what_lies_in_another_agent_s_buckets_is_left_alone(both, sql, database):
    """Neither counted, nor sent again, nor taken for the bucket of somebody who died."""
    async with working(both.east_shop.app) as worker, both.east_shop.app.client() as client:
        running = (await both.east_shop.gated.submit(client)).job_id
        await wait_until(lambda: running in both.east_shop.ran, what="a job that runs at east")
        stray = job("note")
        async with linked(both.shop.app.nats_config().servers[0], both.shop.app.cluster) as bench:
            await bench.submit_and_wait(stray)
        # A row that points at a bucket of main's that nobody knows shows that main's leader has looked at all rows.
        await both_passive(both, sql)
        await sql.rows("UPDATE job SET status = 2, dispatch = 1, bucket_id = 'never-seen' WHERE id = $1", stray["id"])
        await sql.rows(
            "INSERT INTO outbox (outbox_id, bucket_id, job_ids) VALUES (gen_random_uuid(), 'west/b', ARRAY[$1::uuid])",
            stray["id"],
        )
        await wait_until(lambda: tombstone(sql, "never-seen"), what="main's stray bucket buried")
        assert await sql.value("SELECT status FROM job WHERE id = $1", running) == 3
        own = f"east/{next(iter(worker._parts.buckets.own))}"
        assert await sql.value("SELECT bucket_id FROM job WHERE id = $1", running) == own
        assert not await tombstone(sql, own)
        await see_their_own_only(database, own)
        both.east_shop.gate.set()
        await client.result(running, timeout=20)
        assert await sql.value("SELECT count(*) FROM outbox WHERE bucket_id = 'west/b'") == 1


async def both_passive(both, sql):
    """So that what the test writes into rows stays: nobody assigns."""
    async with both.shop.app.client() as client:
        await client.api.change_cluster(ClusterChange(mode="passive", by="test"))
    await wait_until(lambda: not both.east.registry.view.cluster.starts, what="the other leader told of it")


async def tombstone(sql, bucket):
    return await sql.value("SELECT count(*) FROM bucket WHERE bucket_id = $1", bucket) == 1


async def see_their_own_only(database, own):
    for agent, buckets, messages in (("main", set(), 0), ("east", {own.partition("/")[2]}, 0), ("west", set(), 1)):
        async with Database(PostgresConfig(dsn=database), agent=agent) as opened:
            store = DispatchStore(opened, 1)
            assert {bucket for bucket, _, _ in await store.count_in_buckets(later_s=0)} == buckets
            found = await store.load_outbox(age_s=0)
            assert [message.bucket for message, _ in found] == ["b"] * messages


async def test_settings_are_the_cluster_s_whichever_agent_is_asked_to_change_them(both, sql):
    async with working(both.east_shop.app) as worker, both.shop.app.client() as client:
        await client.api.change_cluster(ClusterChange(mode="passive", by="ann"))
        await wait_until(lambda: worker._parts.engine.paused, what="a worker of the other agent told of it")
        async with both.east_shop.app.client() as east_client:
            view = await east_client.api.change_cluster(ClusterChange(mode="active", by="bob"))
            assert view.settings.revision == 2
            assert [change.changed_by for change in view.changes] == ["bob", "ann"]
            assert view.agent == "east"


async def test_one_nats_cannot_be_two_agents(both, nats_server, database, cluster_name):
    with pytest.raises(BaseExceptionGroup) as caught:
        async with coordinating(nats_server.url, database, cluster_name, replace(FAST, agent="west")):
            pass
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, SharedAgentError)
    assert all(part in str(error) for part in ("'main'", "'west'", "JM_NATS_URL", "JM_AGENT"))
    assert exit_code_of(error) == ExitCode.NATS


async def test_an_accepted_loss_puts_back_what_that_agent_had_and_nothing_else(both, sql, database, nats_server):
    async with (
        working(both.shop.app, lanes=("here",)),
        working(both.east_shop.app, lanes=("there",)),
        both.shop.app.client() as client,
    ):
        here = (await both.shop.gated.submit(client, lane="here")).job_id
        there = (await both.shop.gated.submit(client, lane="there")).job_id
        await wait_until(lambda: both.shop.ran and both.east_shop.ran, what="both run")
        await wait_until(lambda: processing(sql, 2), what="both recorded as running")
        await sql.rows("UPDATE setting SET value = 'another' WHERE key = 'agent.east'")
        async with (
            linked(both.east_shop.app.nats_config().servers[0], both.shop.app.cluster) as bench,
            Database(PostgresConfig(dsn=database), agent="east") as opened,
        ):
            with pytest.raises(AgentStoreChangedError, match="2 jobs, 1 of them in buckets"):
                await AgentStore(bench.link, bench.names, opened, accept_loss=False).check()
            term = await take_term(opened, "test")
            assert await AgentStore(bench.link, bench.names, opened, accept_loss=True).settle(term) == 1
        assert await sql.value("SELECT dispatch FROM job WHERE id = $1", here) == 1
        assert await sql.value("SELECT status FROM job WHERE id = $1", here) == 3
        assert await sql.outcomes(there) == ["interrupted"]
        both.shop.gate.set()
        both.east_shop.gate.set()
        await asyncio.gather(client.result(here, timeout=20), client.result(there, timeout=20))


async def processing(sql, count):
    return (await sql.counts()).get("processing") == count


async def test_an_agent_that_is_given_up_has_its_jobs_run_by_another(
    nats_server, database, cluster_name, sql, monkeypatch
):
    monkeypatch.setattr(agents, "LIVE_S", 1.0)
    monkeypatch.setattr(agents, "SAY_S", 0.2)
    monkeypatch.setattr(agents, "LOOK_S", 0.2)
    with NatsServer() as lost:
        shop, east_shop = Shop(cluster_name, nats_server.url), Shop(cluster_name, lost.url)
        async with coordinating(nats_server.url, database, cluster_name), shop.app.client() as client:
            async with coordinating(lost.url, database, cluster_name, EAST), working(east_shop.app, slots=2):
                ids = [(await east_shop.gated.submit(client)).job_id for _ in range(10)]
                await wait_until(lambda: processing(sql, 2), what="two run at east, the others wait there")
                for wrong, kind, part in (
                    ("east", ActionRefusedError, "^agent 'east' has a leader.*stop its coordinators"),
                    ("main", ActionRefusedError, "the one that answers"),
                    ("west", NoSuchAgentError, "known are east, main"),
                ):
                    with pytest.raises(kind, match=part):
                        await client.api.give_up_agent(AgentGiveUp(wrong))
                with pytest.raises((InvalidJobError, InvalidNameError)):
                    await client.api.give_up_agent(AgentGiveUp("no/name"))
                # East's data centre is gone: nothing of it answers any more, whatever its processes would like to do.
                await asyncio.to_thread(lost.kill)
                held = await sql.rows("SELECT id FROM job WHERE bucket_id LIKE 'east/%' AND status IN (2, 3)")
                assert len(held) == 10
            async with working(shop.app):
                await wait_until(lambda: is_gone(sql), what="east's leader silent for long enough")
                done = await client.api.give_up_agent(AgentGiveUp("east", by="ann", reason="it burnt down"))
                assert (done.agent, done.jobs_put_back) == ("east", 10)
                shop.gate.set()
                await asyncio.gather(*[client.result(job_id, timeout=20) for job_id in ids])
                assert Counter(shop.ran) == Counter(ids)
                (change, *_) = (await client.api.cluster()).changes
                assert change.changed_by == "ann"
                assert "gave up agent east, 10 jobs put back. it burnt down" in change.reason
                (action,) = (await client.actions(AuditQuery(action="agent-give-up"))).actions
                assert (action.actor, action.reason, action.changed) == ("ann", "it burnt down", 1)
                action = await client.action(action.action_id)
                assert (action.scope, action.parameters) == ('{"agent": "east"}', '{"jobs_put_back": 10}')
            # Its NATS comes back after all, with its old store: nobody leads it before somebody has accepted that.
            await asyncio.to_thread(lost.start)
            with pytest.raises(BaseExceptionGroup) as caught:
                async with coordinating(lost.url, database, cluster_name, EAST):
                    pass
            assert caught.value.subgroup(AgentStoreChangedError)


async def is_gone(sql):
    return await sql.value("SELECT seen_at < now() - interval '1.5 s' FROM agent_state WHERE agent = 'east'")


async def test_giving_an_agent_up_leaves_no_orders_and_is_fenced_by_the_term_that_it_took(database, sql, monkeypatch):
    async with (
        Database(PostgresConfig(dsn=database)) as main,
        Database(PostgresConfig(dsn=database), agent="east") as east,
    ):
        await take_term(east, "h")
        await sql.rows(
            "INSERT INTO agent_state (agent, seen_at, serves) VALUES ('east', now() - interval '1 day', '{}')"
        )
        await sql.rows(
            "INSERT INTO cancel_order (job_id, dispatch, bucket_id, why)"
            " VALUES (gen_random_uuid(), 1, 'east/b', ''), (gen_random_uuid(), 1, 'b', '')"
        )
        asking = Agents(main, RegistryView(), term=await take_term(main, "h"))
        put_back = asking._put_back

        async def overtaken(term, agent):
            jobs = await put_back(term, agent)
            await take_term(east, "east is back")
            return jobs

        monkeypatch.setattr(asking, "_put_back", overtaken)
        with pytest.raises(LostTermError):
            await asking.give_up("east", by="ann", reason="")
        assert await sql.value("SELECT count(*) FROM agent_state WHERE agent = 'east'") == 1
        assert await sql.value("SELECT count(*) FROM cancel_order") == 2
        assert await sql.value("SELECT count(*) FROM cluster_change") == 0
        monkeypatch.setattr(asking, "_put_back", put_back)
        assert await asking.give_up("east", by="ann", reason="") == 0
        assert await sql.value("SELECT count(*) FROM agent_state WHERE agent = 'east'") == 0
        assert [row["bucket_id"] for row in await sql.rows("SELECT bucket_id FROM cancel_order")] == ["b"]
