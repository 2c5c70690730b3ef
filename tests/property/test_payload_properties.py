"""Payload checks against oracles that share no code with them: Python's own parser, and Postgres' rules in words."""

import json
import math

import msgspec
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from jm_core.errors import InvalidJobError
from jm_core.payload import check_args, check_no_lost_floats, check_result, cut_text
from jm_core.scan import depth_of, elements, members

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
wild_texts = st.text(st.characters() | st.sampled_from('\0\ud800\udfff"\\[]{},:'), max_size=8)
numbers = st.one_of(st.integers(), st.integers(-(10**40), 10**40), st.floats(allow_nan=False, allow_infinity=False))
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=10
)
wild_leaves = leaves | wild_texts | st.sampled_from([math.nan, math.inf, -math.inf])
wild_values = st.recursive(
    wild_leaves, lambda v: st.lists(v, max_size=4) | st.dictionaries(wild_texts, v, max_size=4), max_leaves=10
)
objects = st.dictionaries(texts, values, max_size=4)


def walk_depth(value):
    if isinstance(value, dict):
        return 1 + max(map(walk_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(walk_depth, value), default=0)
    return 0


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_the_depth_is_that_of_the_parsed_value(value, ascii_only, indent):
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert depth_of(raw) == walk_depth(value)


@given(st.integers(0, 300), st.lists(st.sampled_from(["[", "{"]), min_size=1, max_size=3))
def test_the_depth_of_a_tower_is_its_height(height, kinds):
    value, expected = 1, 0
    for level in range(height):
        value = [value, "[[["] if kinds[level % len(kinds)] == "[" else {'{"[': value}
        expected += 1
    assert depth_of(json.dumps(value).encode()) == expected


@given(st.binary(max_size=300) | wild_texts.map(lambda t: t.encode("utf-8", "surrogatepass")))
@example(b'"\\')
@example(b'["\\"')
def test_no_bytes_whatever_upset_the_scanner(raw):
    assert depth_of(raw) >= 0
    parts = elements(raw, at_most=20)
    assert len(parts) <= 21
    assert sum(map(len, parts)) <= len(raw)
    for key, value in members(raw, at_most=20):
        assert key + value in raw or key in raw


@given(st.lists(values, max_size=4), st.booleans(), st.sampled_from([None, 2]))
def test_elements_are_those_of_the_parsed_array(items, ascii_only, indent):
    raw = json.dumps(items, ensure_ascii=ascii_only, indent=indent).encode()
    assert [json.loads(part) for part in elements(raw, at_most=100)] == items


@given(objects, st.booleans())
def test_members_are_those_of_the_parsed_object(value, ascii_only):
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert {json.loads(k): json.loads(v) for k, v in members(raw, at_most=100)} == value


@given(st.lists(values, max_size=4), st.sampled_from([b"NaN", b"tru", b"{'a':1}", b"\xff", b"01", b'{"a"}']), st.data())
def test_good_elements_come_out_whole_beside_a_bad_one(items, bad, data):
    parts = [json.dumps(item).encode() for item in items]
    place = data.draw(st.integers(0, len(parts)))
    parts.insert(place, bad)
    assert elements(b"[" + b",".join(parts) + b"]", at_most=100) == parts


# -- check_args


def texts_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


def refuse_constant(name):
    raise ValueError(name)


def finite(text):
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def oracle(raw):
    """Whether ``raw`` may be stored, by Python's parser and Postgres' documented limits."""
    if len(raw) > 131_072:
        return False
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=refuse_constant, parse_float=finite)
    except (ValueError, RecursionError):  # decode errors among them
        return False
    if not isinstance(value, dict) or walk_depth(value) > 100:
        return False
    # jsonb: no NUL, and text must be encodable (Python's parser lets half a surrogate pair pass).
    return not any("\0" in text or any(0xD800 <= ord(c) <= 0xDFFF for c in text) for text in texts_in(value))


def ours(raw):
    try:
        check_args(raw)
    except InvalidJobError as error:
        # Any other error counts as "passed", so that the comparison fails.
        return not (error.field.startswith("args") and len(str(error)) < 400)
    return True


@settings(max_examples=120)
@given(wild_values, st.booleans(), st.booleans())
@example({"a": "\0"}, True, True)
@example({"a": "\ud83d\ude00"}, True, True)
@example({"\\u0000": "\\\\u0000"}, True, True)
def test_args_pass_exactly_when_the_oracle_passes_them(value, wrapped, ascii_only):
    value = {"a": value} if wrapped else value
    raw = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert ours(raw) == oracle(raw)


@settings(max_examples=80)
@given(objects, st.data())
def test_damaged_args_pass_exactly_when_the_oracle_passes_them(value, data):
    raw = bytearray(json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.sampled_from(b'"\\{}[]:,0e-.\x00\xff u') | st.integers(0, 255))
    # Exponents that a float cannot hold but rounds to zero are refused by us, and that has tests of its own.
    assume(not (b"e-" in raw or b"E-" in raw))
    assert ours(bytes(raw)) == oracle(bytes(raw))


@given(objects)
def test_what_the_encoder_writes_passes_and_comes_back_equal(value):
    raw = msgspec.json.encode(value)
    assume(oracle(raw))
    check_args(raw)
    assert json.loads(raw) == value


@given(wild_values)
def test_a_value_is_refused_for_a_lost_float_exactly_when_it_holds_one(value):
    def holds_one(item):
        if isinstance(item, float):
            return not math.isfinite(item)
        return any(map(holds_one, item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()))

    try:
        raw = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return
    try:
        check_no_lost_floats(value, raw, "args")
        refused = False
    except InvalidJobError:
        refused = True
    assert refused == holds_one(value)


@given(values)
def test_a_result_that_python_could_encode_passes(value):
    raw = msgspec.json.encode(value)
    assume("\\u0000" not in raw.decode())
    check_result(raw)


# -- cut_text


@given(wild_texts, st.integers(0, 60), st.integers(1, 50))
def test_a_cut_text_is_valid_within_its_bytes_and_begins_like_the_whole(text, bytes_max, times):
    text *= times
    cut = cut_text(text, bytes_max)
    assert len(cut.encode("utf-8")) <= bytes_max  # and encodes at all
    assert "\0" not in cut
    whole = cut_text(text, 10**9)
    if len(whole.encode()) <= bytes_max:
        assert cut == whole
    else:
        assert whole.startswith(cut.partition("…")[0])


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_a_text_that_fits_is_returned_as_it_is(text):
    assert cut_text(text, len(text.encode())) == text
