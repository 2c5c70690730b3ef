"""Anyone can submit: a TCP socket and the text protocol, and the JavaScript client from npm, against a real cluster.

What is asserted of a job is read from Postgres by SQL; what the client is told, by the client alone.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid

import pytest
import pytest_asyncio

from jm_core.model import Priority
from jm_nats.subjects import Names
from tests.support import node, wire_page
from tests.support.processes import Cluster, temporary_cluster
from tests.support.text_client import TextClient
from tests.support.waiting import wait_until
from tests.support.wire_page import Received, Sent

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREET = {"handler": "greet", "args": {"name": "Ada"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(nats_server, postgres_server, database_template):
    async with temporary_cluster(nats_server, postgres_server, database_template) as cluster:
        yield await cluster.start()


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: Cluster):
    async with TextClient(cluster.nats_url) as client:
        yield await client.log_in()


@pytest.fixture(scope="module")
def submit(cluster: Cluster) -> str:
    return Names(cluster.name).submit


async def result_of(client: TextClient, cluster: Cluster, job_id: str) -> dict[str, object]:
    reply = await client.request(Names(cluster.name).api("job-result"), {"id": job_id, "wait_s": 10})
    assert "error" not in reply
    return reply["data"]


async def assert_greeted(cluster: Cluster, job_id: str, name: str) -> None:
    """The row of a ``greet`` job whose sender said no more than it had to."""
    job = await cluster.sql.job(job_id)
    assert job["status"] == 4
    assert (job["lane"], Priority(job["priority"])) == ("mail", Priority.HIGH)
    assert (job["max_attempts"], job["timeout_s"], job["attempt"], job["dispatch"]) == (7, 33, 1, 1)
    assert json.loads(job["args"]) == {"name": name}
    assert json.loads(job["result"]) == {"greeting": f"hello {name}"}
    assert job["queued_at"] <= job["recorded_at"] <= job["finished_at"]
    assert job["queued_at"] <= job["started_at"] <= job["finished_at"]


# Nothing but TCP


async def test_the_conversation_of_the_page_takes_place(cluster):
    async with TextClient(cluster.nats_url) as client:
        for step in wire_page.transcript():
            if isinstance(step, Sent):
                await client.send(*(line.replace(".shop.", f".{cluster.name}.") for line in step.lines))
            else:
                await expect(client, step, cluster.name)


async def expect(client: TextClient, step: Received, cluster: str) -> None:
    """What the server says next is what the page says, ``…`` being anything."""
    if step.payload is None:
        said, shown = await client.control(), step.line
    else:
        assert step.subject is not None
        said, shown = (await client.message(step.subject)).decode(), step.payload
    shown, said = (text.rstrip().replace(', "', ',"') for text in (shown, said))  # NATS 2.12 puts spaces in between
    pattern = ".*".join(re.escape(part) for part in shown.replace("JM_shop_", f"JM_{cluster}_").split("…"))
    assert re.fullmatch(pattern, said), f"the page: {shown}\nthe server: {said}"


async def test_a_bare_publish_is_enough(cluster, client, submit):
    name = uuid.uuid4().hex
    await client.publish(submit, {"handler": "greet", "args": {"name": name}})
    find = "SELECT id FROM job WHERE args->>'name' = $1"
    job_id = str(await wait_until(lambda: cluster.sql.value(find, name), what="the job's row"))
    await cluster.ended([job_id])
    await assert_greeted(cluster, job_id, name)


async def test_both_receipts_and_the_result_over_tcp(cluster, client, submit):
    ack = await client.queued(submit, GREET)
    assert ack["stream"] == f"JM_{cluster.name}_PENDING"
    (receipt,) = await client.recorded(submit, GREET)
    assert receipt["status"] == "recorded"
    assert await cluster.sql.value("SELECT count(*) FROM job WHERE id = $1", receipt["id"]) == 1

    result = await result_of(client, cluster, receipt["id"])
    assert (result["status"], result["result"]) == ("succeeded", {"greeting": "hello Ada"})
    await assert_greeted(cluster, receipt["id"], "Ada")


async def test_an_id_of_the_sender_is_kept_in_lower_case(cluster, client, submit):
    sent = str(uuid.uuid4()).upper()
    (receipt,) = await client.recorded(submit, GREET | {"id": sent})
    assert receipt == {"id": sent.lower(), "status": "recorded"}
    await cluster.ended([sent])
    await assert_greeted(cluster, sent.lower(), "Ada")


async def test_what_a_sender_says_comes_before_the_handlers_defaults(cluster, client, submit):
    fields = {
        "lane": "default",
        "priority": "very_low",
        "max_attempts": 2,
        "timeout_s": 12.5,
        "metadata": {"tenant": "acme"},
        "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "unique_key": uuid.uuid4().hex,
    }
    (receipt,) = await client.recorded(submit, GREET | fields)
    await cluster.ended([receipt["id"]])
    job = await cluster.sql.job(receipt["id"])
    assert (job["lane"], Priority(job["priority"]), job["max_attempts"]) == ("default", Priority.VERY_LOW, 2)
    assert (job["timeout_s"], job["unique_key"], job["trace"]) == (12.5, fields["unique_key"], fields["trace"])
    assert json.loads(job["metadata"]) == {"tenant": "acme"}


async def test_null_is_absent_and_unknown_fields_are_ignored(cluster, client, submit):
    nulls = dict.fromkeys(("id", "run_at", "delay_s", "lane", "priority", "max_attempts", "timeout_s", "unique_key"))
    more = {"metadata": None, "trace": None, "priorty": "high", "from_the_future": {"deep": [1, {"x": None}]}}
    (receipt,) = await client.recorded(submit, GREET | nulls | more)
    assert receipt["status"] == "recorded"
    await cluster.ended([receipt["id"]])
    await assert_greeted(cluster, receipt["id"], "Ada")


async def test_digits_are_kept_all_the_way(cluster, client, submit):
    value = '{"id":1970670598291982290,"n":9007199254740993,"price":1.10,"long":123456789012345678901234567890}'
    sent = f'{{"handler":"echo","args":{{"value":{value}}}}}'.encode()
    (receipt,) = await client.recorded(submit, sent)
    await result_of(client, cluster, receipt["id"])
    args, result = await cluster.sql.row("SELECT args::text, result::text FROM job WHERE id = $1", receipt["id"])
    for digits in ("1970670598291982290", "9007199254740993", "123456789012345678901234567890"):
        assert digits in args
        assert digits in result
    assert "1.10" in args


async def test_an_array_has_a_receipt_per_job_in_order(cluster, client, submit):
    names = [f"{uuid.uuid4().hex}-{n}" for n in range(120)]
    receipts = await client.recorded(submit, [{"handler": "greet", "args": {"name": name}} for name in names])
    assert {receipt["status"] for receipt in receipts} == {"recorded"}
    ids = [receipt["id"] for receipt in receipts]
    assert await cluster.ended(ids) == {"succeeded": 120}
    rows = await cluster.sql.rows("SELECT id, args->>'name' AS name FROM job WHERE id = ANY($1::uuid[])", ids)
    assert {str(row["id"]): row["name"] for row in rows} == dict(zip(ids, names, strict=True))


async def test_a_job_due_later_waits(cluster, client, submit):
    (receipt,) = await client.recorded(submit, GREET | {"delay_s": 1})
    await cluster.ended([receipt["id"]])
    job = await cluster.sql.job(receipt["id"])
    assert (job["run_at"] - job["queued_at"]).total_seconds() == pytest.approx(1, abs=0.001)
    assert job["started_at"] >= job["run_at"]


async def test_a_repeated_message_is_dropped_by_nats_and_the_first_copy_answers(cluster, client, submit):
    message_id, inbox = str(uuid.uuid4()), client.inbox()
    acks = [await client.queued(submit, GREET, nats_msg_id=message_id, jm_receipt_to=inbox) for _ in range(3)]
    assert [ack.get("duplicate", False) for ack in acks] == [False, True, True]
    (receipt,) = json.loads(await client.message(inbox))["receipts"]
    assert receipt["status"] == "recorded"
    # A later job's receipt: had the writer seen a repeat, it would have answered that one before.
    await client.recorded(submit, GREET)
    assert client.arrived(inbox) == 0


async def test_a_job_sent_twice_is_one_job(cluster, client, submit):
    job = GREET | {"id": str(uuid.uuid4())}
    first = await client.recorded(submit, job, nats_msg_id=str(uuid.uuid4()))
    again = await client.recorded(submit, job, nats_msg_id=str(uuid.uuid4()))
    thrice = await client.recorded(submit, [job, job], nats_msg_id=str(uuid.uuid4()))
    assert [receipt["status"] for receipt in first + again + thrice] == ["recorded", *["duplicate"] * 3]
    assert {receipt["existing_id"] for receipt in again + thrice} == {job["id"]}
    await cluster.ended([job["id"]])
    await assert_greeted(cluster, job["id"], "Ada")


async def test_a_unique_key_admits_one_unfinished_job(cluster, client, submit):
    later = GREET | {"unique_key": uuid.uuid4().hex, "delay_s": 3600}
    (first,) = await client.recorded(submit, later)
    (second,) = await client.recorded(submit, later)
    assert second["status"] == "duplicate"
    assert second["existing_id"] == first["id"]


async def test_the_receipt_of_a_bad_job_says_why(client, submit):
    receipts = await client.recorded(submit, [GREET, GREET | {"id": "00123"}, {"args": {}}, 5])
    assert [receipt["status"] for receipt in receipts] == ["recorded", "rejected", "rejected", "rejected"]
    assert receipts[1]["id"] == "00123"
    assert "'00123' is not a UUID" in receipts[1]["reason"]
    assert "field 'handler': is missing" in receipts[2]["reason"]


async def test_a_wrong_question_gets_an_answer(cluster, client):
    subject = Names(cluster.name).api("job-result")
    for question in ({"id": "00123"}, {"id": 5}, {}, [], {"id": str(uuid.uuid4()), "wait_s": "x"}):
        error = (await client.request(subject, question))["error"]
        assert error["code"] == "bad_request", question
    unknown = await client.request(subject, {"id": str(uuid.uuid4()), "wait_s": 0})
    assert unknown["data"]["status"] == "unknown"


# The real JavaScript client


@pytest.fixture(scope="module")
def javascript(request, tmp_path_factory, cluster: Cluster):
    """Runs the page's program with Node; returns what it printed, a JSON value a line."""
    folder = node.installed(request.config, tmp_path_factory)
    (block,) = wire_page.blocks("js")

    def run() -> list[object]:
        said = node.run(folder, block.text, JM_NATS_URL=cluster.nats_url, JM_CLUSTER=cluster.name)
        return [json.loads(line) for line in said.splitlines()]

    return run


async def test_the_javascript_program_of_the_page_submits_and_gets_its_results(cluster, javascript):
    single, pair, *batch = await asyncio.to_thread(javascript)

    assert (single["status"], single["result"]) == ("recorded", {"greeting": "hello Ada"})
    await assert_greeted(cluster, single["id"], "Ada")

    first, again = pair
    assert (first["status"], again["status"], again["existing_id"]) == ("recorded", "duplicate", first["id"])
    await cluster.ended([first["id"]])
    await assert_greeted(cluster, first["id"], "Grace")

    names = ["Edsger", "Barbara", "Donald"]
    assert [one["result"]["greeting"] for one in batch] == [f"hello {name}" for name in names]
    for one, name in zip(batch, names, strict=True):
        await assert_greeted(cluster, one["id"], name)


async def test_nothing_was_left_behind_and_nobody_complained(cluster):
    """The last test of this module: all of it together broke no rule."""
    ids = [str(row["id"]) for row in await cluster.sql.rows("SELECT id FROM job")]
    await cluster.assert_oracles(ids, may_wait=True)
    assert set(await cluster.sql.counts()) == {"succeeded", "on_master"}
    assert not cluster.trouble()
