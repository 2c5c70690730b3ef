"""What ``jm up`` does, in the order in which it does it and undoes it."""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from jm_cli.children import POLL_S, Child, LogFollower, stop_all
from jm_cli.exits import ExitCode
from jm_cli.loading import load_app
from jm_cli.local_cluster import LocalServers, exclusive, running_servers
from jm_cli.local_env import DEFAULT_DATA, LocalEnv
from jm_cli.render import print_line
from jm_cli.running import run_for_long
from jm_cli.serving import StopSignals
from jm_cli.settings import DEFAULT_NATS_URL, LogFormat, LogOptions
from jm_cli.telemetry import require_installed
from jm_cli.telemetry_options import VARIABLES, TelemetryOptions
from jm_cli.up import EXAMPLE_APP
from jm_core import limits
from jm_nats.store_lock import store_lock

if TYPE_CHECKING:
    from jm_nats.app import JobMaster
    from jm_nats.connection import NatsLink

log = logging.getLogger("jobmaster.up")

STOP_RULE: Final = "stopping: workers drain, then the coordinator and the servers; once more to hurry"
STOP_MARGIN_S: Final = 15.0  # over what a process needs when all goes well
READY_POLL_S: Final = 0.1
DRAIN_VARIABLE: Final = "JM_WORKER_DRAIN_TIMEOUT_S"
COLORS: Final = (36, 33, 32, 35, 34)
_OURS: Final = ("JM_NATS_", "JM_POSTGRES_", "JM_CLUSTER", "JM_APP", "JM_WORKER_ID", "JM_UP_", "JM_LOG_", *VARIABLES)


@dataclass(frozen=True, kw_only=True)
class UpPlan:
    target: str
    data: Path
    workers: int
    nats_port: int
    pg_port: int
    accept_agent_loss: bool
    told: TelemetryOptions
    logs: LogOptions


def run_up(plan: UpPlan) -> None:
    """Until a signal; everything that was started has ended on return.

    Raises:
        CliError: it runs already, a server does not start, or the application cannot be used.
    """
    app = load_app(plan.target)
    plan.told.check_room(1 + plan.workers)
    require_installed(plan.told)
    with exclusive(plan.data):
        code = run_for_long(_up(plan, app))
    if code is not ExitCode.OK:
        raise typer.Exit(code)


async def _up(plan: UpPlan, app: "JobMaster") -> ExitCode:
    signals = StopSignals(STOP_RULE)
    with signals.installed():
        async with running_servers(plan.data, nats_port=plan.nats_port, postgres_port=plan.pg_port) as servers:
            local = await servers.environment(app.cluster)
            await _migrate(local)
            local.write()
            if not signals.stop.is_set():
                await _serve(plan, app, local, servers, signals)
    return ExitCode.INTERRUPTED if signals.hurry.is_set() else ExitCode.OK


async def _serve(plan: UpPlan, app: "JobMaster", local: LocalEnv, servers: LocalServers, signals: StopSignals) -> None:
    with ExitStack() as stack:
        lock_fd = stack.enter_context(store_lock(plan.data / "processes.lock"))
        coordinator, workers = _children(plan, local, lock_fd)
        children = [coordinator, *workers]
        followers = [_follower(child, number, plan.logs) for number, child in enumerate(children)]
        for follower in followers:
            stack.callback(follower.close)
        pumping = asyncio.create_task(_pump(followers))
        try:
            for child in children:
                child.start()
            await _tend(servers, children, _announce_when_ready(plan, app, local, workers), signals.stop)
        finally:
            await stop_all(workers, signals.hurry)
            await stop_all([coordinator], signals.hurry)
            pumping.cancel()


async def _tend(
    servers: LocalServers, children: Sequence[Child], announcing: Awaitable[None], stop: asyncio.Event
) -> None:
    """Until it is time to stop: what dies is started again, and when all is up, that is said once."""
    ready = asyncio.ensure_future(announcing)
    try:
        while not stop.is_set():
            await servers.tend()
            for child in children:
                child.tend()
            await asyncio.sleep(POLL_S)
    finally:
        ready.cancel()


