"""A bad job never spoils others (field cases PAY): a thousand good ones among every kind of bad one, all the way.

The processes must be the same at the end, and their logs free of errors: bad input is everyday life, no trouble.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import uuid
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from jm_core import limits
from jm_core.errors import InvalidJobError, InvalidNameError, RejectedError
from jm_core.wire import Submission
from jm_nats import JobClient, submission
from jm_nats.config import NatsConfig
from jm_nats.connection import connect
from jm_nats.provision import LAYOUT_KEY, ensure_cluster
from jm_nats.subjects import PENDING_CONSUMER, Names
from tests.support import app, bad_jobs, misbehaviour
from tests.support.bad_jobs import ELEMENTS, MESSAGES, BadJob
from tests.support.cli import jm
from tests.support.processes import Cluster, temporary_cluster
from tests.support.text_client import TextClient
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOOD = 1_000
ARRAY_JOBS = 12
SEED = 118


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(nats_server, postgres_server, database_template):
    async with temporary_cluster(nats_server, postgres_server, database_template) as cluster:
        await cluster.start()
        pids = cluster.pids()
        yield cluster
        assert cluster.pids() == pids  # nobody fell over and was started again


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: Cluster):
    async with TextClient(cluster.nats_url) as client:
        yield await client.log_in()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nobody_complains(cluster: Cluster):
    """After each test: no error and no traceback in a log since it began, and every process alive."""
    before = cluster.trouble()
    yield
    assert cluster.trouble() == before
    assert len(cluster.pids()) == len(cluster.processes.all)


@pytest.fixture(scope="module")
def submit(cluster: Cluster) -> str:
    return Names(cluster.name).submit


def good_job() -> tuple[str, bytes]:
    job_id = str(uuid.uuid4())
    return job_id, json.dumps({"handler": "echo", "id": job_id, "args": {"value": job_id}}).encode()


def array(*jobs: bytes) -> bytes:
    return b"[" + b", ".join(jobs) + b"]"


async def rejected_rows(cluster: Cluster) -> int:
    return await cluster.sql.value("SELECT count(*) FROM rejected")


# On the wire


async def test_a_thousand_good_jobs_among_every_kind_of_bad_one(cluster, client, submit):
    """Raw publishes: each bad job alone, and each between good ones; all at once, in a random order."""
    good = [good_job() for _ in range(GOOD)]
    shuffle = random.Random(SEED).shuffle
    bad = [*ELEMENTS, *ELEMENTS, *MESSAGES]
    messages: list[bytes] = [job.raw for job in (*ELEMENTS, *MESSAGES)]
    supply = iter(good)
    for job in ELEMENTS:
        jobs = [job.raw, *(raw for _, raw in itertools.islice(supply, ARRAY_JOBS - 1))]
        shuffle(jobs)
        messages.append(array(*jobs))
    messages += [raw for _, raw in supply]
    shuffle(messages)
    # An array that is larger than a message may be is refused as a whole: none of these is, but for the bad ones.
    assert sum(len(message) > limits.MESSAGE_BYTES_MAX for message in messages) == sum(
        len(job.raw) > limits.MESSAGE_BYTES_MAX for job in MESSAGES
    )

    for message in messages:
        await client.publish(submit, message)

    ids = [job_id for job_id, _ in good]
    assert await cluster.ended(ids) == {"succeeded": GOOD}
    await wait_until(lambda: refused_all(cluster, len(bad)), what="a row for every bad job")
    rows = await cluster.sql.rejected()
    assert len(rows) == len(bad)
    for job in bad:
        assert has_row(rows, job), job.name
    await cluster.assert_oracles(ids)
    assert await cluster.sql.counts() == {"succeeded": GOOD}


async def refused_all(cluster: Cluster, count: int) -> bool:
    return await rejected_rows(cluster) >= count


def has_row(rows: list, job: BadJob) -> bool:
    """With the bytes that were sent and the reason that was expected; an array without end begins one bracket late."""
    sent = (job.raw, job.raw[1:]) if job in MESSAGES else (job.raw,)
    return any(row["raw"] in sent and job.reason in row["reason"] for row in rows)


async def test_receipts_say_which_job_of_an_array_is_bad_and_why(client, submit):
    """All kinds at once: a good job, a bad one, a good one…; the answers in the same order."""
    small = [job for job in ELEMENTS if len(job.raw) < 10_000]
    for part in itertools.batched(small, 100) if hasattr(itertools, "batched") else [small[:100], small[100:]]:
        jobs = [raw for bad in part for raw in (good_job()[1], bad.raw)]
        receipts = await client.recorded(submit, array(*jobs))
        assert [receipt["status"] for receipt in receipts] == ["recorded", "rejected"] * len(part)
        for bad, receipt in zip(part, receipts[1::2], strict=True):
            assert bad.reason in receipt["reason"], bad.name
        assert {"reason"} & set().union(*receipts[::2]) == set()


@pytest.mark.parametrize("bad", MESSAGES, ids=lambda bad: bad.name)
async def test_a_message_that_is_bad_as_a_whole_gets_one_answer(client, submit, bad):
    (receipt,) = await client.recorded(submit, bad.raw)
    assert receipt["status"] == "rejected"
    assert bad.reason in receipt["reason"]


async def test_of_an_array_that_is_cut_off_the_jobs_before_the_cut_are_saved(cluster, client, submit):
    (first, raw), (second, more), (_, lost) = good_job(), good_job(), good_job()
    receipts = await client.recorded(submit, array(raw, more, lost)[:-20])
    assert [receipt["status"] for receipt in receipts] == ["recorded", "recorded", "rejected"]
    assert await cluster.ended([first, second]) == {"succeeded": 2}


async def test_a_row_that_only_postgres_refuses_is_found_among_many(cluster, client, submit):
    """What no check of ours foresees: here a check constraint that an operator has added."""
    await cluster.sql.rows("ALTER TABLE job ADD CONSTRAINT no_thirteen CHECK (args->>'value' <> '13')")
    try:
        jobs = [{"handler": "echo", "args": {"value": str(n)}} for n in range(40)]
        receipts = await client.recorded(submit, jobs)
    finally:
        await cluster.sql.rows("ALTER TABLE job DROP CONSTRAINT no_thirteen")
    refused = [place for place, receipt in enumerate(receipts) if receipt["status"] == "rejected"]
    assert refused == [13]
    assert "no_thirteen" in receipts[13]["reason"]
    ids = [receipt["id"] for receipt in receipts if receipt["status"] == "recorded"]
    assert await cluster.ended(ids) == {"succeeded": 39}


@pytest.mark.parametrize(
    "inbox",
    [
        *("a b", "*", "_INBOX.>", ".", "a..b", "", "orders.new", "jm.{}.submit"),
        *("$JS.API.STREAM.PURGE.JM_{}_EVENTS", "_INBOX." + "x" * 5_000),
    ],
    ids=lambda inbox: inbox[:20],
)
async def test_a_receipt_that_cannot_or_must_not_be_sent_costs_nobody_anything(cluster, client, submit, inbox):
    """The writer publishes with rights that the sender may not have, and must survive what the server refuses."""
    await client.send(f"SUB {inbox.format(cluster.name)} 7" if inbox == "orders.new" else "PING")
    await assert_submitted_in_peace(
        cluster, client, submit, lambda raw: client.queued(submit, raw, jm_receipt_to=inbox.format(cluster.name))
    )
    assert client.arrived("orders.new") == 0


@pytest.mark.parametrize(
    "head",
    [
        b"no colon",
        b": no name",
        b"Jm-Receipt-To",
        b"Jm-Receipt-To: \xff\xfe",
        b"\xff: a",
        b"a: b\r\n\x00: c",
        b"X: " + b"x" * 60_000,
    ],
    ids=lambda head: repr(head[:20]),
)
async def test_headers_that_are_none_cost_nobody_anything(cluster, client, submit, head):
    """The server passes on whatever stands between its line and the empty one."""

    async def send(raw: bytes) -> None:
        block = b"NATS/1.0\r\n" + head + b"\r\n\r\n"
        await client.send(f"HPUB {submit} {len(block)} {len(block) + len(raw)}", block + raw)

    await assert_submitted_in_peace(cluster, client, submit, send)


async def assert_submitted_in_peace(
    cluster: Cluster, client: TextClient, submit: str, send: Callable[[bytes], Awaitable[object]]
) -> None:
    """The job that ``send`` submits and the one behind it run, and nothing is rejected."""
    (first, raw), (second, behind) = good_job(), good_job()
    before = await rejected_rows(cluster)
    await send(raw)
    await client.recorded(submit, behind)
    assert await cluster.ended([first, second]) == {"succeeded": 2}
    assert await rejected_rows(cluster) == before


async def test_a_job_for_a_handler_or_arguments_that_do_not_exist_is_quarantined(cluster, client, submit):
    jobs = [
        {"handler": "nobody"},
        {"handler": "greet", "args": {"nme": "Ada"}},
        {"handler": "greet", "args": {"name": 5}},
        {"handler": "greet"},
    ]
    receipts = await client.recorded(submit, jobs)
    ids = [receipt["id"] for receipt in receipts]
    assert await cluster.ended(ids) == {"quarantined": 4}
    errors = [(await cluster.sql.job(job_id))["error"] for job_id in ids]
    for error, word in zip(errors, ("nobody", "nme", "name", "name"), strict=True):
        assert word in error


# Through the Python client

PYTHON_ARGS = {
    "nul": ("a\0b", "field 'args.value': contains a NUL character"),
    "nan": (math.nan, "field 'args.value': nan is not JSON"),
    "infinity": ({"deep": [math.inf]}, "field 'args.value.deep[0]': inf is not JSON"),
    "surrogate": ("\ud800", "field 'args'"),
    "deep": (misbehaviour.RESULTS["deep"](), "field 'args'"),
    "circle": (misbehaviour.RESULTS["circle"](), "field 'args'"),
    "object": (object(), "field 'args'"),
    "5000 digits": (10**5_000, "field 'args'"),
    "128 KiB": ("x" * limits.ARGS_BYTES_MAX, bad_jobs.OVERSIZED_REASON),
    "8 MiB": ("x" * 8 * misbehaviour.MIB, bad_jobs.OVERSIZED_REASON),
}


@pytest.mark.parametrize("kind", PYTHON_ARGS)
async def test_the_client_refuses_bad_arguments_and_publishes_nothing(cluster, kind):
    value, reason = PYTHON_ARGS[kind]
    async with cluster.client() as client:
        ways = [
            lambda: app.echo.submit(client, value=value),
            lambda: client.submit_many(app.echo.jobs([{"value": value}])),
            lambda: client.submit(submission("echo", {"value": value})),
        ]
        await assert_all_refuse(client, ways, reason)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"priority": "5"}, "field 'priority': '5' is unknown; use one of very_low"),
        ({"priority": math.nan}, "field 'priority'"),
        ({"delay_s": "5"}, "field 'delay_s'"),
        ({"delay_s": math.nan}, "field 'delay_s'"),
        ({"delay_s": -1}, "field 'delay_s': Expected `float` >= 0.0"),
        ({"timeout_s": 0}, "field 'timeout_s': Expected `float` > 0.0"),
        ({"timeout_s": math.inf}, "field 'timeout_s'"),
        ({"max_attempts": 0}, "field 'max_attempts': Expected `int` >= 1"),
        ({"max_attempts": 2**63}, f"field 'max_attempts': Expected `int` <= {limits.ATTEMPTS_MAX}"),
        ({"max_attempts": True}, "field 'max_attempts'"),
        ({"id": "00123"}, "field 'id': '00123' is not a UUID; leave it out"),
        ({"id": ""}, "field 'id'"),
        ({"lane": "a.b"}, "lane 'a.b' is not a valid name"),
        ({"unique_key": "a\0b"}, "field 'unique_key': contains a NUL"),
        ({"metadata": {"a": "\0"}}, "field 'metadata.a': contains a NUL"),
        ({"metadata": {"a": "x" * 9_000}}, f"the limit is {limits.METADATA_BYTES_MAX}"),
        ({"run_at": datetime(2030, 1, 1)}, "field 'run_at'"),  # noqa: DTZ001
    ],
    ids=repr,
)
async def test_the_client_refuses_a_bad_option_and_publishes_nothing(cluster, fields, reason):
    async with cluster.client() as client:
        ways = [
            lambda: client.submit(Submission(handler="noop", **fields)),
            lambda: client.submit(submission("noop", **fields)),
        ]
        await assert_all_refuse(client, ways, reason)


async def assert_all_refuse(client: JobClient, ways: list, reason: str) -> None:
    """With field, limit and remedy in the message, and not a byte on the wire."""
    before = await last_message(client)
    for way in ways:
        with pytest.raises((InvalidJobError, InvalidNameError)) as refused:
            await way()
        assert reason in str(refused.value)
        assert "; " in str(refused.value)  # the remedy
    assert await last_message(client) == before


async def last_message(client: JobClient) -> int:
    """The front door's last sequence number: grows with every message that came in."""
    info = await client.link.api(f"STREAM.INFO.{client.names.pending_stream}")
    return info["state"]["last_seq"]


