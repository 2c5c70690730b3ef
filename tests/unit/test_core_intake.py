import json
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from msgspec import Raw

from jm_core import intake, limits
from jm_core.errors import InvalidJobError, InvalidNameError
from jm_core.intake import ClusterDefaults, NewJob, Origin, Rejection, check_fields, read_message
from jm_core.model import Priority
from jm_core.retry import DEFAULT_BACKOFF
from jm_core.wire import HandlerDefaults, Submission

STORED_AT = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
ORIGIN = Origin("JM_c_PENDING", 7, int(STORED_AT.timestamp()) * 1_000_000_000)
CLUSTER = ClusterDefaults()
ID = "018f3b1e-0000-7000-8000-00000000abcd"
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
OPTIONAL = {
    "args": {},
    "id": ID,
    "run_at": "2031-01-01T00:00:00Z",
    "delay_s": 5,
    "lane": "bulk",
    "priority": "high",
    "max_attempts": 7,
    "timeout_s": 1.5,
    "unique_key": "k",
    "unique_for_s": 60,
    "on_conflict": "replace",
    "metadata": {"a": "b"},
    "trace": TRACE,
}


def read(data, *, origin=ORIGIN, handlers=None, cluster=CLUSTER):
    data = data.encode() if isinstance(data, str) else data
    return read_message(data, origin, handlers or {}, cluster)


def job(**fields):
    return json.dumps({"handler": "mail", **fields}, ensure_ascii=False)


def accepted(data, **how):
    [parsed] = read(data, **how)
    assert isinstance(parsed, NewJob), parsed
    return parsed


def refused(data, **how):
    [parsed] = read(data, **how)
    assert isinstance(parsed, Rejection), parsed
    assert len(parsed.reason.encode()) <= limits.REASON_BYTES_MAX
    assert "\0" not in parsed.reason + parsed.field + parsed.job_id + parsed.handler
    assert ";" in parsed.reason, "what is wrong; what to do"
    return parsed


# -- what a good job becomes


