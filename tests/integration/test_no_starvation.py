"""Overload of one priority, or of one lane, does not starve the others (BR-176, BR-177). Real servers and worker."""

from __future__ import annotations

import asyncio
import time
from itertools import accumulate, pairwise
from typing import Final

import pytest

from jm_core.model import WEIGHTS, Priority
from jm_nats.worker.engine import Engine
from tests.support.in_process import Shop, working
from tests.support.master import FAST, coordinating
from tests.support.waiting import wait_until

SLOTS: Final = 10
RUN_S: Final = 0.05
CAPACITY_PER_S: Final = SLOTS / RUN_S
OVERLOAD: Final = 1.2
BURST: Final = 2_000
LOW_JOBS: Final = 10
TOGETHER: Final = 15  # that wait at once: so that some wait for a turn
WAIT_BOUND_S: Final = 15.0  # of any machine
REFILL_BOUND_S: Final = 5.0
TICK_S: Final = 0.05
# What is below its share gets a slot within two rounds (jm_core/slots.py); lanes of one priority take turns.
TWO_ROUNDS_OF: Final = {
    (low, Priority.HIGH): 2 * (2 if low is Priority.HIGH else WEIGHTS[low] + WEIGHTS[Priority.HIGH])
    for low in (Priority.LOW, Priority.MEDIUM, Priority.HIGH)
}


@pytest.fixture
async def shop(nats_server, cluster_name):
    return Shop(cluster_name, nats_server.url)


async def flood(shop, client, *, until, **options):
    """A backlog of more than the worker's credit, then ``OVERLOAD`` times what it can bear, whatever becomes of it."""
    first = shop.note.jobs(({"seconds": RUN_S} for _ in range(BURST)), **options)
    sent = [receipt.job_id for receipt in await client.submit_many(first)]
    began_s = time.monotonic()
    while not until.is_set():
        due = BURST + int((time.monotonic() - began_s) * CAPACITY_PER_S * OVERLOAD) - len(sent)
        jobs = shop.note.jobs(({"seconds": RUN_S} for _ in range(due)), **options)
        sent += [receipt.job_id for receipt in await client.submit_many(jobs)]
        await asyncio.sleep(TICK_S)
    return sent