async def test_every_entry_path_refuses_oversized_arguments_alike(cluster, client, submit):
    """BR-117."""
    said: list[str] = []
    async with cluster.client() as python:
        for way in (
            lambda: app.noop.submit(python, **bad_jobs.OVERSIZED),
            lambda: python.submit(submission("noop", bad_jobs.OVERSIZED)),
        ):
            with pytest.raises(InvalidJobError) as refused:
                await way()
            said.append(str(refused.value))
    body = json.dumps({"handler": "noop", "args": bad_jobs.OVERSIZED}, separators=(",", ":")).encode()
    for message in (body, array(body)):
        (receipt,) = await client.recorded(submit, message)
        said.append(receipt["reason"])
    assert len(set(said)) == 1, said

    servers = {"JM_NATS_URL": cluster.nats_url, "JM_CLUSTER": cluster.name}
    command_line = await asyncio.to_thread(jm, "submit", "--file", "-", stdin=body, **servers)
    assert command_line.returncode == 2
    assert said[0] in command_line.stderr


async def test_a_thousand_good_jobs_through_the_client_while_bad_ones_come_in_beside(cluster, client, submit):
    stop = asyncio.Event()

    async def pester() -> None:
        for job in itertools.cycle(bad for bad in ELEMENTS if len(bad.raw) < 1_000):
            await client.recorded(submit, array(job.raw, job.raw))
            if stop.is_set():
                return

    pestering = asyncio.create_task(pester())
    async with cluster.client() as python:
        receipts = await python.submit_many((app.echo.job({"value": n}) for n in range(GOOD)), wait="recorded")
        stop.set()
        await pestering
        assert {receipt.status for receipt in receipts} == {"recorded"}
        assert await cluster.ended([receipt.job_id for receipt in receipts]) == {"succeeded": GOOD}


