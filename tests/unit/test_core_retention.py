"""How long what has ended is kept, and which part of the table is looked at when."""

from __future__ import annotations

import random

import pytest

from jm_core import limits
from jm_core.errors import InvalidSettingError
from jm_core.model import JobStatus
from jm_core.retention import (
    ACTIONS_DEFAULT_S,
    BEHIND_S_MIN,
    CHUNK_BLOCKS,
    DEFAULT,
    EXAMPLE,
    JOB_KEEP_S_MIN,
    JOB_KINDS,
    KINDS,
    RESIZE_S_MAX,
    REST_S_MAX,
    REST_S_MIN,
    SLACK_S_MIN,
    WORK_SHARE,
    WORK_SHARE_MAX,
    Sweep,
    parse_retention,
    resize_s,
    rest_s,
)
from jm_nats.provision import BUCKET_ACK_WAIT_S, MASTER_ACK_WAIT_S

DAY = 86_400.0


def test_every_terminal_state_is_a_kind_of_its_own_and_no_other_is():
    assert [status.label for status in JobStatus if status >= 4] == list(JOB_KINDS)
    assert not {status.label for status in JobStatus if not status.is_terminal} & set(KINDS)


def test_the_default_is_thirty_days_for_all_and_a_year_for_what_operators_did():
    kept = parse_retention(DEFAULT).keep_s
    assert kept == dict.fromkeys(KINDS, limits.RETENTION_S) | {"actions": ACTIONS_DEFAULT_S}
    assert parse_retention("").keep_s == kept


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "7d",
            {
                "succeeded": 7 * DAY,
                "failed": 7 * DAY,
                "rejected": 7 * DAY,
                "skips": 7 * DAY,
                "actions": ACTIONS_DEFAULT_S,
            },
        ),
        ("7d failed=90d", {"succeeded": 7 * DAY, "failed": 90 * DAY, "quarantined": 7 * DAY}),
        ("failed=90d,7d", {"succeeded": 7 * DAY, "failed": 90 * DAY}),
        ("succeeded=60", {"succeeded": 60.0, "failed": limits.RETENTION_S}),
        ("60s failed=never rejected=0", {"succeeded": 60.0, "failed": None, "buckets": 60.0, "rejected": 0.0}),
        ("never", {"succeeded": None, "rejected": None, "actions": ACTIONS_DEFAULT_S}),
        ("1.5h actions=never", {"cancelled": 5_400.0, "actions": None}),
        (EXAMPLE, {"succeeded": 7 * DAY, "failed": None, "cancelled": 30 * DAY}),
    ],
)
def test_kinds_differ_from_what_holds_for_all(text, expected):
    kept = parse_retention(text).keep_s
    assert {kind: kept[kind] for kind in expected} == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("soon", "'soon' is no duration"),
        ("-1d", "'-1d' is no duration"),
        ("nan", "no duration"),
        ("1e9", "no duration"),
        ("30d 40d", "a second retention for all"),
        ("done=1d", "there is no kind 'done'"),
        ("processing=1d", "there is no kind 'processing'"),
        ("failed=1d failed=2d", "failed is given twice"),
        ("failed=", "'' is no duration"),
        ("=1d", "there is no kind ''"),
        ("999999d", "write never"),
        ("\u0661d", "no duration"),
        ("0", "succeeded jobs would be kept for 0 s only"),
        ("30d failed=59s", "failed jobs would be kept for 59 s only"),
    ],
)
def test_a_wrong_word_is_named_with_what_is_expected(text, part):
    with pytest.raises(InvalidSettingError) as caught:
        parse_retention(text)
    assert part in str(caught.value)
    assert EXAMPLE in str(caught.value)


def test_the_shortest_is_that_of_jobs():
    assert parse_retention("7d rejected=1m").shortest_s == 7 * DAY
    assert parse_retention("never failed=1m").shortest_s == 60.0
    assert parse_retention("never").shortest_s is None


# -- the sweep


def swept(sweep, now_s):
    """The chunks that are visited until none is due; nothing is found in them."""
    visited = []
    while (chunk := sweep.next_chunk(now_s=now_s)) is not None:
        visited.append(chunk)
        sweep.visited(chunk, first_due_in_s=None, is_done=True, now_s=now_s)
    return visited


def test_what_is_there_at_first_is_looked_at_once_from_where_the_last_leader_stopped():
    sweep = Sweep(DAY, position=3)
    assert sweep.next_chunk(now_s=0) is None
    sweep.resize(5 * CHUNK_BLOCKS - 1, now_s=0)
    assert sweep.chunks == 5
    assert swept(sweep, 0) == [3, 4, 0, 1, 2]
    assert swept(sweep, DAY - 1) == []
    assert swept(sweep, 1.02 * DAY) == [3, 4, 0, 1, 2]


def test_a_position_beyond_the_table_is_no_trouble():
    sweep = Sweep(DAY, position=1_000)
    sweep.resize(2 * CHUNK_BLOCKS, now_s=0)
    assert sorted(swept(sweep, 0)) == [0, 1]


