"""``jm coordinator``: writes jobs to Postgres and hands them to workers, if it leads."""

from typing import TYPE_CHECKING, Final, cast

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

if TYPE_CHECKING:
    import asyncio

    import anyio

    from jm_master.coordinator import Coordinator

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
    serve(lambda: _Serving(Coordinator(connection, database, name, config)), service="coordinator", rule=STOP_RULE)


class _Serving:
    """A coordinator as ``serve`` wants it: one that can be stopped at any moment, and need not be hurried."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator

    def is_ready(self) -> bool:
        return True

    async def run(self, stop: "asyncio.Event", hurry: "asyncio.Event") -> None:  # noqa: ARG002
        await self._coordinator.run(cast("anyio.Event", stop))  # of which it uses what asyncio's has, too
