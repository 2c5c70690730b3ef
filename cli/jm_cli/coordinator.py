"""``jm coordinator``: writes jobs to Postgres and hands them to workers, if it leads."""

import dataclasses
from typing import TYPE_CHECKING, Final

import typer

from jm_cli.options import expanded
from jm_cli.role_settings import CoordinatorOptions, HealthOptions
from jm_cli.settings import (
    ClusterOptions,
    LogOptions,
    NatsOptions,
    NatsTuning,
    PostgresOptions,
    PostgresTuning,
    local_pair,
)
from jm_cli.telemetry_options import TelemetryOptions

if TYPE_CHECKING:
    from jm_cli.groups import Group
    from jm_master.config import CoordinatorConfig, PostgresConfig
    from jm_nats.config import NatsConfig

STOP_RULE: Final = "stepping down; what is not written yet waits in NATS for the next leader"


def add_to(root: typer.Typer) -> None:
    root.command("coordinator")(coordinator)


@expanded
def coordinator(
    *,
    postgres: PostgresOptions,
    cluster: ClusterOptions,
    options: CoordinatorOptions,
    health: HealthOptions,
    told: TelemetryOptions,
    nats: NatsOptions,
    logs: LogOptions,
    tuning: NatsTuning,
    postgres_tuning: PostgresTuning,
) -> None:
    """Run a coordinator until a signal ends it.

    Of several, one leads and the others stand by; two make a failover pair. Where Postgres is away it waits, and jobs
    wait in NATS. Unless --no-migrate is given it brings the schema up to date first.

    Of several clusters it runs a coordinator for each, every one with a schema of its own and --postgres-connections
    of its own. One that fails stops alone.

    With --health-port, /readyz is red while it cannot do its work (Postgres or NATS away for long), /livez only when
    a restart would help.

    Examples:
        JM_POSTGRES_DSN=postgresql://jm@db/jobs jm coordinator --cluster shop
        jm coordinator --health-port 8080          # /livez, /readyz, /health
        jm coordinator --otlp-endpoint http://collector:4318 --prometheus-port 9464
        jm coordinator                             # in a folder of 'jm up'
        jm coordinator --cluster shop,mail --schema 'jm_{cluster}'
    """
    from jm_cli.serving import serve  # noqa: PLC0415
    from jm_cli.telemetry import Identity  # noqa: PLC0415
    from jm_master.config import CoordinatorConfig, PostgresConfig, made_up_id  # noqa: PLC0415
    from jm_master.queries import schemas_of  # noqa: PLC0415
    from jm_nats.subjects import parse_cluster_name  # noqa: PLC0415

    logs.start()
    local = local_pair(nats, postgres)
    config = CoordinatorConfig(**options.fields())
    if not config.coordinator_id:  # one name for all that it says of itself: logs, record, telemetry
        config = dataclasses.replace(config, coordinator_id=made_up_id())
    dsn, schemas = postgres.required_dsn(local), schemas_of(postgres.schema, cluster.names(local))
    connection = nats.nats_config(local, **tuning.fields())
    databases = {
        parse_cluster_name(name): PostgresConfig(dsn=dsn, schema=schema, **postgres_tuning.fields())
        for name, schema in schemas.items()
    }

    alone = len(databases) == 1

    def make() -> "list[Group]":
        return [coordinator_group(connection, found, name, config, alone=alone) for name, found in databases.items()]

    identity = Identity("coordinator", [config.coordinator_id], list(databases))
    serve(make, identity=identity, rule=STOP_RULE, health=health, told=told)


def coordinator_group(
    nats: "NatsConfig", database: "PostgresConfig", cluster: str, config: "CoordinatorConfig", *, alone: bool
) -> "Group":
    """One cluster's coordinator, in a process that may have others' too."""
    from jm_cli.groups import Group  # noqa: PLC0415
    from jm_master.coordinator import Coordinator  # noqa: PLC0415
    from jm_nats.health import HealthBoard  # noqa: PLC0415

    board = HealthBoard("coordinator" if alone else f"coordinator {cluster}", "coordinator")
    process = Coordinator(nats, database, cluster, config, board=board)
    # At any moment it can be stopped: what is under way, the next leader does again.
    return Group(process=process, board=board, stops_any_time=True)
