from __future__ import annotations

from msgspec import Raw

from jm_core import limits, wire
from jm_core.wire import Run
from jm_master.runs import RunMessage, pieces_of


def message_of(*args_bytes: int) -> RunMessage:
    """A message whose runs have arguments of these sizes."""
    runs = [
        Run(f"job-{n}", "h", Raw(b'{"a":"' + b"x" * (size - 8) + b'"}'), 1, 1, 4, 0.0, 300.0)
        for n, size in enumerate(args_bytes)
    ]
    return RunMessage("3e0c2ad0-6d5c-4a64-9d8b-0f0e7a4a3f11", "bucket", 7.0, wire.encode(runs))


def test_a_message_that_fits_is_sent_as_it_is():
    message = message_of(100, 200, 300)
    assert pieces_of(message) == [message]


def test_a_message_that_has_outgrown_the_limit_is_sent_in_pieces_that_fit():
    message = message_of(*[100_000] * 14)
    pieces = pieces_of(message)
    assert len(pieces) == 3
    assert all(len(piece.body) <= limits.MESSAGE_BYTES_MAX for piece in pieces)
    assert [run.id for piece in pieces for run in wire.decode_runs(piece.body)] == [f"job-{n}" for n in range(14)]
    assert {(piece.bucket, piece.deliver_at) for piece in pieces} == {("bucket", 7.0)}
    assert len({piece.outbox_id for piece in pieces}) == 3
    assert all(len(piece.outbox_id) <= 40 for piece in pieces)  # it becomes part of a subject


def test_a_job_larger_than_the_limit_stands_alone():
    pieces = pieces_of(message_of(100, limits.MESSAGE_BYTES_MAX, 100))
    assert [len(wire.decode_runs(piece.body)) for piece in pieces] == [1, 1, 1]
