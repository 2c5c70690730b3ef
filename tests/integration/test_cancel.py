"""Cancelling, decided by the row: a coordinator in this process, and workers that are the test's own."""

from __future__ import annotations

import asyncio
import time

import pytest

from jm_core.agent_names import prefix_of
from jm_core.control import decode_orders
from jm_core.model import AttemptOutcome, JobStatus, ReturnReason
from jm_core.wire import Returned, Started
from jm_master.cancel import Canceller
from jm_master.cancel_store import CancelStore
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.ledger import Ledger
from jm_master.queries import named
from jm_master.registry_view import RegistryView
from jm_master.terms import LostTermError
from jm_master.waiters import ResultWaiters
from jm_nats.errors import AgentError
from jm_nats.pull import PullReader, ack
from jm_nats.subjects import CTL_CONSUMER, Names
from tests.support.master import coordinating, finished, job, linked, new_id
from tests.support.sql import Sql
from tests.support.waiting import wait_until

S = JobStatus
FAR_S = 30 * 86_400.0


@pytest.fixture
async def bench(nats_server, database, cluster_name):
    async with linked(nats_server.url, cluster_name) as bench, coordinating(nats_server.url, database, cluster_name):
        yield bench


@pytest.fixture
async def sql(database):
    async with Sql(database) as sql:
        yield sql


@pytest.fixture
async def canceller(bench, database, sql):
    """One beside the leader's own, in the same term."""
    async with Database(PostgresConfig(dsn=database)) as store:
        term = await sql.value("SELECT term FROM leader")
        cancels = CancelStore(store, term)
        canceller = Canceller(
            store, cancels, bench.publisher, bench.names, ledger=Ledger(RegistryView()), waiters=ResultWaiters()
        )
        duty = asyncio.create_task(canceller.run())
        yield canceller
        duty.cancel()
        await asyncio.wait({duty})


async def recorded(bench, **fields):
    made = job(**fields)
    (receipt,) = await bench.submit_and_wait(made)
    assert receipt.status == "recorded"
    return made["id"]


async def reaches(sql, job_id, status):
    async def there():
        row = await sql.job(job_id)
        return row if row["status"] == status else None

    return await wait_until(there, what=f"{job_id} to be {status!r}")


async def test_br193_a_job_that_is_due_in_30_days_is_cancelled_at_once_and_its_key_is_free(bench, canceller, sql):
    job_id = await recorded(bench, delay_s=FAR_S, unique_key="k")
    (found,) = await canceller.cancel([job_id], by="ops", reason="wrong customer")
    assert (found.was, found.became) == (S.ON_MASTER, S.CANCELLED)
    row = await sql.job(job_id)
    assert (row["status"], row["cancelled_by"], row["cancel_reason"]) == (S.CANCELLED, "ops", "wrong customer")
    assert (row["error"], row["attempt"]) == ("cancelled by ops: wrong customer", 0)
    assert row["finished_at"] is not None
    await recorded(bench, delay_s=FAR_S, unique_key="k")


async def test_br193_a_job_in_retry_backoff_is_cancelled_at_once(bench, canceller, sql):
    async with bench.worker() as worker:
        job_id = await recorded(bench)
        (run,) = await worker.runs(1)
        await worker.report(finished(run, AttemptOutcome.FAILED, error="boom", retry_in_s=3_000.0))
        await reaches(sql, job_id, S.ON_MASTER)
        (found,) = await canceller.cancel([job_id], by="ops", reason="")
        assert found.became is S.CANCELLED
        assert await sql.outcomes(job_id) == ["failed"]


