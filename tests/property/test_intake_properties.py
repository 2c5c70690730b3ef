"""Messages of any mixture, and the wire format there and back."""

import json
import math
import uuid
from datetime import UTC, datetime, timedelta, timezone

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from jm_core import limits, wire
from jm_core.errors import JmError
from jm_core.ids import HANDLER_PATTERN, derived_job_id
from jm_core.intake import ClusterDefaults, NewJob, Origin, Rejection, check_fields, read_message
from jm_core.model import AttemptOutcome, OnConflict, Priority, ReturnReason

ORIGIN = Origin("JM_c_PENDING", 7, 1_900_000_000_000_000_000)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
args = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts, max_size=4)
args |= st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False), max_size=4)
instants = st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1)).map(lambda t: t.replace(tzinfo=UTC))  # noqa: DTZ001
offsets = st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m)))
names = st.from_regex("[A-Za-z0-9_-]{1,40}", fullmatch=True)
optional = {
    "id": st.uuids().map(str),
    "lane": names,
    "priority": st.sampled_from([p.label for p in Priority]),
    "max_attempts": st.integers(1, limits.ATTEMPTS_MAX),
    "timeout_s": st.floats(0, limits.TIMEOUT_S_MAX, exclude_min=True),
    "unique_key": texts.filter(str.strip),
    "metadata": st.dictionaries(texts, texts, max_size=3),
}
submissions = st.builds(
    wire.Submission,
    handler=st.from_regex(HANDLER_PATTERN, fullmatch=True),
    args=args.map(lambda value: Raw(json.dumps(value).encode())),
    **{name: st.none() | values for name, values in optional.items()},
)
due = st.one_of(
    st.just({}),
    st.builds(lambda at, zone: {"run_at": at.astimezone(zone)}, instants, offsets),
    st.builds(lambda s: {"delay_s": s}, st.floats(0, limits.DELAY_S_MAX)),
)
scopes = st.fixed_dictionaries(
    {},
    optional={
        "unique_for_s": st.floats(0, limits.UNIQUE_FOR_S_MAX, exclude_min=True),
        "on_conflict": st.sampled_from([str(choice) for choice in OnConflict]),
    },
)
BAD = [
    b"5",
    b"null",
    b"NaN",
    b"{}",
    b'{"handler":5}',
    b'{"handler":"m","args":[]}',
    b'{"handler":"m","args":{"a":1e999}}',
]
BAD += [b'{"handler":"m","args":{"a":"\xff"}}', b'{"handler":"m","id":"1"}', b"[]", b'{"a":' * 200 + b"1" + b"}" * 200]


def read(data, origin=ORIGIN):
    return read_message(data, origin, {}, ClusterDefaults())


@given(submissions, due, scopes)
def test_a_submission_that_was_checked_is_accepted_as_it_was_meant(submission, when, scope):
    submission = msgspec.structs.replace(submission, **when, **(scope if submission.unique_key else {}))
    check_fields(submission)
    [job] = read(wire.encode(submission))
    assert isinstance(job, NewJob)
    assert (job.unique_for_s, job.on_conflict) == (submission.unique_for_s, submission.on_conflict)
    assert (job.handler, job.args) == (submission.handler, bytes(submission.args))
    assert job.id == submission.id or submission.id is None
    assert (job.unique_key, job.metadata) == (submission.unique_key, submission.metadata)
    for field in ("lane", "max_attempts", "timeout_s"):
        assert getattr(submission, field) in (None, getattr(job, field))
    assert submission.priority in (None, job.priority.label)
    if submission.run_at is not None:
        assert job.run_at == submission.run_at
    assert (job.run_at is None) == (submission.run_at is None and not submission.delay_s)


@given(st.lists(submissions.map(wire.encode) | st.sampled_from(BAD), min_size=1, max_size=6))
def test_of_any_mixture_the_good_jobs_come_out_and_the_bad_ones_are_refused_in_place(parts):
    parsed = read(b"[" + b",".join(parts) + b"]")
    assert len(parsed) == len(parts)
    for raw, one in zip(parts, parsed, strict=True):
        if raw in BAD:
            assert isinstance(one, Rejection)
            assert one.raw == raw
            assert len(one.reason.encode()) <= limits.REASON_BYTES_MAX
        else:
            assert isinstance(one, NewJob)
            assert json.loads(one.args) == json.loads(raw).get("args", {})


@settings(max_examples=60)
@given(st.binary(max_size=400))
def test_no_bytes_whatever_crash_the_reader(data):
    for one in read(data):
        assert isinstance(one, NewJob | Rejection)


