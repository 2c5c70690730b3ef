"""``jm coordinator``: writes jobs to Postgres and hands them to workers, if it leads."""

from typing import Final

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
    nats: NatsOptions,
    logs: LogOptions,
    tuning: NatsTuning,
    postgres_tuning: PostgresTuning,
) -> None:
    """Run a coordinator until a signal ends it.

    Of several, one leads and the others stand by; two make a failover pair. Where Postgres is away it waits, and jobs
    wait in NATS. Unless --no-migrate is given it brings the schema up to date first.

    With --health-port, /readyz is red while it cannot do its work (Postgres or NATS away for long), /livez only when
    a restart would help.

    Examples:
        JM_POSTGRES_DSN=postgresql://jm@db/jobs jm coordinator --cluster shop
        jm coordinator --health-port 8080          # /livez, /readyz, /health
        jm coordinator                             # in a folder of 'jm up'
    """
    from jm_cli.groups import Group  # noqa: PLC0415
    from jm_cli.serving import serve  # noqa: PLC0415
    from jm_master.config import CoordinatorConfig, PostgresConfig  # noqa: PLC0415
    from jm_master.coordinator import Coordinator  # noqa: PLC0415
    from jm_nats.health import HealthBoard  # noqa: PLC0415

    logs.start()
    local = local_pair(nats, postgres)
    config = CoordinatorConfig(**options.fields())
    database = PostgresConfig(dsn=postgres.required_dsn(local), schema=postgres.schema, **postgres_tuning.fields())
    connection = nats.nats_config(local, **tuning.fields())
    name = cluster.name(local)

    def make() -> list[Group]:
        board = HealthBoard("coordinator", "coordinator")
        process = Coordinator(connection, database, name, config, board=board)
        # At any moment it can be stopped: what is under way, the next leader does again.
        return [Group(process=process, board=board, stops_any_time=True)]

    serve(make, service="coordinator", rule=STOP_RULE, health=health)