def test_what_the_table_grows_by_is_young():
    sweep = Sweep(DAY)
    sweep.resize(CHUNK_BLOCKS, now_s=0)
    swept(sweep, 0)
    sweep.resize(2 * CHUNK_BLOCKS, now_s=100)
    assert swept(sweep, 100) == []
    assert sweep.idle_s(now_s=100) == pytest.approx(DAY - 100), "it may be there since just after the look before"
    assert swept(sweep, DAY) == [1]
    sweep.resize(CHUNK_BLOCKS, now_s=200)
    assert sweep.chunks == 1
    sweep.resize(0, now_s=300)
    assert (sweep.next_chunk(now_s=300), sweep.idle_s(now_s=300)) == (None, None)


def test_a_chunk_is_visited_again_when_its_first_job_is_of_age_and_a_little_later():
    sweep = Sweep(DAY)
    sweep.resize(1, now_s=0)
    sweep.visited(0, first_due_in_s=1_000, is_done=True, now_s=0)
    assert sweep.next_chunk(now_s=1_000) is None
    assert sweep.next_chunk(now_s=1_000 + 0.01 * DAY) == 0
    sweep.visited(0, first_due_in_s=40 * DAY, is_done=True, now_s=0)
    assert sweep.idle_s(now_s=0) == pytest.approx(1.01 * DAY), "a job may end there today"


def test_a_chunk_with_more_than_one_step_takes_is_next_again():
    sweep = Sweep(DAY)
    sweep.resize(3 * CHUNK_BLOCKS, now_s=0)
    sweep.visited(1, first_due_in_s=0.0, is_done=False, now_s=0)
    assert sweep.next_chunk(now_s=0) == 1


def test_what_somebody_has_locked_is_not_asked_for_all_the_time():
    sweep = Sweep(0.0)
    sweep.resize(1, now_s=0)
    sweep.visited(0, first_due_in_s=0.0, is_done=True, now_s=0)
    assert sweep.idle_s(now_s=0) == SLACK_S_MIN


def test_no_chunk_is_left_out_whatever_comes_in_between():
    """Random visits, growth and shrinkage: what is due is always found, and soon everything has been visited."""
    for seed in range(50):
        chance = random.Random(seed)
        sweep, now_s = Sweep(DAY, position=chance.randrange(10)), 0.0
        sweep.resize(chance.randrange(1, 20) * CHUNK_BLOCKS, now_s=now_s)
        for _ in range(100):
            now_s += chance.random() * DAY / 20
            if chance.random() < 0.1:
                sweep.resize(chance.randrange(1, 30) * CHUNK_BLOCKS, now_s=now_s)
            chunk = sweep.next_chunk(now_s=now_s)
            assert (chunk is None) == (sweep.idle_s(now_s=now_s) > 0)
            if chunk is not None:
                due_in_s = chance.choice([None, chance.random() * 3 * DAY])
                sweep.visited(chunk, first_due_in_s=due_in_s, is_done=chance.random() < 0.8, now_s=now_s)
        assert sorted(swept(sweep, now_s + 2.02 * DAY)) == list(range(sweep.chunks))


def test_the_slower_postgres_is_the_longer_it_is_left_alone():
    assert rest_s(0.0) == REST_S_MIN
    assert rest_s(0.02) == pytest.approx(0.18), "nine times what the step took"
    assert rest_s(60.0) == REST_S_MAX


def test_a_sweep_that_is_behind_takes_more_of_the_time_in_proportion_to_what_it_keeps():
    sweep = Sweep(DAY)
    assert sweep.work_share(now_s=0) == WORK_SHARE, "there is no table yet"
    sweep.resize(CHUNK_BLOCKS, now_s=0)
    slack_s = 0.01 * DAY
    behind_s = (0.0, slack_s, 2 * slack_s, 4 * slack_s, 5 * slack_s, 100 * slack_s)
    shares = [sweep.work_share(now_s=now_s) for now_s in behind_s]
    assert shares == pytest.approx([WORK_SHARE, WORK_SHARE, 0.2, 0.4, WORK_SHARE_MAX, WORK_SHARE_MAX])
    sweep.visited(0, first_due_in_s=None, is_done=True, now_s=100 * slack_s)
    assert sweep.work_share(now_s=100 * slack_s) == WORK_SHARE, "nothing is overdue any more"


def test_a_sweep_with_a_short_retention_catches_up_within_it():
    sweep = Sweep(JOB_KEEP_S_MIN)
    sweep.resize(CHUNK_BLOCKS, now_s=0)
    assert sweep.work_share(now_s=BEHIND_S_MIN) == WORK_SHARE
    assert sweep.work_share(now_s=JOB_KEEP_S_MIN / 2) == WORK_SHARE_MAX


def test_a_table_is_measured_often_enough_to_find_what_comes_of_age():
    assert resize_s(30 * DAY) == RESIZE_S_MAX
    assert resize_s(JOB_KEEP_S_MIN) == pytest.approx(JOB_KEEP_S_MIN / 10)


def test_who_may_take_more_of_the_time_rests_for_less_of_it():
    assert rest_s(0.02, WORK_SHARE_MAX) == pytest.approx(0.02)
    assert rest_s(0.0, WORK_SHARE_MAX) == pytest.approx(REST_S_MIN / 5)
    assert rest_s(60.0, WORK_SHARE_MAX) == REST_S_MAX


def test_a_job_is_known_for_as_long_as_its_message_may_come_again():
    assert max(MASTER_ACK_WAIT_S, BUCKET_ACK_WAIT_S) < JOB_KEEP_S_MIN
