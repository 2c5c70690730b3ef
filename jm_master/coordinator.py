"""One coordinator: waits to lead, leads, steps down, and starts over until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NoReturn

import anyio

from jm_core.health import Fault, Invariant, InvariantViolatedError, violation_in
from jm_master.agent_store import AgentStore, AgentStoreChangedError
from jm_master.backoff import Backoff
from jm_master.checks import require_schema
from jm_master.config import CoordinatorConfig, PostgresConfig
from jm_master.database import Database
from jm_master.duties import Duties
from jm_master.faults import classify
from jm_master.leader import Leader
from jm_master.leadership import Leadership
from jm_master.migrate import migrate
from jm_master.pg_errors import StoreUnavailableError
from jm_master.postgres_pulse import NAME as POSTGRES
from jm_master.postgres_pulse import CutOffError, PostgresPulse
from jm_master.registry import Registry
from jm_master.terms import LostTermError
from jm_master.watch import Watch
from jm_nats import telemetry
from jm_nats.board_gauges import measured
from jm_nats.connection import connect
from jm_nats.errors import AgentUnavailableError, NoSuchStreamError
from jm_nats.health import HealthBoard, describe
from jm_nats.kv import CasKv
from jm_nats.link_health import NAME as NATS
from jm_nats.link_health import watch_link
from jm_nats.loop_lag import watch_loop
from jm_nats.provision import ensure_cluster, ensure_cluster_at_start
from jm_nats.subjects import Names

if TYPE_CHECKING:
    from collections.abc import Callable

    from jm_nats.config import NatsConfig
    from jm_nats.connection import NatsLink

log = logging.getLogger(__name__)

LONG_TERM_S: Final = 60.0
STOP_PATIENCE_S: Final = 2.0  # with a NATS that does not answer
VIOLATION_POLL_S: Final = 3.0
ELECTION: Final = "leadership"
AGENT_STORE: Final = "agent store"
ELECTION_LEASES: Final = 3  # without an answer to the election for so many leases a coordinator is of no use


class Coordinator:
    """Several may run; one of them leads.

    Args:
        nats: the agent's connection.
        postgres: the master's database; a Postgres that is away is waited for, at start and later.
        cluster: name of the cluster.
        config: behaviour; see there.
        board: where it says how it is; one of its own when the caller has none.
    """

    def __init__(
        self,
        nats: NatsConfig,
        postgres: PostgresConfig,
        cluster: str,
        config: CoordinatorConfig | None = None,
        *,
        board: HealthBoard | None = None,
    ) -> None:
        self.names = Names(cluster)
        self.config = config or CoordinatorConfig()
        self.board = board or HealthBoard("coordinator", "coordinator")
        self.holder = self.config.coordinator_id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.ready = asyncio.Event()  # connected to both stores; leading, or standing by
        self.leading = asyncio.Event()  # set for good the first time that we lead with every duty running
        self.registry: Registry  # once ready
        self.violation: AgentStoreChangedError | None = None  # why it must not lead
        self.on_violation: Callable[[AgentStoreChangedError | None], None] = lambda _: None  # None: it is over
        self._leadership: Leadership | None = None
        self._leads = False  # now, with every duty running
        self._nats = nats
        self._postgres = postgres
        self._duties = Duties(self.board)

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:  # noqa: ARG002
        """Serve until ``stop`` is set. There is nothing to drain: what is under way the next leader does again.

        Args:
            hurry: as for a worker; stopping never takes long enough for it to matter.

        Raises:
            AgentError: NATS cannot be used, at start.
            StoreMisconfiguredError, MigrationBlockedError: Postgres answers, and cannot be used as it is.
            AgentStoreChangedError: NATS is not the one that the jobs in Postgres were dispatched to, at start.
            InvariantViolatedError: fail-stop; the board says why.
        """
        async with AsyncExitStack() as stack:
            self._measure(stack)
            link = await connect(self._nats, client_name=f"jobmaster coordinator {self.holder}")
            stack.push_async_callback(link.close)
            # Refused settings end us here.
            await ensure_cluster_at_start(link, self.names, lease_s=self.config.lease_s, replicas=self.config.replicas)
            database = await stack.enter_async_context(Database(self._postgres, agent=self.config.agent))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_when, stop, link, tasks.cancel_scope)
                tasks.start_soon(watch_link, link, self.board)
                tasks.start_soon(watch_loop, self.board.verdict)
                await self._prepare_schema(database)
                pulse = PostgresPulse(database, self.board, patience_s=self.config.postgres_patience_s)
                tasks.start_soon(pulse.run)
                store = AgentStore(link, self.names, database, accept_loss=self.config.accept_agent_loss)
                await self._check_agent_store(link, store)
                self.registry = Registry(link, self.names, lease_s=self.config.lease_s)
                tasks.start_soon(self.registry.run)
                await self.registry.ready.wait()
                watch = Watch(self.config.lease_s)
                link.on_disconnect(watch.blind)
                link.on_reconnect(watch.blind)
                tasks.start_soon(watch.run, self.registry.probe)
                self.ready.set()
                log.info("coordinator ready", extra={"coordinator": self.holder})
                await self._lead_again_and_again(link, database, store, watch, pulse)

    def _measure(self, stack: AsyncExitStack) -> None:
        group = telemetry.Group(self.names.cluster, "coordinator", agent=self.config.agent)
        stores = {"nats": NATS, "postgres": POSTGRES}
        gauges = stack.enter_context(measured(self.board, group, stores))
        gauges.ask(telemetry.names.LEADER, lambda: int(self._leads))

    async def _ensure_cluster(self, link: NatsLink) -> None:
        await ensure_cluster(link, self.names, lease_s=self.config.lease_s, replicas=self.config.replicas)

    @staticmethod
    async def _cancel_when(stop: asyncio.Event, link: NatsLink, scope: anyio.CancelScope) -> None:
        await stop.wait()
        # Nobody has to hear that we go: whoever leads next does not depend on it.
        asyncio.get_running_loop().call_later(STOP_PATIENCE_S, link.abandon)
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

    async def _check_agent_store(self, link: NatsLink, store: AgentStore) -> None:
        """At start: a wrong NATS ends us here, one that went away meanwhile is waited for."""
        backoff = Backoff(first_s=0.2, cap_s=5.0)
        while True:
            try:
                await self._ensure_cluster(link)
                await store.check()
            except (AgentUnavailableError, NoSuchStreamError) as error:
                if backoff.is_fresh:
                    log.warning("waiting for nats", extra={"problem": str(error)})
                await anyio.sleep(backoff.next_s())
            else:
                return

    async def _lead_again_and_again(
        self, link: NatsLink, database: Database, store: AgentStore, watch: Watch, pulse: PostgresPulse
    ) -> None:
        backoff = Backoff(first_s=0.5, cap_s=10.0)
        while True:
            began_s = time.monotonic()
            broken = None
            leader = Leader(
                self.config,
                self.names,
                link,
                database,
                self.registry,
                watch=watch,
                duties=self._duties,
                agent_store=store,
            )
            try:
                await self._until_a_candidate(pulse)
                await self._lead_once(link, leader, store, pulse)
                backoff.reset()
            except* AgentStoreChangedError as changed:
                self._violated(changed)
            except* (LostTermError, CutOffError) as lost:
                log.warning("stepping down", extra={"reason": describe(lost)})
            except* InvariantViolatedError as violated:
                broken = violation_in(violated)
            except* Exception as errors:  # whoever leads next begins afresh
                if classify(errors) is Fault.TRANSIENT:  # an outage that a duty could not ride out
                    log.warning("stepping down", extra={"reason": describe(errors)})
                else:
                    log.exception("a duty failed; stepping down")
            if broken is not None:
                self._fail_stop(broken)
            if time.monotonic() - began_s > LONG_TERM_S:
                backoff.reset()  # what failed days apart is not a row of failures
            await anyio.sleep(VIOLATION_POLL_S if self.violation else backoff.next_s())

    def _violated(self, group: BaseExceptionGroup[AgentStoreChangedError]) -> None:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, AgentStoreChangedError)
        if self.violation is None:  # said once; it is looked at again every few seconds
            log.critical("not leading: %s", error)
            self.board.violated(Invariant.AGENT_STORE_CHANGED, str(error))
            self.board.trouble(AGENT_STORE, "not leading: NATS is not the one that the jobs were recorded with")
            self.on_violation(error)
        self.violation = error

    def _is_ours_again(self) -> None:
        if self.violation is not None:
            self.violation = None
            self.board.cleared(AGENT_STORE)
            log.warning("NATS is the one that the jobs were recorded with again")
            self.on_violation(None)

    def _fail_stop(self, broken: InvariantViolatedError) -> NoReturn:
        self.board.violated(broken.invariant, broken.detail)
        self.board.halt(str(broken))
        raise broken

    async def _lead_once(self, link: NatsLink, leader: Leader, store: AgentStore, pulse: PostgresPulse) -> None:
        """Wait to lead; then all duties, until the lease is lost or one of them fails."""
        leadership = self._leadership = self._leadership or self._new_leadership(link)
        await self._ensure_cluster(link)  # the store may have been lost since
        await store.check()  # who must not lead does not stand for election either
        self._is_ours_again()
        await leadership.win()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leadership.keep, tasks.cancel_scope.cancel)
                tasks.start_soon(pulse.raise_when_cut_off)
                await leader.run(self.holder, self._begins_to_lead)
        finally:
            self._leads = False
            await leadership.resign()

    def _begins_to_lead(self) -> None:
        self._leads = True
        self.leading.set()

    def _new_leadership(self, link: NatsLink) -> Leadership:
        return Leadership(
            CasKv(link, self.names.cluster_kv),
            self.holder,
            lease_s=self.config.lease_s,
            renew_s=self.config.renew_s,
            margin_s=self.config.trust_margin_s,
            answered=self._election_goes_on,
            terms=self._duties.terms,
        )

    async def _until_a_candidate(self, pulse: PostgresPulse) -> None:
        """Who has no Postgres had better not lead; nothing is expected of the election meanwhile."""
        if not await pulse.ask():
            self.board.retired(ELECTION)
            await pulse.wait_answer()

    def _election_goes_on(self) -> None:
        self.board.cycle(ELECTION, ELECTION_LEASES * self.config.lease_s)