def _children(plan: UpPlan, local: LocalEnv, lock_fd: int) -> tuple[Child, list[Child]]:
    """The coordinator and the workers, not started yet."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    logging_as_ours = {"JM_LOG_LEVEL": plan.logs.log_level.value, "JM_LOG_FORMAT": plan.logs.log_format.value}
    env = inherited | logging_as_ours | local.variables()
    folder = plan.data / "logs"
    folder.mkdir(exist_ok=True)
    drain_s = float(os.environ.get(DRAIN_VARIABLE) or limits.DRAIN_TIMEOUT_S)

    def child(number: int, name: str, *arguments: str, stop_s: float) -> Child:
        stop_s += STOP_MARGIN_S
        own = env | plan.told.nth(number).variables()
        return Child(name, arguments, env=own, folder=folder, lock_fd=lock_fd, stop_s=stop_s, may_end=True)

    accepting = ["--accept-agent-loss"] if plan.accept_agent_loss else []
    coordinator = child(1, "coordinator", "coordinator", *accepting, stop_s=0)
    workers = [child(1 + n, f"worker-{n}", "worker", plan.target, stop_s=drain_s) for n in range(1, plan.workers + 1)]
    return coordinator, workers


def _follower(child: Child, number: int, logs: LogOptions) -> LogFollower:
    """A child's lines with its name before them; JSON lines as they are."""
    prefix = f"{child.name:<11} | "
    if sys.stderr.isatty():
        prefix = f"\x1b[{COLORS[number % len(COLORS)]}m{prefix}\x1b[0m"
    return LogFollower(child.log_path, "" if logs.log_format is LogFormat.JSON else prefix)


async def _pump(followers: Sequence[LogFollower]) -> None:
    while True:
        for follower in followers:
            follower.pump()
        await asyncio.sleep(POLL_S)


async def _migrate(local: LocalEnv) -> None:
    from jm_master.migrate import migrate  # noqa: PLC0415

    await migrate(local.postgres_dsn)


async def _announce_when_ready(plan: UpPlan, app: "JobMaster", local: LocalEnv, workers: Sequence[Child]) -> None:
    from jm_nats.api_client import NoCoordinatorError  # noqa: PLC0415
    from jm_nats.config import NatsConfig  # noqa: PLC0415
    from jm_nats.connection import connect  # noqa: PLC0415
    from jm_nats.errors import AgentError  # noqa: PLC0415

    async with await connect(NatsConfig(servers=(local.nats_url,)), client_name="jobmaster up") as link:
        ready = False
        while not ready:
            await asyncio.sleep(READY_POLL_S)
            with suppress(NoCoordinatorError, AgentError):  # not yet
                ready = await _is_ready(link, app, [worker.pid for worker in workers])
    _announce(plan, app, local)


async def _is_ready(link: "NatsLink", app: "JobMaster", pids: Sequence[int | None]) -> bool:
    """Whether a coordinator leads, and each of these workers has opened buckets."""
    from jm_core.kv_records import bucket_at, worker_at  # noqa: PLC0415
    from jm_core.model import BucketStatus  # noqa: PLC0415
    from jm_nats.api_client import ApiClient  # noqa: PLC0415
    from jm_nats.kv import CasKv  # noqa: PLC0415

    await ApiClient(link, app.names).counts()
    workers = await (await CasKv.open(link, app.names.workers_kv)).entries()
    buckets = await (await CasKv.open(link, app.names.buckets_kv)).entries()
    alive = [worker_at(entry.key, entry.value) for entry in workers]
    by_pid = {worker.pid: worker.worker for worker in alive if worker}
    records = [bucket_at(entry.key, entry.value) for entry in buckets]
    serving = {record.worker for record in records if record and record.status == BucketStatus.ACTIVE}
    return all(pid is not None and by_pid.get(pid) in serving for pid in pids)


def _something_to_submit(app: "JobMaster") -> tuple[str, str]:
    """A handler that needs no arguments; else one to be completed."""
    from jm_nats.handlers import ArgumentsError  # noqa: PLC0415

    for name in sorted(app.handlers):
        try:
            app.handlers[name].decode_args(b"{}")
        except ArgumentsError:
            continue
        return name, "{}"
    return next(iter(sorted(app.handlers)), "HANDLER"), "{…}"


def _announce(plan: UpPlan, app: "JobMaster", local: LocalEnv) -> None:
    """What a person wants to know now; on stdout, between the logs."""
    where = "" if plan.data == DEFAULT_DATA else f"JM_DATA={plan.data} "
    handler, args = ("hello", '{"name": "you"}') if plan.target == EXAMPLE_APP else _something_to_submit(app)
    other_program = f"  JM_NATS_URL={local.nats_url} python …       # a program of yours, or another client"
    for line in (
        "",
        f"cluster '{app.cluster}' is up: a coordinator and {plan.workers} worker(s) of {plan.target}",
        f"  NATS      {local.nats_url}",
        f"  Postgres  {local.postgres_dsn}",
        f"  handlers  {', '.join(sorted(app.handlers))}",
        f"  data      {plan.data} (kept), logs in {plan.data / 'logs'}",
        "in a second terminal, in this folder:",
        f"  {where}jm submit {handler} '{args}' --wait result",
        f"  {where}jm job list",
        *([] if local.nats_url == DEFAULT_NATS_URL else [other_program]),
        "Ctrl-C stops everything in order",
        "",
    ):
        print_line(line)
    sys.stdout.flush()
