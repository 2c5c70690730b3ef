"""Modes, disabled priorities and bucket counts of a whole cluster, changed while it works. Real servers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec import Struct

from jm_core import wire
from jm_core.api import JobQuery
from jm_core.api_control import AuditQuery, JobFilter
from jm_core.cluster import KEY, AgentGiveUp, ClusterChange, ClusterMode, ClusterSettings
from jm_core.control import Action
from jm_core.errors import ClusterArchivedError, InvalidJobError
from jm_core.model import Priority
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.job_store import JobStore
from jm_master.service import Service
from jm_master.waiters import ResultWaiters
from jm_nats.api_client import ApiClient
from jm_nats.kv import CasKv
from tests.support.cli import jm
from tests.support.in_process import Shop, working
from tests.support.master import coordinating, job, linked
from tests.support.sql import Sql
from tests.support.waiting import wait_until

HELD = 20


@pytest.fixture
async def sql(database):
    async with Sql(database) as found:
        yield found


@pytest.fixture
async def bench(nats_server, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench:
        yield bench


@pytest.fixture
async def shop(nats_server, cluster_name):
    return Shop(cluster_name, nats_server.url)


@pytest.fixture
async def leading(nats_server, database, cluster_name):
    async with coordinating(nats_server.url, database, cluster_name) as coordinator:
        yield coordinator


@asynccontextmanager
async def client_of(shop):
    async with shop.app.client() as client:
        yield client


def api_of(bench):
    return ApiClient(bench.link, bench.names)


async def set_mode(bench, mode, **fields):
    return await api_of(bench).change_cluster(ClusterChange(mode=mode, by="ann", **fields))


# -- modes


async def test_a_passive_cluster_records_and_starts_nothing_and_loses_nothing_when_it_is_active_again(
    bench, sql, shop, leading, cluster_name
):
    async with working(shop.app, slots=2) as worker, client_of(shop) as client:
        first = [(await shop.gated.submit(client)).job_id for _ in range(2 + HELD)]
        await wait_until(lambda: worker._parts.engine.held == HELD, what="jobs that wait for a slot")
        soon = (await shop.note.submit(client, delay=2.5)).job_id  # in the bucket's stream, to be moved when it is due
        await wait_until(lambda: in_state(sql, "in_bucket", soon), what="a job for later in the bucket")

        view = await set_mode(bench, "passive", reason="database move")
        assert (view.settings.mode, view.settings.changed_by) == (ClusterMode.PASSIVE, "ann")
        await wait_until(lambda: waiting(sql, HELD), what="held jobs back on the master")
        assert worker._parts.engine.held == 0
        assert (await client.job(shop.ran[0])).status == "processing", "what runs goes on"

        recorded = (await shop.note.submit(client, wait="recorded")).job_id
        assert (await client.job(recorded)).status == "on_master"
        shop.gate.set()
        assert [await client.result(job_id, timeout=20) for job_id in shop.ran[:2]] == ["done", "done"]
        # The scheduled one comes due meanwhile, into a worker that starts nothing.
        await wait_until(lambda: in_state(sql, "on_master", soon), what="the due job back on the master")
        assert len(shop.started) == 2, "nothing was started, though two slots were free and jobs were due"
        assert await sql.value("SELECT count(*) FROM attempt") == 0
        assert await sql.value("SELECT max(attempt) FROM job WHERE status = 1") == 0

        back_at = time.time()
        await set_mode(bench, "active")
        every = [*first, soon, recorded]
        await asyncio.gather(*[client.result(job_id, timeout=20) for job_id in every])
        assert Counter(shop.ran) == Counter(every), "each once"
        assert sorted(at > back_at for _, at in shop.started) == [False] * 2 + [True] * (HELD + 2)


async def waiting(sql, count):
    return await sql.value("SELECT count(*) FROM job WHERE status = 1") == count


async def in_state(sql, state, job_id):
    return (await sql.counts([job_id])).get(state) == 1


async def test_a_worker_that_starts_and_a_leader_that_follows_find_the_cluster_passive(
    bench, shop, nats_server, database
):
    async with coordinating(nats_server.url, database, shop.app.cluster):
        await set_mode(bench, "passive")
    async with (
        coordinating(nats_server.url, database, shop.app.cluster),
        working(shop.app) as worker,
        client_of(shop) as client,
    ):
        job_id = (await shop.note.submit(client, wait="recorded")).job_id
        assert worker._parts.engine.paused
        assert (await client.job(job_id)).status == "on_master"
        assert (await api_of(bench).unserved()).unserved == []
        await set_mode(bench, "active")
        await client.result(job_id, timeout=20)
        assert shop.ran == [job_id]


async def test_an_archived_cluster_refuses_at_the_client_and_at_the_writer_and_can_still_be_read(
    bench, sql, shop, leading, cluster_name
):
    async with working(shop.app) as worker, client_of(shop) as client:
        running = (await shop.gated.submit(client)).job_id
        await wait_until(lambda: shop.ran == [running], what="a job that runs")
        await set_mode(bench, "archived", reason="moved to 'shop2'")

        await wait_until(lambda: not client._opened.look.is_open, what="the client told of it")
        with pytest.raises(ClusterArchivedError, match=r"archived by ann \(moved to 'shop2'\).*jm cluster mode active"):
            await shop.note.submit(client)
        with pytest.raises(ClusterArchivedError):
            await client.submit_many(shop.note.jobs({} for _ in range(3)))
        async with client_of(shop) as newcomer:
            with pytest.raises(ClusterArchivedError):
                await shop.note.submit(newcomer)

        foreign = [job("note"), job("note"), {"handler": "no such priority", "priority": "x"}]
        receipts = await bench.submit_and_wait(*foreign)
        assert [receipt.status for receipt in receipts] == ["rejected"] * 3
        assert "archived" in receipts[0].reason
        assert "archived" not in receipts[2].reason, "what was wrong anyway keeps its own reason"
        kept = await sql.rejected()
        assert [row["job_id"] for row in kept[:2]] == [foreign[0]["id"], foreign[1]["id"]]
        assert [msgspec.json.decode(row["raw"]) for row in kept] == foreign

        shop.gate.set()
        assert await client.result(running, timeout=20) == "done", "what runs ends, and its end is recorded"
        assert (await client.job(running)).status == "succeeded"
        assert [view.id for view in (await client.api.jobs(JobQuery())).jobs] == [running]

        await set_mode(bench, "active")
        await wait_until(lambda: not worker._parts.engine.paused, what="the worker told of it")
        accepted = (await shop.note.submit(client)).job_id
        await client.result(accepted, timeout=20)
        assert shop.ran == [running, accepted]


async def test_what_was_queued_before_the_cluster_was_archived_is_saved_and_what_came_after_is_refused(
    bench, sql, nats_server, database, cluster_name
):
    """Both lie in NATS while nobody leads: the first had its receipt when the cluster was open."""
    before, after = job("note"), job("note")
    await bench.submit(before)
    await asyncio.sleep(0.05)  # between two stamps of the server
    settings = ClusterSettings(mode=ClusterMode.ARCHIVED, mode_since=time.time(), revision=1)
    await asyncio.sleep(0.05)
    await bench.submit(after)
    await sql.value("INSERT INTO setting (key, value) VALUES ('cluster', $1)", wire.encode(settings).decode())
    async with coordinating(nats_server.url, database, cluster_name):
        await wait_until(sql.rejected, what="the late one refused")
        assert [row["job_id"] for row in await sql.rejected()] == [after["id"]]
        assert await sql.counts() == {"on_master": 1}
        assert str(await sql.value("SELECT id FROM job")) == before["id"]


async def test_jobs_of_an_archived_cluster_are_watched_and_waited_for_and_a_dry_run_is_answered(
    bench, sql, shop, leading
):
    """What its clients ask for, through the API: all of it reads."""
    async with shop.app.client() as client, working(shop.app):
        job_id = (await shop.gated.submit(client)).job_id
        await wait_until(
            lambda: sql.value("SELECT status = 3 FROM job WHERE id = $1", job_id), what="it recorded as running"
        )
        await set_mode(bench, "archived")
        progress = await client.api.progress(job_id, None, 5.0)
        assert progress is not None
        assert progress.status == "processing"
        assert await client.count_where(Action.CANCEL, JobFilter(handler="gated")) == {"processing": 1}
        replies = [reply async for reply in client.control(Action.CANCEL, [job_id], dry_run=True)]
        assert [verdict.id for reply in replies for verdict in reply.jobs] == [job_id]
        with pytest.raises(ClusterArchivedError):
            await client.cancel(job_id)
        shop.gate.set()
        assert await client.results([job_id], timeout=20) == ["done"]
        assert (await client.history(job_id)).status == "succeeded"


async def test_an_archived_cluster_refuses_every_operation_that_is_not_known_to_read(bench, database):
    asked = []

    async def touch(_):
        asked.append(1)
        return Struct()

    reason = "it is archived"
    store, waiters = JobStore(Database(PostgresConfig(dsn=database))), ResultWaiters()
    operations = {"job-touch-get": touch, "schedule-skips": touch}
    service = Service(bench.link, bench.names, store, waiters, operations=operations, archived=lambda: reason)
    with pytest.raises(Exception, match=reason) as caught:
        await service._answer(request("job-touch-get"))
    assert (caught.value.code, asked) == ("archived", [])
    await service._answer(request("schedule-skips"))
    assert asked == [1]


def request(operation):
    class Message:
        subject = f"jm.c.api.{operation}"
        data = b"{}"

    return Message()


# -- how settings are kept


async def test_each_change_is_recorded_with_who_when_and_why_and_two_at_once_are_both_there(bench, sql, leading):
    await asyncio.gather(
        api_of(bench).change_cluster(ClusterChange(disable=["high"], by="ann", reason="quiet")),
        api_of(bench).change_cluster(ClusterChange(disable=["low"], by="bob")),
    )
    view = await api_of(bench).cluster()
    assert (view.settings.disabled, view.settings.revision) == (("low", "high"), 2)
    rows = await sql.rows("SELECT changed_by, reason, after FROM cluster_change ORDER BY change_id")
    assert {(row["changed_by"], row["reason"]) for row in rows} == {("ann", "quiet"), ("bob", "")}
    assert [change.changed_by for change in view.changes] == [row["changed_by"] for row in reversed(rows)]
    await api_of(bench).change_cluster(ClusterChange(disable=["low"], by="eve"))
    assert await sql.value("SELECT count(*) FROM cluster_change") == 2, "it was so already"


async def test_each_change_is_in_the_record_of_operator_actions_and_one_that_changes_nothing_is_not(
    sql, shop, bench, leading
):
    async with client_of(shop) as client:
        for _ in range(2):
            await api_of(bench).change_cluster(ClusterChange(disable=["high"], by="ann", reason="quiet"))
        (action,) = (await client.actions(AuditQuery(action="cluster-set"))).actions
        assert (action.actor, action.reason, action.matched, action.changed) == ("ann", "quiet", 1, 1)
        assert action.finished_at is not None
        assert (await client.action(action.action_id)).parameters == '{"disable": ["high"]}'


@pytest.mark.parametrize(("field", "limit"), [("by", 100), ("reason", 500)])
async def test_who_and_why_are_refused_beyond_what_is_recorded_rather_than_cut(bench, sql, leading, field, limit):
    words = {"by": "ann"} | {field: "x" * (limit + 1)}
    with pytest.raises(InvalidJobError, match=f"^field '{field}': {limit + 1} characters, the limit is {limit}"):
        await api_of(bench).change_cluster(ClusterChange(mode="passive", **words))
    with pytest.raises(InvalidJobError, match=f"the limit is {limit}"):
        await api_of(bench).give_up_agent(AgentGiveUp("east", **words))
    assert await sql.value("SELECT count(*) FROM cluster_change") == 0


async def test_a_change_that_cannot_be_is_refused_and_changes_nothing(bench, sql, leading):
    with pytest.raises(InvalidJobError, match="cannot be disabled"):
        await api_of(bench).change_cluster(ClusterChange(mode="passive", disable=["medium"]))
    assert await sql.value("SELECT count(*) FROM setting WHERE key = 'cluster'") == 0
    assert leading.registry.view.cluster.starts


async def test_settings_come_back_into_a_kv_that_lost_them_and_what_another_leader_wrote_is_followed(
    bench, sql, leading, shop
):
    kv = CasKv(bench.link, bench.names.cluster_kv)
    await set_mode(bench, "passive")
    entry = await kv.get(KEY)
    async with working(shop.app) as worker:
        engine, pauses = worker._parts.engine, []
        engine.pause = lambda *, on: pauses.append(on)
        await kv.delete(KEY, revision=entry.revision)
        await there_is_again(kv, entry.value)
        assert engine.paused
        assert pauses == [], "a passive cluster starts nothing while its KV is empty"
    settings = ClusterSettings(disabled=("high",), revision=9)
    await sql.value("UPDATE setting SET value = $1 WHERE key = 'cluster'", wire.encode(settings).decode())
    await wait_until(lambda: leading.registry.view.cluster == settings, what="the other leader's change")
    await sql.value("UPDATE setting SET value = 'garbage' WHERE key = 'cluster'")
    await set_mode(bench, "active")  # over what cannot be read, from what was known last
    assert leading.registry.view.cluster.disabled == ("high",)


async def there_is_again(kv, value):
    async def look():
        found = await kv.get(KEY)
        return found is not None and found.value == value

    await wait_until(look, what="the settings back in the KV")


# -- priorities


async def test_a_disabled_priority_loses_its_buckets_and_its_jobs_run_with_the_next_lower(
    bench, sql, shop, leading, cluster_name
):
    async with working(shop.app, priorities=(Priority.MEDIUM, Priority.HIGH), slots=1) as worker:
        own = worker._parts.buckets.own
        async with client_of(shop) as client:
            urgent = [(await shop.gated.submit(client, priority=Priority.HIGH)).job_id for _ in range(5)]
            await wait_until(lambda: worker._parts.engine.held == 4, what="jobs that wait in the bucket for high")
            await api_of(bench).change_cluster(ClusterChange(disable=["high", "critical"], by="ann"))
            await wait_until(lambda: waiting(sql, 0), what="those held are given out again, to another bucket")
            later = [(await shop.gated.submit(client, priority=p)).job_id for p in (Priority.HIGH, Priority.CRITICAL)]
            shop.gate.set()
            await asyncio.gather(*[client.result(job_id, timeout=20) for job_id in [*urgent, *later]])
            assert [(await client.job(job_id)).priority for job_id in later] == ["high", "critical"]
            await wait_until(lambda: priorities(own) == [3], what="the bucket for high retired")
            used = await sql.value("SELECT count(DISTINCT bucket_id) FROM job WHERE id = ANY($1::uuid[])", later)
            assert used == 1
            assert Counter(shop.ran) == Counter([*urgent, *later])

            await api_of(bench).change_cluster(ClusterChange(enable=["high"], by="ann"))
            await wait_until(lambda: priorities(own) == [3, 4], what="a bucket for high again")
            again = (await shop.note.submit(client, priority=Priority.HIGH)).job_id
            await client.result(again, timeout=20)
            assert "-high-" in (await client.job(again)).bucket


def priorities(own):
    return sorted(bucket.value.priority for bucket in own.values() if not bucket.port.closed)


# -- bucket counts


async def test_a_worker_opens_as_many_buckets_as_it_is_told_and_jobs_spread_over_them(bench, sql, shop, leading):
    async with working(shop.app, buckets={Priority.MEDIUM: 2}) as worker, client_of(shop) as client:
        assert priorities(worker._parts.buckets.own) == [3, 3]
        jobs = [receipt.job_id for receipt in await client.submit_many(shop.note.jobs({} for _ in range(100)))]
        await asyncio.gather(*[client.result(job_id, timeout=20) for job_id in jobs])
        rows = await sql.rows("SELECT bucket_id, count(*) AS jobs FROM job GROUP BY 1")
        assert sorted(row["jobs"] for row in rows) == [50, 50]
        await api_of(bench).change_cluster(ClusterChange(buckets={"medium": 3}, by="ann"))
        assert priorities(worker._parts.buckets.own) == [3, 3], "its own number comes first"


async def test_the_cluster_s_number_of_buckets_is_followed_up_and_down(bench, shop, leading):
    async with working(shop.app) as worker:
        own = worker._parts.buckets.own
        first = set(own)
        await api_of(bench).change_cluster(ClusterChange(buckets={"medium": 3}, by="ann"))
        await wait_until(lambda: priorities(own) == [3, 3, 3], what="three buckets")
        await api_of(bench).change_cluster(ClusterChange(buckets={"medium": 0}, by="ann"))
        await wait_until(lambda: len(own) == 1, what="one bucket again")
        assert set(own) == first, "the youngest go"


# -- the command line


async def test_the_command_line_shows_and_changes_it(leading, nats_server, cluster_name, tmp_path):
    def run(*arguments, **variables):
        variables |= {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name}
        return jm("cluster", *arguments, cwd=tmp_path, **variables)

    done = await asyncio.to_thread(run, "show")
    assert done.returncode == 0
    assert "active" in done.stdout
    assert "never changed" in done.stderr
    done = await asyncio.to_thread(run, "set", "--disable", "low", "--json", JM_ACTOR="bob")
    assert msgspec.json.decode(done.stdout)["changes"][0]["changed_by"] == "bob"
    done = await asyncio.to_thread(run, "set", "--enable", "low", "--reason", "x" * 501)
    assert (done.returncode, "the limit is 500" in done.stderr) == (2, True)
    done = await asyncio.to_thread(run, "give-up-agent", "west", "--yes")
    assert (done.returncode, "known are" in done.stderr, "--help" in done.stderr) == (6, True, False)
    done = await asyncio.to_thread(run, "give-up-agent", "main", "--yes")
    assert (done.returncode, "the one that answers" in done.stderr) == (7, True)
    done = await asyncio.to_thread(run, "mode", "archived", "--by", "ann", "--reason", "moved", "--json")
    assert done.returncode == 0, done.stderr
    settings = msgspec.json.decode(done.stdout)["settings"]
    assert (settings["mode"], settings["changed_by"], settings["reason"]) == ("archived", "ann", "moved")
    variables = {"JM_NATS_URL": nats_server.url, "JM_CLUSTER": cluster_name}
    refused = await asyncio.to_thread(jm, "submit", "note", cwd=tmp_path, **variables)
    assert (refused.returncode, refused.stdout) == (7, "")
    assert "archived by ann (moved)" in refused.stderr
    done = await asyncio.to_thread(run, "mode", "active")
    assert done.returncode == 0, done.stderr
    done = await asyncio.to_thread(run, "set", "--disable", "low,critical", "--buckets", "high=2", "--by", "bob")
    assert done.returncode == 0, done.stderr
    shown = (await asyncio.to_thread(run, "show")).stdout
    assert all(part in shown for part in ("low critical", "high=2", "bob", "ann", "moved"))
