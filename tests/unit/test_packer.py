import asyncio
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from msgspec import Raw

from jm_core import limits, wire
from jm_core.errors import InvalidJobError, JmError
from jm_core.intake import check_fields
from jm_core.wire import JobReceipt, Submission
from jm_nats.packer import FIELD_BYTES, IN_FLIGHT_MAX, Packer, encode_message, encoded_bytes_at_most, message_chunks
from tests.support.virtual_time import VirtualLoop, on_loop

ID = "018f3b1e-0000-7000-8000-00000000abcd"

PACK = limits.PACK_JOBS


def virtual(test):
    return on_loop(VirtualLoop, test)


def job(number=0, *, args_bytes=10, **fields):
    return Submission(
        handler="mail", id=ID, args=Raw(b'{"a":"%s"}' % (b"x" * (args_bytes - 8))), lane=str(number), **fields
    )


class Sender:
    """Takes messages and answers when it is told to."""

    def __init__(self, answer=lambda _: None):
        self.messages = []
        self.in_flight = self.most = 0
        self.open = asyncio.Event()
        self.open.set()
        self.answer = answer

    async def __call__(self, data, jobs):
        assert len(data) <= limits.MESSAGE_BYTES_MAX
        self.messages.append([one.lane for one in jobs])
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await self.open.wait()
            await asyncio.sleep(0)
            return self.answer(jobs)
        finally:
            self.in_flight -= 1