async def test_a_job_in_a_bucket_is_cancelled_at_once_and_what_its_worker_makes_of_it_is_noted_only(
    bench, canceller, sql
):
    async with bench.worker() as worker:
        job_id = await recorded(bench, max_attempts=5)
        (run,) = await worker.runs(1)
        (found,) = await canceller.cancel([job_id], by="ops", reason="")
        assert (found.was, found.became, found.dispatch) == (S.IN_BUCKET, S.CANCELLED, 1)
        await worker.report(finished(run, AttemptOutcome.FAILED, error="boom", retry_in_s=0.0))
        await wait_until(lambda: sql.outcomes(job_id), what="the note of what it did")
        row = await sql.job(job_id)
        assert (row["status"], row["attempt"], row["error"]) == (S.CANCELLED, 1, "cancelled by ops")


async def test_the_worker_is_told_by_a_message_of_its_own(bench, canceller, sql):
    async with bench.worker() as worker:
        job_id = await recorded(bench)
        await worker.runs(1)
        await canceller.cancel([job_id], by="ops", reason="r")
        orders = await orders_of(bench, worker, 1)
        assert [(order.id, order.dispatch, order.why) for order in orders] == [(job_id, 1, "cancelled by ops: r")]
        await wait_until(lambda: no_orders(sql), what="no more orders")


async def test_the_leader_tells_what_was_committed_and_not_sent(nats_server, database, cluster_name, bench, sql):
    """As after a leader that died between the two, and one whose NATS did not take the message."""
    async with bench.worker() as worker:
        job_id = await recorded(bench)
        await worker.runs(1)
        query = "INSERT INTO cancel_order (job_id, dispatch, bucket_id, why) VALUES ($1, 1, $2, 'because')"
        await sql.rows(query, job_id, worker.bucket)
        await sql.rows("UPDATE leader SET term = term + 1")  # the next leader finds it
        (order,) = await orders_of(bench, worker, 1, timeout_s=30)
        assert order.id == job_id


async def test_a_running_job_is_asked_to_end_and_told_again_until_it_has(bench, canceller, sql):
    async with bench.worker() as worker:
        job_id = await recorded(bench, max_attempts=5)
        (run,) = await worker.runs(1)
        await worker.report(Started(run.id, run.dispatch, 1, time.time()))
        await reaches(sql, job_id, S.PROCESSING)
        (found,) = await canceller.cancel([job_id], by="ops", reason="")
        assert (found.was, found.became) == (S.PROCESSING, S.PROCESSING)
        assert len(await orders_of(bench, worker, 2)) >= 2  # the second one comes by the sweep
        await worker.report(finished(run, AttemptOutcome.FAILED, error="boom", retry_in_s=0.0))
        row = await reaches(sql, job_id, S.CANCELLED)  # BR-192: five attempts, and no retry
        assert row["error"] == "cancelled by ops"
        assert await sql.outcomes(job_id) == ["failed"]
        await wait_until(lambda: no_orders(sql), 30, what="no more orders")


async def test_br191_a_success_that_comes_after_the_cancel_is_noted_as_late(bench, canceller, sql):
    async with bench.worker() as worker:
        job_id = await recorded(bench)
        (run,) = await worker.runs(1)
        await worker.report(Started(run.id, run.dispatch, 1, time.time()))
        await reaches(sql, job_id, S.PROCESSING)
        await canceller.cancel([job_id], by="ops", reason="")
        await worker.succeed([run])
        row = await reaches(sql, job_id, S.CANCELLED)
        assert row["result"] is None
        attempt = await sql.row("SELECT * FROM attempt WHERE job_id = $1", job_id)
        assert (attempt["outcome"], attempt["error"]) == ("cancelled", "it returned all the same, too late to count")


@pytest.mark.parametrize("reason", [ReturnReason.LOST, ReturnReason.ABANDONED, ReturnReason.INTERRUPTED])
async def test_a_running_job_that_was_cancelled_never_goes_back_to_the_master(bench, canceller, sql, reason):
    async with bench.worker() as worker:
        job_id = await recorded(bench, max_attempts=5)
        (run,) = await worker.runs(1)
        await worker.report(Started(run.id, run.dispatch, 1, time.time()))
        await reaches(sql, job_id, S.PROCESSING)
        await canceller.cancel([job_id], by="ops", reason="")
        started_at = time.time() if reason is ReturnReason.INTERRUPTED else None
        await worker.report(Returned(run.id, run.dispatch, reason, time.time(), 1, started_at))
        await reaches(sql, job_id, S.CANCELLED)
        marker = await recorded(bench)  # would come after it
        (run,) = await worker.runs(1)
        assert run.id == marker


