"""``jm doctor``: is everything there that a job needs, and if not, what to do about it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from jm_cli.exits import CliError, ExitCode, exit_code_of
from jm_cli.options import expanded
from jm_cli.plain_text import safe
from jm_cli.redaction import redact
from jm_cli.render import print_json, print_line
from jm_cli.running import run_briefly
from jm_cli.settings import ClusterOptions, JsonFlag, NatsOptions, PostgresOptions, local_pair

if TYPE_CHECKING:
    from jm_cli.local_env import LocalEnv
    from jm_nats.config import NatsConfig
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

POSTGRES_TIMEOUT_S: Final = 6.0
UNSERVED_SHOWN: Final = 5


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``exit_code`` is OK when all is well; None: it could not be looked at. A warning is
    something to know of although nothing is broken.
    """

    name: str
    exit_code: ExitCode | None
    detail: str
    remedy: str | None = None
    is_warning: bool = False

    @property
    def state(self) -> str:
        if self.is_warning:
            return "warning"
        return {None: "unknown", ExitCode.OK: "ok"}.get(self.exit_code, "broken")


def add_to(root: typer.Typer) -> None:
    root.command("doctor")(doctor)


@expanded
def doctor(
    *,
    as_json: JsonFlag = False,
    cluster: ClusterOptions,
    postgres: PostgresOptions,
    nats: NatsOptions,
) -> None:
    """Check what a job needs: NATS, JetStream, the streams, a leading coordinator, workers, Postgres and its schema.

    Postgres is looked at when its DSN is given; workers and clients need none. The exit code is that of the first
    thing broken.

    Examples:
        jm doctor
        jm doctor --dsn postgresql://jm@db/jobs --json
    """
    findings = run_briefly(_look(nats, cluster, postgres))
    if as_json:
        print_json([_as_dict(finding) for finding in findings])
    else:
        for finding in findings:
            _print(finding)
    broken = [finding for finding in findings if finding.state == "broken"]
    if broken:
        names = ", ".join(finding.name for finding in broken)
        raise CliError(broken[0].exit_code or ExitCode.UNEXPECTED, f"broken: {names}")


async def _look(nats: NatsOptions, cluster: ClusterOptions, postgres: PostgresOptions) -> list[Finding]:
    import asyncio  # noqa: PLC0415

    local = local_pair(nats, postgres)
    of_nats, of_postgres = await asyncio.gather(
        _look_at_nats(nats.nats_config(local), cluster.name(local)),
        _look_at_postgres(postgres, cluster.name(local), local),
    )
    return of_nats + of_postgres


# -- NATS and what lives in it


async def _look_at_nats(config: "NatsConfig", cluster: str) -> list[Finding]:
    from jm_nats.connection import connect  # noqa: PLC0415
    from jm_nats.errors import AgentError  # noqa: PLC0415
    from jm_nats.subjects import Names  # noqa: PLC0415

    names = Names(cluster)
    try:
        link = await connect(config, client_name="jobmaster doctor")
    except AgentError as error:
        unseen = [Finding(name, None, "NATS is needed to look at it") for name in ("streams", "coordinator", "workers")]
        return [_broken("nats", ExitCode.NATS, str(error)), *unseen]
    async with link:
        version = link.nc.connected_server_version
        detail = f"{link.server}, version {version.major}.{version.minor}.{version.patch}, JetStream on"
        return [Finding("nats", ExitCode.OK, detail), *[finding async for finding in _look_at_cluster(link, names)]]


async def _look_at_cluster(link: "NatsLink", names: "Names") -> AsyncIterator[Finding]:
    yield await _streams(link, names)
    yield await _coordinator(link, names)
    yield await _workers(link, names)
    for finding in await _settings(link, names):
        yield finding
    unserved = await _unserved(link, names)
    if unserved is not None:
        yield unserved


async def _streams(link: "NatsLink", names: "Names") -> Finding:
    from jm_nats.errors import AgentError, NoSuchStreamError  # noqa: PLC0415

    wanted = [names.pending_stream, names.events_stream]
    wanted += [f"KV_{kv}" for kv in (names.workers_kv, names.buckets_kv, names.cluster_kv)]
    missing = []
    for stream in wanted:
        try:
            await link.api(f"STREAM.INFO.{stream}")
        except NoSuchStreamError:
            missing.append(stream)
        except AgentError as error:
            return _broken("streams", ExitCode.NATS, str(error))
    if missing:
        remedy = "start 'jm coordinator' or 'jm worker', which make them; or is --cluster misspelt?"
        return Finding("streams", ExitCode.NATS, f"cluster '{names.cluster}' has no {', '.join(missing)}", remedy)
    return Finding("streams", ExitCode.OK, f"cluster '{names.cluster}', {len(wanted)} streams")


async def _coordinator(link: "NatsLink", names: "Names") -> Finding:
    from jm_core.errors import JmError  # noqa: PLC0415
    from jm_nats.api_client import ApiClient, NoCoordinatorError  # noqa: PLC0415
    from jm_nats.errors import AgentError  # noqa: PLC0415

    try:
        counts = await ApiClient(link, names).counts()
    except NoCoordinatorError as error:
        return _broken("coordinator", exit_code_of(error), str(error))
    except AgentError as error:  # refused by NATS, not by a coordinator
        return _broken("coordinator", ExitCode.NATS, str(error))
    except JmError as error:
        return _broken("coordinator", ExitCode.NO_COORDINATOR, f"it answers with an error: {error}")
    jobs = ", ".join(f"{count} {status}" for status, count in counts.by_status.items() if count) or "no jobs"
    return Finding("coordinator", ExitCode.OK, f"one leads; {jobs}, {counts.rejected} rejected")


