import dataclasses
import enum
import math
import re

import msgspec
import pytest
from msgspec import Raw

from jm_core import limits
from jm_core.errors import InvalidJobError
from jm_core.payload import check_args, check_no_lost_floats, check_result, cut_text


def nested(depth, opening=b"[", closing=b"]"):
    return b'{"a":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"


def refusal(raw, check=check_args):
    with pytest.raises(InvalidJobError) as caught:
        check(raw)
    assert len(str(caught.value)) < 300
    return caught.value


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"{ }",
        b'{"id":1970670598291982290,"n":9007199254740993,"x":3544790567247868102}',
        b'{"n":0.1234567890123456789}',
        b'{"n":' + b"9" * 4_300 + b"}",
        b'{"n":5e-324,"m":1.7976931348623157e308,"z":-0,"y":0E-3,"w":1E+5}',
        '{"text":"ünï 😀 \\ud83d\\ude00 \\u0001 \\\\u0000"}'.encode(),
        b'{"a":1,"a":2}',
        nested(limits.ARGS_DEPTH_MAX),
        b'{"a":"' + b"[" * 1_000 + b'"}',
        b'{"a":"' + b"e-999 " * 1_000 + b'"}',
        b'{"a":[' + b"[],{}," * 1_000 + b"1]}",
        b'{"a":"' + b"x" * (limits.ARGS_BYTES_MAX - 8) + b'"}',
    ],
    ids=lambda raw: raw[:30].decode(),
)
def test_what_python_and_postgres_both_hold_passes(raw):
    check_args(raw)


@pytest.mark.parametrize("raw", [b'"x"', b"5", b"[1]", b"true", b"null", b"1.5"])
def test_args_that_are_no_object_are_refused_alike(raw):
    error = refusal(raw)
    assert error.field == "args"
    assert "Expected `object`" in error.problem
    assert "send a JSON object" in error.remedy


@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"{", b'{"a"}', b'{"a":}', b"{'a':1}", b'{"a":1,}', b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1e400}',
     b'{"a":-1e309}', b'{"a":01}', b'{"a":1.}', b'{"a":"\xff"}', b'{"\xff":1}', b'{"a":"\xed\xa0\x80"}',
     b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}', b'{"a":"\x01"}', b'{"a":"\x00"}', b'{"a":1}\x00', b'{"a":1} x',
     b'\xef\xbb\xbf{"a":1}', b"{1:2}", b'{"a":' + b"9" * 4_301 + b"}", b'{"a":tru}'],
    ids=lambda raw: ascii(raw[:20].decode("latin1")),
)  # fmt: skip
def test_text_that_is_no_json_is_refused_naming_args(raw):
    assert refusal(raw).field == "args"


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"a":"x\\u0000y"}', "args.a"),
        (b'{"a":{"b":[0,{"c":"\\u0000"}]}}', "args.a.b[1].c"),
        (b'{"\\u0000":1}', "args (key '\\x00')"),
        (b'{"a":{"k\\u0000":1}}', "args.a (key 'k\\x00')"),
    ],
    ids=str,
)
def test_a_nul_is_found_and_its_path_named(raw, path):
    error = refusal(raw)
    assert error.field == path
    assert "NUL" in error.problem
    assert "remove it" in error.remedy


def test_a_path_of_long_keys_stays_short():
    raw = b'{"' + b"k" * 60_000 + b'":{"' + b"l" * 60_000 + b'":"\\u0000"}}'
    assert len(refusal(raw).field) <= limits.PATH_CHARS_MAX


@pytest.mark.parametrize("depth", [limits.ARGS_DEPTH_MAX + 1, 1_100, 20_000])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_one_level_too_many_is_refused_like_twenty_thousand(depth, brackets):
    error = refusal(nested(depth, *brackets))
    assert "nested deeper than 100 levels" in error.problem
    assert "flatten" in error.remedy


def test_one_byte_too_many_is_refused_with_size_and_limit():
    error = refusal(b'{"a":"' + b"x" * (limits.ARGS_BYTES_MAX - 7) + b'"}')
    assert error.problem == "131073 bytes, the limit is 131072"
    assert "reference" in error.remedy


@pytest.mark.parametrize(
    "number", [b"1e-325", b"1e-16384", b"1e-999999999999999999999", b"0e-0000400", b"1." + b"9" * 4_300]
)
def test_a_number_that_only_postgres_or_only_python_could_hold_is_refused(number):
    error = refusal(b'{"a":' + number + b"}")
    assert "a number" in error.problem
    assert "text" in error.remedy


