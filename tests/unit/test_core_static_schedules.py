"""Which of several declarations is in force: rolling deploys, rollbacks, blind leaders."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Raw

from jm_core.api_schedules import Origin, ScheduleSpec, ScheduleState
from jm_core.static_schedules import (
    Change,
    Create,
    Idle,
    Inactivate,
    Known,
    Patience,
    Revive,
    Taken,
    Version,
    actions_for,
    digest_of,
    set_digest,
)

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
PATIENCE = Patience(300, 3600)
LONG = 1e6


def version(digest: str, first_s: float, last_s: float) -> Version:
    return Version("report", digest, T0 + timedelta(seconds=first_s), T0 + timedelta(seconds=last_s))


def in_force(digest: str, state: ScheduleState = ScheduleState.ACTIVE) -> Known:
    return Known(Origin.STATIC, state, digest)


def actions(versions: list[Version], known: Known | None, at_s: float, watched_s: float = LONG) -> list[object]:
    now = T0 + timedelta(seconds=at_s)
    return list(actions_for(versions, known, now=now, watched_s=watched_s, patience=PATIENCE))


def test_a_declaration_makes_a_schedule() -> None:
    assert actions([version("a", 0, 0)], None, 1) == [Create("a")]


def test_the_new_code_wins_as_soon_as_it_is_seen_while_the_old_is_still_there() -> None:
    both = [version("a", 0, 1000), version("b", 999, 1000)]
    assert actions(both, in_force("a"), 1000) == [Change("b")]
    assert actions(both, in_force("b"), 1000) == []


def test_an_old_worker_that_restarts_changes_nothing_back_while_the_new_code_is_there_or_was_lately() -> None:
    assert actions([version("a", 0, 1200), version("b", 999, 1000)], in_force("b"), 1200) == []


def test_a_rollback_takes_effect_when_the_newer_code_has_been_gone_for_long_enough() -> None:
    rolled_back = [version("a", 0, 1301), version("b", 999, 1000)]
    assert actions(rolled_back, in_force("b"), 1299) == []
    assert actions(rolled_back, in_force("b"), 1301) == [Change("a")]


def test_code_that_comes_again_after_a_rollback_wins_at_once() -> None:
    again = [version("a", 0, 5000), version("b", 999, 5000)]
    assert actions(again, in_force("a"), 5000) == [Change("b")]


def test_unseen_it_is_idle_and_then_inactive() -> None:
    gone = [version("a", 0, 0)]
    assert actions(gone, in_force("a"), 299) == []
    assert actions(gone, in_force("a"), 300) == [Idle()]
    assert actions(gone, in_force("a", ScheduleState.IDLE), 3599) == []
    assert actions(gone, in_force("a", ScheduleState.IDLE), 3600) == [Inactivate()]
    assert actions(gone, in_force("a", ScheduleState.INACTIVE), 99_999) == []


def test_seen_again_it_is_revived_and_takes_the_new_definition() -> None:
    for state in (ScheduleState.IDLE, ScheduleState.INACTIVE):
        assert actions([version("a", 0, 9000)], in_force("a", state), 9001) == [Revive()]
        assert actions([version("a", 0, 10), version("b", 9000, 9000)], in_force("a", state), 9001) == [
            Change("b"),
            Revive(),
        ]


def test_an_operators_pause_outlives_changes_and_absence() -> None:
    paused = in_force("a", ScheduleState.PAUSED)
    assert actions([version("a", 0, 10), version("b", 100, 100)], paused, 101) == [Change("b")]
    assert actions([version("a", 0, 0)], paused, 99_999) == []


def test_a_leader_that_has_just_begun_to_watch_ends_nothing() -> None:
    gone = [version("a", 0, 0)]
    assert actions(gone, in_force("a"), 99_999, watched_s=10) == []
    assert actions(gone, in_force("a"), 99_999, watched_s=301) == [Idle()]


def test_a_leader_that_has_just_begun_to_watch_does_not_bring_back_what_was_rolled_back_or_inactive() -> None:
    rolled_back_long_ago = [version("a", 0, 99_999), version("b", 999, 1000)]
    assert actions(rolled_back_long_ago, in_force("a"), 99_999, watched_s=1) == []
    gone = [version("a", 0, 0)]
    for state in (ScheduleState.IDLE, ScheduleState.INACTIVE):
        assert actions(gone, in_force("a", state), 99_999, watched_s=1) == []


def test_a_dynamic_schedule_of_the_name_keeps_it() -> None:
    dynamic = Known(Origin.DYNAMIC, ScheduleState.ACTIVE, None)
    assert actions([version("a", 0, 0)], dynamic, 1) == [Taken("a")]
    assert actions([version("a", 0, 0)], dynamic, 99_999) == []


def spec(**fields: object) -> ScheduleSpec:
    return ScheduleSpec(**{"name": "r", "kind": "cron", "expr": "* * * * *", "handler": "h", **fields})  # type: ignore[arg-type]


def test_a_digest_tells_definitions_apart_and_not_ways_to_write_them() -> None:
    assert digest_of(spec(args=Raw(b'{"a": 1, "b": 2}'))) == digest_of(spec(args=Raw(b'{"b":2,"a":1}')))
    different = [spec(), spec(expr="0 * * * *"), spec(zone="UTC"), spec(args=Raw(b'{"a":1}')), spec(jitter_s=1.0)]
    assert len({digest_of(one) for one in different}) == len(different)


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"]])
def test_the_digest_of_a_set_does_not_depend_on_its_order(names: list[str]) -> None:
    assert set_digest(spec(name=name) for name in names) == set_digest([spec(name="a"), spec(name="b")])
    assert set_digest([]) == ""
