"""``jm up``: the whole of it in one terminal, kept between runs."""

from pathlib import Path
from typing import Annotated, Final

import typer

from jm_cli.local_env import DEFAULT_DATA
from jm_cli.options import expanded
from jm_cli.settings import DataFolder, LogOptions, setting
from jm_cli.telemetry_options import TelemetryOptions

EXAMPLE_APP: Final = "jm_cli.example:jm"


def add_to(root: typer.Typer) -> None:
    root.command("up")(up)


@expanded
def up(
    *,
    target: Annotated[
        str,
        setting("--app", "JM_APP", "Application to run; without one, an example to play with.", metavar="MODULE:APP"),
    ] = EXAMPLE_APP,
    data: DataFolder = DEFAULT_DATA,
    workers: Annotated[int, setting("--workers", "JM_UP_WORKERS", "How many workers.", metavar="N", min=0)] = 1,
    nats_port: Annotated[
        int,
        setting(
            "--nats-port",
            "JM_UP_NATS_PORT",
            "Port of NATS.",
            metavar="PORT",
            show_default="the last run's, else 4222, else a free one",
        ),
    ] = 0,
    pg_port: Annotated[
        int,
        setting(
            "--pg-port",
            "JM_UP_PG_PORT",
            "Port of Postgres.",
            metavar="PORT",
            show_default="the last run's, or a free one",
        ),
    ] = 0,
    accept_agent_loss: Annotated[
        bool,
        setting(
            "--accept-agent-loss",
            "JM_ACCEPT_AGENT_LOSS",
            "For one start: the NATS store in --data was lost; dispatch again all that Postgres has recorded.",
        ),
    ] = False,
    told: TelemetryOptions,
    logs: LogOptions,
) -> None:
    """Run everything here: NATS, Postgres, a coordinator and workers, until Ctrl-C.

    The data stay in --data for the next run. Other jm commands started in the same folder find this cluster by itself:
    without JM_NATS_URL they read .jm/env (or $JM_DATA/env). Settings of the workers are taken from their variables,
    as in JM_WORKER_SLOTS=20 jm up.

    Ctrl-C stops in order: workers drain, then the coordinator, then the servers; a second one hurries.

    Examples:
        jm up
        jm up --app shop.jobs:jm --workers 2
        jm up --prometheus-port 9464     # the coordinator's metrics; the workers' on 9465 and on
    """
    from jm_cli.run_up import UpPlan, run_up  # noqa: PLC0415

    logs.start()
    run_up(
        UpPlan(
            target=target,
            data=Path(data),
            workers=workers,
            nats_port=nats_port,
            pg_port=pg_port,
            accept_agent_loss=accept_agent_loss,
            told=told,
            logs=logs,
        )
    )