@pytest.mark.parametrize("number", [b"1e308", b"1e-308", b"1E+300"])
def test_numbers_that_postgres_writes_in_full_count_in_full(number):
    # Read back from jsonb these are 300 characters each; 20,000 of them would not fit any message to a worker.
    raw = b'{"a":[' + b",".join([number] * 15_000) + b"]}"
    assert len(raw) < limits.ARGS_BYTES_MAX
    assert "written in full" in refusal(raw).problem


def test_an_ordinary_table_of_floats_passes():
    check_args(msgspec.json.encode({"rows": [[i * 1.234e-5, i / 7, -i * 1e-9] for i in range(1_500)]}))


@pytest.mark.parametrize("raw", [b"null", b'"x"', b"5", b"[1]", b"true", b"{}", nested(limits.ARGS_DEPTH_MAX)])
def test_a_result_may_be_any_json(raw):
    check_result(raw)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b'"' + b"x" * limits.RESULT_BYTES_MAX + b'"', "the limit is 65536"),
        (nested(limits.ARGS_DEPTH_MAX + 1), "nested deeper"),
        (b'["\\u0000"]', "NUL"),
        (b"garbage", "malformed"),
        (b"1e-400", "exponent"),
        (b"[" + b"1e308," * 10_000 + b"1]", "written in full"),
        (b'{"a":[1e999]}', "out of range - at `result"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_result_that_cannot_be_stored_is_refused(raw, problem):
    error = refusal(raw, check_result)
    assert error.field.startswith("result")
    assert problem in error.problem


class Measure(float, enum.Enum):
    UNKNOWN = math.nan


@dataclasses.dataclass
class Point:
    x: float


class Box(msgspec.Struct):
    inside: object


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda n: n, "result"),
        (lambda n: {"a": [1, n]}, "result.a[1]"),
        (lambda n: (0, {"b": n}), "result[1].b"),
        (lambda n: {n}, "result[0]"),
        (Point, "result.x"),
        (Box, "result.inside"),
        (lambda n: [None, Box([Point(n)])], "result[1].inside[0].x"),
        (lambda n: [Raw(b"null"), n], "result[1]"),
    ],
)
def test_a_float_that_json_would_lose_is_found_in_whatever_the_encoder_accepts(wrap, path, number):
    value = wrap(number)
    with pytest.raises(InvalidJobError, match="is not JSON; send null or text") as caught:
        check_no_lost_floats(value, msgspec.json.encode(value), "result")
    assert caught.value.field == path


def test_an_enum_of_nan_is_found_too():
    with pytest.raises(InvalidJobError):
        check_no_lost_floats([Measure.UNKNOWN], msgspec.json.encode([Measure.UNKNOWN]), "result")


def test_an_honest_null_passes():
    value = {"a": None, "b": [1.5, None], "c": Raw(b"null")}
    check_no_lost_floats(value, msgspec.json.encode(value), "args")


def test_a_value_too_deep_to_walk_is_refused_for_its_depth():
    value = [math.nan]
    for _ in range(300):
        value = [value]
    with pytest.raises(InvalidJobError, match="nested deeper"):
        check_no_lost_floats(value, msgspec.json.encode(value), "args")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain", "plain"), ("", ""), ("a\0b", "a\\u0000b"), ("a\ud800b", "a\\ud800b"), ("ünï 😀", "ünï 😀")],
    ids=ascii,
)
def test_a_short_text_is_kept_with_what_postgres_cannot_hold_made_visible(text, expected):
    assert cut_text(text, 100) == expected


@pytest.mark.parametrize("char", ["x", "ü", "€", "😀", "\0", "\ud800"], ids=ascii)
@pytest.mark.parametrize("bytes_max", [0, 1, 5, 18, 19, 20, 21, 100, 8_192])
def test_a_cut_text_keeps_its_bound_and_says_what_it_was(char, bytes_max):
    cut = cut_text(char * 10_000, bytes_max)
    assert len(cut.encode()) <= bytes_max
    if bytes_max >= 100:
        assert re.search(r"… \[cut, \d+ bytes\]$", cut)


def test_a_text_of_exactly_the_bound_is_not_cut():
    assert cut_text("€" * 10, 30) == "€" * 10
