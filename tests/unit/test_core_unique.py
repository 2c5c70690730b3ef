"""Who holds a unique key, and what becomes of the job that comes with one that is held."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from jm_core import limits
from jm_core.intake import NewJob
from jm_core.model import JobStatus, OnConflict, Priority
from jm_core.unique import Clash, Verdict, has_keys, judge, waves

T0 = 1_893_484_800.0
ENDED = [status for status in JobStatus if status.is_terminal]
UNFINISHED = [JobStatus.ON_MASTER, JobStatus.IN_BUCKET, JobStatus.PROCESSING]
CHOICES = [None, *OnConflict]


def held(status, *, until=None, queued_at=T0):
    return Clash("holder", None, status, queued_at, until)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("status", ENDED)
def test_an_ended_job_lets_go_of_its_key_when_its_window_has_passed(status, choice):
    assert judge(held(status, until=T0 + 60), choice, queued_at=T0 + 59.9) is Verdict.DUPLICATE
    assert judge(held(status, until=T0 + 60), choice, queued_at=T0 + 60) is Verdict.RELEASE


@pytest.mark.parametrize("until", [None, T0 - 100, T0 + 100])
@pytest.mark.parametrize("status", UNFINISHED)
def test_an_unfinished_job_holds_its_key_whatever_its_window(status, until):
    assert judge(held(status, until=until), None, queued_at=T0 + 1) is Verdict.DUPLICATE
    assert judge(held(status, until=until), "reject", queued_at=T0 + 1) is Verdict.DUPLICATE


@pytest.mark.parametrize(
    ("status", "due_in_s", "expected"),
    [
        (JobStatus.ON_MASTER, -9.0, Verdict.REPLACE),
        (JobStatus.IN_BUCKET, limits.REPLACE_MARGIN_S + 0.1, Verdict.REPLACE),
        (JobStatus.IN_BUCKET, limits.REPLACE_MARGIN_S, Verdict.DUPLICATE),
        (JobStatus.IN_BUCKET, -9.0, Verdict.DUPLICATE),
        (JobStatus.PROCESSING, 99.0, Verdict.DUPLICATE),
    ],
)
def test_only_what_waits_and_is_not_about_to_start_gives_way(status, due_in_s, expected):
    clash = msgspec.structs.replace(held(status), due_in_s=due_in_s)
    assert judge(clash, "replace", queued_at=T0 + 1) is expected


def test_of_two_that_would_replace_each_other_the_later_one_stays_whoever_is_read_first():
    assert judge(held(JobStatus.ON_MASTER, queued_at=T0), "replace", queued_at=T0 + 1) is Verdict.REPLACE
    assert judge(held(JobStatus.ON_MASTER, queued_at=T0 + 1), "replace", queued_at=T0) is Verdict.DUPLICATE


@pytest.mark.parametrize("choice", CHOICES)
def test_a_row_of_this_very_message_is_ours_and_one_of_another_a_duplicate(choice):
    assert judge(Clash("x", T0), choice, queued_at=T0 + 4e-7) is Verdict.OURS
    assert judge(Clash("x", T0), choice, queued_at=T0 + 1) is Verdict.DUPLICATE


def test_what_is_gone_is_in_nobodys_way():
    assert judge(Clash(None), "replace", queued_at=T0) is Verdict.FREE


NUMBERS = itertools.count()


def job(key=None, choice=None):
    return NewJob(
        f"{next(NUMBERS)}", "h", b"{}", None, "default", Priority.MEDIUM, 4, 300.0, unique_key=key, on_conflict=choice
    )


def test_a_batch_without_repeated_keys_is_one_wave():
    messages = [[job(), job("a")], [], [job("b", "replace"), job()]]
    assert waves(messages) == [messages]
    assert has_keys(messages)
    assert not has_keys([[job()], []])


def test_the_first_of_a_key_goes_before_all_others_which_go_together():
    first, *others = jobs = [job("a") for _ in range(64)]
    plain = job()
    assert waves([[plain, *jobs]]) == [[[plain, first]], [others]]


def test_those_that_replace_go_one_after_the_other_in_the_order_in_which_they_came():
    a, b, c, d, e = job("k"), job("k"), job("k", "replace"), job("k"), job("k", "replace")
    other = job("other")
    assert waves([[a, b], [c, d, other], [e]]) == [
        [[a], [other], []],
        [[b], [], []],
        [[], [c], []],
        [[], [d], []],
        [[], [], [e]],
    ]


def test_no_wave_holds_two_that_could_decide_about_each_other():
    pattern = itertools.product([None, "replace", "reject"], repeat=5)
    for choices in pattern:
        jobs = [job("k", choice) for choice in choices]
        cut = waves([jobs])
        assert [one for wave in cut for one in wave[0]] == jobs, "in the order in which they came"
        for number, (wave,) in enumerate(cut):
            assert len(wave) == 1 or (number > 0 and all(one.on_conflict != "replace" for one in wave))
