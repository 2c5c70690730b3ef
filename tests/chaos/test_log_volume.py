"""A store that is away for more than a minute, under load: a few lines a minute of each process, not one a try."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final

import pytest

from jm_cli.exits import ExitCode
from jm_master.embedded import PostgresServer
from jm_nats import submission
from jm_nats.embedded import NatsServer
from tests.support.cli import Running
from tests.support.processes import Cluster

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(240)]

APP: Final = "tests.support.app:jm"
AWAY_S: Final = 75.0
LINES_MAX: Final = 10  # less than that, in any minute


def at_of(entry):
    return datetime.fromisoformat(entry["time"]).timestamp()


def busiest_minute(entries):
    """The lines of the minute that has most of them."""
    minutes = [[e for e in entries if 0 <= at_of(e) - at_of(first) < 60] for first in entries]
    return max(minutes, key=len, default=[])


def shown(entries):
    return "\n".join(f"{e['time']} {e['level']} {e['message']} {e.get('problem', '')[:100]}" for e in entries)


async def start(stack, tmp_path, **variables):
    flags = ("--log-format", "json")
    processes = {
        name: stack.enter_context(Running(*command, *flags, cwd=tmp_path, **variables))
        for name, command in (("coordinator", ("coordinator",)), ("worker", ("worker", APP)))
    }
    await processes["coordinator"].wait_for('"leading"')
    await processes["worker"].wait_for('"worker ready"')
    return processes


@pytest.mark.parametrize("store", ["nats", "postgres"])
async def test_a_store_that_is_away_for_a_minute_fills_no_log(store, cluster_name, tmp_path):
    async with AsyncExitStack() as stack:
        nats = stack.enter_context(NatsServer())
        postgres = PostgresServer(settings={"fsync": "off"})
        await asyncio.to_thread(postgres.start)
        stack.push_async_callback(asyncio.to_thread, postgres.close)
        variables = {"JM_NATS_URL": nats.url, "JM_POSTGRES_DSN": postgres.dsn, "JM_CLUSTER": cluster_name}
        processes = await start(stack, tmp_path, **variables)
        cluster = await stack.enter_async_context(Cluster(nats.url, postgres.dsn, cluster_name))
        async with cluster.client() as client:
            # Ends that cannot be stored, in several buckets; jobs that are due meanwhile; an order to a worker.
            jobs = [
                submission("sleeper", {"seconds": 5}, priority=priority)
                for priority in ("low", "medium", "high")
                for _ in range(30)
            ]
            jobs += [submission("noop", delay_s=20) for _ in range(50)]
            receipts = await client.submit_many(jobs, wait="recorded")
            await cluster.wait_for_counts(processing=60)
        before_s = datetime.now(UTC).timestamp()
        server = {"nats": nats, "postgres": postgres}[store]
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(AWAY_S)  # the fault itself
        back_s = datetime.now(UTC).timestamp()
        await asyncio.to_thread(server.start)
        ids = [receipt.job_id for receipt in receipts]
        assert await cluster.ended(ids, timeout_s=60) == {"succeeded": len(ids)}
        for name, process in processes.items():
            entries = [json.loads(line) for line in process.err().splitlines()]
            busiest = busiest_minute([entry for entry in entries if before_s <= at_of(entry) < back_s])
            print(f"{store} away, {name}: {len(busiest)} lines in its busiest minute\n{shown(busiest)}")  # noqa: T201
            assert len(busiest) < LINES_MAX, f"{name}\n{shown(busiest)}"
            assert busiest or (store, name) == ("postgres", "worker"), "but for a worker, which has no Postgres"
            assert await process.end() == ExitCode.OK
