"""One term of leadership: makes the duties and wires them to each other."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from jm_core.static_schedules import Patience
from jm_master.assign import Assigner
from jm_master.declaration_store import DeclarationStore
from jm_master.declarations import Declarations
from jm_master.dispatch_store import DispatchStore
from jm_master.fallback import FallbackDuty
from jm_master.job_store import JobStore
from jm_master.leadership import take_term
from jm_master.ledger import LATER_HORIZON_S, Ledger
from jm_master.lost import Undertaker
from jm_master.outbox import Outbox
from jm_master.placer import Placer
from jm_master.plan_store import PlanStore
from jm_master.planner import Planner
from jm_master.reconcile import Reconciler, Wired, follow_hints
from jm_master.record_store import RecordStore
from jm_master.recorder import Recorder
from jm_master.runs import RunSender
from jm_master.save_store import SaveStore
from jm_master.saver import Saver
from jm_master.schedule_service import ScheduleService
from jm_master.schedule_store import ScheduleStore
from jm_master.service import Service
from jm_master.waiters import ResultWaiters
from jm_master.wake import Wake
from jm_master.worker_rpc import WorkerRpc
from jm_master.writer import Writer, WriterConfig
from jm_nats.provision import BUCKET_ACK_WAIT_S, delete_consumer, ensure_cluster
from jm_nats.publisher import JetPublisher
from jm_nats.pull import PullReader
from jm_nats.subjects import PENDING_CONSUMER, RECORDER_CONSUMER

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from jm_core.ids import Term
    from jm_master.agent_store import AgentStore
    from jm_master.config import CoordinatorConfig
    from jm_master.database import Database
    from jm_master.duties import Duties
    from jm_master.registry import Registry
    from jm_master.watch import Watch
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

READ_BYTES_MAX: Final = 8 * 1024 * 1024  # of one stream, here or on the way here
EVENT_MESSAGES_MAX: Final = 256


class Leader:
    def __init__(
        self,
        config: CoordinatorConfig,
        names: Names,
        link: NatsLink,
        database: Database,
        registry: Registry,
        *,
        watch: Watch,
        agent_store: AgentStore,
        duties: Duties,
    ) -> None:
        self._config = config
        self._names = names
        self._link = link
        self._database = database
        self._registry = registry
        self._watch = watch
        self._agent_store = agent_store
        self._rpc = WorkerRpc(link, names)
        self._duties = duties
        self._waiters = ResultWaiters()
        self._assign = Wake()
        self._plan = Wake()
        self._ledger = Ledger(registry.view)

    async def run(self, holder: str, leading: asyncio.Event) -> None:
        """Lead until cancelled. ``leading`` is set when every duty runs.

        Raises:
            LostTermError, AgentError, StoreUnavailableError: a duty could not go on.
            AgentStoreChangedError: NATS is another one than recorded; nothing was dispatched.
        """
        known = self._duties.terms.latest
        term = await take_term(self._database, holder, after=known, on_older=self._duties.older_term)
        self._duties.terms.latest = term
        await self._agent_store.settle(term)
        dispatch = DispatchStore(self._database, term)
        counts = await self._database.ride_out(lambda: dispatch.count_in_buckets(later_s=LATER_HORIZON_S))
        self._ledger.seed(counts)
        async with AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(JetPublisher(self._link))
            sender = RunSender(publisher, self._names)
            outbox = Outbox(self._database, dispatch, sender, age_s=self._config.outbox_age_s)
            await self._take_consumers()
            pending = await stack.enter_async_context(self._pending())
            events = await stack.enter_async_context(self._events())
            recorder = self._recorder(events, term)
            async with anyio.create_task_group() as tasks:
                fallback, reconciler = self._fallback(dispatch), self._reconciler(recorder)
                duties: dict[str, Callable[[], Awaitable[None]]] = {
                    "outbox": outbox.run,
                    "recorder": recorder.run,
                    "writer": self._writer(pending, sender, outbox, term).run,
                    "assigner": self._assigner(dispatch, sender, outbox, term).run,
                    "undertaker": self._undertaker(recorder, term).run,
                    "fallback": fallback.run,
                    "reconciler": reconciler.run,
                    "planner": self._planner(term).run,
                    "declarations": self._declarations(term).run,
                    "hints": partial(follow_hints, self._link, self._names, reconciler),
                }
                for name, work in duties.items():
                    tasks.start_soon(self._duties.run, name, work)
                await tasks.start(self._service(fallback, term).run)
                log.info("leading", extra={"holder": holder, "term": term})
                self._duties.all_run()
                leading.set()

    async def _take_consumers(self) -> None:
        """Make the two consumers anew.

        What the leader before us had read and not acked comes to us at once instead of after the ack wait, and its
        readers, should it still be there, find out that they are over.
        """
        for stream, consumer in (
            (self._names.pending_stream, PENDING_CONSUMER),
            (self._names.events_stream, RECORDER_CONSUMER),
        ):
            await delete_consumer(self._link, stream, consumer)
        config = self._config
        await ensure_cluster(self._link, self._names, lease_s=config.lease_s, replicas=config.replicas)

    def _pending(self) -> PullReader:
        # Twice what the workers hold: the next batches lie here when they come back for them.
        batch = 2 * self._config.save_workers * self._config.save_batch_jobs
        stream = self._names.pending_stream
        return PullReader(self._link, stream, PENDING_CONSUMER, batch=batch, max_bytes=READ_BYTES_MAX)

    def _events(self) -> PullReader:
        stream = self._names.events_stream
        return PullReader(self._link, stream, RECORDER_CONSUMER, batch=EVENT_MESSAGES_MAX, max_bytes=READ_BYTES_MAX)

    def _writer(self, reader: PullReader, sender: RunSender, outbox: Outbox, term: Term) -> Writer:
        config = self._config
        placer = Placer(self._ledger, wait_s=config.credit_wait_s)
        saver = Saver(
            self._database,
            SaveStore(self._database, term),
            placer,
            sender,
            outbox,
            assign=self._assign,
            term=term,
            threshold_s=config.transient_threshold_s,
        )
        return Writer(
            self._link,
            reader,
            saver,
            view=self._registry.view,
            config=WriterConfig(config.save_workers, config.save_batch_jobs),
        )

    def _recorder(self, reader: PullReader, term: Term) -> Recorder:
        return Recorder(
            reader,
            self._database,
            RecordStore(self._database, term),
            self._ledger,
            self._registry.view,
            waiters=self._waiters,
            assign=self._assign,
            term=term,
            batch_events=self._config.record_batch_events,
        )

    def _assigner(self, dispatch: DispatchStore, sender: RunSender, outbox: Outbox, term: Term) -> Assigner:
        return Assigner(
            self._database,
            dispatch,
            sender,
            self._ledger,
            self._registry.view,
            outbox=outbox,
            wake=self._assign,
            term=term,
            threshold_s=self._config.transient_threshold_s,
            poll_s=self._config.poll_s,
        )

    def _planner(self, term: Term) -> Planner:
        return Planner(
            self._database,
            PlanStore(self._database, term),
            self._registry.view,
            assign=self._assign,
            wake=self._plan,
            term=term,
            cluster=self._names.cluster,
            zone=self._config.schedule_zone,
            threshold_s=self._config.transient_threshold_s,
            poll_s=self._config.poll_s,
        )

    def _undertaker(self, recorder: Recorder, term: Term) -> Undertaker:
        return Undertaker(
            self._link,
            self._names,
            registry=self._registry,
            watch=self._watch,
            database=self._database,
            recorder=recorder,
            ledger=self._ledger,
            term=term,
        )

    def _reconciler(self, recorder: Recorder) -> Reconciler:
        ports = Wired(self._link, self._names, database=self._database, recorder=recorder, rpc_to=self._rpc)
        reconcile_s = self._config.reconcile_s
        patience_s = max(reconcile_s, BUCKET_ACK_WAIT_S)
        return Reconciler(ports, self._registry.view, reconcile_s=reconcile_s, patience_s=patience_s)

    def _fallback(self, dispatch: DispatchStore) -> FallbackDuty:
        return FallbackDuty(
            self._database,
            dispatch,
            self._registry.view,
            self._rpc,
            assign=self._assign,
            watch=self._watch,
            threshold_s=self._config.no_bucket_threshold_s,
        )

    def _service(self, fallback: FallbackDuty, term: Term) -> Service:
        store = JobStore(self._database)
        schedules = ScheduleService(
            self._schedule_store(term),
            self._registry.view,
            zone=self._config.schedule_zone,
            inactive_s=self._config.schedule_inactive_s,
            assign=self._assign,
        )
        more = schedules.operations()
        return Service(self._link, self._names, store, self._waiters, unserved=fallback.unserved, more=more)

    def _declarations(self, term: Term) -> Declarations:
        patience = Patience(self._config.schedule_idle_s, self._config.schedule_inactive_s)
        return Declarations(
            self._database,
            DeclarationStore(self._database, term),
            self._schedule_store(term),
            self._registry.view,
            self._rpc,
            watch=self._watch,
            patience=patience,
            zone=self._config.schedule_zone,
        )

    def _schedule_store(self, term: Term) -> ScheduleStore:
        return ScheduleStore(self._database, term, on_change=self._plan.set)
