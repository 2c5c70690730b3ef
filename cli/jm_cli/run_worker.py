"""What ``jm worker`` does: which groups its process holds, or, with ``--processes``, which children it looks after."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING, Final

from jm_cli.exits import UsageError
from jm_cli.groups import Group
from jm_cli.loading import load_app
from jm_cli.role_settings import CoordinatorTuning, HealthOptions, Mode, WorkerOptions
from jm_cli.serving import serve
from jm_cli.settings import LogOptions, NatsOptions, NatsTuning, PostgresOptions, PostgresTuning, local_pair
from jm_cli.supervisor import CHILD_VARIABLE, SPAWN_VARIABLE, incarnation_of, supervise
from jm_cli.telemetry import Identity, require_installed
from jm_cli.telemetry_options import TelemetryOptions
from jm_nats.health import HealthBoard
from jm_nats.worker import kin
from jm_nats.worker.config import WorkerConfig
from jm_nats.worker.processes import Preparation, prepare_children
from jm_nats.worker.runtime import Worker

if TYPE_CHECKING:
    from jm_cli.local_env import LocalEnv
    from jm_master.config import CoordinatorConfig, PostgresConfig
    from jm_nats.app import JobMaster

STOP_RULE: Final = "draining: nothing new is started, running jobs end or go back; send it again to hurry"
TARGETS_MAX: Final = len(ascii_lowercase)  # their workers are named with a letter each


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    targets: tuple[str, ...]
    options: WorkerOptions
    health: HealthOptions
    told: TelemetryOptions
    logs: LogOptions
    nats: NatsOptions
    tuning: NatsTuning
    nats_given: bool  # by flags, which come before what the application says
    postgres: PostgresOptions
    postgres_tuning: PostgresTuning
    coordinator: CoordinatorTuning


def run_worker(plan: WorkerPlan) -> None:
    """Until a signal. All settings are checked before anything starts.

    Raises:
        UsageError, InvalidSettingError: they cannot be used.
        typer.Exit: it did not end with 0.
    """
    child = os.environ.pop(CHILD_VARIABLE, None)  # what a handler starts is no child of the supervisor
    spawn = os.environ.pop(SPAWN_VARIABLE, "")
    configs = _configs(plan, child)
    local = _local(plan)
    apps = _apps(plan, local)
    master = _Master.of(plan, apps, local) if plan.options.mode is Mode.FULL else None
    plan.told.check_room(plan.options.processes)
    if plan.options.processes > 1 and child is None:
        require_installed(plan.told)
        supervise(
            apps, processes=plan.options.processes, drain_timeout_s=plan.options.drain_timeout, health=plan.health
        )
        return

    if spawn:
        kin.enter(spawn)
    prepare_children(Preparation("jm_cli.logs", "start_child_logging", plan.logs.arguments()))

    def make() -> Sequence[Group]:
        groups = [
            _worker(*three, incarnation_of(spawn, number))
            for number, three in enumerate(zip(plan.targets, apps, configs, strict=True))
        ]
        return [*groups, *master.groups()] if master else groups

    identity = Identity("worker", [config.worker_id for config in configs], [app.cluster for app in apps])
    told = plan.told.nth(int(child)) if child else plan.told
    serve(make, identity=identity, rule=STOP_RULE, health=HealthOptions() if child else plan.health, told=told)


def _worker(target: str, app: "JobMaster", config: WorkerConfig, incarnation: str) -> Group:
    board = HealthBoard(target, "worker")
    return Group(process=Worker(app, config, board=board, incarnation=incarnation), board=board)


def _configs(plan: WorkerPlan, child: str | None) -> list[WorkerConfig]:
    """One per target. ``--name web`` is ``web-2`` in the second process, and ``web-a``, ``web-b`` for two targets."""
    if len(set(plan.targets)) < len(plan.targets):
        raise UsageError("an application is named twice; use --slots or --processes to run more of its jobs at once")
    if len(plan.targets) > TARGETS_MAX:
        raise UsageError(
            f"{len(plan.targets)} applications are named, the limit is {TARGETS_MAX}; start more processes"
        )
    fields = plan.options.fields()
    name = fields.pop("worker_id", None)
    if name is None:
        return [WorkerConfig(**fields) for _ in plan.targets]
    letters = [""] if len(plan.targets) == 1 else [f"-{letter}" for letter in ascii_lowercase]
    process = f"-{child}" if child else ""
    return [
        WorkerConfig(worker_id=f"{name}{process}{letter}", **fields)
        for _, letter in zip(plan.targets, letters, strict=False)
    ]


def _local(plan: WorkerPlan) -> "LocalEnv | None":
    full = plan.options.mode is Mode.FULL
    return local_pair(plan.nats, plan.postgres) if full else plan.nats.local


def _apps(plan: WorkerPlan, local: "LocalEnv | None") -> list["JobMaster"]:
    apps = [load_app(target) for target in plan.targets]
    for app in apps:
        app.use_nats(plan.nats.nats_config(local, **plan.tuning.fields()), override=plan.nats_given)
    return apps


@dataclass(frozen=True)
class _Master:
    """The coordinators of ``--mode full``: one for each cluster of the applications."""

    clusters: "dict[str, JobMaster]"
    databases: "dict[str, PostgresConfig]"
    config: "CoordinatorConfig"

    @classmethod
    def of(cls, plan: WorkerPlan, apps: Sequence["JobMaster"], local: "LocalEnv | None") -> "_Master":
        """Raises:
        UsageError: there is no Postgres, or one cluster on two NATS.
        InvalidSettingError: two clusters would share a schema.
        """
        from jm_master.config import CoordinatorConfig, PostgresConfig  # noqa: PLC0415
        from jm_master.queries import schemas_of  # noqa: PLC0415

        clusters = {app.cluster: app for app in apps}
        if len({(app.cluster, app.nats_config()) for app in apps}) > len(clusters):
            raise UsageError("--mode full: applications of one cluster name different NATS servers; start one for each")
        dsn, schemas = plan.postgres.required_dsn(local), schemas_of(plan.postgres.schema, list(clusters))
        tuning = plan.postgres_tuning.fields()
        databases = {name: PostgresConfig(dsn=dsn, schema=schema, **tuning) for name, schema in schemas.items()}
        config = CoordinatorConfig(
            lease_s=plan.options.lease, replicas=plan.options.replicas, **plan.coordinator.fields()
        )
        return cls(clusters, databases, config)

    def groups(self) -> list[Group]:
        from jm_cli.coordinator import coordinator_group  # noqa: PLC0415

        alone = len(self.clusters) == 1
        return [
            coordinator_group(app.nats_config(), self.databases[name], name, self.config, alone=alone)
            for name, app in self.clusters.items()
        ]
