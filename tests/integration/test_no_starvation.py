"""Overload of one priority, or of one lane, does not starve the others (BR-176, BR-177). Real servers and worker."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Final

import pytest

from jm_core.model import Priority
from tests.support.in_process import Shop, working
from tests.support.master import FAST, coordinating
from tests.support.waiting import wait_until

SLOTS: Final = 10
RUN_S: Final = 0.05
CAPACITY_PER_S: Final = SLOTS / RUN_S
OVERLOAD: Final = 1.2
BURST: Final = 2_000
FLOOD_S: Final = 6.0
LOW_JOBS: Final = 10
WAIT_BOUND_S: Final = 1.5
REFILL_BOUND_S: Final = 0.2
TICK_S: Final = 0.05


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


async def run_under_flood(shop, client, flood_options, other):
    """``LOW_JOBS`` others, one after the other, beside a flood; how long each waited, and the flood's ids."""
    over, waits = asyncio.Event(), []
    flooding = asyncio.create_task(flood(shop, client, until=over, **flood_options))
    await asyncio.sleep(FLOOD_S / 3)  # the backlog builds up
    for _ in range(LOW_JOBS):
        job_id = await other()
        submitted_at = time.time()
        await wait_until(lambda job_id=job_id: job_id in shop.ran, what="the start of a job beside the flood")
        waits.append(dict(shop.started)[job_id] - submitted_at)
        await asyncio.sleep((FLOOD_S - FLOOD_S / 3) / LOW_JOBS)
    over.set()
    return waits, await flooding


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
    shop, nats_server, database, record_property
):
    served = (Priority.LOW, Priority.HIGH)
    async with (
        coordinating(nats_server.url, database, shop.app.cluster, FAST),
        working(shop.app, slots=SLOTS, priorities=served),
        shop.app.client() as client,
    ):

        async def low():
            return (await shop.note.submit(client, seconds=RUN_S, priority=Priority.LOW)).job_id

        began_at = time.time() + 1.0
        waits, flooded = await run_under_flood(shop, client, {"priority": Priority.HIGH}, low)
        ended_at = time.time()
        gap_s = longest_gap_with_a_free_slot(shop, began_at=began_at, ended_at=ended_at)
        left = (await client.api.counts()).by_status
        record_property("waits_s", [round(wait, 3) for wait in waits])
        record_property("longest_free_slot_s", round(gap_s, 3))
        assert len(flooded) >= 10 * LOW_JOBS
        assert left["on_master"] > SLOTS, "credit was short to the end"
        assert max(waits) <= WAIT_BOUND_S, sorted(waits)
        assert gap_s <= REFILL_BOUND_S
        share = sum(1 for _, at in shop.started if began_at < at < ended_at) / (ended_at - began_at) / CAPACITY_PER_S
        assert share > 0.8, "who shares does not waste"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("quiet", [Priority.HIGH, Priority.MEDIUM], ids=["same-priority", "lower-priority"])
async def test_a_lane_that_is_flooded_does_not_starve_the_other_lane_of_its_worker(shop, nats_server, database, quiet):
    served = (Priority.MEDIUM, Priority.HIGH)
    async with (
        coordinating(nats_server.url, database, shop.app.cluster, FAST),
        working(shop.app, slots=SLOTS, priorities=served, lanes=("flood", "quiet")),
        shop.app.client() as client,
    ):

        async def other():
            return (await shop.note.submit(client, seconds=RUN_S, priority=quiet, lane="quiet")).job_id

        waits, _ = await run_under_flood(shop, client, {"priority": Priority.HIGH, "lane": "flood"}, other)
        assert (await client.api.counts()).by_status["on_master"] > SLOTS, "credit was short to the end"
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
