"""How late the planner is with ten thousand schedules. Bounds are the promise; the figures are printed."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.support.master import coordinating
from tests.support.sql import Sql
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from jm_nats.embedded import NatsServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCHEDULES = 10_000
MEASURED_S = 20
MEASURED_MAX = 3  # a machine that is busy with something else for a while says nothing about the planner
LEADS_S = (15, 30, 60)
# Of jobs that were made, and of instants that found the job of the minute before unfinished.
LAGS = """
SELECT extract(epoch FROM recorded_at - occurrence)::float8 AS late_s FROM job
 WHERE schedule IS NOT NULL AND occurrence > $1 AND recorded_at < $2
UNION ALL
SELECT extract(epoch FROM recorded_at - first_at)::float8 FROM schedule_skip WHERE first_at > $1 AND recorded_at < $2
"""


async def insert(sql: Sql, count: int, expr: str, **columns: str) -> None:
    """``expr`` and the values of ``columns`` are SQL over ``n``."""
    given = {"kind": "'cron'", **columns}
    names, values = ", ".join(given), ", ".join(given.values())
    await sql.rows(
        f"INSERT INTO schedule (name, handler, expr, {names}) "
        f"SELECT 's' || n, 'noop', {expr}, {values} FROM generate_series(1, {count}) AS n"
    )


async def all_looked_at(sql: Sql) -> float:
    began = time.monotonic()

    async def done() -> bool:
        return not await sql.value("SELECT count(*) FROM schedule WHERE next_at IS NULL")

    await wait_until(done, 120, what="every schedule has been looked at once")
    return time.monotonic() - began


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def say(what: str, late_s: list[float]) -> None:
    p50, p99 = quantile(late_s, 0.5), quantile(late_s, 0.99)
    print(f"{what}: {len(late_s)} instants, p50 {p50:.3f} s, p99 {p99:.3f} s, longest {max(late_s):.3f} s")  # noqa: T201


async def test_ten_thousand_schedules_that_are_decided_at_their_instant_are_late_by_less_than_a_second(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    """Each of them once a minute, spread over it: 167 instants a second."""
    async with coordinating(nats_server.url, database, cluster_name), Sql(database) as sql:
        start = "date_trunc('second', now()) - n % 60 * interval '1 second'"
        await insert(sql, SCHEDULES, "'60s'", kind="'every'", starts_at=start, overlap="'skip'")
        print(f"{SCHEDULES} new schedules were planned within {await all_looked_at(sql):.1f} s")  # noqa: T201
        for _ in range(MEASURED_MAX):
            late_s = await measured(sql)
            if quantile(late_s, 0.99) < 1:
                break
        assert len(late_s) > SCHEDULES / 60 * (MEASURED_S - 3)
        assert quantile(late_s, 0.99) < 1, f"in none of {MEASURED_MAX} times of {MEASURED_S} s"


async def measured(sql: Sql) -> list[float]:
    since = datetime.now(UTC)
    until = since + timedelta(seconds=MEASURED_S)

    async def over() -> bool:
        return bool(await sql.value("SELECT now() > $1", until))

    await wait_until(over, MEASURED_S + 10, what="the time to measure is over")
    late_s = [row["late_s"] for row in await sql.rows(LAGS, since, until)]
    say("spread over a minute", late_s)
    return late_s


async def inserted_before_their_instant(sql: Sql, overlap: str) -> datetime:
    """The instant of all of them, so far away that each was looked at before it."""
    for lead_s in LEADS_S:
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=lead_s)
        await insert(sql, SCHEDULES // 2, f"'{at.second} {at.minute} {at.hour} * * *'", overlap=f"'{overlap}'")
        await all_looked_at(sql)
        if datetime.now(UTC) < at:
            return at
        await sql.rows("DELETE FROM schedule")
        await sql.rows("DELETE FROM schedule_skip")
        await sql.rows("DELETE FROM job")
    raise AssertionError(f"{SCHEDULES // 2} schedules were not looked at within {lead_s} s")


@pytest.mark.parametrize("overlap", ["skip", "allow"])
async def test_five_thousand_schedules_of_one_instant_are_all_there_within_seconds(
    nats_server: NatsServer, database: str, cluster_name: str, overlap: str
) -> None:
    """BR-173: all within 30 s, none skipped; with overlap allow they wait beforehand."""
    async with coordinating(nats_server.url, database, cluster_name), Sql(database) as sql:
        at = await inserted_before_their_instant(sql, overlap)

        async def all_there() -> bool:
            return bool(await sql.value("SELECT count(*) FROM job WHERE occurrence = $1", at) == SCHEDULES // 2)

        await wait_until(all_there, 60, what="all are jobs")
        rows = await sql.rows(
            "SELECT extract(epoch FROM recorded_at - occurrence)::float8 AS late_s FROM job WHERE schedule IS NOT NULL"
        )
        late_s = [row["late_s"] for row in rows]
        say(f"one instant, overlap {overlap}", late_s)
        assert max(late_s) < (30 if overlap == "skip" else 0)
        assert await sql.value("SELECT count(*) FROM schedule_skip") == 0
