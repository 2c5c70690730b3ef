"""One coordinator: waits to lead, leads, steps down, and starts over until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import anyio

from jm_master.backoff import Backoff
from jm_master.checks import require_schema
from jm_master.config import CoordinatorConfig, PostgresConfig
from jm_master.database import Database
from jm_master.leader import Leader
from jm_master.leadership import Leadership
from jm_master.lost import Watch
from jm_master.migrate import migrate
from jm_master.pg_errors import StoreUnavailableError
from jm_master.registry import Registry
from jm_master.terms import LostTermError
from jm_nats.connection import connect
from jm_nats.kv import CasKv
from jm_nats.provision import ensure_cluster
from jm_nats.subjects import Names

if TYPE_CHECKING:
    from jm_nats.config import NatsConfig
    from jm_nats.connection import NatsLink

log = logging.getLogger(__name__)

LONG_TERM_S: Final = 60.0


class Coordinator:
    """Several may run; one of them leads.

    Args:
        nats: the agent's connection.
        postgres: the master's database; a Postgres that is away is waited for, at start and later.
        cluster: name of the cluster.
        config: behaviour; see there.
    """

    def __init__(
        self, nats: NatsConfig, postgres: PostgresConfig, cluster: str, config: CoordinatorConfig | None = None
    ) -> None:
        self.names = Names(cluster)
        self.config = config or CoordinatorConfig()
        self.holder = self.config.coordinator_id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.ready = asyncio.Event()  # connected to both stores; leading, or standing by
        self.leading = asyncio.Event()  # set for good the first time that we lead with every duty running
        self.registry: Registry  # once ready
        self._nats = nats
        self._postgres = postgres

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:  # noqa: ARG002
        """Serve until ``stop`` is set. There is nothing to drain: what is under way the next leader does again.

        Args:
            hurry: as for a worker; stopping never takes long enough for it to matter.

        Raises:
            AgentError: NATS cannot be used, at start.
            StoreMisconfiguredError, MigrationBlockedError: Postgres answers, and cannot be used as it is.
        """
        async with AsyncExitStack() as stack:
            link = await connect(self._nats, client_name=f"jobmaster coordinator {self.holder}")
            stack.push_async_callback(link.close)
            await self._ensure_cluster(link)  # refused settings end us here
            database = await stack.enter_async_context(Database(self._postgres))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_when, stop, tasks.cancel_scope)
                await self._prepare_schema(database)
                self.registry = Registry(link, self.names, lease_s=self.config.lease_s)
                tasks.start_soon(self.registry.run)
                await self.registry.ready.wait()
                self.ready.set()
                log.info("coordinator ready", extra={"coordinator": self.holder})
                await self._lead_again_and_again(link, database)

    async def _ensure_cluster(self, link: NatsLink) -> None:
        await ensure_cluster(link, self.names, lease_s=self.config.lease_s, replicas=self.config.replicas)

    @staticmethod
    async def _cancel_when(stop: asyncio.Event, scope: anyio.CancelScope) -> None:
        await stop.wait()
        scope.cancel()

    async def _prepare_schema(self, database: Database) -> None:
        """Wait for Postgres; bring the schema up to date, or check that somebody has."""
        backoff = Backoff(first_s=0.2, cap_s=5.0)
        while True:
            try:
                if self.config.auto_migrate:
                    await migrate(self._postgres.dsn, self._postgres.schema)
                await require_schema(database)
            except StoreUnavailableError as error:
                if backoff.is_fresh:
                    log.warning("waiting for postgres", extra={"postgres": error.where, "problem": error.problem})
                await anyio.sleep(backoff.next_s())
            else:
                return

    async def _lead_again_and_again(self, link: NatsLink, database: Database) -> None:
        watch = Watch(self.config.lease_s)
        link.on_disconnect(watch.blind)
        link.on_reconnect(watch.blind)
        backoff = Backoff(first_s=0.5, cap_s=10.0)
        while True:
            began_s = time.monotonic()
            try:
                await self._lead_once(link, Leader(self.config, self.names, link, database, self.registry, watch=watch))
                backoff.reset()
            except* LostTermError as lost:
                log.warning("stepping down", extra={"reason": str(lost.exceptions[0])})
            except* Exception:  # an outage that a duty could not ride out, or a bug: whoever leads next begins afresh
                log.exception("a duty failed; stepping down")
            if time.monotonic() - began_s > LONG_TERM_S:
                backoff.reset()  # what failed days apart is not a row of failures
            await anyio.sleep(backoff.next_s())

    async def _lead_once(self, link: NatsLink, leader: Leader) -> None:
        """Wait to lead; then all duties, until the lease is lost or one of them fails."""
        leadership = Leadership(
            CasKv(link, self.names.cluster_kv),
            self.holder,
            lease_s=self.config.lease_s,
            renew_s=self.config.renew_s,
            margin_s=self.config.trust_margin_s,
        )
        await self._ensure_cluster(link)  # the store may have been lost since
        await leadership.win()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leadership.keep, tasks.cancel_scope.cancel)
                await leader.run(self.holder, self.leading)
        finally:
            await leadership.resign()
