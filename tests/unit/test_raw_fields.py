"""JSON that is passed on unread: every value comes through, and null is no value."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from jm_core import api, wire
from jm_core.model import AttemptOutcome
from jm_core.wire import EventBatch, Finished

VALUES = [b'{"a":1.10}', b"[1]", b'"text"', b"0", b"false", b'""', b"1970670598291982290"]


def carried(result: Raw | None) -> Finished:
    sent = Finished("id", 1, 1, AttemptOutcome.SUCCEEDED, 1.0, 2.0, result, None, None)
    (received,) = wire.decode_events(wire.encode(EventBatch("b", 1, "w", [sent]))).events
    assert isinstance(received, Finished)
    return received


@pytest.mark.parametrize("value", VALUES)
def test_a_result_reaches_the_writer_as_it_was(value):
    assert bytes(carried(Raw(value)).result or b"") == value


@pytest.mark.parametrize("nothing", [None, Raw(b"null")])
def test_no_result_is_none(nothing):
    assert carried(nothing).result is None


@pytest.mark.parametrize("value", VALUES)
def test_a_reply_carries_any_value(value):
    sent = api.Reply(Raw(wire.encode(api.ResultReply("id", "succeeded", Raw(value)))))
    reply = msgspec.json.decode(wire.encode(sent), type=api.Reply)
    assert bytes(msgspec.json.decode(bytes(reply.data or b""), type=api.ResultReply).result or b"") == value


def test_a_job_is_shown_with_its_arguments():
    view = msgspec.json.decode(
        b'{"id":"x","handler":"h","status":"failed","lane":"l","priority":"low","attempt":1,"max_attempts":1,'
        b'"run_at":"2030-01-01T00:00:00Z","args":{"a":1}}',
        type=api.JobView,
    )
    assert bytes(view.args or b"") == b'{"a":1}'
    assert view.result is None