def test_what_is_left_out_comes_from_the_cluster():
    assert accepted('{"handler":"mail"}') == NewJob(
        id=intake.derived_job_id("JM_c_PENDING", 7, 0, ORIGIN.timestamp_ns // 1_000_000),
        handler="mail",
        args=b"{}",
        run_at=None,
        lane="default",
        priority=Priority.MEDIUM,
        max_attempts=limits.MAX_ATTEMPTS,
        timeout_s=limits.JOB_TIMEOUT_S,
    )


def test_the_handlers_defaults_go_before_the_clusters():
    known = {"mail": HandlerDefaults("bulk", "critical", 9, 7.5, DEFAULT_BACKOFF)}
    parsed = accepted(job(), handlers=known)
    assert (parsed.lane, parsed.priority, parsed.max_attempts, parsed.timeout_s) == ("bulk", Priority.CRITICAL, 9, 7.5)


def test_what_is_sent_goes_before_both():
    known = {"mail": HandlerDefaults("bulk", "critical", 9, 7.5, DEFAULT_BACKOFF)}
    parsed = accepted(job(lane="mine", priority="low", max_attempts=1, timeout_s=0.5), handlers=known)
    assert (parsed.lane, parsed.priority, parsed.max_attempts, parsed.timeout_s) == ("mine", Priority.LOW, 1, 0.5)


def test_a_priority_that_a_newer_worker_declared_falls_back_instead_of_stopping_the_writer():
    known = {"mail": HandlerDefaults("bulk", "urgent", 9, 7.5, DEFAULT_BACKOFF)}
    assert accepted(job(), handlers=known).priority is Priority.MEDIUM


@pytest.mark.parametrize("field", OPTIONAL)
def test_null_is_absent_for_every_optional_field(field):
    assert accepted(job(**{field: None})) == accepted(job())


def test_every_optional_field_is_covered_by_the_tests_above_and_below():
    assert set(OPTIONAL) == set(Submission.__struct_fields__) - {"handler"}


@pytest.mark.parametrize("field", [name for name in OPTIONAL if name != "delay_s"])
def test_each_field_arrives(field):
    key = {"unique_key": "k"} if field in ("unique_for_s", "on_conflict") else {}
    assert accepted(job(**key | {field: OPTIONAL[field]})).handler == "mail"


def test_unknown_fields_are_ignored_whatever_they_hold():
    assert accepted(job(priorty="high", nested={"a": [1, {"b": None}]})) == accepted(job())


def test_of_duplicate_keys_the_last_one_counts():
    parsed = accepted('{"handler":"first","handler":"mail","args":{"a":1},"args":{"a":1,"a":2}}')
    assert (parsed.handler, parsed.args) == ("mail", b'{"a":1,"a":2}')


@pytest.mark.parametrize(
    "args",
    [
        b'{"id":1970670598291982290,"n":9007199254740993}',
        b'{"n":0.1234567890123456789, "m":1.10}',
        b'{ "spaces" : [ 1 , 2 ] }',
        '{"text":"ünï😀","escaped":"\\u00fc"}'.encode(),
    ],
)
def test_args_are_kept_byte_for_byte(args):
    assert accepted(b'{"handler":"mail","args":' + args + b"}").args == args


@pytest.mark.parametrize("space", [b"", b" ", b"\n\t\r ", b" " * 1_000])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("form", [b"%s", b"[%s]"])
def test_white_space_and_a_byte_order_mark_in_front_do_no_harm(mark, space, form):
    assert accepted(mark + space + form % b'{"handler":"mail"}' + space).handler == "mail"


def test_the_jobs_of_an_array_come_out_in_order():
    parsed = read(f"[{','.join(job(args={'n': n}) for n in range(500))}]")
    assert [json.loads(one.args)["n"] for one in parsed] == list(range(500))


# -- when it runs


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2030-01-01T09:00:00Z", datetime(2030, 1, 1, 9, tzinfo=UTC)),
        ("2030-01-01T09:00:00z", datetime(2030, 1, 1, 9, tzinfo=UTC)),
        ("2030-01-01t09:00:00Z", datetime(2030, 1, 1, 9, tzinfo=UTC)),
        ("2030-01-01 09:00:00Z", datetime(2030, 1, 1, 9, tzinfo=UTC)),
        ("2030-01-01T09:00:00+00:00", datetime(2030, 1, 1, 9, tzinfo=UTC)),
        ("2030-01-01T09:00:00-00:00", datetime(2030, 1, 1, 9, tzinfo=UTC)),
        ("2030-01-01T09:00:00+05:45", datetime(2030, 1, 1, 3, 15, tzinfo=UTC)),
        ("2030-01-01T09:00:00-23:59", datetime(2030, 1, 2, 8, 59, tzinfo=UTC)),
        ("2030-01-01T09:00:00.123456Z", datetime(2030, 1, 1, 9, 0, 0, 123456, tzinfo=UTC)),
        ("2030-01-01T09:00:00.5Z", datetime(2030, 1, 1, 9, 0, 0, 500_000, tzinfo=UTC)),
        ("2028-02-29T00:00:00Z", datetime(2028, 2, 29, tzinfo=UTC)),
        ("1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
        ("1970-01-01T00:00:00+14:00", datetime(1969, 12, 31, 10, tzinfo=UTC)),
        ("9998-12-31T23:59:59-14:00", datetime(9999, 1, 1, 13, 59, 59, tzinfo=UTC)),
    ],
)
def test_a_due_time_is_kept_as_an_instant_in_utc(text, instant):
    run_at = accepted(job(run_at=text)).run_at
    assert run_at == instant
    assert run_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("2030-01-01T09:00:00", "offset"),
        ("2024-02-30T00:00:00Z", "RFC3339"),
        ("2023-02-29T00:00:00Z", "RFC3339"),
        ("2030-01-01T24:00:00Z", "RFC3339"),
        ("2030-01-01T23:59:60Z", "RFC3339"),
        ("2030-01-01", "RFC3339"),
        ("tomorrow", "RFC3339"),
        ("", "RFC3339"),
        ("0000-01-01T00:00:00Z", "RFC3339"),
        ("10000-01-01T00:00:00Z", "RFC3339"),
        ("0001-01-01T00:00:00Z", "1970 to 9998"),
        ("0001-01-01T00:00:00+14:00", "1970 to 9998"),
        ("1969-12-31T23:59:59Z", "1970 to 9998"),
        ("9999-12-31T23:59:59Z", "1970 to 9998"),
        ("9999-12-31T23:59:59-14:00", "1970 to 9998"),
        (1893488400, "datetime"),
        (True, "datetime"),
    ],
)
def test_a_due_time_that_is_no_instant_is_refused(text, word):
    rejection = refused(job(run_at=text))
    assert rejection.field == "run_at"
    assert word in rejection.reason


