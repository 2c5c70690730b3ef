"""A cluster in this process: a coordinator that leads, a worker with the handlers of ``control_app``, and a client."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jm_nats import JobClient, JobMaster
from jm_nats.config import NatsConfig
from tests.support import control_app, in_process
from tests.support.master import FAST, coordinating
from tests.support.sql import Sql
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import asyncpg

    from jm_master.config import CoordinatorConfig
    from jm_master.coordinator import Coordinator
    from jm_nats.worker import Worker


@dataclass
class Small:
    nats_url: str
    name: str
    client: JobClient
    sql: Sql
    coordinator: Coordinator
    worker: Worker | None = None

    async def submit(self, handler: str, **args: Any) -> str:
        """Recorded; the job's id."""
        return await self.submit_with(handler, args)

    async def submit_with(self, handler: str, args: dict[str, Any] | None = None, **fields: Any) -> str:
        from jm_nats.client import submission  # noqa: PLC0415

        receipt = await self.client.submit(submission(handler, args or {}, **fields), wait="recorded")
        assert receipt.status == "recorded", receipt
        return receipt.job_id

    async def reaches(self, job_id: str, status: int, timeout_s: float = 20) -> asyncpg.Record:
        """The row, once it is in ``status``."""

        async def there() -> asyncpg.Record | None:
            rows = await self.sql.rows("SELECT * FROM job WHERE id = $1 AND status = $2", job_id, int(status))
            return rows[0] if rows else None

        return await wait_until(there, timeout_s, what=f"{job_id} to be {status!r}")

    async def all_reach(self, ids: Sequence[str], status: int, timeout_s: float = 30) -> None:
        query = "SELECT count(*) FROM job WHERE id = ANY($1::uuid[]) AND status = $2"

        async def there() -> bool:
            return await self.sql.value(query, ids, status) == len(ids)

        await wait_until(there, timeout_s, what=f"{len(ids)} jobs to be {status!r}")


@asynccontextmanager
async def small_cluster(
    nats_url: str, dsn: str, name: str, *, config: CoordinatorConfig = FAST, works: bool = True, **worker: Any
) -> AsyncIterator[Small]:
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(coordinating(nats_url, dsn, name, config))
        sql = await stack.enter_async_context(Sql(dsn))
        client = await stack.enter_async_context(JobClient(name, NatsConfig(servers=(nats_url,))))
        small = Small(nats_url, name, client, sql, coordinator)
        if works:
            small.worker = await stack.enter_async_context(working(nats_url, name, **worker))
        yield small


@asynccontextmanager
async def working(nats_url: str, name: str, **config: Any) -> AsyncIterator[Worker]:
    app = JobMaster(name, nats=NatsConfig(servers=(nats_url,)))
    app.handlers.update(control_app.jm.handlers)
    async with in_process.working(app, **config) as worker:
        yield worker
