"""deploy/nats, as it is, under a whole cluster: each role can do all of its work, and what is not its work is refused.

The server logs whatever it refuses, so that a role that lacks something is found even where jm gets along without it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from jm_cli.exits import ExitCode
from jm_core import api, api_control, api_retention, api_schedules
from jm_core.model import JobStatus
from jm_nats import JobClient
from jm_nats.connection import connect
from jm_nats.embedded import find_nats_server
from jm_nats.errors import AgentDeniedError
from jm_nats.kv import CasKv
from jm_nats.provision import ensure_cluster
from jm_nats.subjects import Names
from tests.support.app import echo, noop, sleeper, steps, waits_for_file
from tests.support.cli import jm
from tests.support.deployed_nats import CLUSTER, FOLDER, ROLES, DeployedNats
from tests.support.processes import COORDINATOR_READY, Cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jm_nats.connection import NatsLink
    from tests.support.processes import JmProcess

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command for certificates")

NAMES: Final = Names(CLUSTER)
SHORT: Final = {"JM_LEASE_S": "3", "JM_HEARTBEAT_S": "1"}
OTHER_LANE: Final = "orphaned"


@pytest.fixture(scope="module")
def nats() -> Iterator[DeployedNats]:
    with DeployedNats() as server:
        yield server


class Roles:
    """A cluster each of whose processes has the role of its kind, and clients of any role."""

    def __init__(self, nats: DeployedNats, cluster: Cluster, folder: Path) -> None:
        self.nats = nats
        self.cluster = cluster
        self._folder = folder

    def coordinator(self, ready: str = COORDINATOR_READY) -> JmProcess:
        env = self.nats.variables("coordinator") | {"JM_NO_BUCKET_THRESHOLD_S": "1"}
        return self.cluster.processes.start("coordinator", "coordinator", ready=ready, env=env)

    def worker(self, name: str) -> JmProcess:
        return self.cluster.start_worker("--name", name, "--lane", "default", env=self.nats.variables("worker"))

    def client(self, role: str) -> JobClient:
        return JobClient(CLUSTER, self.nats.config(role))

    async def jm(self, role: str, *arguments: str, code: int = ExitCode.OK) -> Any:
        """What the command prints as JSON."""
        variables = self.nats.variables(role) | {"JM_CLUSTER": CLUSTER, "JM_ACTOR": "anna"}
        done = await asyncio.to_thread(jm, *arguments, "--json", cwd=self._folder, **variables)
        assert done.returncode == code, (role, arguments, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout else done.stderr


@pytest.fixture
async def roles(nats, database, tmp_path):
    async with Cluster(nats.url, database, CLUSTER, **SHORT) as cluster:
        yield Roles(nats, cluster, tmp_path)


# -- what each role is for


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_role_does_all_of_its_work_and_is_refused_nothing(roles, tmp_path):
    refused_before = roles.nats.violations()
    leader = await roles.coordinator().wait_ready()
    first = await roles.worker("first").wait_ready()
    await submits_and_hears_of_it(roles)
    await waits_for_results(roles)
    second = await a_lost_worker_is_replaced(roles, first, tmp_path)
    await a_fallback_bucket_is_opened(roles)
    await operates(roles)
    await looks(roles)
    leader.kill()
    successor = await roles.coordinator().wait_ready()
    await submits_and_hears_of_it(roles)
    await roles.jm("operator", "worker", "drain", "second")
    assert await second.wait_exit() == ExitCode.OK
    await wait_until(lambda: no_bucket_left(roles), what="the buckets of a worker that has ended are gone")
    assert await successor.stop() == ExitCode.OK
    assert roles.nats.violations() == refused_before
    assert not roles.cluster.trouble()


async def submits_and_hears_of_it(roles: Roles) -> None:
    async with roles.client("submitter") as client:
        queued = await client.submit(noop.job({}))
        recorded = await client.submit(noop.job({}), wait="recorded")
        later = await noop.submit(client, delay=2.5)
        many = await client.submit_many([noop.job({}) for _ in range(500)])
    ids = [receipt.job_id for receipt in (queued, recorded, later, *many)]
    assert recorded.status == "recorded"
    assert await roles.cluster.ended(ids) == {"succeeded": len(ids)}


async def waits_for_results(roles: Roles) -> None:
    async with roles.client("client") as client:
        one = await client.submit(echo.job({"value": 17}))
        assert await client.result(one.job_id, timeout=20) == 17
        handle = await steps.submit(client, steps=2)
        seen = [step.fraction async for step in client.progress(handle.job_id, timeout=20)]
        assert seen[-1] == 1.0
        assert (await client.job(one.job_id)).status == "succeeded"
        many = await client.submit_many([echo.job({"value": value}) for value in range(20)], wait="recorded")
    waited = await roles.jm("client", "job", "wait", one.job_id, *(receipt.job_id for receipt in many))
    assert json.dumps(waited).count('"succeeded"') == 21


async def a_lost_worker_is_replaced(roles: Roles, first: JmProcess, folder: Path) -> JmProcess:
    """Five jobs that run, and as many that wait for later, are with the worker that dies."""
    async with roles.client("client") as client:
        running = await client.submit_many([waits_for_file.job({"path": str(folder / "go")}) for _ in range(5)])
        ids = [receipt.job_id for receipt in running]
        await wait_until(lambda: all((folder / f"go.{job_id}").exists() for job_id in ids), what="five jobs run")
        ids += [(await noop.submit(client, delay=8.0)).job_id for _ in range(5)]
    second = await roles.worker("second").wait_ready()
    first.kill()
    (folder / "go").touch()
    assert await roles.cluster.ended(ids) == {"succeeded": 10}
    assert "lost" in await roles.cluster.sql.value("SELECT string_agg(reason, ' ') FROM bucket")
    return second


async def a_fallback_bucket_is_opened(roles: Roles) -> None:
    async with roles.client("submitter") as client:
        receipt = await noop.submit(client, lane=OTHER_LANE)
    assert await roles.cluster.ended([receipt.job_id]) == {"succeeded": 1}
    listed = await roles.jm("operator", "bucket", "list")
    assert [bucket["lane"] for bucket in listed["buckets"] if bucket["kind"] == "fallback"] == [OTHER_LANE]


async def operates(roles: Roles) -> None:
    """Cancels what waits and what runs, requeues, schedules, and orders a worker about."""
    async with roles.client("operator") as client:
        waits = (await noop.submit(client, delay=3600.0, wait="recorded")).job_id
        sooner = (await noop.submit(client, delay=3600.0, wait="recorded")).job_id
        runs = (await sleeper.submit(client, seconds=600)).job_id
    await roles.cluster.wait_for_counts(processing=1)
    await roles.jm("operator", "job", "cancel", waits, runs, "--reason", "a test")
    assert await roles.cluster.ended([waits, runs]) == {"cancelled": 2}
    await roles.jm("operator", "job", "requeue", waits)
    await roles.jm("operator", "job", "run-now", sooner)
    assert await roles.cluster.ended([waits, sooner]) == {"succeeded": 2}
    assert waits in json.dumps(await roles.jm("operator", "job", "history", waits))
    await roles.jm("operator", "schedule", "add", "often", "noop", "--every", "1s")
    query = "SELECT count(*) FROM job WHERE occurrence IS NOT NULL AND status = $1"
    await wait_until(lambda: roles.cluster.sql.value(query, int(JobStatus.SUCCEEDED)), what="a schedule's job")
    await roles.jm("operator", "schedule", "delete", "often", "--yes")
    assert '"second"' in json.dumps(await roles.jm("operator", "worker", "show", "second"))
    await roles.jm("operator", "cluster", "show")
    assert await roles.jm("operator", "audit", "list")
    assert await roles.jm("operator", "retention", "show")


async def looks(roles: Roles) -> None:
    report = await roles.jm("monitoring", "doctor")
    assert {finding["check"]: finding["state"] for finding in report} == {
        "nats": "ok", "streams": "ok", "coordinator": "ok", "workers": "ok", "postgres": "unknown",
    }  # fmt: skip
    assert '"second"' in json.dumps(await roles.jm("monitoring", "worker", "list"))
    assert (await roles.jm("monitoring", "bucket", "list"))["buckets"]
    assert await roles.jm("monitoring", "top", "--once")


async def no_bucket_left(roles: Roles) -> bool:
    async with await connect(roles.nats.config("coordinator"), client_name="test") as link:
        names = (await link.api("STREAM.NAMES"))["streams"] or []
    return not [name for name in names if name.startswith(NAMES.bucket_stream_prefix)]


# -- what is not its work


PENDING, EVENTS = NAMES.pending_stream, NAMES.events_stream
KVS: Final = (NAMES.workers_kv, NAMES.buckets_kv, NAMES.cluster_kv)
OPERATIONS: Final = sorted(
    {text for module in (api, api_control, api_retention, api_schedules) for name, text in vars(module).items()
     if name.startswith("OP_") and isinstance(text, str)} | set(api_control.OP_OF.values())
)  # fmt: skip
READS: Final = {"job-get", "job-attempts", "job-result", "job-results", "job-progress"}
LOOKS: Final = {"job-count", "cluster-get", "unserved"}


def of_api(allowed: set[str]) -> list[str]:
    return [NAMES.api(operation) for operation in OPERATIONS if operation not in allowed]


def to_streams(*verbs: str) -> list[str]:
    streams = [PENDING, EVENTS, *(f"KV_{kv}" for kv in KVS)]
    return [f"$JS.API.STREAM.{verb}.{stream}" for verb in verbs for stream in streams]


CHANGES: Final = to_streams("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "SNAPSHOT", "RESTORE")
READ_PENDING: Final = [
    f"$JS.API.STREAM.MSG.GET.{PENDING}",
    f"$JS.API.DIRECT.GET.{PENDING}",
    f"$JS.API.CONSUMER.CREATE.{PENDING}",
    f"$JS.API.CONSUMER.CREATE.{PENDING}.thief",
    f"$JS.API.CONSUMER.CREATE.{PENDING}.thief.{NAMES.submit}",
    f"$JS.API.CONSUMER.DURABLE.CREATE.{PENDING}.thief",
    f"$JS.API.CONSUMER.MSG.NEXT.{PENDING}.writer",
    f"$JS.API.CONSUMER.DELETE.{PENDING}.writer",
    f"$JS.ACK.{PENDING}.writer.1.1.1.1.0",
]
KV_WRITES: Final = [f"$KV.{kv}.somebody" for kv in KVS]
SETTINGS_ASKED: Final = f"$JS.API.DIRECT.GET.KV_{NAMES.cluster_kv}.$KV.{NAMES.cluster_kv}.settings"
BUCKET: Final = [NAMES.run("b1"), NAMES.sched("b1", 1), NAMES.ctl("b1")]
BUCKET_STREAM: Final = NAMES.bucket_stream("b1")
ORDERS: Final = [NAMES.worker_rpc("w1")]
OUTSIDE: Final = ["jm.other.submit", "anything", "$JS.API.STREAM.DELETE.OTHER"]
LISTENING: Final = [
    ">",
    "jm.>",
    NAMES.submit,
    NAMES.api_any,
    NAMES.events_all,
    NAMES.run("b1"),
    "_INBOX.>",
    "$JS.ACK.>",
]
OF_A_GUEST: Final = [
    *CHANGES, *READ_PENDING, *KV_WRITES, *BUCKET, *ORDERS, *OUTSIDE, NAMES.events("b1"), NAMES.wake,
    f"$JS.API.STREAM.DELETE.{BUCKET_STREAM}", f"$JS.API.STREAM.MSG.GET.{BUCKET_STREAM}",
    f"$JS.API.CONSUMER.MSG.NEXT.{BUCKET_STREAM}.run",
]  # fmt: skip

PUBLISHING: Final = {
    "submitter": [*OF_A_GUEST, *of_api(set()), "$JS.API.STREAM.NAMES", f"$JS.API.STREAM.INFO.{PENDING}"],
    "client": [*OF_A_GUEST, *of_api(READS), "$JS.API.STREAM.NAMES", f"$JS.API.STREAM.INFO.{PENDING}"],
    "worker": [
        *CHANGES, *READ_PENDING, *of_api(set()), *ORDERS, "jm.other.submit", "anything",
        NAMES.submit, NAMES.run("b1"), NAMES.sched("b1", 1),
        f"$KV.{NAMES.cluster_kv}.settings", f"$KV.{NAMES.cluster_kv}.leader", f"$KV.{NAMES.cluster_kv}.agent",
        f"$JS.API.STREAM.PURGE.{BUCKET_STREAM}", f"$JS.API.CONSUMER.MSG.NEXT.{EVENTS}.recorder",
    ],
    "coordinator": [
        *to_streams("DELETE", "PURGE", "MSG.DELETE", "SNAPSHOT"), *of_api(set()), "jm.other.submit", "anything",
        NAMES.submit, NAMES.events("b1"), f"$JS.API.STREAM.MSG.GET.{BUCKET_STREAM}",
        f"$JS.API.CONSUMER.MSG.NEXT.{BUCKET_STREAM}.run",
    ],
    "operator": [subject for subject in OF_A_GUEST if subject not in ORDERS],
    "monitoring": [*OF_A_GUEST, *of_api(LOOKS), NAMES.submit],
}  # fmt: skip
MAY_HEAR: Final = {"coordinator": {NAMES.api_any}}


@pytest.mark.parametrize("role", ROLES)
async def test_what_is_not_its_work_is_refused(nats, role):
    others = [f"_INBOX_{other}.>" for other in ROLES if other != role]
    async with await connect(nats.config(role), client_name="test") as link:
        for subject in PUBLISHING[role]:
            with pytest.raises(AgentDeniedError) as refused:
                await link.request(subject, b"", timeout_s=2)
            assert (refused.value.verb, refused.value.subject) == ("publish", subject)
        for subject in sorted({*LISTENING, *others} - MAY_HEAR.get(role, set())):
            assert await is_refused(link, subject), f"{role} may listen to {subject}"


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_hears_its_own_answers(nats, role):
    """The other side of the matrix: what says "refused" above can say otherwise."""
    async with await connect(nats.config(role), client_name="test") as link:
        assert not await is_refused(link, f"_INBOX_{role}.mine")


async def is_refused(link: NatsLink, subject: str) -> bool:
    said: list[str | None] = []
    undo = link.denials.listen(lambda _, refused: said.append(refused))
    subscription = await link.nc.subscribe(subject)
    await link.round_trip()  # the refusal comes before the answer to this
    undo()
    await subscription.unsubscribe()
    return said == [subject.lower()]


# -- what permissions do not ask: the server answers wherever a publisher says, with rights of its own


# Known limit (docs/deployment.md): they share the account of the streams, and a reply subject is not asked about there.
IN_THE_STREAMS_ACCOUNT: Final = {"worker", "coordinator", "operator", "monitoring"}
ANSWERED: Final = {
    "submitter": [NAMES.submit, "$JS.API.INFO", SETTINGS_ASKED],
    "client": [NAMES.submit, "$JS.API.INFO", SETTINGS_ASKED, *(NAMES.api(operation) for operation in sorted(READS))],
    "worker": [NAMES.events("b1"), f"$KV.{NAMES.workers_kv}.probe", f"$KV.{NAMES.cluster_kv}.handler.probe"],
    "coordinator": [f"$KV.{NAMES.workers_kv}.probe", f"$KV.{NAMES.cluster_kv}.handler.probe"],
    "operator": [NAMES.submit],
    "monitoring": ["$JS.API.INFO"],
}


@pytest.mark.parametrize("role", ROLES)
async def test_an_answer_to_a_foreign_subject_is_stored_in_the_account_of_the_streams_only(nats, role):
    async with await connect(nats.config("coordinator"), client_name="test") as ours:
        await ensure_cluster(ours, NAMES, replicas=1, lease_s=3)
        kv = CasKv(ours, NAMES.cluster_kv)
        async with await connect(nats.config(role), client_name="test") as link:
            for place, subject in enumerate(ANSWERED[role]):
                key = f"probe-{role}-{place}"
                await link.nc.publish(subject, b"{}", reply=f"$KV.{kv.kv}.{key}")
                if role in IN_THE_STREAMS_ACCOUNT:
                    await wait_until(lambda key=key: kv.get(key), what=f"the answer to {subject}")
                    continue
                for later in (NAMES.submit, "$JS.API.INFO"):  # the server answers in order, so the first one is over
                    await link.request(later, b"{}", timeout_s=5)
                assert await kv.get(key) is None, subject


async def test_who_hands_in_jobs_has_an_answer_in_spite_of_that(nats):
    """What says "nothing is stored" above is stored elsewhere: in the front door, and acknowledged to its inbox."""
    async with await connect(nats.config("coordinator"), client_name="test") as ours:
        await ensure_cluster(ours, NAMES, replicas=1, lease_s=3)
        before = (await ours.api(f"STREAM.INFO.{PENDING}"))["state"]["last_seq"]
        for role in ("submitter", "client"):
            async with await connect(nats.config(role), client_name="test") as link:
                answer = json.loads((await link.request(NAMES.submit, b"{}", timeout_s=5)).data)
            assert answer["stream"] == PENDING
            assert answer["seq"] > before


@pytest.mark.parametrize("subject", ["_INBOX_client.>", "_R_.>"], ids=["receipts", "answers"])
async def test_a_worker_can_keep_what_is_sent_to_others(nats, subject):
    """A known limit (docs/deployment.md): a worker makes streams, and names have no wildcard for a part of them."""
    async with await connect(nats.config("coordinator"), client_name="test") as ours:
        await ensure_cluster(ours, NAMES, replicas=1, lease_s=3)
        async with await connect(nats.config("worker"), client_name="test") as link:
            await link.api("STREAM.CREATE.STEAL", {"name": "STEAL", "subjects": [subject], "storage": "memory"})
            try:
                await ours.nc.publish("_INBOX_client.x.y", b"a receipt")
                await ours.round_trip()
                async with await connect(nats.config("client"), client_name="test") as client:
                    await client.request(NAMES.submit, b"{}", timeout_s=5)
                assert (await link.api("STREAM.INFO.STEAL"))["state"]["messages"] > 0
            finally:
                await link.api("STREAM.DELETE.STEAL")


async def test_a_worker_can_copy_what_waits(nats):
    """As above: JetStream copies between streams without asking for a user's rights."""
    async with await connect(nats.config("coordinator"), client_name="test") as ours:
        await ensure_cluster(ours, NAMES, replicas=1, lease_s=3)
        async with await connect(nats.config("client"), client_name="test") as client:
            await client.request(NAMES.submit, b"{}", timeout_s=5)
        async with await connect(nats.config("worker"), client_name="test") as link:
            copied = {"name": "COPY", "sources": [{"name": PENDING}], "storage": "memory"}
            await link.api("STREAM.CREATE.COPY", copied)
            try:

                async def has_come() -> bool:
                    return bool((await link.api("STREAM.INFO.COPY"))["state"]["messages"])

                await wait_until(has_come, what="a copy of what waits")
            finally:
                await link.api("STREAM.DELETE.COPY")