def test_a_delay_counts_from_when_the_server_stored_the_message():
    assert accepted(job(delay_s=90.5)).run_at == STORED_AT + timedelta(seconds=90.5)


@pytest.mark.parametrize("delay_s", [0, 0.0, None])
def test_no_delay_is_at_once(delay_s):
    assert accepted(job(delay_s=delay_s)).run_at is None


def test_the_longest_delay_fits():
    assert accepted(job(delay_s=limits.DELAY_S_MAX)).run_at.year in (2039, 2040)


def test_a_due_time_and_a_delay_together_are_refused():
    rejection = refused(job(run_at="2030-01-01T09:00:00Z", delay_s=5))
    assert rejection.field == "delay_s"
    assert "one of the two" in rejection.reason


# -- ids


def test_an_upper_case_id_is_the_same_job():
    assert accepted(job(id=ID.upper())).id == ID


@pytest.mark.parametrize(
    "text", ["", " ", "1", "00123", "a:b", "😀", "x" * 300, ID.replace("-", ""), "\x01"], ids=ascii
)
def test_an_id_that_is_no_uuid_is_refused(text):
    rejection = refused(job(id=text))
    assert rejection.field == "id"
    assert "leave it out" in rejection.reason
    assert rejection.handler == "mail"


def test_derived_ids_are_the_same_at_redelivery_and_no_two_are_equal():
    data = f"[{','.join([job()] * 100)}]"
    first, again = ([one.id for one in read(data)] for _ in range(2))
    assert first == again
    assert len(set(first)) == 100
    others = [Origin("JM_c_PENDING", 8, ORIGIN.timestamp_ns), Origin("JM_d_PENDING", 7, ORIGIN.timestamp_ns)]
    for origin in others:
        assert not {one.id for one in read(data, origin=origin)} & set(first)


def test_a_bad_neighbour_does_not_change_a_derived_id():
    good = read(f"[{job()},{job()}]")
    beside_bad = read(f"[{job()},NaN]")
    assert good[0].id == beside_bad[0].id


def test_a_derived_id_is_a_uuid_of_version_7():
    assert uuid.UUID(accepted(job()).id).version == 7


# -- bad jobs: each kind alone, and among good ones

