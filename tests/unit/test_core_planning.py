"""Which occurrences become jobs and which do not: the pure decision, over days of fake time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from jm_core.api_schedules import MisfirePolicy, OverlapPolicy, SkipReason
from jm_core.ids import occurrence_id, parse_job_id
from jm_core.planning import GRACE_S, Plan, Progress, Reach, Rules, decide, due_at, newest, reach_for
from jm_core.recurrence import parse_recurrence

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
REACH = reach_for(600, jobs_max=1000)
MINUTELY = parse_recurrence("cron", "* * * * *", "UTC")
HOURLY = parse_recurrence("cron", "0 * * * *", "UTC")


@dataclass
class Every:
    """Seconds since ``T0``, without an end; counts how often it is asked."""

    seconds: float
    asked: int = 0

    def after(self, instant: datetime) -> datetime | None:
        self.asked += 1
        step = timedelta(seconds=self.seconds)
        return T0 + step * ((instant - T0) // step + 1)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def id_of(instant: datetime) -> str:
    return occurrence_id("c", "9c7b0d0e-0000-4000-8000-000000000000", 1, instant)


def planned(rules: Rules, progress: Progress, instants: Any, now: datetime, reach: Reach = REACH) -> Plan:
    return decide(rules, progress, instants, now=now, reach=reach, id_of=id_of)


def then(progress: Progress, plan: Plan, **changes: Any) -> Progress:
    """The progress that the plan's commit leaves behind."""
    runs = progress.runs + len(plan.instants)
    kept = {"next_at": plan.next_at, "queued": plan.queued, "runs": runs, "is_done": plan.is_done}
    return replace(progress, floor_at=None, floor_reason=None, **{**kept, **changes})


def skipped(plan: Plan) -> dict[SkipReason, int]:
    counts: dict[SkipReason, int] = {}
    for skip in plan.skips:
        counts[skip.reason] = counts.get(skip.reason, 0) + skip.count
    return counts


def test_a_new_schedule_is_planned_from_its_creation_to_the_horizon() -> None:
    plan = planned(Rules(), Progress(since=T0), MINUTELY, T0)
    assert plan.instants == [T0 + seconds(60 * n) for n in range(1, 16)]
    assert plan.next_at == T0 + seconds(16 * 60)
    assert plan.plan_at == plan.next_at - seconds(REACH.lead_s)
    assert plan.skips == []
    assert not plan.is_done


def test_what_is_left_out_is_neither_made_nor_skipped_on_time_nor_late() -> None:
    out = frozenset({T0 + seconds(120), T0 + seconds(180)})
    ahead = planned(Rules(), Progress(since=T0, left_out=out), MINUTELY, T0)
    assert ahead.instants[:3] == [T0 + seconds(60), T0 + seconds(240), T0 + seconds(300)]
    assert ahead.skips == []
    rules = Rules(misfire=MisfirePolicy.RUN_ALL, misfire_limit=2)
    late = planned(rules, Progress(since=T0, left_out=out), MINUTELY, T0 + seconds(300))
    assert late.instants[:3] == [T0 + seconds(240), T0 + seconds(300), T0 + seconds(360)]
    assert skipped(late) == {SkipReason.MISFIRE: 1}


def test_plans_follow_each_other_without_gap_or_repeat_however_odd_the_times_of_the_passes() -> None:
    progress, seen, now = Progress(since=T0), [], T0
    while now < T0 + timedelta(hours=3):
        plan = planned(Rules(), progress, MINUTELY, now)
        seen += plan.instants
        progress = then(progress, plan)
        assert plan.plan_at is not None
        now = plan.plan_at + seconds(len(seen) % 7 * 3.3)
    assert seen == [T0 + seconds(60 * n) for n in range(1, len(seen) + 1)]


def test_a_planner_whose_clock_was_an_hour_ahead_leaves_no_gap_and_no_repeat() -> None:
    """BR-069: the next instant follows from the last one, not from the time of looking."""
    quarterly = parse_recurrence("cron", "*/15 * * * *", "UTC")
    rules = Rules(misfire=MisfirePolicy.RUN_ALL)
    first = planned(rules, Progress(since=T0), quarterly, T0)
    progress = then(Progress(since=T0), first)
    ahead = planned(rules, progress, quarterly, T0 + seconds(3600 + 300))
    back = planned(rules, then(progress, ahead), quarterly, T0 + seconds(300))
    instants = first.instants + ahead.instants + back.instants
    assert instants == [T0 + seconds(900 * n) for n in range(1, len(instants) + 1)]


