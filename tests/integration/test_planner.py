"""Schedules become jobs: a coordinator, its planner and real Postgres."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.support.master import coordinating, linked
from tests.support.sql import Sql
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jm_nats.embedded import NatsServer
    from tests.support.master import Bench


@asynccontextmanager
async def planning(nats: NatsServer, dsn: str, cluster: str) -> AsyncIterator[tuple[Bench, Sql]]:
    async with coordinating(nats.url, dsn, cluster), linked(nats.url, cluster) as bench, Sql(dsn) as sql:
        yield bench, sql


async def insert(sql: Sql, name: str, **columns: Any) -> None:
    """As somebody with plain SQL would."""
    values = {"name": name, "kind": "cron", "expr": "* * * * *", "handler": "noop", **columns}
    places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    await sql.rows(f"INSERT INTO schedule ({', '.join(values)}) VALUES ({places})", *values.values())


async def jobs_of(sql: Sql, name: str) -> list[Any]:
    return await sql.rows("SELECT *, id::text AS job_id FROM job WHERE schedule = $1 ORDER BY occurrence", name)


async def test_a_row_of_plain_sql_is_planned_to_the_horizon(
    nats_server: NatsServer, database: str, cluster_name: str
) -> None:
    async with planning(nats_server, database, cluster_name) as (_, sql):
        await insert(sql, "minutely", args='{"a": 1}', metadata='{"team": "x"}', lane="slow", priority=4)
        await wait_until(lambda: jobs_of(sql, "minutely"), 15, what="it is planned")
        jobs = await jobs_of(sql, "minutely")
        now = datetime.now(UTC)
        assert len(jobs) == 15
        assert [job["occurrence"].second for job in jobs] == [0] * 15
        assert now - timedelta(seconds=60) < jobs[0]["occurrence"] < now + timedelta(seconds=60)
        assert {(job["handler"], job["args"], job["lane"], job["priority"]) for job in jobs} == {
            ("noop", '{"a": 1}', "slow", 4)
        }
        assert {job["metadata"] for job in jobs} == {'{"team": "x"}'}
        assert [job["run_at"] for job in jobs] == [job["occurrence"] for job in jobs]
        assert [job["job_id"] for job in jobs] == sorted(job["job_id"] for job in jobs)