LONG = "x" * 400
DEEP = b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
# name: (bytes, field, a word of what to do)
BAD = {
    "no handler": (b'{"args":{}}', "handler", "wire-format"),
    "null handler": (b'{"handler":null}', "handler", "wire-format"),
    "number as handler": (b'{"handler":5}', "handler", "wire-format"),
    "handler with a space": (b'{"handler":"a b"}', "handler", "choose another name"),
    "long handler": (job(handler="x" * 101).encode(), "handler", "choose another name"),
    "handler that is code": (b'{"handler":"__import__(\'os\')"}', "handler", "choose another name"),
    "args text": (b'{"handler":"mail","args":"x"}', "args", "send a JSON object"),
    "args number": (b'{"handler":"mail","args":5}', "args", "send a JSON object"),
    "args array": (b'{"handler":"mail","args":[1]}', "args", "send a JSON object"),
    "args true": (b'{"handler":"mail","args":true}', "args", "send a JSON object"),
    "args nan": (b'{"handler":"mail","args":{"a":NaN}}', "args", "null or text"),
    "args infinity": (b'{"handler":"mail","args":{"a":[-Infinity]}}', "args", "null or text"),
    "args 1e400": (b'{"handler":"mail","args":{"a":1e400}}', "args", "send a JSON object"),
    "args nul": (b'{"handler":"mail","args":{"a":"x\\u0000y"}}', "args.a", "remove it"),
    "args nul key": (b'{"handler":"mail","args":{"\\u0000":1}}', "args (key '\\x00')", "remove it"),
    "args latin-1": (b'{"handler":"mail","args":{"a":"\xfc"}}', "args", "send a JSON object"),
    "args surrogate": (b'{"handler":"mail","args":{"a":"\\ud800"}}', "args", "wire-format"),
    "args deep": (b'{"handler":"mail","args":' + DEEP + b"}", "args", "flatten"),
    "args 101 deep": (b'{"handler":"mail","args":{"a":' + b"[" * 100 + b"]" * 100 + b"}}", "args", "flatten"),
    "args too large": (job(args={"a": "x" * 131_100}).encode(), "args", "reference"),
    "args 5,000 digits": (b'{"handler":"mail","args":{"a":' + b"9" * 5_000 + b"}}", "args", "send a JSON object"),
    "deep unknown field": (b'{"handler":"mail","zzz":' + DEEP + b"}", "zzz", "flatten"),
    "nan in unknown field": (b'{"handler":"mail","zzz":NaN}', "zzz", "null or text"),
    "id number": (b'{"handler":"mail","id":7}', "id", "wire-format"),
    "id no uuid": (b'{"handler":"mail","id":"7"}', "id", "leave it out"),
    "id nul": (b'{"handler":"mail","id":"a\\u0000"}', "id", "leave it out"),
    "naive run_at": (b'{"handler":"mail","run_at":"2030-01-01T00:00:00"}', "run_at", "offset"),
    "run_at number": (b'{"handler":"mail","run_at":1893488400}', "run_at", "wire-format"),
    "delay nan": (b'{"handler":"mail","delay_s":NaN}', "delay_s", "null or text"),
    "delay text": (b'{"handler":"mail","delay_s":"5"}', "delay_s", "wire-format"),
    "delay negative": (b'{"handler":"mail","delay_s":-1}', "delay_s", "wire-format"),
    "lane with a dot": (b'{"handler":"mail","lane":"a.b"}', "lane", "choose another name"),
    "lane star": (b'{"handler":"mail","lane":"*"}', "lane", "choose another name"),
    "lane empty": (b'{"handler":"mail","lane":""}', "lane", "choose another name"),
    "lane with a line": (b'{"handler":"mail","lane":"a\\r\\nPUB x 0"}', "lane", "choose another name"),
    "lane number": (b'{"handler":"mail","lane":5}', "lane", "wire-format"),
    "priority unknown": (b'{"handler":"mail","priority":"urgent"}', "priority", "very_low"),
    "priority number": (b'{"handler":"mail","priority":5}', "priority", "wire-format"),
    "priority upper": (b'{"handler":"mail","priority":"HIGH"}', "priority", "high"),
    "attempts float": (b'{"handler":"mail","max_attempts":1.5}', "max_attempts", "wire-format"),
    "timeout zero": (b'{"handler":"mail","timeout_s":0}', "timeout_s", "wire-format"),
    "key empty": (b'{"handler":"mail","unique_key":""}', "unique_key", "hash it"),
    "key blank": (b'{"handler":"mail","unique_key":"  "}', "unique_key", "hash it"),
    "key long": (job(unique_key="x" * 201).encode(), "unique_key", "hash it"),
    "window alone": (b'{"handler":"mail","unique_for_s":5}', "unique_for_s", "or leave it out"),
    "conflict alone": (b'{"handler":"mail","on_conflict":"reject"}', "on_conflict", "or leave it out"),
    "conflict unknown": (job(unique_key="k", on_conflict="x").encode(), "on_conflict", "return_existing"),
    "window zero": (b'{"handler":"mail","unique_key":"k","unique_for_s":0}', "unique_for_s", "wire-format"),
    "window nan": (b'{"handler":"mail","unique_key":"k","unique_for_s":NaN}', "unique_for_s", "null or text"),
    "window long": (job(unique_key="k", unique_for_s=1e12).encode(), "unique_for_s", "wire-format"),
    "key nul": (b'{"handler":"mail","unique_key":"a\\u0000"}', "unique_key", "remove it"),
    "metadata array": (b'{"handler":"mail","metadata":["a"]}', "metadata", "wire-format"),
    "metadata number": (b'{"handler":"mail","metadata":{"a":1}}', "metadata[...]", "wire-format"),
    "metadata null": (b'{"handler":"mail","metadata":{"a":null}}', "metadata[...]", "wire-format"),
    "metadata nul": (b'{"handler":"mail","metadata":{"a":"\\u0000"}}', "metadata.a", "remove it"),
    "metadata nul key": (b'{"handler":"mail","metadata":{"\\u0000":"a"}}', "metadata", "remove it"),
    "metadata large": (job(metadata={str(n): "x" * 99 for n in range(90)}).encode(), "metadata", "into args"),
    "metadata large in bytes": (job(metadata={"a": "😀" * 2_048}).encode(), "metadata", "into args"),
    "a number": (b"5", "", "one JSON object"),
    "a text": (b'"mail"', "", "one JSON object"),
    "null": (b"null", "", "one JSON object"),
    "nan": (b"NaN", "", "one JSON object"),
    "an array": (b'[{"handler":"mail"}]', "", "one JSON object"),
    "not json": (b"{handler:mail}", "", "one JSON object"),
    "single quotes": (b"{'handler':'mail'}", "", "one JSON object"),
    "pickle": (b"\x80\x04\x95\x1c\x00", "", "one JSON object"),
    "long key": (f'{{"handler":"mail","{LONG}":NaN}}'.encode(), "", "null or text"),
}
ALONE = {name: bad for name, bad in BAD.items() if name != "an array"}  # alone it is a message of one good job
GOOD = [b'{"handler":"mail","args":{"n":%d,"digits":0.1234567890123456789}}' % n for n in range(2)]