@pytest.mark.parametrize(
    ("policy", "runs"),
    [(MisfirePolicy.SKIP, 0), (MisfirePolicy.RUN_ONCE, 1), (MisfirePolicy.RUN_ALL, 5)],
    ids=["skip", "run_once", "run_all"],
)
@pytest.mark.parametrize("phase_s", [0, 1, 29, 31, 59])
def test_ten_minutes_down_make_as_many_runs_as_the_policy_says_and_the_rest_is_recorded(
    policy: MisfirePolicy, runs: int, phase_s: int
) -> None:
    """BR-076: 0, 1, 5 runs; 10, 9, 5 skipped."""
    rules = Rules(misfire=policy, misfire_limit=5)
    down = Progress(since=T0, next_at=T0 + seconds(60))
    now = T0 + seconds(600 + phase_s)
    plan = planned(rules, down, MINUTELY, now)
    late = [instant for instant in plan.instants if instant <= now]
    assert late == [T0 + seconds(60 * n) for n in range(11 - runs, 11)]
    assert skipped(plan) == ({SkipReason.MISFIRE: 10 - runs})
    (skip,) = plan.skips
    assert skip.first_at == T0 + seconds(60)
    assert skip.last_at == T0 + seconds(60 * (10 - runs))
    assert not skip.more
    assert plan.instants[runs:] == [T0 + seconds(60 * n) for n in range(11, 11 + len(plan.instants) - runs)]


@pytest.mark.parametrize("minutes", [101, 8 * 24 * 60], ids=["101_minutes", "8_days"])
def test_after_a_long_rest_a_minutely_schedule_runs_once_and_goes_on(minutes: int) -> None:
    """BR-073: one catch-up run, then as usual, found in less than a second."""
    began = time.perf_counter()
    now = T0 + seconds(minutes * 60 + 20)
    plan = planned(Rules(), Progress(since=T0, next_at=T0 + seconds(60)), MINUTELY, now)
    took_s = time.perf_counter() - began
    print(f"{minutes} missed minutes: {took_s:.3f} s, {plan.steps} steps")  # noqa: T201
    assert took_s < 1
    assert [instant for instant in plan.instants if instant <= now] == [T0 + seconds(minutes * 60)]
    assert skipped(plan) == {SkipReason.MISFIRE: minutes - 1}
    assert plan.instants[1] == T0 + seconds((minutes + 1) * 60)


def test_a_year_of_missed_seconds_costs_no_more_than_its_bound() -> None:
    every, now = Every(1), T0 + timedelta(days=365)
    plan = planned(Rules(), Progress(since=T0, next_at=T0 + seconds(1)), every, now)
    assert plan.instants[0] == now, "the newest of them is the one that runs"
    assert plan.instants[1] == now + seconds(1)
    (skip,) = plan.skips
    assert skip.more
    assert skip.count == REACH.count_max
    assert every.asked < REACH.count_max + 3_000


@pytest.mark.parametrize("count", [1, 5, 1000])
def test_the_newest_instants_are_found_behind_a_dense_stretch_and_a_long_rest(count: int) -> None:
    class Burst:
        """Every second of one hour, then never again."""

        def after(self, instant: datetime) -> datetime | None:
            found = max(Every(1).after(instant) or T0, T0)
            return found if found <= T0 + timedelta(hours=1) else None

    until = T0 + timedelta(days=90)
    expected = [T0 + timedelta(hours=1) - seconds(n) for n in reversed(range(count))]
    assert newest(Burst(), T0, until, count) == expected


def test_what_is_missed_beyond_the_window_is_not_run() -> None:
    rules = Rules(misfire_window_s=3600)
    old = planned(rules, Progress(since=T0, next_at=T0 + timedelta(hours=1)), HOURLY, T0 + timedelta(hours=1.5))
    assert old.instants[0] == T0 + timedelta(hours=1), "half an hour ago: within the window"
    weekly = parse_recurrence("cron", "0 13 * * MON", "UTC")
    older = planned(rules, Progress(since=T0, next_at=T0 + timedelta(hours=1)), weekly, T0 + timedelta(hours=9))
    assert older.instants == []
    assert skipped(older) == {SkipReason.MISFIRE: 1}


