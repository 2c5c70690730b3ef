"""The recorder without servers: what an outage, or a report with impossible names, must not do to the others."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import msgspec
import pytest
from anyio import wait_all_tasks_blocked

from jm_core import wire
from jm_core.model import AttemptOutcome
from jm_core.wire import EventBatch, Finished
from jm_master import recorder as recorder_module
from jm_master.config import PostgresConfig
from jm_master.database import Database
from jm_master.ledger import Ledger
from jm_master.pg_errors import StoreUnavailableError
from jm_master.record_store import Recorded
from jm_master.recorder import Recorder
from jm_master.registry_view import RegistryView
from jm_master.reports import Batch, decoded
from jm_master.waiters import ResultWaiters
from jm_master.wake import Wake


class ForgetfulStore:
    """Commits, and the answer to the first try is lost; the fence refuses the second."""

    def __init__(self):
        self.answers = [None, Recorded(0, frozenset())]

    async def _answer(self, *_):
        answer = self.answers.pop(0)
        if answer is None:
            raise StoreUnavailableError("here", "connection reset")
        return answer

    record_successes = record_ends = _answer


class NoneCancelled:
    async def end_cancelled(self, *_):
        return Recorded(0, frozenset())


@pytest.mark.parametrize("outcome", [AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED])
async def test_an_answer_that_was_lost_costs_no_credit_for_ever(outcome):
    ledger = Ledger(RegistryView())
    ledger.give("b", 3, now_s=0.0)
    recorder = Recorder(
        None,
        Database(PostgresConfig(dsn="postgresql://u@localhost/x")),
        ForgetfulStore(),
        ledger,
        RegistryView(),
        cancels=NoneCancelled(),
        waiters=ResultWaiters(),
        assign=Wake(),
        term=1,
        batch_events=100,
    )
    ends = [Finished(f"job-{n}", 1, 1, outcome, 0.0, 1.0) for n in range(3)]
    await recorder.apply(Batch([], [EventBatch("b", 1, "w", ends)]))
    assert ledger.outstanding() == {}
    assert recorder.stale == 0


class Refusing:
    """The fence: a cancel of all of them was asked for."""

    async def record_successes(self, *_):
        return Recorded(0, frozenset())

    record_ends = record_successes


class ForgetfulCancels:
    def __init__(self):
        self.tries = 0

    async def end_cancelled(self, *_):
        self.tries += 1
        if self.tries == 1:
            raise StoreUnavailableError("here", "connection reset")
        return Recorded(0, frozenset())


@pytest.mark.parametrize("outcome", [AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED])
async def test_ends_of_cancelled_jobs_whose_answer_was_lost_give_their_credit_back(outcome):
    ledger, waiters = Ledger(RegistryView()), ResultWaiters()
    ledger.give("b", 3, now_s=0.0)
    recorder = Recorder(
        None,
        Database(PostgresConfig(dsn="postgresql://u@localhost/x")),
        Refusing(),
        ledger,
        RegistryView(),
        cancels=ForgetfulCancels(),
        waiters=waiters,
        assign=Wake(),
        term=1,
        batch_events=100,
    )
    ends = [Finished(f"job-{n}", 1, 1, outcome, 0.0, 1.0) for n in range(3)]
    with waiters.waiting("job-2") as ended:
        await recorder.apply(Batch([], [EventBatch("b", 1, "w", ends)]))
        assert ended.is_set()
    assert (ledger.outstanding(), recorder.stale) == ({}, 0)


def message(data, *, subject="jm.c.events.b", seq=1):
    return SimpleNamespace(data=data, subject=subject, reply=f"$JS.ACK.S.C.1.{seq}.1.1700000000000000000.0")


@pytest.mark.parametrize("names", [("b", "w\0"), ("b\0", "w"), ("", "w"), ("b", "w" * 1000)])
def test_a_report_whose_names_are_none_is_refused_alone(names):
    bucket, worker = names
    event = Finished("job-1", 1, 1, AttemptOutcome.SUCCEEDED, 0.0, 1.0)
    bad = wire.encode(EventBatch(bucket, 1, worker, [event]))
    unreadable = msgspec.json.encode({"bucket": bucket, "epoch": 1, "worker": worker, "events": [["?"]]})
    good = wire.encode(EventBatch("b", 1, "w", [event]))
    [batch] = decoded([message(bad), message(unreadable, seq=2), message(good, seq=3)], 100)
    assert batch.workers == ["", "", "w"]
    assert [len(report.events) for report in batch.reports] == [0, 0, 1]
    assert [refusal.reason.startswith("not a batch of events") for refusal in batch.refusals] == [True, True]


def test_a_report_on_a_subject_with_a_nul_can_be_kept():
    [batch] = decoded([message(b"?", subject="jm.c.events.\0")], 100)
    [refusal] = batch.refusals
    assert "\0" not in refusal.source


class Counting:
    """A store that notes how many outcomes each statement had, and lets all of them through."""

    def __init__(self):
        self.expected, self.statements, self.done = 0, [], anyio.Event()

    async def record_successes(self, events, places, workers):
        assert [workers[place] for place in places] == [event.id.partition(" ")[0] for event in events]
        self.statements.append(len(events))
        if sum(self.statements) >= self.expected:
            self.done.set()
        return Recorded(len(events))


class Stream:
    """A reader with one message at a time, and then nothing."""

    def __init__(self, *messages):
        self._messages = list(messages)

    async def take(self, _):
        if not self._messages:
            await anyio.sleep_forever()
        return [self._messages.pop(0)]


@pytest.mark.parametrize(
    ("sizes", "statements"),
    [
        pytest.param([300, 300, 300], [900], id="a flood"),
        pytest.param([300, 700, 2], [1000, 2], id="as many as fit"),
        pytest.param([3, 3], [3, 3], id="a trickle waits for nothing"),
    ],
)
async def test_outcomes_that_come_in_a_flood_share_statements(monkeypatch, sizes, statements):
    monkeypatch.setattr(recorder_module, "LINGER_S", 3600.0)
    monkeypatch.setattr(recorder_module, "JOINED_EVENTS_MAX", 900)
    acked = []
    monkeypatch.setattr(recorder_module, "ack", acked.append)
    messages = [
        message(wire.encode(EventBatch("b", 1, f"w{seq}", [success(f"w{seq} {n}") for n in range(size)])), seq=seq)
        for seq, size in enumerate(sizes)
    ]
    store = Counting()
    store.expected = sum(sizes)
    recorder = Recorder(
        Stream(*messages),
        Database(PostgresConfig(dsn="postgresql://u@localhost/x")),
        store,
        Ledger(RegistryView()),
        RegistryView(),
        cancels=NoneCancelled(),
        waiters=ResultWaiters(),
        assign=Wake(),
        term=1,
        batch_events=4_000,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        with anyio.fail_after(10):
            await store.done.wait()
            await wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert store.statements == statements
    assert acked == messages
    assert recorder._in_hand._held == {}


def success(job_id):
    return Finished(job_id, 1, 1, AttemptOutcome.SUCCEEDED, 0.0, 1.0)
