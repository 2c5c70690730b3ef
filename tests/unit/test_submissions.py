from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from jm_core import wire
from jm_core.intake import ClusterDefaults
from jm_master.submissions import Fates, accepted, in_batches, read, receipts_for, refusals_of

A, B = "0190a000-0000-7000-8000-00000000000a", "0190a000-0000-7000-8000-00000000000b"


def message(data: bytes, seq=1, headers=None):
    reply = f"$JS.ACK.JM_t_PENDING.writer.1.{seq}.{seq}.1900000000000000000.0"
    return SimpleNamespace(data=data, reply=reply, headers=headers, subject="jm.t.submit")


def jobs(*ids, handler="h"):
    return msgspec.json.encode([{"id": job_id, "handler": handler} for job_id in ids])


def batch_of(*messages):
    return list(read(messages, "JM_t_PENDING", {}, ClusterDefaults()))


def kept(batch):
    return [[job.id for job in of_message] for of_message in accepted(batch)]


def answers(submitted, fates=None):
    receipts = wire.decode_receipts(receipts_for(submitted, fates or Fates())).receipts
    return [(receipt.id, receipt.status, receipt.existing_id) for receipt in receipts]


def test_an_id_that_comes_again_in_the_batch_is_a_duplicate():
    batch = batch_of(message(jobs(A, A), 1), message(jobs(B, A), 2))
    assert kept(batch) == [[A], [B]]
    assert answers(batch[0]) == [(A, "recorded", None), (A, "duplicate", A)]
    assert answers(batch[1]) == [(B, "recorded", None), (A, "duplicate", A)]


def test_one_message_delivered_twice_is_recorded_twice():
    batch = batch_of(message(jobs(A, B)), message(jobs(A, B)))
    assert kept(batch) == [[A, B], []]
    assert answers(batch[1]) == [(A, "recorded", None), (B, "recorded", None)]


def test_what_the_save_found_out_is_told():
    (submitted,) = batch_of(message(jobs(A, B)))
    assert answers(submitted, Fates({A: B}, {B: "no"})) == [(A, "duplicate", B), (B, "rejected", None)]


def test_refusals_keep_their_bytes_and_have_a_source_of_their_own():
    data = b'[{"handler": "h"}, {"handler": "h", "priority": "?"}, {"handler": 7}]'
    (submitted,) = batch_of(message(data, seq=9))
    refusals = refusals_of([submitted])
    assert [refusal.source for refusal in refusals] == [
        "JM_t_PENDING/9/1900000000000000000/1",
        "JM_t_PENDING/9/1900000000000000000/2",
    ]
    assert refusals[1].raw == b'{"handler": 7}'


def test_a_bug_while_reading_costs_one_message(monkeypatch):
    def explode(data, *_):
        if data == b"explode":
            raise ZeroDivisionError
        return []

    monkeypatch.setattr("jm_master.submissions.read_message", explode)
    batch = batch_of(message(b"explode"), message(b"good", 2))
    assert "ZeroDivisionError" in batch[0].parsed[0].reason
    assert batch[1].parsed == []


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        pytest.param([200] * 10, [10], id="exactly full"),
        pytest.param([200] * 12, [10, 2], id="full"),
        pytest.param([500] * 5, [4, 1], id="large messages"),
        pytest.param([1] * 5, [5], id="few jobs"),
    ],
)
def test_batches_hold_as_many_jobs_as_asked(sizes, batches):
    messages = [message(b"[" + b",".join([b'{"handler":"h"}'] * size) + b"]") for size in sizes]
    assert [len(batch) for batch in in_batches(batch_of(*messages), 2_000)] == batches


def test_large_jobs_count_for_several():
    large = message(b'{"handler":"h","args":{"a":"%b"}}' % (b"x" * 100_000))
    assert [len(batch) for batch in in_batches(batch_of(*[large] * 25), 2_000)] == [20, 5]


def test_a_message_is_read_when_its_batch_has_room_for_it():
    messages = iter([message(b'{"handler":"h"}')] * 5)
    batches = in_batches(read(messages, "JM_t_PENDING", {}, ClusterDefaults()), 2)
    assert len(next(batches)) == 2
    assert len(list(messages)) == 2
