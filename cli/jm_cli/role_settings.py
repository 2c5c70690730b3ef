"""The settings of the processes of a cluster: worker and coordinator, and what both of them have.

Defaults come from ``jm_core.limits``, because the configuration classes themselves would bring the NATS and Postgres
drivers along, and ``jm --help`` must not wait for those. A test compares the two.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from jm_cli.settings import PRIORITY_NAMES, parse_counts, parse_priority, setting, words
from jm_core import limits
from jm_core.agent_names import MAIN
from jm_core.model import WorkerMode
from jm_core.retention import DEFAULT as RETENTION_DEFAULT
from jm_core.retention import EXAMPLE as RETENTION_EXAMPLE
from jm_core.retention import KINDS as RETENTION_KINDS


class Mode(StrEnum):
    """Of ``WorkerMode``, what ``jm worker`` offers."""

    EXECUTION = WorkerMode.EXECUTION.value
    DRAIN = WorkerMode.DRAIN.value
    FULL = WorkerMode.FULL.value


@dataclass(frozen=True, kw_only=True)
class HealthOptions:
    """Where a process answers how it is: `/livez`, `/readyz`, `/health`."""

    TITLE: ClassVar[str] = "Health"

    health_port: Annotated[
        int | None,
        setting(
            "--health-port",
            "JM_HEALTH_PORT",
            "Port of /livez, /readyz and /health; 0 takes a free one, which is logged. With it, a process whose work "
            "has failed stays up and says why.",
            show_default="none is opened",
            metavar="PORT",
            min=0,
            max=65_535,
        ),
    ] = None
    health_host: Annotated[
        str,
        setting(
            "--health-host",
            "JM_HEALTH_HOST",
            "Address it listens on; 0.0.0.0 for probes from outside.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """One worker; the fields of ``jm_nats.worker.config.WorkerConfig``."""

    TITLE: ClassVar[str] = "Worker"

    lanes: Annotated[
        list[str] | None,
        setting(
            "--lane",
            "JM_WORKER_LANES",
            "Lane to serve; repeat it, or separate several by commas.",
            show_default="those of the app's handlers, and 'default'",
            metavar="LANE",
        ),
    ] = None
    slots: Annotated[int, setting("--slots", "JM_WORKER_SLOTS", "Handlers that run at the same time.", metavar="N")] = (
        limits.SLOTS
    )
    process_slots: Annotated[
        int | None,
        setting(
            "--process-slots",
            "JM_WORKER_PROCESS_SLOTS",
            "Of these, how many may be processes.",
            show_default="number of CPUs",
            metavar="N",
        ),
    ] = None
    priorities: Annotated[
        list[str] | None,
        setting(
            "--priority",
            "JM_WORKER_PRIORITIES",
            "Priority to serve; repeat it, or separate several by commas.",
            show_default="all",
            metavar=PRIORITY_NAMES,
        ),
    ] = None
    buckets: Annotated[
        list[str] | None,
        setting(
            "--buckets",
            "JM_WORKER_BUCKETS",
            "How many buckets a lane has at a priority, e.g. high=2; repeat it, or separate several by commas.",
            show_default="the cluster's number ('jm cluster set'), else 1",
            metavar="PRIORITY=N",
        ),
    ] = None
    worker_id: Annotated[
        str | None,
        setting(
            "--name", "JM_WORKER_ID", "Worker id, unique in the cluster.", show_default="host-pid-random", metavar="ID"
        ),
    ] = None
    drain_timeout: Annotated[
        float,
        setting(
            "--drain-timeout", "JM_WORKER_DRAIN_TIMEOUT_S", "What running handlers get at a stop.", metavar="SECONDS"
        ),
    ] = limits.DRAIN_TIMEOUT_S
    cancel_grace: Annotated[
        float,
        setting(
            "--cancel-grace",
            "JM_WORKER_CANCEL_GRACE_S",
            "What a handler may take to end once it has timed out; at a stop it gets half a second.",
            metavar="SECONDS",
        ),
    ] = 5.0
    lease: Annotated[
        float,
        setting(
            "--lease",
            "JM_LEASE_S",
            "Without a heartbeat for so long, a worker counts as lost; the same in all of a cluster.",
            metavar="SECONDS",
        ),
    ] = limits.LEASE_S
    heartbeat: Annotated[
        float, setting("--heartbeat", "JM_HEARTBEAT_S", "Between two heartbeats.", metavar="SECONDS")
    ] = limits.HEARTBEAT_S
    replicas: Annotated[
        int, setting("--replicas", "JM_NATS_REPLICAS", "Replicas of its streams in a NATS cluster.", metavar="N")
    ] = 1

    mode: Annotated[
        Mode,
        setting(
            "--mode",
            "JM_WORKER_MODE",
            "execution: run jobs, and take over what a lost worker held. drain: take over only, run nothing. "
            "full: as execution, and be a coordinator too (needs Postgres).",
            metavar="|".join(Mode),
        ),
    ] = Mode.EXECUTION
    processes: Annotated[
        int,
        setting(
            "--processes",
            "JM_WORKER_PROCESSES",
            "Run so many workers as processes; one that dies is started again.",
            metavar="N",
            min=1,
            max=1000,
        ),
    ] = 1

    def fields(self) -> dict[str, Any]:
        """For ``WorkerConfig``; what was left out keeps that class's own default."""
        given = {
            "worker_id": self.worker_id,
            "process_slots": self.process_slots,
            "buckets": parse_counts(words(self.buckets)) or None,
            "priorities": tuple(parse_priority(word) for word in words(self.priorities)) or None,
        }
        return {
            "lanes": words(self.lanes),
            "slots": self.slots,
            "mode": WorkerMode(self.mode.value),
            "drain_timeout_s": self.drain_timeout,
            "cancel_grace_s": self.cancel_grace,
            "lease_s": self.lease,
            "heartbeat_s": self.heartbeat,
            "replicas": self.replicas,
        } | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class CoordinatorTuning:
    """How a coordinator works; for `jm worker` they count with `--mode full`."""

    TITLE: ClassVar[str] = "Coordinator upkeep"

    agent: Annotated[
        str,
        setting(
            "--agent",
            "JM_AGENT",
            "Name of the NATS that it leads, where several are under one Postgres (docs/clusters.md).",
            metavar="NAME",
        ),
    ] = MAIN
    transient_threshold: Annotated[
        float,
        setting(
            "--transient-threshold",
            "JM_TRANSIENT_THRESHOLD_S",
            "How early before its due time a job may be handed to a worker.",
            metavar="SECONDS",
        ),
    ] = limits.TRANSIENT_THRESHOLD_S
    save_workers: Annotated[
        int, setting("--save-workers", "JM_SAVE_WORKERS", "Batches that are saved at once.", metavar="N")
    ] = 2
    save_batch_jobs: Annotated[
        int, setting("--save-batch-jobs", "JM_SAVE_BATCH_JOBS", "Jobs saved by one transaction.", metavar="N")
    ] = limits.SAVE_BATCH_JOBS
    record_batch_events: Annotated[
        int,
        setting(
            "--record-batch-events", "JM_RECORD_BATCH_EVENTS", "Outcomes recorded by one transaction.", metavar="N"
        ),
    ] = 4_000
    poll: Annotated[
        float,
        setting("--poll", "JM_POLL_S", "How often due jobs are looked for when nothing wakes it.", metavar="SECONDS"),
    ] = 1.0
    outbox_age: Annotated[
        float,
        setting("--outbox-age", "JM_OUTBOX_AGE_S", "Messages unsent for so long are sent again.", metavar="SECONDS"),
    ] = 15.0
    credit_wait: Annotated[
        float,
        setting(
            "--credit-wait",
            "JM_CREDIT_WAIT_S",
            "How long new jobs wait for a worker's slots before they are left to Postgres.",
            metavar="SECONDS",
        ),
    ] = limits.CREDIT_WAIT_S
    postgres_patience: Annotated[
        float,
        setting(
            "--postgres-patience",
            "JM_POSTGRES_PATIENCE_S",
            "Without an answer of Postgres for so long a leader lets another one lead; it is unhealthy after two "
            "thirds of that.",
            metavar="SECONDS",
        ),
    ] = limits.POSTGRES_PATIENCE_S
    reconcile: Annotated[
        float,
        setting(
            "--reconcile",
            "JM_RECONCILE_S",
            "How often workers are asked for the jobs that they should hold.",
            metavar="SECONDS",
        ),
    ] = limits.RECONCILE_S
    no_bucket_threshold: Annotated[
        float,
        setting(
            "--no-bucket-threshold",
            "JM_NO_BUCKET_THRESHOLD_S",
            "Due jobs that no worker serves for so long get a stand-in.",
            metavar="SECONDS",
        ),
    ] = limits.NO_BUCKET_THRESHOLD_S
    schedule_zone: Annotated[
        str,
        setting(
            "--schedule-zone",
            "JM_SCHEDULE_ZONE",
            "IANA time zone of schedules that name none; the same for all coordinators of a cluster.",
            metavar="ZONE",
        ),
    ] = limits.SCHEDULE_ZONE
    schedule_idle: Annotated[
        float,
        setting(
            "--schedule-idle",
            "JM_SCHEDULE_IDLE_S",
            "A schedule declared in code is idle when no worker has declared it for so long; an older declaration "
            "takes effect again only then.",
            metavar="SECONDS",
        ),
    ] = limits.SCHEDULE_IDLE_S
    schedule_inactive: Annotated[
        float,
        setting(
            "--schedule-inactive",
            "JM_SCHEDULE_INACTIVE_S",
            "After so long it is inactive: not planned any more, until a worker declares it again.",
            metavar="SECONDS",
        ),
    ] = limits.SCHEDULE_INACTIVE_S
    retention: Annotated[
        str,
        setting(
            "--retention",
            "JM_RETENTION",
            f"How long ended jobs are kept; by kind where that differs: '{RETENTION_EXAMPLE}'. "
            f"Kinds: {', '.join(RETENTION_KINDS)}.",
            metavar="TEXT",
        ),
    ] = RETENTION_DEFAULT
    accept_agent_loss: Annotated[
        bool,
        setting(
            "--accept-agent-loss",
            "JM_ACCEPT_AGENT_LOSS",
            "For one start: the NATS store was lost or replaced; dispatch again all that Postgres has recorded.",
        ),
    ] = False
    auto_migrate: Annotated[
        bool, setting("--migrate/--no-migrate", "JM_AUTO_MIGRATE", "Bring the schema up to date at start.")
    ] = True

    def fields(self) -> dict[str, Any]:
        """For ``CoordinatorConfig``."""
        return {
            "agent": self.agent,
            "transient_threshold_s": self.transient_threshold,
            "save_workers": self.save_workers,
            "save_batch_jobs": self.save_batch_jobs,
            "record_batch_events": self.record_batch_events,
            "poll_s": self.poll,
            "outbox_age_s": self.outbox_age,
            "credit_wait_s": self.credit_wait,
            "postgres_patience_s": self.postgres_patience,
            "reconcile_s": self.reconcile,
            "no_bucket_threshold_s": self.no_bucket_threshold,
            "schedule_zone": self.schedule_zone,
            "schedule_idle_s": self.schedule_idle,
            "schedule_inactive_s": self.schedule_inactive,
            "retention": self.retention,
            "accept_agent_loss": self.accept_agent_loss,
            "auto_migrate": self.auto_migrate,
        }


@dataclass(frozen=True, kw_only=True)
class CoordinatorOptions(CoordinatorTuning):
    """One coordinator; the fields of ``jm_master.config.CoordinatorConfig``."""

    TITLE: ClassVar[str] = "Coordinator"

    coordinator_id: Annotated[
        str,
        setting("--name", "JM_COORDINATOR_ID", "Shown in logs.", show_default="host-pid-random", metavar="ID"),
    ] = ""
    lease: Annotated[
        float,
        setting(
            "--lease",
            "JM_LEASE_S",
            "Of the leadership, and of the workers' heartbeats; the same in all of a cluster.",
            metavar="SECONDS",
        ),
    ] = limits.LEASE_S
    replicas: Annotated[
        int,
        setting("--replicas", "JM_NATS_REPLICAS", "Replicas of the cluster's streams in a NATS cluster.", metavar="N"),
    ] = 1

    def fields(self) -> dict[str, Any]:
        """For ``CoordinatorConfig``."""
        own = {"coordinator_id": self.coordinator_id, "lease_s": self.lease, "replicas": self.replicas}
        return super().fields() | own
