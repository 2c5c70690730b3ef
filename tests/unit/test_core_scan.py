import time

import pytest

from jm_core.scan import depth_of, elements, members

MANY = 501


def best_of_three(work):
    """Seconds of processor time: a busy machine does not count."""

    def once():
        before = time.thread_time()
        work()
        return time.thread_time() - before

    return min(once() for _ in range(3))


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (b"", 0),
        (b"1", 0),
        (b"{}", 1),
        (b'[{"a":[]}]', 3),
        (b'"[[["', 0),
        (b'["]", [1]]', 2),
        (b'"\\"[["', 0),
        (b'["\\\\"[', 2),
        (b'["\\\\\\"[', 1),
        (b"][", 0),
        (b'"[[', 0),
    ],
)
def test_brackets_count_outside_texts_only(text, depth):
    assert depth_of(text) == depth


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"[]", []),
        (b" [ \n ] ", []),
        (b"[1]", [b"1"]),
        (b'[ {"a":[1,2]} , "x,]" , 3.50 ]', [b'{"a":[1,2]}', b'"x,]"', b"3.50"]),
        (b'["\\",", "\\\\"]', [b'"\\","', b'"\\\\"']),
        (b"[[1],[2,3]]", [b"[1]", b"[2,3]"]),
        (b"[1,]", [b"1", b""]),
        (b"[,1]", [b"", b"1"]),
        (b"[NaN,1e999,tru,\xff]", [b"NaN", b"1e999", b"tru", b"\xff"]),
    ],
    ids=str,
)
def test_elements_come_out_as_they_were_written(text, parts):
    assert elements(text, at_most=MANY) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"[1],2", [b"1", b",2"]),
        (b"[1]]", [b"1", b"]"]),
        (b"[1,2", [b"1", b"2"]),
        (b'[1,{"b":[1},3]', [b"1", b'{"b":[1},3]']),
        (b'[1,"open,2]', [b"1", b'"open,2]']),
        (b"[", [b""]),
        (b"", [b""]),
        (b"5", [b"5"]),
        (b"],[1]", [b"1"]),
    ],
    ids=str,
)
def test_where_brackets_or_quotes_do_not_match_the_rest_is_one_element(text, parts):
    assert elements(text, at_most=MANY) == parts


def test_the_cutting_stops_where_it_is_told():
    assert elements(b"[1,2,3,4,5]", at_most=3) == [b"1", b"2", b"3,4,5]"]


def test_members_are_told_apart_and_unreadable_ones_left_out():
    text = b'{ "a" : 1, "b\\"" : {"c":[1,2]}, oops, "d":NaN, "e" }'
    assert members(text, at_most=MANY) == [(b'"a"', b"1"), (b'"b\\""', b'{"c":[1,2]}'), (b'"d"', b"NaN")]


@pytest.mark.parametrize("text", [b"", b"[]", b"5", b"{}", b"\xff\x00", b'"'])
def test_members_of_what_has_none_are_none(text):
    assert members(text, at_most=MANY) == []


@pytest.mark.parametrize(
    "text",
    [b"[" * 512_000, b"[" + b"," * 512_000, b'["' + b"\\" * 512_000, b"[" + b'"' * 512_000, b"[" + b" " * 512_000],
    ids=["brackets", "commas", "backslashes", "quotes", "spaces"],
)
@pytest.mark.parametrize(
    "read", [depth_of, lambda text: elements(text, at_most=MANY), lambda text: members(text, at_most=MANY)]
)
def test_half_a_megabyte_of_anything_takes_no_time(read, text):
    assert best_of_three(lambda: read(text)) < 0.3  # twenty times less on an idle machine


def test_the_depth_of_two_megabytes_of_brackets_is_counted():
    assert depth_of(b"[" * 2_000_000) == 2_000_000
