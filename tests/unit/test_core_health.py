"""Healthy, degraded, unhealthy; live and ready: the rules, without a clock."""

import pytest

from jm_core.health import (
    MEANING,
    Condition,
    GroupReport,
    HaltedLoop,
    Health,
    Invariant,
    InvariantViolatedError,
    LoopState,
    Trouble,
    is_live,
    is_ready,
    judge,
    overall,
    violation_in,
)

T0 = 1_000.0


def test_nothing_against_it_is_healthy():
    verdict = judge(Condition(T0, loops=[LoopState("leadership", T0 - 5, 20)]))
    assert (verdict.health, verdict.reasons) == (Health.HEALTHY, ())


def test_a_fault_that_is_ridden_out_degrades():
    verdict = judge(Condition(T0, troubles=[Trouble("postgres", "no answer", T0 - 7)]))
    assert verdict.health is Health.DEGRADED
    assert verdict.reasons == ("postgres: no answer (for 7 s)",)


def test_a_loop_that_has_stopped_degrades_and_says_why():
    verdict = judge(Condition(T0, halted_loops=[HaltedLoop("rebalance", "KeyError")]))
    assert verdict.health is Health.DEGRADED
    assert verdict.reasons == ("rebalance has stopped: KeyError",)


@pytest.mark.parametrize(("age_s", "health"), [(0.0, Health.HEALTHY), (19.9, Health.HEALTHY), (20.0, Health.UNHEALTHY)])
def test_a_loop_without_success_for_its_limit_is_unhealthy(age_s, health):
    assert judge(Condition(T0, loops=[LoopState("postgres", T0 - age_s, 20.0)])).health is health


def test_each_loop_has_its_own_limit():
    loops = [LoopState("quick", T0 - 6, 5), LoopState("slow", T0 - 6, 60)]
    assert judge(Condition(T0, loops=loops)).reasons == ("quick: no success for 6 s (limit 5 s)",)


def test_a_halt_is_final_whatever_else_goes_well():
    verdict = judge(Condition(T0, halted="worker_id_taken", loops=[LoopState("beat", T0, 5)]))
    assert verdict.health is Health.UNHEALTHY
    assert verdict.reasons == ("halted: worker_id_taken",)


def test_a_stall_comes_before_what_only_degrades():
    condition = Condition(T0, loops=[LoopState("beat", T0 - 9, 5)], troubles=[Trouble("nats", "away", T0 - 9)])
    assert [reason.partition(":")[0] for reason in judge(condition).reasons] == ["beat", "nats"]


@pytest.mark.parametrize("invariant", Invariant)
def test_every_invariant_has_a_public_name_and_a_meaning(invariant):
    assert invariant.value == invariant.name.lower()
    assert MEANING[invariant]
    error = InvariantViolatedError(invariant, "the detail")
    assert str(error) == f"{invariant.value}: {MEANING[invariant]}; the detail"
    assert violation_in(ExceptionGroup("", [ValueError(), ExceptionGroup("", [error])])) is error
    assert violation_in(ExceptionGroup("", [ValueError()])) is None


# -- what the process answers


def group(health=Health.HEALTHY, *, started=True, halted=False):
    return GroupReport("g", "worker", health, started=started, halted=halted, reasons=["why"])


HALTED = group(Health.UNHEALTHY, halted=True)


@pytest.mark.parametrize(
    ("groups", "live", "ready", "status"),
    [
        ([group()], True, True, Health.HEALTHY),
        ([group(started=False)], True, False, Health.HEALTHY),
        ([group(Health.DEGRADED)], True, True, Health.DEGRADED),
        ([group(Health.UNHEALTHY)], True, False, Health.UNHEALTHY),  # a stall: NATS or Postgres is away for long
        ([HALTED], False, False, Health.UNHEALTHY),
        ([HALTED, group()], True, False, Health.UNHEALTHY),  # the sibling's jobs must not be killed
        ([HALTED, HALTED], False, False, Health.UNHEALTHY),
        ([], True, True, Health.HEALTHY),
    ],
)
def test_live_ready_and_status_of_a_process(groups, live, ready, status):
    assert is_live(groups, stuck_s=0, stall_limit_s=60).ok is live
    assert is_ready(groups).ok is ready
    assert overall(groups) is status


def test_a_stuck_event_loop_is_not_live():
    assert is_live([group()], stuck_s=60, stall_limit_s=60).ok
    answer = is_live([group()], stuck_s=61, stall_limit_s=60)
    assert not answer.ok
    assert "stuck for 61 s" in answer.reasons[0]


def test_red_says_why():
    assert is_ready([group(started=False)]).reasons == ("g: not started yet",)
    assert is_ready([group(Health.UNHEALTHY)]).reasons == ("g: why",)
    assert is_live([HALTED], stuck_s=0, stall_limit_s=60).reasons == ("g: why",)
