"""``jm coordinator``: writes jobs to Postgres and hands them to workers, if it leads."""

from typing import Final

import typer

from jm_cli.options import expanded
from jm_cli.settings import (
    ClusterOptions,
    CoordinatorOptions,
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
    nats: NatsOptions,
    logs: LogOptions,
    tuning: NatsTuning,
    postgres_tuning: PostgresTuning,
) -> None:
    """Run a coordinator until a signal ends it.

    Of several, one leads and the others stand by; two make a failover pair. Where Postgres is away it waits, and jobs
    wait in NATS. Unless --no-migrate is given it brings the schema up to date first.

    Examples:
        JM_POSTGRES_DSN=postgresql://jm@db/jobs jm coordinator --cluster shop
        jm coordinator                             # in a folder of 'jm up'
    """
    from jm_cli.serving import serve  # noqa: PLC0415
    from jm_master.config import CoordinatorConfig, PostgresConfig  # noqa: PLC0415
    from jm_master.coordinator import Coordinator  # noqa: PLC0415

    logs.start()
    local = local_pair(nats, postgres)
    config = CoordinatorConfig(**options.fields())
    database = PostgresConfig(dsn=postgres.required_dsn(local), schema=postgres.schema, **postgres_tuning.fields())
    connection = nats.nats_config(local, **tuning.fields())
    name = cluster.name(local)
    # At any moment it can be stopped: what is under way, the next leader does again.
    serve(
        lambda: Coordinator(connection, database, name, config),
        service="coordinator",
        rule=STOP_RULE,
        is_ready=lambda _: True,
    )