def test_every_daily_run_happens_although_the_planner_looks_only_now_and_then() -> None:
    """BR-075, with a start deadline that could never be set so short: late, but present; 30 of 30 days."""
    daily, rules = parse_recurrence("cron", "0 9 * * *", "UTC"), Rules(overlap=OverlapPolicy.SKIP)
    progress, ran, now = Progress(since=T0), [], T0
    while now < T0 + timedelta(days=30):
        plan = planned(rules, progress, daily, now)
        ran += plan.instants
        progress = then(progress, plan)
        now += seconds(25.7)
    assert len(ran) == 30
    assert {instant.hour for instant in ran} == {9}


def test_an_instant_that_is_a_little_late_is_on_time_and_no_misfire() -> None:
    rules = Rules(misfire=MisfirePolicy.SKIP, overlap=OverlapPolicy.SKIP)
    plan = planned(rules, Progress(since=T0, next_at=T0), HOURLY, T0 + seconds(GRACE_S))
    assert plan.instants == [T0]
    late = planned(rules, Progress(since=T0, next_at=T0), HOURLY, T0 + seconds(GRACE_S + 0.1))
    assert late.instants == []
    assert skipped(late) == {SkipReason.MISFIRE: 1}


def test_a_pause_over_a_weekend_ends_with_the_next_regular_instant() -> None:
    """BR-074: no burst of 4,320, and what was left out is counted."""
    now = T0 + timedelta(days=3, seconds=10)
    resumed = Progress(since=T0, next_at=T0 + seconds(60), floor_at=now, floor_reason=SkipReason.PAUSED)
    plan = planned(Rules(misfire=MisfirePolicy.RUN_ALL, misfire_limit=1000), resumed, MINUTELY, now)
    assert plan.instants[0] == now + seconds(50)
    assert skipped(plan) == {SkipReason.PAUSED: 4320}


def test_an_edit_begins_anew_and_records_nothing() -> None:
    edited = Progress(since=T0 + seconds(90))
    plan = planned(Rules(), edited, MINUTELY, T0 + seconds(90))
    assert plan.instants[0] == T0 + seconds(120)
    assert plan.skips == []


# Overlap (BR-174: an hour-long handler every minute leaves 0, 1, 59 waiting copies).


def an_hour_of_minutes(overlap: OverlapPolicy) -> tuple[list[datetime], Progress, list[SkipReason]]:
    """The first occurrence runs all the hour."""
    rules, progress = Rules(overlap=overlap), Progress(since=T0)
    jobs: list[datetime] = []
    reasons: list[SkipReason] = []
    for minute in range(1, 61):
        blocker = id_of(jobs[0]) if jobs and overlap is not OverlapPolicy.ALLOW else None
        plan = planned(rules, replace(progress, blocker=blocker), MINUTELY, T0 + seconds(60 * minute))
        jobs += plan.instants
        reasons += [skip.reason for skip in plan.skips for _ in range(skip.count)]
        progress = then(progress, plan)
    return jobs, progress, reasons


def test_overlap_skip_leaves_no_copy_waiting() -> None:
    jobs, progress, reasons = an_hour_of_minutes(OverlapPolicy.SKIP)
    assert (len(jobs), progress.queued) == (1, None)
    assert reasons == [SkipReason.OVERLAP] * 59


def test_overlap_queue_one_leaves_one_waiting_and_makes_it_a_job_when_its_predecessor_ends() -> None:
    jobs, progress, reasons = an_hour_of_minutes(OverlapPolicy.QUEUE_ONE)
    assert (len(jobs), progress.queued) == (1, T0 + seconds(120))
    assert reasons == [SkipReason.OVERLAP] * 58
    ended = planned(Rules(overlap=OverlapPolicy.QUEUE_ONE), progress, MINUTELY, T0 + seconds(3605))
    assert ended.instants == [T0 + seconds(120)]
    assert ended.queued is None


def test_overlap_allow_leaves_all_of_them() -> None:
    jobs, _, reasons = an_hour_of_minutes(OverlapPolicy.ALLOW)
    assert len([instant for instant in jobs if instant <= T0 + timedelta(hours=1)]) - 1 == 59
    assert reasons == []


def test_the_skip_names_the_job_in_the_way() -> None:
    rules = Rules(overlap=OverlapPolicy.SKIP)
    plan = planned(rules, Progress(since=T0, next_at=T0 + seconds(60)), Every(5), T0 + seconds(72))
    assert plan.instants == [T0 + seconds(60)]
    (skip,) = plan.skips
    assert (skip.count, skip.detail) == (2, id_of(T0 + seconds(60)))


# Ends.


def test_a_schedule_is_done_when_its_runs_are_planned() -> None:
    plan = planned(Rules(max_runs=3), Progress(since=T0), MINUTELY, T0)
    assert len(plan.instants) == 3
    assert plan.is_done
    assert plan.plan_at is None