@pytest.mark.parametrize("name", ALONE)
def test_a_bad_job_alone_is_refused_with_field_and_remedy(name):
    raw, field, word = BAD[name]
    rejection = refused(raw)
    assert rejection.raw == raw
    assert field in (rejection.field, "")
    assert word in rejection.reason
    if field and not field.startswith("args"):
        assert field.split("[", maxsplit=1)[0] in rejection.reason


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("space", [b"", b" \n"])
def test_a_bad_job_spoils_no_other(name, space):
    raw, field, word = BAD[name]
    parts = [GOOD[0], raw, GOOD[1]]
    data = space + b"[" + (space + b"," + space).join(parts) + space + b"]"
    assert len(data) <= limits.MESSAGE_BYTES_MAX
    first, rejection, last = read(data)
    for good, sent in ((first, GOOD[0]), (last, GOOD[1])):
        assert isinstance(good, NewJob)
        assert good.args in sent, "digits and all"
    assert isinstance(rejection, Rejection)
    assert rejection.raw == raw
    assert field in (rejection.field, "")
    assert word in rejection.reason


def test_all_bad_kinds_together_spoil_no_good_one():
    kinds = [raw for raw, _, _ in BAD.values() if len(raw) < 5_000]
    mixed = [part for raw in kinds for part in (GOOD[0], raw)]
    parsed = read(b"[" + b",".join(mixed) + b"]")
    assert [type(one) for one in parsed] == [NewJob, Rejection] * len(kinds)
    assert [one.raw for one in parsed[1::2]] == kinds


@pytest.mark.parametrize("name", [n for n, (raw, *_) in BAD.items() if b'"handler":"mail"' in raw and n != "an array"])
def test_the_handlers_name_is_kept_beside_the_refusal(name):
    assert refused(BAD[name][0]).handler == "mail"


def test_the_id_is_kept_beside_the_refusal_also_when_the_job_cannot_be_decoded():
    rejection = refused(f'{{"handler":"mail","id":"{ID}","delay_s":NaN}}')
    assert (rejection.job_id, rejection.handler, rejection.field) == (ID, "mail", "delay_s")


