import dataclasses
import functools
import json
import math
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from jm_core import limits
from jm_core.errors import InvalidJobError, InvalidNameError, InvalidSettingError
from jm_core.model import Priority
from jm_core.retry import DEFAULT_BACKOFF, Delays, Exponential, Fixed
from jm_nats import JobMaster
from jm_nats.context import JobContext
from jm_nats.handlers import ArgumentsError


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Tree(msgspec.Struct):
    value: int
    children: list["Tree"] = []


class Address(TypedDict):
    street: str


class Picky(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number == 0:
            raise ValueError("zero will not do")
        self.inverse = {1: 1.0, 2: 0.5}[self.number]  # KeyError for all others


class Session:
    """Nothing that JSON could hold."""


@pytest.fixture
def app():
    return JobMaster("c")


def declare(function, name="mail", **settings):
    return JobMaster("c").handler(name, **settings)(function)


async def plain(to: str, times: int = 1, *, note: str | None = None) -> None:
    """The handler of most tests below."""


def decode(handler, **args):
    return handler.decode_args(msgspec.json.encode(args))


# -- declaring


def test_a_handler_has_the_documented_defaults(app):
    handler = app.handler("mail")(plain)
    assert app.handlers == {"mail": handler}
    assert (handler.lane, handler.priority, handler.executor) == ("default", Priority.MEDIUM, "async")
    assert (handler.max_attempts, handler.timeout_s) == (limits.MAX_ATTEMPTS, limits.JOB_TIMEOUT_S)
    assert handler.backoff == DEFAULT_BACKOFF


def test_what_the_cluster_is_told_is_what_was_declared():
    handler = declare(
        plain, lane="bulk", priority=Priority.HIGH, max_attempts=2, timeout=timedelta(minutes=1), backoff=7
    )
    told = handler.defaults()
    assert (told.lane, told.priority, told.max_attempts, told.timeout_s) == ("bulk", "high", 2, 60.0)
    assert told.backoff == Fixed(7.0)


@pytest.mark.parametrize(
    ("given", "policy"),
    [(5, Fixed(5.0)), (0.5, Fixed(0.5)), ([1, 5.5], Delays((1.0, 5.5))), ((timedelta(minutes=1),), Delays((60.0,)))],
)
def test_a_backoff_may_be_a_number_or_a_list_of_waits(given, policy):
    assert declare(plain, backoff=given).backoff == policy


def test_a_handler_can_still_be_called_like_the_function_it_is():
    handler = declare(lambda a, b=2: a + b)
    assert handler(1) == 3


def test_the_executor_follows_from_the_kind_of_function():
    assert declare(plain).executor == "async"
    assert declare(lambda: None).executor == "thread"
    assert declare(decode, executor="process").executor == "process"


def test_the_lanes_of_an_app_are_those_of_its_handlers_and_the_default(app):
    app.handler("a", lane="bulk")(plain)
    assert app.lanes() == ["bulk", "default"]


def test_a_name_can_be_taken_once(app):
    app.handler("mail")(plain)
    with pytest.raises(InvalidSettingError, match=r"'mail' is already test_handlers\.plain; choose another"):
        app.handler("mail")(decode)


def test_a_decorator_without_a_name_is_told_what_to_write(app):
    with pytest.raises(InvalidSettingError, match=r"write @app\.handler\('name'\)"):
        app.handler(plain)


@pytest.mark.parametrize("name", ["", "a b", ".a", "x" * 101, "a\n", "ü"])
def test_a_handler_name_outside_the_pattern_is_refused(name):
    with pytest.raises(InvalidNameError):
        declare(plain, name)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": limits.ATTEMPTS_MAX + 1}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": "4"}, "max_attempts"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": timedelta(days=8)}, "timeout"),
        ({"backoff": None}, "backoff"),
        ({"backoff": "5"}, "backoff"),
        ({"backoff": []}, "backoff"),
        ({"backoff": ["5"]}, "backoff"),
        ({"backoff": -1}, "backoff"),
        ({"backoff": math.nan}, "backoff"),
        ({"backoff": True}, "backoff"),
        ({"backoff": Exponential(factor=0.5)}, "backoff"),
        ({"priority": "high"}, "priority"),
        ({"priority": 9}, "priority"),
        ({"priority": True}, "priority"),
        ({"executor": "fork"}, "executor"),
        ({"executor": "thread"}, "executor"),
        ({"executor": "process"}, "executor"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_at_import_naming_handler_and_setting(settings, word):
    with pytest.raises(InvalidSettingError, match=f"handler 'mail': .*{word}"):
        declare(plain, **settings)


@pytest.mark.parametrize("lane", ["", "a.b", "*", "a b"])
def test_a_wrong_lane_is_refused_at_import(lane):
    with pytest.raises(InvalidNameError):
        declare(plain, lane=lane)


def positional_only(a, /):
    pass


def star(*args):
    pass


def takes_a_submit_option(delay):
    pass


def generator():
    yield 1


async def async_generator():
    yield 1


def unreadable(a: "Missing"):  # noqa: F821  (that is the case)
    pass


def takes_a_path(path: Path):
    pass


def takes_a_list_of_sessions(sessions: list[Session] | None = None):
    pass


def takes_a_hidden_session(box: dict[str, tuple[int, Session]]):
    pass


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (positional_only, "'a' is positional"),
        (star, "'args' is positional"),
        (takes_a_submit_option, "'delay' is the name of a submit option; rename it"),
        (generator, "cannot be a generator"),
        (async_generator, "cannot be a generator"),
        (unreadable, "annotations cannot be read.*Missing"),
        (takes_a_path, "JSON has no Path"),
        (takes_a_list_of_sessions, "JSON has no Session"),
        (takes_a_hidden_session, "JSON has no Session"),
        (Session, "is no function"),
        (5, "is no function"),
        (functools.partial(decode), "annotations cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_function_that_no_job_could_call_is_refused_at_import(function, words):
    with pytest.raises(InvalidSettingError, match=f"handler 'mail': .*{words}"):
        declare(function)


@pytest.mark.parametrize("make", [lambda: lambda: None, lambda: functools.partial(decode)])
def test_a_process_handler_must_be_importable(make):
    with pytest.raises(InvalidSettingError):
        declare(make(), executor="process")


@pytest.mark.parametrize("option", ["client", "wait", "run_at", "lane", "priority", "timeout", "metadata", "job_id"])
def test_every_submit_option_is_reserved(option):
    namespace: dict[str, Any] = {}
    exec(f"async def function({option}): ...", namespace)
    with pytest.raises(InvalidSettingError, match="rename it"):
        declare(namespace["function"])


# -- arguments


def test_arguments_that_fit_pass_and_defaults_stay_pythons():
    handler = declare(plain)
    assert decode(handler, to="ada") == {"to": "ada"}
    assert decode(handler, to="ada", times=2, note=None) == {"to": "ada", "times": 2, "note": None}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "missing required field `to`"),
        ({"to": 5}, "Expected `str`, got `int` - at `to`"),
        ({"to": "a", "times": "2"}, "Expected `int.*got `str` - at `times`"),
        ({"to": "a", "times": 2.5}, "at `times`"),
        ({"to": "a", "times": None}, "at `times`"),
        ({"to": "a", "tmies": 2}, "unknown field `tmies`"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused_on_both_sides_alike(args, words):
    handler = declare(plain)
    for check in (lambda: handler.encode_args(args), lambda: decode(handler, **args)):
        with pytest.raises(ArgumentsError, match=f"handler 'mail': .*{words}") as caught:
            check()
        assert caught.value.field == "args"


@pytest.mark.parametrize(
    "raw", [b"[]", b"null", b'"x"', b"{", b"", b"\xff", b'{"to":' + b"[" * 20_000, b'{"to":1e999}']
)
def test_what_is_no_object_at_all_is_an_arguments_error(raw):
    with pytest.raises(ArgumentsError):
        declare(plain).decode_args(raw)


async def typed(
    *,
    when: datetime,
    amount: Decimal,
    key: uuid.UUID,
    day: date,
    colour: Colour,
    point: Point,
    tree: Tree,
    address: Address,
    size: Literal["s", "m"],
    count: Annotated[int, msgspec.Meta(ge=1)],
    data: bytes,
    pairs: list[tuple[str, int]],
    anything: Any,
    thing: object = None,
    table: Mapping[str, float] | None = None,
):
    pass


def test_arguments_arrive_as_the_types_they_were_annotated_with():
    handler = declare(typed)
    args = {
        "when": datetime(2030, 1, 1, tzinfo=UTC),
        "amount": Decimal("1.10"),
        "key": uuid.UUID(int=5),
        "day": date(2030, 1, 1),
        "colour": Colour.RED,
        "point": Point(1, 2),
        "tree": Tree(1, [Tree(2)]),
        "address": {"street": "x"},
        "size": "m",
        "count": 3,
        "data": b"\x00\xff",
        "pairs": [("a", 1)],
        "anything": {"deep": [None]},
        "thing": 5,
        "table": {"x": 1.5},
    }
    assert handler.decode_args(bytes(handler.encode_args(args))) == args


def test_a_constraint_is_checked():
    def function(count: Annotated[int, msgspec.Meta(ge=1)] = 1):
        pass

    with pytest.raises(ArgumentsError, match=">= 1"):
        declare(function).encode_args({"count": 0})


@pytest.mark.parametrize(("number", "words"), [(0, "zero will not do"), (7, "KeyError")])
def test_whatever_an_annotated_types_own_code_raises_is_an_arguments_error(number, words):
    def function(picky: Picky):
        pass

    with pytest.raises(ArgumentsError, match=words):
        declare(function).decode_args(json.dumps({"picky": {"number": number}}).encode())


def test_an_unknown_key_of_any_length_makes_no_long_error():
    with pytest.raises(ArgumentsError) as caught:
        declare(plain).decode_args(json.dumps({"x" * 100_000: 1}).encode())
    assert len(str(caught.value)) < 500


def any_arguments(to: str, when: datetime | None = None, **others):
    pass


def test_named_arguments_are_checked_beside_free_ones():
    handler = declare(any_arguments)
    decoded = decode(handler, to="ada", when="2030-01-01T00:00:00Z", extra=[1], more=None)
    assert decoded == {"to": "ada", "when": datetime(2030, 1, 1, tzinfo=UTC), "extra": [1], "more": None}
    for wrong in ({}, {"to": 5}, {"to": "a", "when": "soon"}):
        with pytest.raises(ArgumentsError):
            decode(handler, **wrong)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_would_turn_into_null_is_refused_where_it_is_submitted(number):
    def function(data: Any):
        pass

    with pytest.raises(InvalidJobError, match=r"args\.data\[0\].*is not JSON"):
        declare(function).encode_args({"data": [number]})


@pytest.mark.parametrize(
    "value",
    [object(), {1, object()}, "\ud800", 10**5_000, {"a": {None: 1}}, lambda: 0, "\0", ["x" * 140_000]],
    ids=type,
)
def test_what_json_cannot_hold_is_refused_where_it_is_submitted(value):
    def function(data: Any):
        pass

    with pytest.raises(InvalidJobError):
        declare(function).encode_args({"data": value})


def test_a_value_too_deep_or_circular_is_refused_where_it_is_submitted():
    def function(data: Any):
        pass

    circle: list[Any] = []
    circle.append(circle)
    tower: list[Any] = []
    for _ in range(500):
        tower = [tower, math.nan]
    for value in (circle, tower):
        with pytest.raises(InvalidJobError):
            declare(function).encode_args({"data": value})


# -- the context


async def with_context(to: str, ctx: JobContext):
    pass


async def with_optional_context(to: str, ctx: JobContext | None = None):
    pass


@pytest.mark.parametrize("function", [with_context, with_optional_context])
def test_the_context_is_found_by_its_annotation_and_is_no_argument(function):
    handler = declare(function)
    assert handler.context_parameter == "ctx"
    assert decode(handler, to="ada") == {"to": "ada"}
    with pytest.raises(ArgumentsError, match="unknown field `ctx`"):
        decode(handler, to="ada", ctx={})


def test_a_handler_without_a_context_is_given_none():
    assert declare(plain).context_parameter is None


# -- making jobs


def test_a_job_carries_the_handlers_defaults_and_an_id():
    job = declare(plain, lane="bulk", max_attempts=2, timeout=7).job({"to": "ada"})
    assert uuid.UUID(job.id).version == 7
    assert (job.handler, bytes(job.args)) == ("mail", b'{"to":"ada"}')
    assert (job.lane, job.priority, job.max_attempts, job.timeout_s) == ("bulk", "medium", 2, 7.0)
    assert (job.run_at, job.delay_s, job.unique_key, job.metadata) == (None, None, None, None)


def test_options_replace_the_defaults():
    due = datetime(2030, 1, 1, tzinfo=UTC)
    job = declare(plain).job(
        {"to": "ada"},
        run_at=due,
        lane="mine",
        priority=Priority.CRITICAL,
        max_attempts=9,
        timeout=0.5,
        unique_key="k",
        unique_for=timedelta(minutes=1),
        on_conflict="replace",
        metadata={"a": "b"},
        job_id="018F3B1E-0000-7000-8000-00000000ABCD",
    )
    assert (job.run_at, job.lane, job.priority, job.max_attempts, job.timeout_s) == (due, "mine", "critical", 9, 0.5)
    assert (job.unique_for_s, job.on_conflict) == (60.0, "replace")
    assert (job.unique_key, job.metadata, job.id) == ("k", {"a": "b"}, "018f3b1e-0000-7000-8000-00000000abcd")


def test_a_delay_may_be_a_timedelta():
    assert declare(plain).job({"to": "ada"}, delay=timedelta(minutes=2)).delay_s == 120.0


def test_rows_become_jobs_with_ids_of_their_own():
    jobs = list(declare(plain).jobs(({"to": str(n)} for n in range(100)), lane="bulk", delay=5))
    assert [json.loads(bytes(job.args))["to"] for job in jobs] == [str(n) for n in range(100)]
    assert len({job.id for job in jobs}) == 100
    assert {(job.lane, job.delay_s) for job in jobs} == {("bulk", 5)}


def test_a_bad_row_is_named_and_those_before_it_have_come_out():
    jobs = declare(plain).jobs([{"to": "a"}, {"to": "b"}, {"to": 3}, {"to": "d"}])
    assert [bytes(next(jobs).args) for _ in range(2)] == [b'{"to":"a"}', b'{"to":"b"}']
    with pytest.raises(InvalidJobError, match=r"field 'row 2': .*at `to`.*; mend or drop that row"):
        next(jobs)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"job_id": "x"}, "job_id"),
        ({"unique_key": "x"}, "unique_key"),
        ({"unique_for": 5}, "unique_for"),
        ({"on_conflict": "reject"}, "on_conflict"),
        ({"prioritee": 1}, "prioritee"),
        ({"priority": "high"}, "priority"),
        ({"delay": -1}, "delay_s"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),  # noqa: DTZ001  (that is the case)
    ],
    ids=str,
)
def test_options_of_many_jobs_are_checked_before_the_first_comes_out(options, word):
    with pytest.raises(InvalidJobError, match=word):
        next(declare(plain).jobs([{"to": "a"}], **options))


def test_no_rows_are_no_jobs():
    assert list(declare(plain).jobs([])) == []
