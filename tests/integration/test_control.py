"""Operator actions on jobs, named or picked by a filter: what each does in each state, and what is on record then."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from jm_core import limits
from jm_core.api_control import OP_OF, AuditQuery, Change, ControlReply, ControlRequest, JobFilter
from jm_core.control import Action
from jm_core.errors import ActionRefusedError, InvalidJobError, InvalidNameError, JmError, NoSuchJobError
from jm_core.model import JobStatus as S
from jm_core.model import Priority
from jm_master import control_service
from jm_master import recall as recall_module
from jm_master.ahead import Ahead
from jm_master.cancel_store import CancelStore
from jm_master.config import PostgresConfig
from jm_master.control_store import NOT_BACK, ControlStore, Order, Started
from jm_master.database import Database
from jm_master.leadership import take_term
from jm_master.pg_errors import StoreContentionError, StoreUnavailableError
from jm_master.recall import Recaller
from jm_master.terms import LostTermError
from jm_nats.api_client import MasterUnavailableError
from jm_nats.control_client import new_action_id
from jm_nats.errors import AgentUnavailableError
from tests.support.control_app import NOTES_VARIABLE, notes
from tests.support.master import new_id
from tests.support.small_cluster import small_cluster
from tests.support.sql import Sql
from tests.support.waiting import wait_until

FAR_S = 30 * 86_400.0
NEAR_S = 300.0  # within the transient threshold: it lies in the bucket's stream


@pytest.fixture
def noted(tmp_path, monkeypatch):
    monkeypatch.setenv(NOTES_VARIABLE, str(tmp_path / "notes"))
    return tmp_path / "notes"


@pytest.fixture
async def small(nats_server, database, cluster_name, noted):
    async with small_cluster(nats_server.url, database, cluster_name, slots=2) as small:
        yield small


@pytest.fixture
async def idle(nats_server, database, cluster_name):
    """Nobody works."""
    async with small_cluster(nats_server.url, database, cluster_name, works=False) as small:
        yield small


async def done(small, view, timeout_s=30):
    """The action, once the leader has worked it off."""

    async def finished():
        found = await small.client.action(view.action_id)
        return found if found.finished_at is not None else None

    return await wait_until(finished, timeout_s, what="the end of the action")


async def test_a_job_that_has_ended_is_requeued_and_its_attempts_stay_on_record(small):
    job_id = await small.submit_with("quick", max_attempts=2)
    await small.reaches(job_id, S.SUCCEEDED)
    verdict = await small.client.requeue(job_id, by="ops", reason="once more")
    assert (verdict.status, verdict.changed) == ("on_master", True)
    await wait_until(lambda: dispatched(small, job_id, 2), what="its second run")
    row = await small.reaches(job_id, S.SUCCEEDED)
    assert (row["attempt"], row["dispatch"], row["excused"], row["max_attempts"]) == (2, 2, 1, 2)
    attempts = (await small.client.api.attempts(job_id)).attempts
    assert [(a.attempt, a.outcome) for a in attempts] == [(1, "succeeded"), (2, "succeeded")]


async def dispatched(small, job_id, number):
    row = await small.sql.job(job_id)
    return row["dispatch"] == number and row["status"] == S.SUCCEEDED


async def test_a_requeue_may_bring_other_arguments_a_time_a_lane_and_a_priority(idle):
    job_id = await idle.submit_with("quick", delay_s=FAR_S, unique_key="k")
    await idle.client.cancel(job_id)
    at = datetime.now(UTC) + timedelta(days=3)
    await idle.client.requeue(
        job_id, args={"seconds": 1}, run_at=at, priority=Priority.HIGH, lane="other", max_attempts=9, by="ops"
    )
    row = await idle.sql.job(job_id)
    assert (row["status"], row["args"], row["lane"], row["priority"], row["max_attempts"]) == (
        S.ON_MASTER, '{"seconds": 1}', "other", 4, 9,
    )  # fmt: skip
    assert row["run_at"] == at
    assert (row["cancel_requested_at"], row["cancelled_by"], row["error"], row["finished_at"]) == (None,) * 4


@pytest.mark.parametrize("batch", ["one", "both"])
async def test_a_requeue_is_refused_while_another_job_holds_the_unique_key(idle, batch):
    first = await idle.submit_with("quick", delay_s=FAR_S, unique_key="k")
    await idle.client.cancel(first)
    second = await idle.submit_with("quick", delay_s=FAR_S, unique_key="k")
    if batch == "one":
        with pytest.raises(ActionRefusedError, match=f"job {second} holds its unique key"):
            await idle.client.requeue(first)
        return
    await idle.client.cancel(second)
    (reply,) = [reply async for reply in idle.client.control(Action.REQUEUE, [first, second])]
    assert [(v.id, v.changed) for v in reply.jobs] == [(first, False), (second, True)]
    assert f"job {second} holds its unique key" in reply.jobs[0].note


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"args": {"a": "x" * limits.ARGS_BYTES_MAX}}, "field 'args'"),
        ({"args": {"a": float("nan")}}, "nan is not JSON"),
        ({"args": {"a": object()}}, "field 'args': not JSON"),
        ({"priority": "urgent"}, "'urgent' is unknown"),
        ({"lane": "a lane"}, "lane 'a lane' is not a valid name"),
        ({"max_attempts": 0}, "field 'max_attempts'"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),  # noqa: DTZ001 - that is what is refused
    ],
    ids=["size", "nan", "object", "priority", "lane", "attempts", "naive"],
)
async def test_what_a_requeue_cannot_take_is_refused_before_anything_is_sent(idle, change, says):
    with pytest.raises((InvalidJobError, InvalidNameError), match=says):
        await idle.client.requeue(new_id(), **change)


async def test_a_number_that_is_expected_goes_with_a_filter_only(idle):
    """Beside ids it would be taken for a check that is not made."""
    job_id = await idle.submit_with("quick", delay_s=FAR_S)
    request = ControlRequest(new_action_id(), "ops", ids=[job_id], expect=2)
    with pytest.raises(InvalidJobError, match=r"^field 'expect': given beside ids"):
        await idle.client.api.call(OP_OF[Action.CANCEL], request, ControlReply)
    assert (await idle.sql.job(job_id))["status"] == S.ON_MASTER


async def test_what_takes_too_long_says_what_did_not_answer_and_for_how_long(idle, monkeypatch):
    monkeypatch.setattr(control_service, "PICKED_WITHIN", (0.3, "Postgres"))
    monkeypatch.setattr(control_service, "NAMED_WITHIN", (0.2, "Postgres, or the worker that has the job,"))

    async def never(*_):
        await asyncio.sleep(60)

    monkeypatch.setattr(ControlStore, "count", never)
    monkeypatch.setattr(ControlStore, "would_do", never)
    with pytest.raises(MasterUnavailableError, match=r"Postgres did not answer within 0.3 s"):
        await idle.client.count_where(Action.CANCEL, None)
    with pytest.raises(MasterUnavailableError, match=r"or the worker that has the job, did not answer within 0.2 s"):
        await anext(idle.client.control(Action.CANCEL, [new_id()], dry_run=True))


async def test_a_waiting_job_is_run_now(small):
    job_id = await small.submit_with("quick", delay_s=FAR_S)
    await small.client.run_now(job_id, by="ops")
    await small.reaches(job_id, S.SUCCEEDED)


async def test_a_job_that_its_bucket_holds_for_later_is_fetched_back_and_run_now(small):
    job_id = await small.submit_with("quick", delay_s=NEAR_S)
    await small.reaches(job_id, S.IN_BUCKET)
    await small.client.run_now(job_id, by="ops")
    row = await small.reaches(job_id, S.SUCCEEDED)
    assert row["dispatch"] == 3  # 1 in the bucket, 2 fetched back, 3 sent again


async def test_a_job_that_waits_for_a_slot_is_fetched_back_and_rescheduled(small, noted):
    blockers = [await small.submit("waits") for _ in range(2)]
    await small.all_reach(blockers, S.PROCESSING)
    job_id = await small.submit("quick")
    await small.reaches(job_id, S.IN_BUCKET)
    at = datetime.now(UTC) + timedelta(days=1)
    await small.client.reschedule(job_id, at, by="ops")
    row = await small.sql.job(job_id)
    assert (row["status"], row["run_at"], row["bucket_id"]) == (S.ON_MASTER, at, None)
    for blocker in blockers:
        await small.client.cancel(blocker, wait=20)
    marker = await small.submit("quick")
    await small.reaches(marker, S.SUCCEEDED)
    assert job_id not in notes(noted, "started")


async def test_a_job_that_its_worker_has_started_is_not_given_back(small):
    """Its start is not on record yet: the worker alone knows."""
    job_id = await small.submit("waits")
    row = await small.reaches(job_id, S.PROCESSING)
    await small.sql.rows("UPDATE job SET status = 2 WHERE id = $1", job_id)
    with pytest.raises(ActionRefusedError, match="its worker, which has started it"):
        await small.client.reschedule(job_id, datetime.now(UTC) + timedelta(days=1))
    assert (await small.sql.job(job_id))["dispatch"] == row["dispatch"]


async def test_a_waiting_job_moves_to_another_priority_and_lane(idle):
    job_id = await idle.submit_with("quick", delay_s=FAR_S)
    await idle.client.change_priority(job_id, Priority.CRITICAL, lane="fast", by="ops")
    row = await idle.sql.job(job_id)
    assert (row["priority"], row["lane"], row["status"]) == (5, "fast", S.ON_MASTER)


@pytest.mark.parametrize("action", [Action.RUN_NOW, Action.RESCHEDULE, Action.PRIORITY, Action.REQUEUE])
async def test_what_runs_is_left_alone_with_a_reason(small, action):
    job_id = await small.submit("waits")
    await small.reaches(job_id, S.PROCESSING)
    with pytest.raises(ActionRefusedError, match=r"it is (running|processing)"):
        await do(small, action, job_id)


@pytest.mark.parametrize("action", [Action.RUN_NOW, Action.RESCHEDULE, Action.PRIORITY])
async def test_what_has_ended_is_left_alone_with_a_reason(idle, action):
    job_id = await idle.submit_with("quick", delay_s=FAR_S)
    await idle.client.cancel(job_id)
    with pytest.raises(ActionRefusedError, match="it has ended cancelled; requeue it"):
        await do(idle, action, job_id)


async def do(small, action, job_id):
    match action:
        case Action.RUN_NOW:
            return await small.client.run_now(job_id)
        case Action.RESCHEDULE:
            return await small.client.reschedule(job_id, datetime.now(UTC) + timedelta(days=1))
        case Action.PRIORITY:
            return await small.client.change_priority(job_id, "low")
        case _:
            return await small.client.requeue(job_id)


# In bulk.


@pytest.fixture
async def store_of(database):
    """A store of an agent's leader, with that agent heard of just now."""
    async with AsyncExitStack() as stack:

        async def store(agent, term):
            opened = await stack.enter_async_context(Database(PostgresConfig(dsn=database), agent=agent))
            insert = "INSERT INTO jobmaster.leader (agent, term, holder) VALUES ($1, $2, 'h') "
            await opened.fetch(f"{insert} ON CONFLICT (agent) DO UPDATE SET term = $2", agent, term)
            await opened.fetch("INSERT INTO jobmaster.agent_state (agent, serves) VALUES ($1, '{}')", agent)
            return ControlStore(opened, term, CancelStore(opened, term), Ahead(opened, term))

        yield store