LONGEST = Submission(
    handler="h" * 100,
    args=Raw(b""),
    id=ID,
    run_at=datetime(2030, 12, 31, 23, 59, 59, 123456, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    lane="l" * 40,
    priority="very_low",
    max_attempts=limits.ATTEMPTS_MAX,
    timeout_s=0.12345678901234567e-5,
    unique_key="k",
    unique_for_s=0.12345678901234567e-5,
    on_conflict="return_existing",
    trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
)


@pytest.mark.parametrize("when", [{}, {"run_at": None, "delay_s": 1.2345678901234567e-5}])
def test_no_job_has_longer_fields_than_is_reckoned_with(when):
    longest = wire.Submission(**{name: getattr(LONGEST, name) for name in LONGEST.__struct_fields__} | when)
    check_fields(longest)
    empty_texts = len(b',"unique_key":"","metadata":{}')
    assert len(wire.encode(longest)) - len(b',"unique_key":"k"') + empty_texts <= FIELD_BYTES


@pytest.mark.parametrize("char", ["x", "\x01", "ü", "😀", '"'])
def test_the_estimate_is_never_too_small(char):
    one = job(unique_key=char * 200, metadata={char * n: char * 50 for n in range(1, 40)})
    assert len(wire.encode(one)) <= encoded_bytes_at_most(one)


@pytest.mark.parametrize("args_bytes", [10, 2_000, 2_700, 10_000, 130_000])
def test_chunks_keep_order_and_fit(args_bytes):
    jobs = [job(n, args_bytes=args_bytes) for n in range(450)]
    chunks = message_chunks(jobs)
    assert [one for chunk in chunks for one in chunk] == jobs
    for chunk in chunks:
        assert 0 < len(chunk) <= limits.PACK_JOBS
        assert len(encode_message(chunk)) <= limits.MESSAGE_BYTES_MAX


async def adds(packer: Packer, submission: Submission) -> JobReceipt | None:
    return await packer.add(submission)


def test_jobs_with_the_longest_fields_fit_too():
    jobs = [wire.decode_submission(wire.encode(LONGEST).replace(b'"args":', b'"args":{}')) for _ in range(1_000)]
    for one in jobs:
        one.args = Raw(b'{"a":"%s"}' % (b"x" * 2_100))
    assert max(len(encode_message(chunk)) for chunk in message_chunks(jobs)) <= limits.MESSAGE_BYTES_MAX


def test_no_jobs_are_no_chunks():
    assert message_chunks([]) == []


def test_one_job_travels_as_an_object_and_several_as_an_array():
    assert isinstance(json.loads(encode_message([job()])), dict)
    assert isinstance(json.loads(encode_message([job(), job()])), list)


def test_a_single_job_that_no_message_could_carry_is_refused_with_its_size():
    with pytest.raises(InvalidJobError, match=f"the limit is {limits.MESSAGE_BYTES_MAX}; send less"):
        encode_message([job(args_bytes=limits.MESSAGE_BYTES_MAX)])


@virtual
async def test_a_lone_job_leaves_at_once():
    sender = Sender()
    await Packer(sender).add(job())
    assert asyncio.get_running_loop().time() == 0
    assert sender.messages == [["0"]]


@virtual
async def test_what_is_submitted_in_one_turn_shares_messages_in_order():
    sender = Sender()
    packer = Packer(sender)
    await asyncio.gather(*[packer.add(job(n)) for n in range(2 * PACK + 50)])
    assert [len(message) for message in sender.messages] == [PACK, PACK, 50]
    assert [lane for message in sender.messages for lane in message] == [str(n) for n in range(2 * PACK + 50)]


@virtual
async def test_no_more_than_so_many_messages_are_in_flight_and_the_rest_rides_along():
    sender = Sender()
    sender.open.clear()
    packer = Packer(sender)
    adding = []
    for n in range(100):  # each in a turn of its own
        adding.append(asyncio.create_task(adds(packer, job(n))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(sender.messages) == IN_FLIGHT_MAX
    sender.open.set()
    await asyncio.gather(*adding)
    assert sender.most == IN_FLIGHT_MAX
    assert len(sender.messages) == IN_FLIGHT_MAX + 1, "all that waited left in one"


@virtual
async def test_each_job_gets_its_own_answer():
    sender = Sender(lambda jobs: [JobReceipt(one.lane, "recorded") for one in jobs])
    packer = Packer(sender)
    answers = await asyncio.gather(*[packer.add(job(n)) for n in range(450)])
    assert [answer.id for answer in answers] == [str(n) for n in range(450)]


@virtual
async def test_an_error_reaches_every_job_of_its_message_and_no_other():
    def answer(jobs):
        if jobs[0].lane == str(PACK):
            raise ConnectionError("gone")

    sender = Sender(answer)
    packer = Packer(sender)
    results = await asyncio.gather(*[packer.add(job(n)) for n in range(2 * PACK + 50)], return_exceptions=True)
    failed = [n for n, result in enumerate(results) if isinstance(result, ConnectionError)]
    assert failed == list(range(PACK, 2 * PACK))
    await packer.add(job())  # and it goes on


@pytest.mark.parametrize("count", [0, 1, 3])
@virtual
async def test_a_wrong_number_of_answers_leaves_nobody_waiting(count):
    packer = Packer(Sender(lambda _: [JobReceipt("x", "recorded")] * count))
    results = await asyncio.gather(packer.add(job()), packer.add(job()), return_exceptions=True)
    assert all(isinstance(result, JmError) for result in results)


@virtual
async def test_a_caller_that_gives_up_disturbs_nobody():
    sender = Sender()
    sender.open.clear()
    packer = Packer(sender)
    first, second = (asyncio.create_task(adds(packer, job(n))) for n in range(2))
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.sleep(1)
    sender.open.set()
    await second
    assert first.cancelled()
    assert sender.messages == [["0", "1"]]


@virtual
async def test_closing_sends_what_waits_and_returns_when_all_has_landed():
    sender = Sender()
    packer = Packer(sender)
    adding = [asyncio.create_task(adds(packer, job(n, args_bytes=100_000))) for n in range(400)]
    await asyncio.sleep(0)
    await packer.close()
    assert sender.in_flight == 0
    assert sum(map(len, sender.messages)) == 400
    await asyncio.gather(*adding)
    assert not packer._waiting
    assert not packer._in_flight
    await packer.close()  # with nothing to do


@virtual
async def test_a_sender_that_is_cancelled_lets_its_callers_go():
    sender = Sender()
    sender.open.clear()
    packer = Packer(sender)
    adding = asyncio.create_task(adds(packer, job()))
    await asyncio.sleep(1)
    for carrying in packer._in_flight:
        carrying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding


def test_a_time_keeps_its_offset_on_the_wire():
    due = datetime(2030, 1, 1, 9, tzinfo=UTC)
    assert json.loads(encode_message([job(run_at=due)]))["run_at"] == "2030-01-01T09:00:00Z"