def test_the_bytes_kept_are_those_that_were_sent_unknown_fields_and_all():
    raw = b'{ "handler" : "mail", "priorty": "x", "lane":"a.b" }'
    parsed = read(b"[" + GOOD[0] + b", " + raw + b"]")
    assert parsed[1].raw == raw


def test_a_comma_too_many_is_one_refusal():
    parsed = read(b"[" + GOOD[0] + b"," + GOOD[1] + b",]")
    assert [type(one) for one in parsed] == [NewJob, NewJob, Rejection]
    assert "nothing where a job should be" in parsed[2].reason


def test_of_an_array_that_is_cut_off_the_whole_jobs_come_out():
    parsed = read(b"[" + GOOD[0] + b"," + GOOD[1][:-2])
    assert [type(one) for one in parsed] == [NewJob, Rejection]
    assert parsed[1].raw == GOOD[1][:-2]


NUMBERS = ["NaN", '"5"', "-1", "0", "1e309", "true", "9223372036854775808", "[]", "{}", "-0.5", '""']
FITTING = [("delay_s", "0"), ("handler", '"5"'), ("lane", '"5"'), ("unique_key", '"5"'), ("metadata", "{}")]
MISFITS = [
    (f, n) for f in Submission.__struct_fields__ if f not in ("args", "trace") for n in NUMBERS if (f, n) not in FITTING
]


@pytest.mark.parametrize(("field", "number"), MISFITS)
def test_a_number_that_does_not_fit_its_field_is_refused_naming_the_field(field, number):
    assert refused(f'{{"handler":"mail","{field}":{number}}}').field == field


@pytest.mark.parametrize(("field", "number"), FITTING)
def test_nothing_that_fits_is_refused(field, number):
    assert accepted(f'{{"handler":"mail","{field}":{number}}}')


# -- whole messages


@pytest.mark.parametrize("data", [b"", b" ", b"\n", b"\xef\xbb\xbf", b"\0"])
def test_an_empty_message_is_refused(data):
    assert "send one JSON object" in refused(data).reason


@pytest.mark.parametrize("data", [b"[]", b" [ ] "])
def test_an_empty_array_is_refused(data):
    assert "at least one" in refused(data).reason


@pytest.mark.parametrize("filler", [job(), "5", ""], ids=["good", "bad", "empty"])
def test_an_array_of_more_than_500_is_refused_as_one(filler):
    rejection = refused(f"[{','.join([filler] * 501)}]")
    assert "500" in rejection.reason
    assert "several messages" in rejection.reason


def test_an_array_of_500_bad_ones_is_500_refusals():
    assert len(read(f"[{','.join(['5'] * 500)}]")) == 500


def test_a_message_too_large_is_refused_with_size_and_limit_and_kept_once():
    data = b'{"handler":"' + b"x" * limits.MESSAGE_BYTES_MAX + b'"}'
    rejection = refused(data)
    assert rejection.raw is data
    assert f"{len(data)} bytes, the limit is {limits.MESSAGE_BYTES_MAX}" in rejection.reason


def test_what_is_kept_of_a_message_is_never_more_than_the_message():
    data = f"[{','.join([job(lane='a.b', args={'a': 'x' * 900})] * 500)}]".encode()
    assert len(data) < limits.MESSAGE_BYTES_MAX
    assert sum(len(rejection.raw) for rejection in read(data)) < len(data)


def best_of_three(work):
    """Seconds of processor time: a busy machine does not count."""

    def once():
        before = time.thread_time()
        work()
        return time.thread_time() - before

    return min(once() for _ in range(3))