def order(action=Action.CANCEL):
    return Order(new_action_id(), action, "ops", "", Change())


async def put(sql, count, **columns):
    ids = [new_id() for _ in range(count)]
    values = {"handler": "'h'", "status": "1", "args": "'{}'", "max_attempts": "3", "timeout_s": "60"} | columns
    await sql.rows(
        f"INSERT INTO job (id, queued_at, run_at, lane, priority, {', '.join(values)}) "
        f"SELECT id, now(), now(), 'default', 3, {', '.join(values.values())} FROM unnest($1::uuid[]) AS u(id)",
        ids,
    )
    return ids


async def test_an_action_in_bulk_is_its_agent_s_until_that_one_is_gone_and_then_one_other_s(database, store_of):
    async with Sql(database) as sql:
        await put(sql, 3)
        main, east, west = await store_of("main", 7), await store_of("east", 8), await store_of("west", 9)
        one = order()
        assert (await main.start(ControlRequest(one.action_id, "ops", filter=JobFilter()), one)).started
        assert [found.action_id for found in await main.open_orders(10)] == [one.action_id]
        assert await east.open_orders(10) == []
        await sql.rows("UPDATE agent_state SET seen_at = now() - interval '1 minute' WHERE agent = 'main'")
        taken = [await store.open_orders(10) for store in (east, west)]
        assert [len(found) for found in taken] == [1, 0]
        await sql.rows("UPDATE agent_state SET seen_at = now()")
        assert await main.open_orders(10) == [], "it was taken over for good"