async def test_the_client_tells_of_a_rejection_by_postgres(cluster):
    await cluster.sql.rows("ALTER TABLE job ADD CONSTRAINT no_lane CHECK (lane <> 'forbidden')")
    try:
        async with cluster.client() as client:
            with pytest.raises(RejectedError, match="no_lane"):
                await app.noop.submit(client, lane="forbidden", wait="recorded")
            receipts = await client.submit_many([submission("noop", lane="forbidden")], wait="recorded")
            assert [receipt.status for receipt in receipts] == ["rejected"]
    finally:
        await cluster.sql.rows("ALTER TABLE job DROP CONSTRAINT no_lane")


# Results and errors that are hard to keep

KEPT = {"bytes", "set"}  # JSON has a form for them: base64 and an array


async def test_whatever_a_handler_returns_its_job_ends(cluster):
    """BR-102, BR-104, BR-111: stored, or failed with the reason; at once, because a retry would return the same."""
    async with cluster.client() as client:
        receipts = {kind: await app.returns.submit(client, kind=kind) for kind in misbehaviour.RESULTS}
        good = await app.echo.submit(client, value="in between")
        ids = [receipt.job_id for receipt in (*receipts.values(), good)]
        await cluster.ended(ids)
        assert await client.result(good.job_id, timeout=10) == "in between"
    for kind, receipt in receipts.items():
        job = await cluster.sql.job(receipt.job_id)
        if kind in KEPT:
            assert (job["status"], json.loads(job["result"])) == (4, {"bytes": "AP8=", "set": [1]}[kind])
            continue
        assert (kind, job["status"], job["result"], job["attempt"]) == (kind, 5, None, 1)
        assert "cannot be stored" in job["error"], kind
        assert len(job["error"].encode()) <= limits.ERROR_BYTES_MAX
    error_of = {kind: (await cluster.sql.job(receipt.job_id))["error"] for kind, receipt in receipts.items()}
    assert "NUL" in error_of["nul"]
    assert "nan is not JSON" in error_of["nan"]
    assert f"the limit is {limits.RESULT_BYTES_MAX}" in error_of["8_mib"]


