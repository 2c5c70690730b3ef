"""What follows from a cluster's settings, and which changes there can be."""

import importlib
import itertools
import pkgutil

import msgspec
import pytest

import jm_core
import jm_core.api
from jm_core import api_control, wire
from jm_core.api_archived import ANSWERED_WHEN_ARCHIVED, LOOK_THEMSELVES, is_answered
from jm_core.cluster import (
    BUCKETS_MAX,
    DEFAULT,
    ClusterChange,
    ClusterMode,
    ClusterSettings,
    buckets_wanted,
    changed,
    decode_settings,
    served_as,
)
from jm_core.errors import InvalidSettingError
from jm_core.model import Priority

NOW_S = 1_900_000_000.0
CAN_BE_OFF = [priority for priority in Priority if priority is not Priority.MEDIUM]


@pytest.mark.parametrize(
    ("mode", "starts", "plans"),
    [(ClusterMode.ACTIVE, True, True), (ClusterMode.PASSIVE, False, True), (ClusterMode.ARCHIVED, False, False)],
)
def test_what_a_mode_means(mode, starts, plans):
    settings = ClusterSettings(mode=mode, mode_since=NOW_S)
    assert (settings.starts, settings.plans) == (starts, plans)
    assert settings.accepts(NOW_S - 1), "it had its receipt before"
    assert settings.accepts(NOW_S) is plans


def test_a_change_counts_up_and_says_who_and_when_and_nothing_else_moves():
    first = changed(DEFAULT, ClusterChange(mode="passive", by="ann", reason="move"), now_s=NOW_S)
    assert (first.mode, first.mode_since, first.revision) == (ClusterMode.PASSIVE, NOW_S, 1)
    assert (first.changed_by, first.reason, first.changed_at) == ("ann", "move", NOW_S)
    second = changed(first, ClusterChange(disable=["high"], buckets={"low": 2}), now_s=NOW_S + 5)
    assert (second.mode, second.mode_since, second.revision) == (ClusterMode.PASSIVE, NOW_S, 2)
    assert (second.disabled, second.buckets, second.changed_by, second.reason) == (("high",), {"low": 2}, "unknown", "")
    third = changed(second, ClusterChange(enable=["high"], buckets={"low": 0}), now_s=NOW_S)
    assert (third.disabled, third.buckets) == ((), {})
    assert decode_settings(wire.encode(third)) == third


def test_what_changes_nothing_is_no_change():
    settings = changed(DEFAULT, ClusterChange(disable=["high"]), now_s=NOW_S)
    assert changed(settings, ClusterChange(mode="active", disable=["high"], by="x"), now_s=NOW_S + 1) is settings


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (ClusterChange(mode="asleep"), "active, passive, archived"),
        (ClusterChange(disable=["medium"]), "cannot be disabled"),
        (ClusterChange(disable=["urgent"]), "very_low, low, medium"),
        (ClusterChange(enable=["URGENT" * 99]), "unknown"),
        (ClusterChange(enable=["low"], disable=["low"]), "at once"),
        (ClusterChange(buckets={"high": BUCKETS_MAX + 1}), f"0 to {BUCKETS_MAX}"),
        (ClusterChange(buckets={"high": -1}), f"0 to {BUCKETS_MAX}"),
        (ClusterChange(buckets={"hihg": 1}), "unknown"),
    ],
    ids=["mode", "medium", "disable", "enable", "both", "many", "negative", "misspelt"],
)
def test_a_change_that_cannot_be_is_refused_with_what_which_and_remedy(change, part):
    with pytest.raises(InvalidSettingError, match=part) as caught:
        changed(DEFAULT, change, now_s=NOW_S)
    assert len(str(caught.value)) < 200


def test_a_mode_of_a_newer_version_is_not_taken_for_another_one():
    with pytest.raises(msgspec.DecodeError):
        decode_settings(b'{"mode":"hibernating"}')


@pytest.mark.parametrize("off", [set(off) for n in range(5) for off in itertools.combinations(CAN_BE_OFF, n)], ids=str)
def test_every_priority_is_served_by_an_enabled_one_the_nearest_lower_where_there_is_one(off):
    for priority in Priority:
        served = served_as(priority, off)
        assert served not in off
        if priority not in off:
            assert served is priority
            continue
        lower = [other for other in Priority if other < priority and other not in off]
        between = range(min(served, priority) + 1, max(served, priority))
        assert all(Priority(number) in off for number in between), "the nearest"
        assert (served < priority) is bool(lower)


def test_a_worker_wants_buckets_for_what_is_enabled_its_own_number_before_the_cluster_s():
    settings = ClusterSettings(disabled=("critical",), buckets={"high": 3, "low": 2})
    wanted = buckets_wanted(["a", "b"], [*Priority], {Priority.HIGH: 1}, settings)
    assert wanted == {(lane, p): 2 if p is Priority.LOW else 1 for lane in "ab" for p in list(Priority)[:4]}
    assert buckets_wanted(["a"], [Priority.CRITICAL], {}, settings).total() == 0


REFUSED = {
    "job-cancel",
    "job-requeue",
    "job-run-now",
    "job-reschedule",
    "job-priority",
    "retention-run",
    "schedule-add",
    "schedule-edit",
    "schedule-pause",
    "schedule-resume",
    "schedule-run-now",
    "schedule-delete",
}
ANSWERED = {
    "job-get",
    "job-list",
    "job-attempts",
    "job-result",
    "job-results",
    "job-progress",
    "job-count",
    "job-history",
    "rejected-list",
    "rejected-get",
    "unserved",
    "cluster-get",
    "cluster-set",
    "agent-give-up",
    "audit-list",
    "audit-get",
    "retention-get",
    "retention-count",
    "schedule-list",
    "schedule-get",
    "schedule-skips",
}


def operations_of(module):
    """Every operation that a module of the API names: one that is in neither list above fails the test."""
    named = [value for name, value in vars(module).items() if name.startswith("OP_")]
    return [one for value in named for one in (value.values() if isinstance(value, dict) else [value])]


API_MODULES = [
    jm_core.api,
    *(
        importlib.import_module(f"jm_core.{m.name}")
        for m in pkgutil.iter_modules(jm_core.__path__)
        if m.name.startswith("api_")
    ),
]
OPERATIONS = sorted({operation for module in API_MODULES for operation in operations_of(module)})


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_archived_cluster_answers_what_changes_nothing_and_lets_itself_be_taken_up_again(operation):
    assert (operation in ANSWERED) is not (operation in REFUSED), "say here whether an archived cluster answers it"
    assert (operation in ANSWERED_WHEN_ARCHIVED) is (operation in ANSWERED)
    # A dry run changes nothing, and only the operation itself sees whether it is one.
    assert (operation in LOOK_THEMSELVES) is (operation in api_control.OP_OF.values())


def test_no_name_is_listed_that_no_operation_has():
    assert set(OPERATIONS) == ANSWERED | REFUSED
    assert set(OPERATIONS) >= ANSWERED_WHEN_ARCHIVED | LOOK_THEMSELVES
    assert not any(map(is_answered, ["job-touch", "job-touch-list", "get", ""]))