async def test_what_was_not_started_leaves_no_targets_and_twice_the_same_starts_once(database, store_of):
    async with Sql(database) as sql:
        await put(sql, 3)
        store, one = await store_of("main", 7), order()
        request = ControlRequest(one.action_id, "ops", filter=JobFilter(handler="h"), expect=2)
        assert await store.start(request, one) == Started(3, started=False)
        assert await sql.value("SELECT count(*) FROM operator_target") == 0
        assert await store.action(one.action_id) is None
        request.expect = 3
        assert await store.start(request, one) == Started(3, started=True)
        assert not (await store.start(request, one)).started
        assert await sql.value("SELECT count(*) FROM operator_target") == 3
        await sql.rows("UPDATE leader SET term = 99 WHERE agent = 'main'")
        late = order()
        with pytest.raises(LostTermError):
            await store.start(ControlRequest(late.action_id, "ops", filter=JobFilter()), late)
        assert await sql.value("SELECT count(*) FROM operator_target") == 3


SLOW_PICK = """
    CREATE OR REPLACE FUNCTION jobs_like(
        statuses smallint[], of_handler text, of_lane text, of_priority smallint, having_metadata jsonb,
        queued_from timestamptz, queued_until timestamptz, due_from timestamptz, due_until timestamptz,
        of_schedule text
    ) RETURNS TABLE (job_id uuid, job_status smallint) LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(4711);
        RETURN QUERY SELECT id, status FROM jobmaster.job;
    END $$
"""