async def test_the_end_of_a_tls_connection_is_no_warning(nats):
    """asyncio warns of each connection whose protocol does not know that it is TLS."""
    async with await connect(nats.config("client"), client_name="test") as link:
        protocol = link.nc._transport._io_writer.transport.get_protocol()
        await link.round_trip()
        assert not protocol.eof_received()


# -- what a person is told


def test_a_command_that_is_refused_says_what_and_what_to_do(nats, tmp_path):
    variables = nats.variables("client") | {"JM_CLUSTER": CLUSTER}
    done = jm("job", "cancel", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", cwd=tmp_path, **variables)
    assert done.returncode == ExitCode.NATS
    assert done.stderr.count("\n") == 1
    assert f"user 'client' may not publish to '{NAMES.api('job-cancel')}'; use a user whose role may" in done.stderr


def test_a_submission_that_is_refused_does_not_wait_for_an_answer(nats, tmp_path):
    variables = nats.variables("monitoring") | {"JM_CLUSTER": CLUSTER}
    done = jm("submit", "noop", cwd=tmp_path, timeout_s=20, **variables)
    assert done.returncode == ExitCode.NATS
    assert f"user 'monitoring' may not publish to '{NAMES.submit}'" in done.stderr


def test_a_worker_with_another_roles_user_ends_and_says_why(nats, tmp_path):
    variables = nats.variables("client") | {"JM_CLUSTER": CLUSTER}
    done = jm("worker", "tests.support.app:jm", cwd=tmp_path, timeout_s=30, **variables)
    assert done.returncode == ExitCode.NATS
    assert done.stderr.splitlines()[-1].startswith("error: NATS at tls://")
    assert "user 'client' may not publish to '$JS.API.STREAM.INFO." in done.stderr


def test_a_missing_inbox_prefix_is_named(nats, tmp_path):
    variables = nats.variables("client") | {"JM_CLUSTER": CLUSTER, "JM_NATS_INBOX_PREFIX": "_INBOX"}
    done = jm("job", "list", cwd=tmp_path, timeout_s=20, **variables)
    assert done.returncode == ExitCode.NATS
    assert "set JM_NATS_INBOX_PREFIX to the inbox that this user may subscribe to" in done.stderr


def test_the_doctor_tells_a_refusal_from_an_absence(nats, tmp_path):
    done = jm("doctor", "--json", cwd=tmp_path, **nats.variables("submitter"), JM_CLUSTER=CLUSTER)
    assert done.returncode == ExitCode.NATS
    by_check = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert "may not publish" in by_check["streams"]["detail"]
    assert "may not publish" in by_check["coordinator"]["detail"]


# -- a second application, as docs/deployment.md says


def with_a_second_application(folder: Path, steps: int) -> Path:
    """A copy of deploy/nats with the first ``steps`` of the four."""
    shutil.copytree(FOLDER, folder)
    path = folder / "accounts.conf"
    text = path.read_text()
    stream = 'stream: {{ account: PROD, subject: "_INBOX_{0}.>" }}'.format
    export = '{{ stream: "_INBOX_{0}.>", accounts: [PROD_APPS] }}'.format
    (user,) = re.findall(
        r"^            \{\n                user: client\n.*?^            \}\n", text, re.DOTALL | re.MULTILINE
    )
    mine = user.replace("user: client", "user: reports").replace("_CLIENT", "_REPORTS").replace("_client", "_reports")
    changes = [
        (user, user + mine),
        ("{ " + stream("client") + " }", "{ " + stream("client") + " }\n{ " + stream("reports") + " }"),
        (export("client"), export("client") + "\n" + export("reports")),
        ('"_INBOX_submitter.>", "_INBOX_client.>"', '"_INBOX_submitter.>", "_INBOX_client.>", "_INBOX_reports.>"'),
    ]
    for old, new in changes[:steps]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)
    return folder