def test_a_queued_instant_counts_as_a_run_and_comes_although_the_schedule_is_done() -> None:
    rules = Rules(max_runs=2, overlap=OverlapPolicy.QUEUE_ONE)
    busy = Progress(since=T0, next_at=T0 + seconds(60), blocker="other", runs=1)
    plan = planned(rules, busy, MINUTELY, T0 + seconds(60))
    assert plan.queued == T0 + seconds(60)
    assert plan.is_done
    released = planned(rules, then(busy, plan, blocker=None), MINUTELY, T0 + seconds(300))
    assert released.instants == [T0 + seconds(60)]
    assert released.is_done


def test_start_and_end_are_included() -> None:
    rules = Rules(starts_at=T0 + seconds(120), ends_at=T0 + seconds(240))
    plan = planned(rules, Progress(since=T0), MINUTELY, T0)
    assert plan.instants == [T0 + seconds(120), T0 + seconds(180), T0 + seconds(240)]
    assert plan.is_done


def test_a_start_in_the_past_makes_up_for_nothing() -> None:
    plan = planned(Rules(starts_at=T0 - timedelta(days=9)), Progress(since=T0), HOURLY, T0 + seconds(3000))
    assert plan.instants == [T0 + timedelta(hours=1)]


def test_missed_instants_beyond_the_end_are_none() -> None:
    rules = Rules(misfire=MisfirePolicy.RUN_ALL, ends_at=T0 + seconds(120))
    plan = planned(rules, Progress(since=T0, next_at=T0 + seconds(60)), MINUTELY, T0 + seconds(900))
    assert plan.instants == [T0 + seconds(60), T0 + seconds(120)]
    assert plan.is_done


# Bounds.


def test_a_pass_is_bounded_and_the_next_one_goes_on_at_once() -> None:
    small = replace(REACH, jobs_max=100)
    progress, now, all_of_them = Progress(since=T0), T0, []
    for _ in range(9):
        plan = planned(Rules(), progress, Every(1), now, small)
        assert len(plan.instants) == 100
        all_of_them += plan.instants
        progress = then(progress, plan)
    assert all_of_them == [T0 + seconds(n) for n in range(1, 901)]
    assert plan.plan_at == T0 + seconds(901 - REACH.lead_s)


def test_a_bounded_pass_that_reaches_not_far_enough_is_repeated_at_once() -> None:
    plan = planned(Rules(), Progress(since=T0), Every(1), T0, replace(REACH, jobs_max=100))
    assert plan.plan_at == T0


def test_a_unique_key_is_decided_at_the_instant() -> None:
    plan = planned(Rules(has_unique_key=True), Progress(since=T0), MINUTELY, T0)
    assert plan.instants == []
    assert plan.plan_at == plan.next_at == T0 + seconds(60)


@pytest.mark.parametrize("threshold_s", [2, 60, 600, 86_400])
def test_the_plan_reaches_beyond_the_transient_threshold_and_a_change_of_leaders(threshold_s: float) -> None:
    reach = reach_for(threshold_s, jobs_max=1)
    assert threshold_s < reach.lead_s < reach.ahead_s
    assert reach.lead_s > GRACE_S


# Ids and jitter.


def test_ids_are_jobs_ids_in_the_order_of_their_instants_and_differ_in_every_part() -> None:
    def made(cluster: str = "c", schedule_id: str = "s", generation: int = 1, at: datetime = T0) -> str:
        return occurrence_id(cluster, schedule_id, generation, at)

    assert made() == made(at=T0.astimezone(None))
    ids = [made(), made("d"), made(schedule_id="t"), made(generation=2), made(at=T0 + seconds(1))]
    assert len(set(ids)) == len(ids)
    assert [parse_job_id(i) for i in ids] == ids
    ordered = [made(at=T0 + seconds(n)) for n in range(100)]
    assert ordered == sorted(ordered)


def test_jitter_is_the_same_each_time_within_its_bound_and_spread() -> None:
    due = [due_at(T0, id_of(T0 + seconds(n)), 10.0) for n in range(1000)]
    assert due == [due_at(T0, id_of(T0 + seconds(n)), 10.0) for n in range(1000)]
    late_s = [(at - T0).total_seconds() for at in due]
    assert 0 <= min(late_s) < 1
    assert 9 < max(late_s) < 10
    assert due_at(T0, id_of(T0), 0) == T0