async def test_who_picks_among_all_jobs_does_not_hold_up_an_election(database, store_of):
    async with Sql(database) as sql, Sql(database) as holding:
        await put(sql, 3)
        store, one = await store_of("main", 7), order()
        await sql.rows(SLOW_PICK)
        await holding.value("SELECT pg_advisory_lock(4711)")
        picking = asyncio.create_task(store.start(ControlRequest(one.action_id, "ops", filter=JobFilter()), one))
        waiting = "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND objid = 4711"
        await wait_until(lambda: sql.value(waiting), what="the pick under way")
        async with Database(PostgresConfig(dsn=database)) as other, asyncio.timeout(5):
            assert await take_term(other, "next") > 7
        await holding.value("SELECT pg_advisory_unlock(4711)")
        with pytest.raises(LostTermError):
            await picking
        assert await sql.value("SELECT count(*) FROM operator_target") == 0


async def test_a_job_in_a_bucket_of_another_agent_says_whom_to_ask(database, store_of):
    async with Sql(database) as sql:
        (there,) = await put(sql, 1, status="2", bucket_id="'east/b'", dispatch="1")
        (ours,) = await put(sql, 1, status="2", bucket_id="'b'", dispatch="1")
        store = await store_of("main", 7)
        done = await store.apply(order(Action.RUN_NOW), [there, ours], [])
        notes = {verdict.id: verdict.note for verdict in done.verdicts}
        assert "agent 'east': ask a coordinator of that agent" in notes[there]
        assert notes[ours] == NOT_BACK


async def test_an_action_by_filter_is_counted_first_and_worked_off_in_batches(idle):
    mine = [await idle.submit_with("quick", delay_s=FAR_S, lane="mail", metadata={"tenant": "a"}) for _ in range(7)]
    others = [
        await idle.submit_with("quick", delay_s=FAR_S, lane="mail", metadata={"tenant": "b"}),
        await idle.submit_with("waits", delay_s=FAR_S, metadata={"tenant": "a"}),
    ]
    wanted = JobFilter(lane="mail", handler="quick", metadata={"tenant": "a"})
    assert await idle.client.count_where(Action.CANCEL, wanted) == {"on_master": 7}
    view = await done(
        idle, await idle.client.control_where(Action.CANCEL, wanted, by="ops", reason="tenant left", expect=7)
    )
    assert (view.matched, view.changed, view.refused, view.actor, view.reason) == (7, 7, 0, "ops", "tenant left")
    assert await idle.sql.counts(mine) == {"cancelled": 7}
    assert await idle.sql.counts(others) == {"on_master": 2}
    assert '"tenant": "a"' in view.scope