@pytest.mark.parametrize(("steps", "hears"), [(4, True), (1, False)], ids=["all steps", "the first alone"])
async def test_a_second_application_hears_its_receipts_and_no_other_s(tmp_path, steps, hears):
    files = with_a_second_application(tmp_path / "nats", steps)
    with DeployedNats(files, (*ROLES, "reports")) as server:
        async with (
            await connect(server.config("coordinator"), client_name="test") as ours,
            await connect(server.config("reports"), client_name="test") as link,
        ):
            await ensure_cluster(ours, NAMES, replicas=1, lease_s=3)
            heard = await link.nc.subscribe("_INBOX_reports.mine.*")
            assert await is_refused(link, "_INBOX_client.>")
            assert (await link.request(NAMES.submit, b"{}", timeout_s=5)).data  # acknowledged, with or without
            await ours.nc.publish("_INBOX_reports.mine.1", b"a receipt")
            await ours.round_trip()
            await link.round_trip()
            assert bool(heard.pending_msgs) is hears


# -- the other files


@pytest.mark.parametrize("name", ["server.conf", "cluster.conf"])
def test_a_server_takes_the_file(nats, name, tmp_path):
    routes = {f"NATS_ROUTES_TLS_{key}": nats.environment[f"NATS_TLS_{key}"] for key in ("CERT", "KEY", "CA")}
    cluster = {"NATS_NAME": "n1", "NATS_CLUSTER_LISTEN": '"127.0.0.1:6222"', "NATS_ROUTES": '["tls://n1:6222"]'}
    command = [str(find_nats_server()), "-t", "-c", str(FOLDER / name)]
    done = subprocess.run(
        command, env={**nats.environment, **routes, **cluster}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    without = subprocess.run(command, env=routes, capture_output=True, text=True, check=False)
    assert without.returncode != 0, "a variable that is not set is no empty password"


def test_no_secret_is_in_the_files():
    for path in FOLDER.iterdir():
        text = "\n".join(line.partition("#")[0] for line in path.read_text().splitlines())
        values = re.findall(r"(?:password|token|nkey|seed)\s*[:=]\s*(\S+)", text, re.IGNORECASE)
        assert values or path.name != "accounts.conf"
        assert all(value.startswith("$") for value in values), path
