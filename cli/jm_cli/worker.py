"""``jm worker MODULE:APP`` runs an application's handlers; ``jm worker list`` and others look after those that run."""

from typing import Annotated

import typer

from jm_cli.default_command import DefaultCommandGroup
from jm_cli.options import expanded
from jm_cli.role_settings import CoordinatorTuning, HealthOptions, WorkerOptions
from jm_cli.settings import LogOptions, NatsOptions, NatsTuning, PostgresOptions, PostgresTuning, on_command_line
from jm_cli.telemetry_options import TelemetryOptions
from jm_cli.worker_look import list_workers, show_worker
from jm_cli.worker_orders import drain, stop

app = typer.Typer(
    cls=DefaultCommandGroup,
    help="Run the handlers of an application: jm worker MODULE:APP. Or look after workers that run.",
    rich_markup_mode=None,
)


def add_to(root: typer.Typer) -> None:
    app.command("list")(list_workers)
    app.command("show")(show_worker)
    app.command("drain")(drain)
    app.command("stop")(stop)
    root.add_typer(app, name="worker")


@app.command(DefaultCommandGroup.default_name)
@expanded
def worker(
    context: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:APP",
            envvar="JM_APP",
            help="Where the JobMaster is; MODULE alone if it has only one. Each of several is a worker of its own.",
        ),
    ],
    *,
    options: WorkerOptions,
    health: HealthOptions,
    told: TelemetryOptions,
    nats: NatsOptions,
    tuning: NatsTuning,
    postgres: PostgresOptions,
    postgres_tuning: PostgresTuning,
    coordinator: CoordinatorTuning,
    logs: LogOptions,
) -> None:
    """Run the handlers of one or more applications until a signal ends it.

    The first SIGTERM or Ctrl-C drains: nothing new is started, running handlers get --drain-timeout, what they leave
    goes back to the master. A second one hurries that, and the exit code is then 130.

    Of several applications in one process, one that fails stops alone, and the process ends with 1 after the others.
    With --health-port it stays up instead, and says why.

    What JobMaster(...) itself says about NATS comes before the variables, and flags come before both. The settings of
    Postgres and of the coordinator are for --mode full only.

    Examples:
        jm worker shop.jobs:jm
        jm worker shop.jobs:jm --lane mail --slots 20 --drain-timeout 60
        jm worker shop.jobs:jm reports.jobs:jm     # two workers in one process
        jm worker shop.jobs:jm --processes 4 --name web --health-port 8080
        jm worker shop.jobs:jm --otlp-endpoint http://collector:4318 --prometheus-port 9464
        JM_POSTGRES_DSN=postgresql://jm@db/jobs jm worker shop.jobs:jm --mode full
    """
    from jm_cli.run_worker import WorkerPlan, run_worker  # noqa: PLC0415

    logs.start()
    run_worker(
        WorkerPlan(
            targets=tuple(targets),
            options=options,
            health=health,
            told=told,
            logs=logs,
            nats=nats,
            tuning=tuning,
            nats_given=on_command_line(context, "nats_"),
            postgres=postgres,
            postgres_tuning=postgres_tuning,
            coordinator=coordinator,
        )
    )