async def run_under_flood(shop, client, flood_options, **other):
    """``LOW_JOBS`` others, one after the other, beside a flood, and then ``TOGETHER`` of them at once.

    Returns:
        How long each of the first waited, and the flood's ids.
    """
    over, waits = asyncio.Event(), []
    flooding = asyncio.create_task(flood(shop, client, until=over, **flood_options))
    try:
        await wait_until(lambda: len(shop.ran) > BURST // 4, what="the flood well under way")
        for _ in range(LOW_JOBS):
            submitted_at = time.time()
            job_id = (await shop.note.submit(client, seconds=RUN_S, **other)).job_id
            await wait_until(lambda job_id=job_id: job_id in shop.ran, what="the start of a job beside the flood")
            waits.append(dict(shop.started)[job_id] - submitted_at)
        jobs = shop.note.jobs(({"seconds": RUN_S} for _ in range(TOGETHER)), **other)
        together = [receipt.job_id for receipt in await client.submit_many(jobs)]
        await wait_until(lambda: set(together) <= set(shop.ran), what="the start of those that came together")
        on_master = (await client.api.counts()).by_status["on_master"]
    finally:
        over.set()
        flooded = await flooding
    assert on_master > SLOTS, "credit was short to the end"
    return waits, flooded


@pytest.fixture
def order(monkeypatch):
    """What the worker's engine did, in order: ``(came, id)`` and ``(started, id)``."""
    order, accept, start = [], Engine.accept, Engine._start

    def accepting(engine, runs, port, delivery):
        order.extend(("came", run.id) for run in runs)
        accept(engine, runs, port, delivery)

    def starting(engine, held):
        order.append(("started", held.run.id))
        start(engine, held)

    monkeypatch.setattr(Engine, "accept", accepting)
    monkeypatch.setattr(Engine, "_start", starting)
    return order


def most_passed_over(order, flooded):
    """How many of the flood were started, at the most, one after the other while another job was there and waited."""
    flooded, waiting, passed, most = set(flooded), 0, 0, 0
    for what, job_id in order:
        if what == "came":
            waiting += job_id not in flooded
        elif job_id not in flooded:
            waiting, passed = waiting - 1, 0
        elif waiting:
            passed += 1
            most = max(most, passed)
        else:
            passed = 0
    assert waiting == 0
    return most


def most_at_once(shop):
    events = sorted([(at, 1) for _, at in shop.started] + [(at, -1) for _, at in shop.ended])
    return max(accumulate(change for _, change in events))


def longest_gap_with_a_free_slot(shop, *, began_at, ended_at):
    """The longest time that a slot stood free: while so many jobs wait, every end must be followed by a start."""
    events = sorted([(at, 1) for _, at in shop.started] + [(at, -1) for _, at in shop.ended])
    running, longest_s = 0, 0.0
    for (at, change), (following, _) in pairwise(events):
        running += change
        if running < SLOTS and began_at < at and following < ended_at:
            longest_s = max(longest_s, following - at)
    return longest_s


@pytest.mark.timeout(120)
async def test_low_jobs_start_within_the_bound_while_high_ones_overload_the_worker(
    shop, nats_server, database, order, record_property
):
    served = (Priority.LOW, Priority.HIGH)
    async with (
        coordinating(nats_server.url, database, shop.app.cluster, FAST),
        working(shop.app, slots=SLOTS, priorities=served),
        shop.app.client() as client,
    ):
        began_at = time.time()
        waits, flooded = await run_under_flood(shop, client, {"priority": Priority.HIGH}, priority=Priority.LOW)
        ended_at = time.time()
        gap_s = longest_gap_with_a_free_slot(shop, began_at=began_at, ended_at=ended_at)
        passed = most_passed_over(order, flooded)
        record_property("waits_s", [round(wait, 3) for wait in waits])
        record_property("longest_free_slot_s", round(gap_s, 3))
        record_property("most_passed_over", passed)
        assert len(flooded) >= 10 * LOW_JOBS
        assert passed <= TWO_ROUNDS_OF[Priority.LOW, Priority.HIGH]
        assert most_at_once(shop) == SLOTS, "who shares does not waste"
        assert max(waits) <= WAIT_BOUND_S, sorted(waits)
        assert gap_s <= REFILL_BOUND_S


@pytest.mark.timeout(120)
@pytest.mark.parametrize("quiet", [Priority.HIGH, Priority.MEDIUM], ids=["same-priority", "lower-priority"])
async def test_a_lane_that_is_flooded_does_not_starve_the_other_lane_of_its_worker(
    shop, nats_server, database, order, quiet
):
    served = (Priority.MEDIUM, Priority.HIGH)
    async with (
        coordinating(nats_server.url, database, shop.app.cluster, FAST),
        working(shop.app, slots=SLOTS, priorities=served, lanes=("flood", "quiet")),
        shop.app.client() as client,
    ):
        flood_options = {"priority": Priority.HIGH, "lane": "flood"}
        waits, flooded = await run_under_flood(shop, client, flood_options, priority=quiet, lane="quiet")
        assert most_passed_over(order, flooded) <= TWO_ROUNDS_OF[quiet, Priority.HIGH]
        assert max(waits) <= WAIT_BOUND_S, sorted(waits)


@pytest.mark.timeout(120)
async def test_a_waiting_job_says_what_it_waits_for(shop, nats_server, database):
    served = (Priority.LOW, Priority.HIGH)
    async with (
        coordinating(nats_server.url, database, shop.app.cluster, FAST),
        working(shop.app, slots=2, priorities=served),
        shop.app.client() as client,
    ):
        await client.submit_many(shop.gated.jobs(({} for _ in range(3_000)), priority=Priority.HIGH))
        jobs = [
            receipt.job_id
            for receipt in await client.submit_many(
                shop.gated.jobs(({} for _ in range(5)), priority=Priority.LOW), wait="recorded"
            )
        ]

        async def says():
            said = [(await client.job(job_id)).waits or "" for job_id in jobs]
            return all("behind priority high" in text for text in said)

        await wait_until(says, what="every low job says that it waits behind high")
        view = await client.api.cluster()
        assert ("default", "high") in view.backlogs
        shop.gate.set()