async def _workers(link: "NatsLink", names: "Names") -> Finding:
    from jm_core.kv_records import worker_at  # noqa: PLC0415
    from jm_nats.errors import AgentError, NoSuchStreamError  # noqa: PLC0415
    from jm_nats.kv import CasKv  # noqa: PLC0415

    try:
        entries = await (await CasKv.open(link, names.workers_kv)).entries()
    except NoSuchStreamError:
        entries = []
    except AgentError as error:
        return _broken("workers", ExitCode.NO_WORKER, str(error))
    workers = [worker for entry in entries if (worker := worker_at(entry.key, entry.value)) is not None]
    if not workers:
        return Finding("workers", ExitCode.NO_WORKER, "none is alive; jobs wait", "start one: jm worker MODULE:APP")
    running = sum(worker.running for worker in workers)
    slots = sum(worker.slots for worker in workers)
    return Finding("workers", ExitCode.OK, f"{len(workers)} alive, {running} of {slots} slots in use")


async def _settings(link: "NatsLink", names: "Names") -> list[Finding]:
    """What is set so that jobs wait, and which wait for room. Nothing where nobody can say."""
    from jm_core.errors import JmError  # noqa: PLC0415
    from jm_nats.api_client import ApiClient  # noqa: PLC0415

    try:
        view = await ApiClient(link, names).cluster()
    except JmError:
        return []  # said above, or a coordinator of an older version
    found = []
    if not view.settings.starts:
        detail = f"the cluster is {view.settings.mode.value} (by {view.settings.changed_by}): nothing is started"
        found.append(Finding("mode", ExitCode.OK, detail, "take it up again: jm cluster mode active", is_warning=True))
    if view.backlogs:
        waiting = ", ".join(f"lane '{lane}' priority {priority}" for lane, priority in view.backlogs[:UNSERVED_SHOWN])
        detail = f"due jobs wait behind others because no worker has room: {waiting}"
        remedy = "each priority gets its share by weight; start more workers to end the waiting"
        found.append(Finding("backlog", ExitCode.OK, detail, remedy, is_warning=True))
    return found


async def _unserved(link: "NatsLink", names: "Names") -> Finding | None:
    """Due jobs that nobody takes. Nothing where the leader is older than the question, or there is none."""
    from jm_core.errors import JmError  # noqa: PLC0415
    from jm_nats.api_client import ApiClient  # noqa: PLC0415

    try:
        kinds = (await ApiClient(link, names).unserved()).unserved
    except JmError:
        return None  # said above
    if not kinds:
        return None
    shown = [
        f"handler '{kind.handler}' (lane '{kind.lane}', priority {kind.priority}) since "
        f"{kind.waiting_since:%Y-%m-%d %H:%M:%S} UTC: {kind.reason}"
        for kind in kinds[:UNSERVED_SHOWN]
    ]
    more = [f"and {len(kinds) - UNSERVED_SHOWN} more"] if len(kinds) > UNSERVED_SHOWN else []
    remedy = "start a worker whose app has the handler and whose --lane and --priority include it"
    return Finding("unserved", ExitCode.OK, f"due jobs wait: {'; '.join(shown + more)}", remedy, is_warning=True)


# -- Postgres


async def _look_at_postgres(options: PostgresOptions, cluster: str, local: "LocalEnv | None") -> list[Finding]:
    dsn = options.dsn or (local.postgres_dsn if local else None)
    if dsn is None:
        return [Finding("postgres", None, "not looked at: no DSN is given; only coordinators need one")]
    import asyncio  # noqa: PLC0415

    from jm_master.checks import check_postgres  # noqa: PLC0415
    from jm_master.queries import schema_of  # noqa: PLC0415

    try:
        async with asyncio.timeout(POSTGRES_TIMEOUT_S):
            found = await check_postgres(dsn, schema_of(options.schema, cluster))
    except TimeoutError:
        problem = f"no answer within {POSTGRES_TIMEOUT_S:g} s"
        return [Finding("postgres", ExitCode.POSTGRES, problem, "start it, or correct the DSN")]
    if found.problem:
        return [Finding("postgres", ExitCode.POSTGRES, found.problem, found.remedy)]
    detail = f"{found.where}, version {found.server_version}, schema version {found.schema_version}"
    return [Finding("postgres", ExitCode.OK, detail)]


# -- the report


def _broken(name: str, code: ExitCode, message: str) -> Finding:
    """Our messages end with their remedy, after the last semicolon."""
    problem, _, remedy = message.rpartition("; ")
    return Finding(name, code, problem or message, remedy if problem else "see the logs of NATS and of the coordinator")


def _as_dict(finding: Finding) -> dict[str, str]:
    found = {"check": finding.name, "state": finding.state, "detail": redact(finding.detail)}
    return found | ({"remedy": redact(finding.remedy)} if finding.remedy else {})


def _print(finding: Finding) -> None:
    sign = {"ok": "ok     ", "broken": "BROKEN ", "unknown": "-      ", "warning": "WARNING"}[finding.state]
    print_line(f"{sign} {finding.name:<12} {safe(redact(finding.detail))}")
    if finding.remedy:
        print_line(f"{'':<20} -> {safe(redact(finding.remedy))}")