async def test_whatever_a_handler_raises_its_job_ends(cluster):
    """BR-102, BR-111, BR-118, BR-120, from coroutines, threads and processes."""
    handlers = (app.raises, app.thread_raises, app.process_raises)
    async with cluster.client() as client:
        receipts = {
            (handler.name, kind): await handler.submit(client, kind=kind)
            for handler in handlers
            for kind in misbehaviour.ERRORS
        }
        good = await app.echo.submit(client, value="in between")
    ids = [receipt.job_id for receipt in receipts.values()]
    counts = await cluster.ended([*ids, good.job_id], timeout_s=60)
    assert counts == {"failed": len(ids), "succeeded": 1}
    for (handler, kind), receipt in receipts.items():
        job = await cluster.sql.job(receipt.job_id)
        assert job["attempt"] == 2, (handler, kind)
        assert 0 < len(job["error"].encode()) <= limits.ERROR_BYTES_MAX
        assert type(misbehaviour.ERRORS[kind]()).__name__ in job["error"], (handler, kind)
        assert await cluster.sql.outcomes(receipt.job_id) == ["failed", "failed"]
    await cluster.assert_oracles([*ids, good.job_id])


# In a cluster of their own, because processes come and go


@pytest_asyncio.fixture(loop_scope="module")
async def own_cluster(nats_server, postgres_server, database_template):
    """Nothing is started yet. A leader that died is replaced after three seconds."""
    settings = {"JM_LEASE_S": "3", "JM_HEARTBEAT_S": "1"}
    async with temporary_cluster(nats_server, postgres_server, database_template, **settings) as cluster:
        yield cluster


