from __future__ import annotations

import asyncio

from jm_master.backoff import Backoff
from jm_master.waiters import ResultWaiters
from jm_master.wake import Pulse, Wake


async def test_a_wake_is_remembered_until_somebody_looks():
    wake = Wake()
    wake.set()
    assert await wake.wait(5)
    assert not await wake.wait(0.01)


async def test_a_pulse_wakes_who_sleeps_and_is_not_remembered():
    pulse = Pulse()
    pulse.beat()
    assert not await pulse.wait(0.01)
    sleepers = [asyncio.create_task(pulse.wait(5)) for _ in range(3)]
    await asyncio.sleep(0)
    pulse.beat()
    assert await asyncio.gather(*sleepers) == [True] * 3


async def test_only_those_who_wait_for_the_job_are_told_and_nothing_is_left():
    waiters = ResultWaiters()
    with waiters.waiting("a") as first, waiters.waiting("a") as second, waiters.waiting("b") as other:
        waiters.ended(["a", "c"])
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
    assert waiters.count == 0


async def test_who_watches_a_job_hears_of_its_news_and_its_end_who_waits_of_its_end_only():
    waiters = ResultWaiters()
    with waiters.watching("a") as watching, waiters.waiting("a", "b", "b") as waiting:
        assert waiters.count == 3
        waiters.changed(["a"])
        assert (watching.is_set(), waiting.is_set()) == (True, False)
        waiters.ended(["b"])
        assert waiting.is_set()
    with waiters.watching("a") as watching:
        waiters.ended(["a"])
        assert watching.is_set()
    assert waiters.count == 0


def test_a_backoff_doubles_to_its_cap_and_begins_anew():
    backoff = Backoff(first_s=1.0, cap_s=4.0)
    waits = [backoff.next_s() for _ in range(4)]
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, (1, 2, 4, 4), strict=True))
    assert not backoff.is_fresh
    backoff.reset()
    assert backoff.is_fresh
    assert backoff.next_s() <= 1.0
