"""``jm worker MODULE:APP`` runs an application's handlers; ``jm worker list`` and others look after those that run."""

from typing import Annotated, Final

import typer

from jm_cli.default_command import DefaultCommandGroup
from jm_cli.options import expanded
from jm_cli.settings import LogOptions, NatsOptions, NatsTuning, WorkerOptions, on_command_line
from jm_cli.worker_look import list_workers, show_worker
from jm_cli.worker_orders import drain, stop

STOP_RULE: Final = "draining: nothing new is started, running jobs end or go back; send it again to hurry"


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
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP", envvar="JM_APP", help="Where the JobMaster is; MODULE alone if it has only one."
        ),
    ],
    *,
    options: WorkerOptions,
    nats: NatsOptions,
    tuning: NatsTuning,
    logs: LogOptions,
) -> None:
    """Run the handlers of an application until a signal ends it.

    The first SIGTERM or Ctrl-C drains: nothing new is started, running handlers get --drain-timeout, what they leave
    goes back to the master. A second one hurries that, and the exit code is then 130.

    What JobMaster(...) itself says about NATS comes before the variables, and flags come before both.

    Examples:
        jm worker shop.jobs:jm
        jm worker shop.jobs:jm --lane mail --slots 20 --drain-timeout 60
    """
    from jm_cli.loading import load_app  # noqa: PLC0415
    from jm_cli.serving import serve  # noqa: PLC0415
    from jm_nats.worker.config import WorkerConfig  # noqa: PLC0415
    from jm_nats.worker.runtime import Worker  # noqa: PLC0415

    logs.start()
    config = WorkerConfig(**options.fields())
    app = load_app(target)
    app.use_nats(nats.nats_config(nats.local, **tuning.fields()), override=on_command_line(context, "nats_"))
    serve(
        lambda: Worker(app, config), service="worker", rule=STOP_RULE, is_ready=lambda running: running.ready.is_set()
    )