async def test_cancelling_what_has_ended_or_is_not_there_changes_nothing(bench, canceller, sql):
    async with bench.worker() as worker:
        job_id = await recorded(bench)
        await worker.succeed(await worker.runs(1))
        before = await reaches(sql, job_id, S.SUCCEEDED)
        (found,) = await canceller.cancel([job_id, new_id()], by="ops", reason="")
        assert (found.id, found.was, found.became) == (job_id, S.SUCCEEDED, None)
        assert await sql.job(job_id) == before


async def test_the_second_cancel_leaves_the_name_of_the_first(bench, canceller, sql):
    job_id = await recorded(bench, delay_s=FAR_S)
    await canceller.cancel([job_id], by="first", reason="a")
    (found,) = await canceller.cancel([job_id], by="second", reason="b")
    assert found.became is None
    assert (await sql.job(job_id))["cancelled_by"] == "first"


async def test_br197_a_forced_cancel_ends_a_running_job_and_fences_its_worker_off(bench, canceller, sql):
    async with bench.worker() as worker:
        job_id = await recorded(bench)
        (run,) = await worker.runs(1)
        await worker.report(Started(run.id, run.dispatch, 1, time.time()))
        await reaches(sql, job_id, S.PROCESSING)
        await canceller.cancel([job_id], by="ops", reason="stuck")
        (found,) = await canceller.cancel([job_id], by="ops", reason="stuck", force=True)
        assert (found.was, found.became) == (S.PROCESSING, S.CANCELLED)
        assert await sql.outcomes(job_id) == ["cancelled"]
        await worker.succeed([run])
        later = await recorded(bench)
        await worker.succeed(await worker.runs(1))
        await reaches(sql, later, S.SUCCEEDED)  # so that what came before it is recorded, too
        row = await sql.job(job_id)
        assert (row["status"], row["result"], row["error"]) == (S.CANCELLED, None, "cancelled by ops: stuck")
        assert await sql.outcomes(job_id) == ["cancelled"]


async def test_who_leads_no_more_cancels_nothing(bench, canceller, sql):
    job_id = await recorded(bench, delay_s=FAR_S)
    await sql.rows("UPDATE leader SET term = term + 1")
    with pytest.raises(LostTermError):
        await canceller.cancel([job_id], by="ops", reason="")
    assert (await sql.job(job_id))["status"] == S.ON_MASTER


async def test_what_was_cancelled_is_not_put_back_when_nats_has_lost_its_store(bench, canceller, sql):
    async with bench.worker() as worker:
        ids = [await recorded(bench) for _ in range(2)]
        runs = await worker.runs(2)
        await worker.report(*[Started(run.id, run.dispatch, 1, time.time()) for run in runs])
        for job_id in ids:
            await reaches(sql, job_id, S.PROCESSING)
        await canceller.cancel(ids[:1], by="ops", reason="")
        term = await sql.value("SELECT term FROM leader")
        (done,) = await sql.rows(named("agent")["put_back"], term, 10, "the store was lost", prefix_of("main"))
        assert done["jobs"] == 2
        assert (await sql.job(ids[0]))["status"] == S.CANCELLED
        assert await sql.outcomes(ids[1]) == ["interrupted"]


async def no_orders(sql):
    return not await sql.value("SELECT count(*) FROM cancel_order")


async def orders_of(bench, worker, count, timeout_s=20.0):
    """The next ``count`` orders that the bucket's ``.ctl`` has for its worker."""
    orders = []

    async def read(reader):
        for message in await reader.take(10):
            orders.extend(decode_orders(message.data).cancel)
            ack(message)
        return len(orders) >= count

    stream = bench.names.bucket_stream(worker.bucket)
    async with PullReader(bench.link, stream, CTL_CONSUMER, batch=10, max_bytes=1 << 20) as reader:
        await wait_until(lambda: read(reader), timeout_s, what=f"{count} orders")
    return orders