@settings(max_examples=60)
@given(st.lists(submissions, min_size=1, max_size=3).map(wire.encode), st.data())
def test_no_damage_to_a_message_crashes_the_reader_or_makes_a_bad_job(data, draw):
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    for one in read(bytes(damaged)):
        if isinstance(one, NewJob):
            assert isinstance(json.loads(one.args.decode()), dict)
            assert str(uuid.UUID(one.id)) == one.id
        else:
            assert one.reason
            assert "\0" not in one.reason + one.handler + one.job_id + one.field


fields = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(wire.Submission.__struct_fields__[2:]), fields | st.dictionaries(texts, fields)))
def test_whatever_python_puts_into_a_submission_is_accepted_or_refused_with_an_error_of_ours(given_fields):
    submission = wire.Submission(handler="mail", **given_fields)
    try:
        check_fields(submission)
        if submission.id is not None:
            uuid.UUID(submission.id)
    except (JmError, ValueError):
        return
    [job] = read(wire.encode(submission))
    assert isinstance(job, NewJob | Rejection)
    assert isinstance(job, NewJob) or job.field == "id"


places = st.tuples(st.sampled_from(["JM_a_PENDING", "JM_b_PENDING"]), st.integers(1, 2**63), st.integers(0, 499))


@given(st.lists(st.tuples(places, st.integers(0, 2**48 - 1)), unique=True, min_size=2, max_size=50))
def test_derived_ids_are_equal_for_one_place_and_distinct_for_two(where):
    ids = [derived_job_id(*place, at_ms) for place, at_ms in where]
    assert len(set(ids)) == len(where)
    assert ids == [derived_job_id(*place, at_ms) for place, at_ms in where]
    for derived, (_, at_ms) in zip(ids, where, strict=True):
        parsed = uuid.UUID(derived)
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert parsed.int >> 80 == at_ms
        assert str(parsed) == derived


# -- wire

seconds = st.floats(0, 1e10)
raws = args.map(lambda value: Raw(json.dumps(value).encode()))
numbers = st.integers(0, 2**31)
runs = st.builds(
    wire.Run, id=texts, handler=texts, args=raws, dispatch=numbers, attempt=numbers, max_attempts=numbers,
    run_at=seconds, timeout_s=seconds, metadata=st.none() | st.dictionaries(texts, texts), trace=st.none() | texts,
)  # fmt: skip
events = st.one_of(
    st.builds(wire.Started, texts, numbers, numbers, seconds),
    st.builds(
        wire.Finished, texts, numbers, numbers, st.sampled_from(AttemptOutcome), seconds, seconds, st.none() | raws,
        st.none() | texts, st.none() | seconds,
    ),
    st.builds(wire.Quarantined, texts, numbers, seconds, texts),
    st.builds(wire.Returned, texts, numbers, st.sampled_from(ReturnReason), seconds, numbers, st.none() | seconds),
    st.builds(wire.Progress, texts, numbers, seconds, st.floats(0, 1), texts),
)  # fmt: skip


def shown(value):
    """Field by field, for comparing: ``Raw`` has no equality worth having."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        return type(value), [shown(getattr(value, name)) for name in value.__struct_fields__]
    return [shown(item) for item in value] if isinstance(value, list) else value


@given(st.lists(runs, max_size=5))
def test_runs_survive_the_wire(batch):
    assert shown(wire.decode_runs(wire.encode(batch))) == shown(batch)


@given(st.lists(events, max_size=8), texts, numbers)
def test_events_survive_the_wire(batch, name, epoch):
    sent = wire.EventBatch(name, epoch, name, batch)
    assert shown(wire.decode_events(wire.encode(sent))) == shown(sent)


@given(st.lists(events, min_size=1, max_size=4), st.lists(st.none() | st.integers() | texts, min_size=1, max_size=3))
def test_older_readers_ignore_what_newer_versions_append(batch, appended):
    plain = msgspec.json.decode(wire.encode(wire.EventBatch("b", 1, "w", batch)))
    # Positions that are at their default may be left out by no encoder of ours, so "at the end" means after all.
    plain["events"] = [[*event, *appended] for event in plain["events"]]
    decoded = wire.decode_events(msgspec.json.encode(plain))
    assert [type(event) for event in decoded.events] == [type(event) for event in batch]
    assert [event.id for event in decoded.events] == [event.id for event in batch]


@given(st.builds(wire.JobReceipt, texts, texts, st.none() | texts, st.none() | texts))
def test_receipts_survive_the_wire(receipt):
    assert wire.decode_receipts(wire.encode(wire.Receipts([receipt]))).receipts == [receipt]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_times_keep_every_digit(at):
    [run] = wire.decode_runs(wire.encode([wire.Run("i", "h", Raw(b"{}"), 1, 1, 1, at, 1.0)]))
    assert math.isclose(run.run_at, at, rel_tol=0)
