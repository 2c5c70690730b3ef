"""What is given to ``submit`` besides the arguments: each wrong option is refused by name, none is taken for absent."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest

from jm_core.errors import InvalidJobError, InvalidNameError
from jm_core.model import Priority
from jm_core.wire import Submission
from jm_nats import JobMaster, submission
from jm_nats.client import prepared

jm = JobMaster("test")
FIELDS = {"delay": "delay_s", "timeout": "timeout_s", "priority": "priority", "max_attempts": "max_attempts"}
WRONG = [math.nan, math.inf, -1, True, 2**63, "5", "", [], {}]


@jm.handler("job", lane="mail", priority=Priority.HIGH, max_attempts=7, timeout=33)
async def handler(a: object = None) -> None: ...


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("option", FIELDS)
def test_a_wrong_option_is_refused_by_every_way_of_making_a_job(option, value):
    field = FIELDS[option]
    ways = [
        lambda: handler.job({}, **{option: value}),
        lambda: list(handler.jobs([{}], **{option: value})),
        lambda: submission("job", {}, **{field: value}),
        lambda: prepared(Submission(handler="job", **{field: value})),
    ]
    for way in ways:
        with pytest.raises(InvalidJobError, match=f"field '{field}': .+; .+"):
            way()


@pytest.mark.parametrize("option", ["timeout", "max_attempts", "priority"])
def test_zero_is_not_taken_for_absent(option):
    with pytest.raises(InvalidJobError, match=f"field '{FIELDS[option]}'"):
        handler.job({}, **{option: 0})


@pytest.mark.parametrize("metadata", ["text", [], {"a": 1}, {"a": "\0"}, {1: "a"}])
def test_metadata_is_text_to_text(metadata):
    with pytest.raises(InvalidJobError, match="field 'metadata"):
        handler.job({}, metadata=metadata)


@pytest.mark.parametrize("lane", ["", "a.b", "*", "a" * 41])
def test_a_lane_is_a_name(lane):
    with pytest.raises(InvalidNameError, match="lane"):
        handler.job({}, lane=lane)


def test_what_is_left_out_or_none_is_the_handlers_own():
    nothing = dict.fromkeys(("lane", "priority", "max_attempts", "timeout", "delay", "run_at", "metadata"))
    for job in (handler.job({}), handler.job({}, **nothing), *handler.jobs([{}], **nothing)):
        assert (job.lane, job.priority, job.max_attempts, job.timeout_s) == ("mail", "high", 7, 33)
        assert (job.delay_s, job.run_at, job.metadata) == (None, None, None)


def test_what_is_given_is_taken():
    job = handler.job({}, priority=Priority.LOW, delay=timedelta(minutes=1), metadata=MappingProxyType({"a": "b"}))
    assert (job.priority, job.delay_s, job.metadata) == ("low", 60.0, {"a": "b"})
    due = datetime(2030, 1, 1, tzinfo=UTC)
    assert submission("job", {"a": 1}, run_at=due, delay_s=None, priority="low").run_at == due


@pytest.mark.parametrize("value", [math.nan, {"deep": [-math.inf]}])
def test_no_float_is_turned_into_null_on_the_way(value):
    for way in (lambda: handler.job({"a": value}), lambda: submission("job", {"a": value})):
        with pytest.raises(InvalidJobError, match=r"field 'args\.a.*is not JSON; send null or text instead"):
            way()


@pytest.mark.parametrize("value", [object(), "\ud800", 10**5_000], ids=["object", "surrogate", "long"])
def test_what_is_not_json_is_refused_as_arguments(value):
    for way in (lambda: handler.job({"a": value}), lambda: submission("job", {"a": value})):
        with pytest.raises(InvalidJobError, match=r"field 'args': .*not JSON"):
            way()