async def test_more_than_a_batch_is_done_and_only_once(idle, monkeypatch):
    ids = [f"018f0000-0000-7000-8000-{n:012d}" for n in range(1_203)]
    rows = """INSERT INTO job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at)
              SELECT id, 'quick', '{}', 1, 3, 'default', now() + interval '30 days', 4, 60, now()
                FROM unnest($1::uuid[]) AS u(id)"""
    await idle.sql.rows(rows, ids)
    view = await idle.client.control_where(Action.CANCEL, JobFilter(handler="quick"), by="ops")
    view = await done(idle, view)
    assert (view.matched, view.changed) == (1_203, 1_203)
    assert await idle.sql.counts(ids) == {"cancelled": 1_203}
    assert await idle.sql.value("SELECT count(*) FROM job_action WHERE changed") == 1_203
    assert await idle.sql.value("SELECT count(*) FROM operator_target") == 0


async def test_an_action_that_was_interrupted_is_taken_up_by_the_next_leader(nats_server, database, cluster_name):
    """As of one that died between picking and its first batch."""
    async with small_cluster(nats_server.url, database, cluster_name, works=False) as small:
        job_id = await small.submit_with("quick", delay_s=FAR_S)
    action_id = new_action_id()
    query = """INSERT INTO operator_action (action_id, actor, action, reason, scope, parameters, matched)
               VALUES ($1, 'ops', 'cancel', 'r', '{"all": true}', '{}', 1)"""
    async with Sql(database) as sql:
        await sql.rows("INSERT INTO operator_target VALUES ($1, $2)", action_id, job_id)
        await sql.rows(query, action_id)
    async with small_cluster(nats_server.url, database, cluster_name, works=False) as small:
        row = await small.reaches(job_id, S.CANCELLED)
        assert (row["cancelled_by"], row["cancel_reason"]) == ("ops", "r")
        await wait_until(lambda: finished(small, action_id), what="its end")


async def test_other_than_the_expected_number_changes_nothing(idle):
    job_id = await idle.submit_with("quick", delay_s=FAR_S)
    with pytest.raises(ActionRefusedError, match="1 jobs match, 2 were expected"):
        await idle.client.control_where(Action.CANCEL, JobFilter(handler="quick"), expect=2)
    assert (await idle.sql.job(job_id))["status"] == S.ON_MASTER
    assert (await idle.client.actions()).actions == []


async def test_the_state_of_the_moment_decides_about_each_job(idle):
    """One of them ends between the picking and its batch."""
    ids = [await idle.submit_with("quick", delay_s=FAR_S) for _ in range(3)]
    await idle.sql.rows("UPDATE job SET status = 4 WHERE id = $1", ids[1])
    action_id = new_action_id()
    for job_id in [*ids, new_id()]:
        await idle.sql.rows("INSERT INTO operator_target VALUES ($1, $2)", action_id, job_id)
    query = """INSERT INTO operator_action (action_id, actor, action, reason, scope, parameters, matched)
               VALUES ($1, 'ops', 'priority', '', '{"all": true}', '{"priority": "high"}', 4)"""
    await idle.sql.rows(query, action_id)
    other = await idle.client.control_where(Action.CANCEL, JobFilter(handler="nobody"))  # wakes the leader
    assert other.matched == 0
    view = await wait_until(lambda: finished(idle, action_id), what="its end")
    assert (view.changed, view.refused) == (2, 2)
    assert [(r.jobs, r.why, r.example) for r in view.refusals] == [
        (1, "it has ended succeeded; requeue it to run it again", ids[1])
    ]


async def finished(small, action_id):
    view = await small.client.action(action_id)
    return view if view.finished_at is not None else None


async def test_a_requeue_in_bulk_leaves_what_has_succeeded_unless_it_is_named(idle):
    ids = [await idle.submit_with("quick", delay_s=FAR_S) for _ in range(3)]
    for job_id, status in zip(ids, (S.SUCCEEDED, S.FAILED, S.QUARANTINED), strict=True):
        await idle.sql.rows("UPDATE job SET status = $2, finished_at = now() WHERE id = $1", job_id, int(status))
    wanted = JobFilter(handler="quick")
    assert await idle.client.count_where(Action.REQUEUE, wanted) == {"failed": 1, "quarantined": 1}
    named = JobFilter(handler="quick", status=["succeeded"])
    assert await idle.client.count_where(Action.REQUEUE, named) == {"succeeded": 1}


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (JobFilter(), "filter"),
        (JobFilter(status=["succeeded"]), "cancel does nothing to succeeded jobs"),
        (JobFilter(status=["gone"]), "'gone' is unknown"),
        (JobFilter(priority="urgent"), "'urgent' is unknown"),
        (JobFilter(lane="a b"), "lane 'a b'"),
        (JobFilter(handler="a b"), "handler 'a b'"),
        (JobFilter(due_from=datetime(2030, 1, 1)), "no UTC offset"),  # noqa: DTZ001 - that is what is refused
    ],
    ids=["empty", "state", "no-state", "priority", "lane", "handler", "naive"],
)
async def test_a_filter_that_makes_no_sense_is_refused(idle, wanted, says):
    with pytest.raises((InvalidJobError, InvalidNameError), match=says):
        await idle.client.control_where(Action.CANCEL, wanted)


