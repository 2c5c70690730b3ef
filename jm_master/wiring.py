"""The duties of one term of leadership, made and wired to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jm_core.agent_names import first_of
from jm_core.retention import parse_retention
from jm_core.static_schedules import Patience
from jm_master.agents import Agents
from jm_master.ahead import Ahead
from jm_master.assign import Assigner
from jm_master.cancel import Canceller
from jm_master.cancel_store import CancelStore
from jm_master.cluster_api import ClusterApi
from jm_master.cluster_duty import ClusterDuty
from jm_master.control import Control
from jm_master.control_service import ControlService
from jm_master.control_store import ControlStore
from jm_master.declaration_store import DeclarationStore
from jm_master.declarations import Declarations
from jm_master.dispatch_store import DispatchStore
from jm_master.fallback import FallbackDuty
from jm_master.job_store import JobStore
from jm_master.lost import Undertaker
from jm_master.outbox import Outbox
from jm_master.placer import Placer
from jm_master.plan_store import PlanStore
from jm_master.planner import Planner
from jm_master.queue_look import QueueLook
from jm_master.recall import Recaller
from jm_master.reconcile import Reconciler, Wired
from jm_master.record_store import RecordStore
from jm_master.recorder import Recorder
from jm_master.retention import Retainer
from jm_master.retention_service import RetentionService
from jm_master.retention_store import RetentionStore
from jm_master.runs import RunSender
from jm_master.save_store import SaveStore
from jm_master.saver import Saver
from jm_master.schedule_audit import ScheduleAudit
from jm_master.schedule_service import ScheduleService
from jm_master.schedule_store import ScheduleStore
from jm_master.service import Service
from jm_master.waiters import ResultWaiters
from jm_master.wake import Wake
from jm_master.withdraw import TellWorkers
from jm_master.worker_rpc import WorkerRpc
from jm_master.writer import Writer, WriterConfig
from jm_nats.kv import CasKv
from jm_nats.provision import BUCKET_ACK_WAIT_S

if TYPE_CHECKING:
    from jm_core.ids import Term
    from jm_master.config import CoordinatorConfig
    from jm_master.database import Database
    from jm_master.ledger import Ledger
    from jm_master.registry import Registry
    from jm_master.watch import Watch
    from jm_nats.connection import NatsLink
    from jm_nats.publisher import JetPublisher
    from jm_nats.pull import PullReader
    from jm_nats.subjects import Names
    from jm_nats.telemetry import Gauges


class Wiring:
    """Makes each part once a term; what several of them share is here."""

    def __init__(
        self,
        config: CoordinatorConfig,
        names: Names,
        link: NatsLink,
        database: Database,
        registry: Registry,
        *,
        watch: Watch,
        ledger: Ledger,
        publisher: JetPublisher,
        term: Term,
        gauges: Gauges,
    ) -> None:
        self.gauges = gauges
        self.config = config
        self.names = names
        self.link = link
        self.database = database
        self.registry = registry
        self.view = registry.view
        self.watch = watch
        self.ledger = ledger
        self.term = term
        self.rpc = WorkerRpc(link, names)
        self.waiters = ResultWaiters()
        self.assign = Wake()
        self.plan = Wake()
        self.dispatch = DispatchStore(database, term)
        self.sender = RunSender(publisher, names)
        self.outbox = Outbox(database, self.dispatch, self.sender, age_s=config.outbox_age_s)
        self.ahead = Ahead(database, term)
        self.agents = Agents(database, self.view, term=term)
        self.settings = ClusterDuty(
            link, CasKv(link, names.cluster_kv), database, self.view, assign=self.assign, term=term
        )
        self.canceller = Canceller(
            database,
            CancelStore(database, term),
            publisher,
            names,
            ledger=ledger,
            waiters=self.waiters,
        )
        self.schedules = ScheduleStore(
            database,
            term,
            withdrawer=TellWorkers(self.canceller),
            audit=ScheduleAudit(database.schema).record,
            on_change=self.plan.set,
        )

    def others(self) -> bool:
        """Whether other agents have a leader, which tells ours nothing."""
        return bool(self.view.elsewhere.live)

    def retaining_elsewhere(self) -> str | None:
        """The agent whose leader removes what is old; None: ours does. One of them, by its own setting."""
        own = self.database.agent
        first = first_of([own, *self.view.elsewhere.live])
        return None if first == own else first

    def writer(self, reader: PullReader) -> Writer:
        config = self.config
        saver = Saver(
            self.database,
            SaveStore(self.database, self.term, self.ahead),
            Placer(self.ledger, wait_s=config.credit_wait_s),
            self.sender,
            self.outbox,
            canceller=self.canceller,
            assign=self.assign,
            term=self.term,
            threshold_s=config.transient_threshold_s,
            ahead=self.ahead,
        )
        return Writer(
            self.link,
            reader,
            saver,
            view=self.view,
            cluster=self.names.cluster,
            config=WriterConfig(config.save_workers, config.save_batch_jobs, agent_prefix=self.database.prefix),
        )

    def recorder(self, reader: PullReader) -> Recorder:
        return Recorder(
            reader,
            self.database,
            RecordStore(self.database, self.term),
            self.ledger,
            self.view,
            cancels=self.canceller.store,
            waiters=self.waiters,
            assign=self.assign,
            term=self.term,
            batch_events=self.config.record_batch_events,
        )

    def assigner(self) -> Assigner:
        return Assigner(
            self.database,
            self.dispatch,
            self.sender,
            self.ledger,
            self.view,
            outbox=self.outbox,
            wake=self.assign,
            term=self.term,
            threshold_s=self.config.transient_threshold_s,
            poll_s=self.config.poll_s,
        )

    def planner(self) -> Planner:
        return Planner(
            self.database,
            PlanStore(self.database, self.term),
            self.view,
            assign=self.assign,
            wake=self.plan,
            may_plan=lambda: self.view.cluster.plans,
            term=self.term,
            cluster=self.names.cluster,
            zone=self.config.schedule_zone,
            threshold_s=self.config.transient_threshold_s,
            poll_s=self.config.poll_s,
        )

    def declarations(self) -> Declarations:
        return Declarations(
            self.database,
            DeclarationStore(self.database, self.term),
            self.schedules,
            self.view,
            self.rpc,
            watch=self.watch,
            patience=Patience(self.config.schedule_idle_s, self.config.schedule_inactive_s),
            zone=self.config.schedule_zone,
        )

    def undertaker(self, recorder: Recorder) -> Undertaker:
        return Undertaker(
            self.link,
            self.names,
            registry=self.registry,
            watch=self.watch,
            database=self.database,
            recorder=recorder,
            ledger=self.ledger,
            term=self.term,
        )

    def reconciler(self, recorder: Recorder) -> Reconciler:
        ports = Wired(self.link, self.names, database=self.database, recorder=recorder, rpc_to=self.rpc)
        reconcile_s = self.config.reconcile_s
        patience_s = max(reconcile_s, BUCKET_ACK_WAIT_S)
        return Reconciler(ports, self.view, reconcile_s=reconcile_s, patience_s=patience_s)

    def fallback(self) -> FallbackDuty:
        return FallbackDuty(
            self.database,
            self.dispatch,
            self.view,
            self.rpc,
            assign=self.assign,
            watch=self.watch,
            threshold_s=self.config.no_bucket_threshold_s,
        )

    def control(self) -> Control:
        return Control(
            self.database,
            ControlStore(self.database, self.term, self.canceller.store, self.ahead),
            self.canceller,
            Recaller(self.link, self.names, self.rpc, self.view),
            self.ahead,
            ledger=self.ledger,
            view=self.view,
            assign=self.assign,
            others=self.others,
        )

    def retainer(self) -> Retainer:
        retention = parse_retention(self.config.retention)
        store = RetentionStore(self.database, self.term, retention)
        return Retainer(store, retention, elsewhere=self.retaining_elsewhere)

    def queue_look(self) -> QueueLook:
        return QueueLook(self.link, self.names, self.database, self.view, self.gauges)

    def service(self, fallback: FallbackDuty, control: Control, retainer: Retainer) -> Service:
        store = JobStore(self.database)
        cluster = ClusterApi(self.names.cluster, self.view, self.settings, self.agents, self.ledger, fallback.unserved)
        schedules = ScheduleService(
            self.schedules,
            self.view,
            zone=self.config.schedule_zone,
            inactive_s=self.config.schedule_inactive_s,
            assign=self.assign,
        )
        return Service(
            self.link,
            self.names,
            store,
            self.waiters,
            unserved=fallback.unserved,
            operations={
                **cluster.operations,
                **schedules.operations(),
                **ControlService(control, store, archived=cluster.archived).operations(),
                **RetentionService(retainer).operations(),
            },
            archived=cluster.archived,
            waits=cluster.waits,
            others=self.others,
            guests_max=self.database.guests_max,
        )
