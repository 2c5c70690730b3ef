import msgspec
import pytest
from msgspec import Raw

from jm_core import wire
from jm_core.model import AttemptOutcome, ReturnReason
from jm_core.retry import DEFAULT_BACKOFF

ID = "018f3b1e-0000-7000-8000-00000000abcd"
RUN = wire.Run(ID, "mail", Raw(b'{"n":0.1234567890123456789}'), 1, 1, 4, 1.9e9, 300.0, {"a": "b"}, "t")
EVENTS = [
    wire.Started(ID, 1, 1, 1.9e9),
    wire.Finished(ID, 1, 1, AttemptOutcome.SUCCEEDED, 1.0, 2.0, Raw(b'{"ok":1.10}')),
    wire.Finished(ID, 1, 2, AttemptOutcome.TIMED_OUT, 1.0, 2.0, None, "too late", 10.5),
    wire.Quarantined(ID, 1, 1.0, "no handler"),
    wire.Returned(ID, 1, ReturnReason.INTERRUPTED, 1.0, 1, 0.5),
    wire.Progress(ID, 1, 1.0, 0.5, "half"),
]
BUCKET = wire.BucketRecord("b1", "w1", "i", "default", 3, 7, "active")
WORKER = wire.WorkerRecord("w1", "i", "h", 1, 0.0, 100, ["default"], ["mail"])
DEFAULTS = wire.HandlerDefaults("default", "medium", 4, 300.0, DEFAULT_BACKOFF)
RECEIPTS = wire.Receipts([wire.JobReceipt(ID, "duplicate", existing_id=ID)])


def plain(value):
    """For comparing: ``Raw`` has no equality."""
    return msgspec.json.decode(wire.encode(value))


def test_runs_come_back_with_their_arguments_exact():
    [run] = wire.decode_runs(wire.encode([RUN]))
    assert bytes(run.args) == bytes(RUN.args)
    assert plain(run) == plain(RUN)


def test_every_kind_of_event_comes_back_as_itself():
    batch = wire.decode_events(wire.encode(wire.EventBatch("b1", 7, "w1", EVENTS)))
    assert [type(event) for event in batch.events] == [type(event) for event in EVENTS]
    assert plain(batch.events) == plain(EVENTS)
    assert bytes(batch.events[1].result) == b'{"ok":1.10}'


@pytest.mark.parametrize(
    ("decode", "value"),
    [
        (wire.decode_bucket, BUCKET),
        (wire.decode_worker, WORKER),
        (wire.decode_handler_defaults, DEFAULTS),
        (wire.decode_receipts, RECEIPTS),
    ],
    ids=["bucket", "worker", "defaults", "receipts"],
)
def test_records_come_back_and_unknown_keys_of_a_newer_version_are_ignored(decode, value):
    assert decode(wire.encode(value)) == value
    newer = {**plain(value), "added_in_the_next_version": {"x": [1]}}
    assert decode(msgspec.json.encode(newer)) == value


def test_a_run_of_a_newer_version_has_fields_at_its_end_that_are_ignored():
    newer = [[*plain(RUN), "new", {"x": 1}]]
    assert plain(wire.decode_runs(msgspec.json.encode(newer))) == plain([RUN])


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_of_a_newer_version_has_fields_at_its_end_that_are_ignored(event):
    full = plain(msgspec.json.decode(wire.encode(event)))
    newer = {"bucket": "b", "epoch": 1, "worker": "w", "events": [[*full, "new", 1]], "also": "new"}
    [decoded] = wire.decode_events(msgspec.json.encode(newer)).events
    assert plain(decoded) == full


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_of_an_older_version_lacks_the_fields_that_have_defaults(event):
    needed = 1 + len([f for f in msgspec.structs.fields(event) if f.required])
    older = {"bucket": "b", "epoch": 1, "worker": "w", "events": [plain(event)[:needed]]}
    [decoded] = wire.decode_events(msgspec.json.encode(older)).events
    assert type(decoded) is type(event)


def test_a_submission_leaves_out_what_is_absent():
    assert wire.encode(wire.Submission(handler="mail")) == b'{"handler":"mail"}'


def test_a_null_result_is_no_result():
    data = b'{"bucket":"b","epoch":1,"worker":"w","events":[["f","x",1,1,"succeeded",1,2,null]]}'
    [event] = wire.decode_events(data).events
    assert event.result is None or bytes(event.result) == b"null"


@pytest.mark.parametrize("version", ["00", "01", "cc"])
def test_a_traceparent_of_any_version_passes(version):
    trace = f"{version}-{'a' * 32}-{'b' * 16}-01"
    assert wire.decode_submission(msgspec.json.encode({"handler": "mail", "trace": trace})).trace == trace