HUGE = {
    "2 MB of brackets": b"[" * 2_000_000,
    "half a MB of brackets": b"[" * limits.MESSAGE_BYTES_MAX,
    "half a MB of pairs": b"[" + b"[]," * 170_000,
    "half a MB of quotes": b"[" + b'"' * 520_000,
    "half a MB of backslashes": b'["' + b"\\" * 520_000,
    "half a MB of commas": b"[" + b"," * 520_000,
    "half a MB of members": b'{"handler":"mail"' + b',"a":1' * 80_000 + b",}",
    "20,000 deep": DEEP,
    "20,000 deep, not closed": b'{"handler":"mail","args":' + b"[" * 20_000,
    "20,000 objects deep": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "20,000 deep beside a good one": b"[" + GOOD[0] + b"," + DEEP + b"]",
    "500 bad ones": b"["
    + b",".join([b'{"handler":"mail","lane":"a.b","args":{"a":"%s"}}' % (b"x" * 900)] * 500)
    + b"]",
    "500 undecodable ones": b"["
    + b",".join([b'{"handler":"mail","args":{"a":NaN,"b":"%s"}}' % (b"x" * 900)] * 500)
    + b"]",
    "a long digit": b'{"handler":"mail","args":{"a":' + b"9" * 120_000 + b"}}",
}


@pytest.mark.parametrize("name", HUGE)
def test_no_message_however_huge_crashes_or_takes_long(name):
    assert any(isinstance(one, Rejection) for one in read(HUGE[name]))
    assert best_of_three(lambda: read(HUGE[name])) < 0.25  # under 0.1 s on an idle machine


def test_a_full_message_of_good_jobs_is_read_fast():
    data = b"[" + b",".join(GOOD * 250) + b"]"
    assert len(read(data)) == 500
    assert best_of_three(lambda: read(data)) < 0.1


# -- jobs that Python code built


def test_a_job_built_in_python_is_checked_as_strictly_as_one_from_the_wire():
    check_fields(
        Submission(handler="mail", run_at=STORED_AT, lane="bulk", priority="high", max_attempts=1, timeout_s=5)
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delay_s", float("nan")),
        ("delay_s", float("inf")),
        ("delay_s", -1),
        ("delay_s", "5"),
        ("delay_s", True),
        ("max_attempts", 0),
        ("max_attempts", 2**63),
        ("max_attempts", 1.5),
        ("max_attempts", True),
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
        ("timeout_s", 1e309),
        ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001  (that is the case)
        ("run_at", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))),
        ("run_at", "soon"),
        ("priority", "urgent"),
        ("priority", 3),
        ("unique_key", ""),
        ("unique_key", "a\ud800"),
        ("unique_key", "a\0"),
        ("unique_key", 5),
        ("metadata", {"a": 1}),
        ("metadata", {1: "a"}),
        ("metadata", {"a": "\ud800"}),
        ("metadata", [("a", "b")]),
    ],
    ids=ascii,
)
def test_what_the_wire_would_refuse_is_refused_when_built_in_python(field, value):
    with pytest.raises(InvalidJobError) as caught:
        check_fields(Submission(handler="mail", **{field: value}))
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize("field", ["handler", "lane"])
def test_a_name_is_refused_when_built_in_python(field):
    with pytest.raises(InvalidNameError):
        check_fields(Submission(**{"handler": "mail", field: "a b"}))


def test_a_foreign_type_is_refused_not_crashed_on():
    with pytest.raises(InvalidJobError):
        check_fields(Submission(handler=b"mail"))


def test_what_check_fields_passes_survives_the_wire():
    submission = Submission(handler="mail", args=Raw(b'{"a":1}'), unique_key="ü", metadata={"ü": "😀"}, delay_s=0.5)
    check_fields(submission)
    assert accepted(msgspec.json.encode(submission)).metadata == {"ü": "😀"}


NO_TRACES = [
    "x", "00-zz", TRACE + "\n", TRACE.upper(), TRACE + "-00", "ff" + TRACE[2:], 5, True, [TRACE], {"t": TRACE}, "\0",
    f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01", "ü" * 5_000,
]  # fmt: skip


@pytest.mark.parametrize("trace", NO_TRACES, ids=lambda trace: ascii(trace)[:60])
def test_a_trace_that_is_none_never_harms_its_job(trace):
    assert accepted(job(trace=trace).encode()).trace is None
    check_fields(Submission(handler="mail", trace=trace))


def test_of_a_traceparent_to_come_the_part_that_is_known_counts():
    assert accepted(job(trace="01" + TRACE[2:] + "-more").encode()).trace == "01" + TRACE[2:]
    assert accepted(job(trace=TRACE).encode()).trace == TRACE