async def test_times_are_filters_too(idle):
    soon = await idle.submit_with("quick", delay_s=3_600)
    late = await idle.submit_with("quick", delay_s=FAR_S)
    cut = datetime.now(UTC) + timedelta(days=1)
    for wanted, job_id in ((JobFilter(due_until=cut), soon), (JobFilter(due_from=cut), late)):
        assert await idle.client.count_where(Action.CANCEL, wanted) == {"on_master": 1}
        view = await done(idle, await idle.client.control_where(Action.CANCEL, wanted, by="ops"))
        assert view.changed == 1
        assert (await idle.sql.job(job_id))["status"] == S.CANCELLED
    old = JobFilter(queued_until=cut - timedelta(days=2))
    assert await idle.client.count_where(Action.REQUEUE, old) == {}
    new = JobFilter(queued_from=cut - timedelta(days=2))
    assert await idle.client.count_where(Action.REQUEUE, new) == {"cancelled": 2}


async def test_everything_is_meant_only_when_it_is_said(idle):
    ids = [await idle.submit_with("quick", delay_s=FAR_S) for _ in range(2)]
    request = {"action_id": new_action_id(), "by": "ops"}
    with pytest.raises(InvalidJobError, match="for all jobs say so"):
        await idle.client.api.call(OP_OF[Action.CANCEL], request, dict)
    view = await done(idle, await idle.client.control_where(Action.CANCEL, None, by="ops"))
    assert (view.changed, view.scope) == (2, '{"all": true}')
    assert await idle.sql.counts(ids) == {"cancelled": 2}


# On record.


async def test_the_same_request_twice_is_done_and_counted_once(idle):
    job_id = await idle.submit_with("quick", delay_s=FAR_S)
    gone = new_id()
    request = {"action_id": new_action_id(), "by": "ops", "ids": [job_id, gone]}
    first, second = [await idle.client.api.call(OP_OF[Action.CANCEL], request, dict) for _ in range(2)]
    assert first["jobs"] == second["jobs"]
    assert [(j["status"], j.get("changed", False)) for j in first["jobs"]] == [("cancelled", True), ("unknown", False)]
    assert second["action"]["matched"] == second["action"]["changed"] == 1


async def test_all_actions_are_listed_and_shown(idle):
    ids = [await idle.submit_with("quick", delay_s=FAR_S) for _ in range(2)]
    await idle.client.change_priority(ids[0], "low", by="anna", reason="not urgent")
    await idle.client.cancel(ids[0], by="ben")
    with pytest.raises(ActionRefusedError):
        await idle.client.run_now(ids[0], by="anna")
    found = await idle.client.actions()
    assert [(a.actor, a.action, a.changed, a.refused) for a in found.actions] == [
        ("anna", "run-now", 0, 1), ("ben", "cancel", 1, 0), ("anna", "priority", 1, 0),
    ]  # fmt: skip
    by_anna = await idle.client.actions(AuditQuery(actor="anna", limit=1))
    assert (len(by_anna.actions), by_anna.more) == (1, True)
    older = await idle.client.actions(AuditQuery(actor="anna", before=by_anna.actions[0].action_id))
    assert [(a.action, a.reason, a.parameters) for a in older.actions] == [
        ("priority", "not urgent", '{"priority": "low"}')
    ]
    shown = await idle.client.action(found.actions[0].action_id)
    assert shown.refusals[0].why == "it has ended cancelled; requeue it to run it again"
    with pytest.raises(NoSuchJobError):
        await idle.client.action(new_id())