# Postgres writes `[1,2]` as `[1, 2]` and `1e300` in full.
WIDE = b'{"handler":"noop","args":{"a":[' + b",".join([b"1"] * 65_000) + b"]}}"
TALL = b'{"handler":"noop","args":{"a":[' + b",".join([b"1e300"] * 400) + b"]}}"
TALL_JOBS = 50
GROWING = (array(*[WIDE] * 3), array(*[TALL] * TALL_JOBS))


async def test_arguments_that_grow_on_the_master_still_reach_the_worker(own_cluster):
    """No worker is there when they come: the run messages are built from what Postgres has."""
    await own_cluster.start_coordinator().wait_ready()
    async with TextClient(own_cluster.nats_url) as client:
        await client.log_in()
        ids = [
            receipt["id"]
            for message in GROWING
            for receipt in await client.recorded(Names(own_cluster.name).submit, message)
        ]
    assert await own_cluster.sql.counts(ids) == {"on_master": 3 + TALL_JOBS}
    own_cluster.start_worker()
    assert await own_cluster.ended(ids) == {"succeeded": 3 + TALL_JOBS}
    assert not own_cluster.trouble()


async def test_a_writer_that_dies_after_its_commit_rejects_nothing_twice_and_leaves_nothing_unsent(own_cluster):
    """In front of good and bad jobs, between the commit and the ack: NATS delivers the messages again, and the run
    messages have to be built from what Postgres has, where the arguments have grown.
    """
    await provision_impatiently(own_cluster)
    # One batch at a time, so that the second one begins with the first message sent below.
    crash = {"JM_TEST_CRASH_AT": "writer.after_commit:2", "JM_SAVE_WORKERS": "1"}
    crashing = own_cluster.start_coordinator(env=crash)
    own_cluster.start_worker()
    good = [good_job() for _ in range(20)]
    mixed = [array(raw, job.raw) for (_, raw), job in zip(good, ELEMENTS, strict=False)]
    alone = [job.raw for job in ELEMENTS[20:40]]
    async with TextClient(own_cluster.nats_url) as client:
        await client.log_in()
        (first,) = await client.recorded(Names(own_cluster.name).submit, good_job()[1])
        await own_cluster.ended([first["id"]])  # now the coordinator knows the worker and its buckets
        for message in (GROWING[1], *mixed, *alone):
            await client.publish(Names(own_cluster.name).submit, message)
        assert await crashing.wait_exit() == -9
    assert (await own_cluster.sql.counts())["in_bucket"] >= TALL_JOBS

    own_cluster.start_coordinator()
    await own_cluster.wait_for_counts(succeeded=1 + TALL_JOBS + 20)
    await own_cluster.assert_oracles([job_id for job_id, _ in good])
    assert await own_cluster.sql.counts() == {"succeeded": 1 + TALL_JOBS + 20}
    assert await rejected_rows(own_cluster) == len(mixed) + len(alone)
    assert not own_cluster.trouble()


async def provision_impatiently(cluster: Cluster) -> None:
    """The front door's consumer delivers again after half a second instead of a minute. It says that a newer version
    has made it, so the coordinator leaves it as it is.
    """
    names = Names(cluster.name)
    link = await connect(NatsConfig(servers=(cluster.nats_url,)), client_name="test")
    await ensure_cluster(link, names, lease_s=3)
    path = f"{names.pending_stream}.{PENDING_CONSUMER}"
    config = (await link.api(f"CONSUMER.INFO.{path}"))["config"]
    config |= {"ack_wait": 500_000_000, "metadata": {**config["metadata"], LAYOUT_KEY: "999"}}
    request = {"stream_name": names.pending_stream, "config": config, "action": "update"}
    await link.api(f"CONSUMER.CREATE.{path}", request)
    await link.close()
