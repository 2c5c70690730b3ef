"""Settings of the master, checked before anything starts. No secret is part of a repr, a message or a log (BR-220)."""

import os
import socket
import uuid
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from jm_core import limits
from jm_core.agent_names import MAIN, parse_agent
from jm_core.errors import InvalidScheduleError, InvalidSettingError, check_finite
from jm_core.recurrence import load_zone
from jm_core.retention import DEFAULT as DEFAULT_RETENTION
from jm_core.retention import parse_retention
from jm_master.queries import DEFAULT_SCHEMA, parse_schema

SCHEMES: Final = ("postgres", "postgresql")


def made_up_id() -> str:
    """For a coordinator that was given no name."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresConfig:
    """How to reach the master's database.

    Args:
        dsn: ``postgresql://user:password@host:port/database``; several hosts separated by commas for a failover pair.
        schema: one per cluster when several share a database.
        connections_max: of one process; never more, also while reconnecting (BR-168).
        bouncer: True behind a bouncer in transaction mode: nothing is kept in the session then, neither prepared
            statements nor planner settings (BR-156).
        command_timeout_s: a statement without an answer for so long means a dead connection.

    Raises:
        InvalidSettingError, InvalidNameError: without quoting the DSN.
    """

    dsn: str = field(repr=False)
    schema: str = DEFAULT_SCHEMA
    connections_max: int = 5
    bouncer: bool = False
    connect_timeout_s: float = 10.0
    command_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_finite({name: getattr(self, name) for name in self.__dataclass_fields__})
        parse_schema(self.schema)
        _check_dsn(self.dsn)
        for name in ("connections_max", "connect_timeout_s", "command_timeout_s"):
            if getattr(self, name) <= 0:
                raise InvalidSettingError(f"{name} is {getattr(self, name)}; it must be greater than 0")

    @property
    def redacted(self) -> str:
        """Host and database for messages and logs."""
        return redacted(self.dsn)


def redacted(dsn: str) -> str:
    """``host:port/database`` of a DSN. Cut at the last ``@``: an unescaped password may hold one itself."""
    rest = dsn.partition("://")[2].rpartition("@")[2]
    return rest.partition("?")[0].partition("#")[0] or "(no host)"


def _check_dsn(dsn: str) -> None:
    """Refuse what asyncpg would choke on: its message would quote a part of the password.

    Raises:
        InvalidSettingError: without a word of the DSN.
    """
    wanted = "postgresql://user:password@host:5432/database"
    if dsn.partition("://")[0] not in SCHEMES:
        raise InvalidSettingError(f"the Postgres DSN must look like {wanted}")
    authority = dsn.partition("://")[2].partition("?")[0]
    userinfo, _, address = authority.rpartition("@")
    hosts = address.partition("/")[0].split(",")
    if set(userinfo) & set("/?# ") or any(not _is_host(host) for host in hosts):
        raise InvalidSettingError(
            f"the Postgres DSN cannot be read; write it like {wanted}, "
            "and '/', '?', '#', '%' or a space inside the password as %2F, %3F, %23, %25, %20"
        )


def _is_host(host: str) -> bool:
    try:
        parts = urlsplit(f"//{host}")
        return not parts.query and not parts.fragment and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Behaviour of one coordinator. The defaults are DESIGN section 10's; units are in the names.

    Args:
        agent: name of the NATS that it leads, where several are under one master.
        coordinator_id: shown in logs and in ``leader.holder``; one is made up when empty.
        lease_s: of the leadership and, the same number, of the workers' heartbeats.
        transient_threshold_s: how early before its due time a job may move into a bucket.
        save_workers, save_batch_jobs: batches in flight at once and their size.
        record_batch_events: outcomes applied by one statement at most.
        poll_s: how often the assigner looks for due rows when nothing wakes it.
        reconcile_s: how often workers are asked for what they should hold; what has been due for less is left alone.
        no_bucket_threshold_s: due jobs that nobody serves for so long get a fallback bucket.
        accept_agent_loss: when NATS is not the one that the jobs were recorded with, put all of them back and go on,
            instead of refusing to lead.
        schedule_zone: IANA zone of schedules that name none.
        schedule_idle_s, schedule_inactive_s: a schedule declared in code is idle when no worker has declared it for so
            long, and inactive, which means not planned, after the latter.
        postgres_patience_s: a leader that has had no answer from Postgres for so long resigns; unhealthy it is after
            two thirds of that.
        auto_migrate: bring the schema up to date at start (safe with any number of processes).
        retention: how long ended jobs are kept, by kind (``jm_core.retention.parse_retention``).
        replicas: of the cluster's own streams and KVs, in a NATS cluster.
    """

    agent: str = MAIN
    coordinator_id: str = ""
    lease_s: float = limits.LEASE_S
    transient_threshold_s: float = limits.TRANSIENT_THRESHOLD_S
    save_workers: int = 2
    save_batch_jobs: int = limits.SAVE_BATCH_JOBS
    record_batch_events: int = 4_000
    poll_s: float = 1.0
    outbox_age_s: float = 15.0
    credit_wait_s: float = limits.CREDIT_WAIT_S
    reconcile_s: float = limits.RECONCILE_S
    no_bucket_threshold_s: float = limits.NO_BUCKET_THRESHOLD_S
    schedule_zone: str = limits.SCHEDULE_ZONE
    schedule_idle_s: float = limits.SCHEDULE_IDLE_S
    schedule_inactive_s: float = limits.SCHEDULE_INACTIVE_S
    accept_agent_loss: bool = False
    postgres_patience_s: float = limits.POSTGRES_PATIENCE_S
    auto_migrate: bool = True
    replicas: int = 1
    retention: str = DEFAULT_RETENTION

    def __post_init__(self) -> None:
        check_finite({name: getattr(self, name) for name in self.__dataclass_fields__})
        positive = (
            "lease_s",
            "transient_threshold_s",
            "save_workers",
            "save_batch_jobs",
            "record_batch_events",
            "replicas",
            "reconcile_s",
            "no_bucket_threshold_s",
            "schedule_idle_s",
        )
        for name in positive:
            if getattr(self, name) <= 0:
                raise InvalidSettingError(f"{name} is {getattr(self, name)}; it must be greater than 0")
        parse_agent(self.agent)
        try:
            load_zone(self.schedule_zone)
        except InvalidScheduleError as error:
            raise InvalidSettingError(f"schedule_zone: {error.problem}; {error.remedy}") from None
        if self.schedule_inactive_s <= self.schedule_idle_s:
            raise InvalidSettingError(
                f"schedule_inactive_s is {self.schedule_inactive_s:g}; it must exceed schedule_idle_s, "
                f"which is {self.schedule_idle_s:g}"
            )
        parse_retention(self.retention)
        if self.postgres_patience_s < 1:
            raise InvalidSettingError(f"postgres_patience_s is {self.postgres_patience_s:g}; it must be at least 1")
        if self.poll_s < 0.05:
            raise InvalidSettingError(f"poll_s is {self.poll_s}; less than 0.05 s would keep an idle database busy")
        if self.transient_threshold_s <= limits.SCHEDULE_LEAD_S:
            raise InvalidSettingError(
                f"transient_threshold_s is {self.transient_threshold_s}; it must exceed {limits.SCHEDULE_LEAD_S}"
            )

    @property
    def renew_s(self) -> float:
        return self.lease_s / 5

    @property
    def trust_margin_s(self) -> float:
        """A leader stops believing in itself so long before anyone else may take over."""
        return self.lease_s / 5