async def test_a_jobs_history_tells_everything_in_order(small):
    job_id = await small.submit_with("quick", delay_s=FAR_S)
    await small.client.reschedule(job_id, datetime.now(UTC) + timedelta(days=2), by="anna")
    await small.client.run_now(job_id, by="anna", reason="cannot wait")
    await small.reaches(job_id, S.SUCCEEDED)
    with pytest.raises(ActionRefusedError):
        await small.client.cancel(job_id, by="ben")
    await small.client.requeue(job_id, by="anna", args={"seconds": 600.0})
    await small.reaches(job_id, S.PROCESSING)
    await small.client.cancel(job_id, by="ben", reason="enough", wait=20)
    history = await small.client.history(job_id)
    assert [(entry.what, entry.by) for entry in history.entries if entry.by != small.worker.config.worker_id] == [
        ("queued", ""), ("recorded", ""), ("reschedule", "anna"), ("run-now", "anna"), ("cancel refused", "ben"),
        ("requeue", "anna"), ("cancel", "ben"), ("cancelled", ""),
    ]  # fmt: skip
    by_worker = [entry.what for entry in history.entries if entry.by == small.worker.config.worker_id]
    assert by_worker == ["attempt 1 started", "attempt 1 succeeded", "attempt 2 started", "attempt 2 cancelled"]
    assert [entry.at for entry in history.entries] == sorted(entry.at for entry in history.entries)


async def test_a_jobs_history_keeps_what_was_done_when_the_actions_own_row_is_gone(idle):
    job_id = await idle.submit_with("quick", delay_s=FAR_S)
    await idle.client.reschedule(job_id, datetime.now(UTC) + timedelta(days=2), by="anna")
    before = await idle.client.history(job_id)
    await idle.sql.rows("DELETE FROM operator_action")  # as retention does
    after = await idle.client.history(job_id)
    assert [entry.at for entry in after.entries] == [entry.at for entry in before.entries]
    assert [entry.what for entry in after.entries] == ["queued", "recorded", "action"]
    assert after.entries[2].action_id == before.entries[2].action_id


async def test_a_recall_that_nats_interrupted_is_repeated_and_the_job_is_not_lost(small, monkeypatch):
    """The worker has dropped it, and then nobody can say what is recorded."""
    job_id = await small.submit_with("quick", delay_s=NEAR_S)
    await small.reaches(job_id, S.IN_BUCKET)
    real, times = recall_module.events_recorded, []

    async def away_at_first(*args):
        times.append(1)
        if len(times) == 1:
            raise AgentUnavailableError("here", "gone")
        await real(*args)

    monkeypatch.setattr(recall_module, "events_recorded", away_at_first)
    with pytest.raises(JmError):
        await small.client.run_now(job_id, by="ops")
    assert (await small.sql.job(job_id))["status"] == S.IN_BUCKET
    await small.client.run_now(job_id, by="ops")
    assert (await small.reaches(job_id, S.SUCCEEDED))["attempt"] == 1


async def test_in_bulk_jobs_are_asked_back_once_however_often_the_commit_is_repeated(small, monkeypatch):
    ids = [await small.submit_with("quick", delay_s=NEAR_S) for _ in range(3)]
    await small.all_reach(ids, S.IN_BUCKET)
    commit, recall, commits, recalls = ControlStore.apply_batch, Recaller.recall, [], []

    async def contended(self, *args):
        commits.append(1)
        if len(commits) <= 12:
            raise StoreContentionError("deadlock")
        return await commit(self, *args)

    async def counted(self, jobs):
        recalls.append(sorted(job_id for job_id, _, _ in jobs))
        return await recall(self, jobs)

    monkeypatch.setattr(ControlStore, "apply_batch", contended)
    monkeypatch.setattr(Recaller, "recall", counted)
    view = await done(small, await small.client.control_where(Action.RUN_NOW, JobFilter(handler="quick"), by="ops"))
    assert (view.changed, view.refused, recalls) == (3, 0, [sorted(ids)])
    await small.all_reach(ids, S.SUCCEEDED)


async def test_a_batch_whose_answer_was_lost_is_counted_once(idle, monkeypatch):
    ids = [await idle.submit_with("quick", delay_s=FAR_S) for _ in range(3)]
    commit, tries = ControlStore.apply_batch, []

    async def unanswered_at_first(self, *args):
        answer = await commit(self, *args)
        tries.append(1)
        if len(tries) == 1:
            raise StoreUnavailableError("here", "the answer is lost")
        return answer

    monkeypatch.setattr(ControlStore, "apply_batch", unanswered_at_first)
    view = await done(idle, await idle.client.control_where(Action.CANCEL, JobFilter(handler="quick"), by="ops"))
    assert (view.matched, view.changed, view.refused, len(tries)) == (3, 3, 0, 2)
    assert await idle.sql.counts(ids) == {"cancelled": 3}