IN_EAST = """
    INSERT INTO job (id, handler, args, status, priority, lane, bucket_id, run_at, max_attempts, timeout_s, dispatch,
                     queued_at)
    VALUES ($1, 'h', '{}', $2, 3, 'default', 'east/b', now(), 3, 60, 1, now())
"""


class Streams:
    """Takes what is published, as long as it is there."""

    def __init__(self):
        self.is_there, self.told = True, []

    async def publish(self, _, payload):
        if not self.is_there:
            raise AgentError("gone")
        self.told += [order.id for order in decode_orders(payload).cancel]


@pytest.mark.parametrize("force", [False, True], ids=["in its bucket", "running, by force"])
async def test_what_another_agent_s_leader_cancels_is_given_back_once_to_the_ledger_of_its_own(database, sql, force):
    """A leader that never learns of an end would count the job as lying in its bucket for as long as it leads."""
    job_id, names = new_id(), Names("c")
    await sql.rows(IN_EAST, job_id, S.PROCESSING if force else S.IN_BUCKET)
    await sql.rows("INSERT INTO leader (agent, term, holder) VALUES ('east', 77, 'h'), ('west', 78, 'h')")
    async with (
        Database(PostgresConfig(dsn=database), agent="west") as west,
        Database(PostgresConfig(dsn=database), agent="east") as east,
    ):
        streams, ledger, waiters = Streams(), Ledger(RegistryView()), ResultWaiters()
        ledger.give("b", 2, now_s=0.0)
        asking = Canceller(
            west, CancelStore(west, 78), streams, names, ledger=Ledger(RegistryView()), waiters=ResultWaiters()
        )
        owner = Canceller(east, CancelStore(east, 77), streams, names, ledger=ledger, waiters=waiters)
        (found,) = await asking.cancel([job_id], by="ops", reason="", force=force)
        assert found.became is S.CANCELLED
        await asking.tell_once()
        assert streams.told == []
        streams.is_there = False
        await owner.tell_once()
        assert ledger.outstanding() == {"b": 2}, "its worker may still take it"
        streams.is_there = True
        with waiters.waiting(job_id) as ended:
            await owner.tell_once()
            assert ended.is_set()
        await owner.tell_once()
        assert (streams.told, ledger.outstanding()) == ([job_id], {"b": 1})


async def test_a_cancel_that_was_asked_for_is_settled_by_its_end_and_not_by_the_order(database, sql):
    job_id = new_id()
    await sql.rows(IN_EAST, job_id, S.PROCESSING)
    await sql.rows("INSERT INTO leader (agent, term, holder) VALUES ('east', 77, 'h'), ('west', 78, 'h')")
    async with (
        Database(PostgresConfig(dsn=database), agent="west") as west,
        Database(PostgresConfig(dsn=database), agent="east") as east,
    ):
        streams, ledger = Streams(), Ledger(RegistryView())
        ledger.give("b", 1, now_s=0.0)
        one = {"names": Names("c"), "waiters": ResultWaiters()}
        asking = Canceller(west, CancelStore(west, 78), streams, ledger=Ledger(RegistryView()), **one)
        owner = Canceller(east, CancelStore(east, 77), streams, ledger=ledger, **one)
        (found,) = await asking.cancel([job_id], by="ops", reason="")
        assert found.became is S.PROCESSING
        await owner.tell_once()
        assert (streams.told, ledger.outstanding()) == ([job_id], {"b": 1})
        await asking.cancel([job_id], by="ops", reason="", force=True)
        await owner.tell_once()
        assert ledger.outstanding() == {}, "by force it is over at once"
        assert await sql.value("SELECT count(*) FROM cancel_order") == 0