async def test_an_action_whose_statements_met_others_is_tried_again(idle, monkeypatch):
    job_id = await idle.submit_with("quick", delay_s=FAR_S)
    commit, tries = ControlStore.apply, []

    async def contended_at_first(self, *args):
        tries.append(1)
        if len(tries) < 3:
            raise StoreContentionError("deadlock")
        return await commit(self, *args)

    monkeypatch.setattr(ControlStore, "apply", contended_at_first)
    verdict = await idle.client.cancel(job_id, by="ops")
    assert (verdict.status, len(tries)) == ("cancelled", 3)


async def test_a_repeated_request_does_not_ask_back_what_went_out_again_since(small, monkeypatch):
    job_id, action_id = await small.submit_with("quick", delay_s=NEAR_S), new_action_id()
    monkeypatch.setattr("jm_nats.control_client.new_action_id", lambda: action_id)
    await small.reaches(job_id, S.IN_BUCKET)
    change = Change(run_at=datetime.now(UTC) + timedelta(seconds=NEAR_S))
    for _ in range(2):
        (reply,) = [reply async for reply in small.client.control(Action.RESCHEDULE, [job_id], change)]
        assert reply.jobs[0].changed
        assert (await small.reaches(job_id, S.IN_BUCKET))["dispatch"] == 3
    assert not small.worker._parts.engine.will_drop(job_id, 3)


async def test_ids_beyond_one_request_are_one_action(idle):
    ids = [f"018f0000-0000-7000-8000-{n:012d}" for n in range(1_203)]
    replies = [reply async for reply in idle.client.control(Action.CANCEL, ids)]
    assert [len(reply.jobs) for reply in replies] == [500, 500, 203]
    job_id = await idle.submit_with("quick", delay_s=FAR_S)
    replies = [reply async for reply in idle.client.control(Action.CANCEL, [*ids, job_id], by="ops")]
    assert replies[-1].action.matched == 1
    assert len((await idle.client.actions()).actions) == 1


async def test_a_dry_run_says_what_would_be_and_does_nothing(idle):
    job_id, gone = await idle.submit_with("quick", delay_s=FAR_S), new_id()
    (reply,) = [reply async for reply in idle.client.control(Action.REQUEUE, [job_id, gone], dry_run=True)]
    assert [(v.status, v.changed, v.note) for v in reply.jobs] == [
        ("on_master", False, "it is on_master: only a job that has ended can be requeued"),
        ("unknown", False, "no such job on the master"),
    ]
    assert (await idle.client.actions()).actions == []


async def test_a_worker_that_does_not_answer_gives_nothing_back(nats_server, database, cluster_name, monkeypatch):
    async with small_cluster(nats_server.url, database, cluster_name) as small:
        job_id = await small.submit_with("quick", delay_s=NEAR_S)
        await small.reaches(job_id, S.IN_BUCKET)
        monkeypatch.setattr(type(small.worker._parts.engine), "recall", lambda *_: 1 / 0)
        with pytest.raises(ActionRefusedError, match="or does not answer"):
            await small.client.reschedule(job_id, datetime.now(UTC) + timedelta(days=1))
        assert (await small.sql.job(job_id))["status"] == S.IN_BUCKET


async def test_a_million_is_the_most(idle, monkeypatch):
    monkeypatch.setattr("jm_master.control_store.MATCHED_MAX", 2)
    ids = [await idle.submit_with("quick", delay_s=FAR_S) for _ in range(3)]
    with pytest.raises(ActionRefusedError, match="more than 2 jobs match"):
        await idle.client.control_where(Action.CANCEL, JobFilter(handler="quick"))
    assert await idle.sql.counts(ids) == {"on_master": 3}


async def test_a_row_that_postgres_refuses_does_not_hold_up_the_others(idle, monkeypatch):
    """A key that is taken again and again between look and change."""
    ids = [await idle.submit_with("quick", delay_s=FAR_S) for _ in range(3)]
    apply = ControlStore._apply

    async def refusing(self, connection, order, some, back):
        if ids[1] in some:
            await connection.execute("SELECT 1/0")
        return await apply(self, connection, order, some, back)

    monkeypatch.setattr(ControlStore, "_apply", refusing)
    view = await done(idle, await idle.client.control_where(Action.PRIORITY, None, Change(priority="high"), by="ops"))
    assert (view.changed, view.refused) == (2, 1)
    assert view.refusals[0].why == "division by zero"
