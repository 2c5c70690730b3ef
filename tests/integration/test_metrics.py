"""Every metric of the table is seen, measured by real processes' code, with a value that makes sense."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from jm_core import wire
from jm_core.api_schedules import SkipReason
from jm_core.health import Invariant
from jm_core.ids import JobId
from jm_core.intake import NewJob
from jm_core.lease import LeaderRecord
from jm_core.model import Priority
from jm_core.planning import Plan, Skip
from jm_master.leadership import KEY
from jm_master.plan_store import Planned
from jm_master.planner import count_skips
from jm_nats import telemetry
from jm_nats.kv import CasKv
from jm_nats.provision import ensure_bucket
from jm_nats.pull import PullReader
from jm_nats.subjects import RUN_CONSUMER
from jm_nats.telemetry import instruments, names
from jm_nats.telemetry.metrics import STALL_KINDS
from jm_nats.telemetry.names import By, Kind
from tests.support.master import coordinating, linked
from tests.support.processes import environment
from tests.support.scripts import said_by
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

    from jm_nats.embedded import NatsServer
    from jm_nats.telemetry import Gauges

LEADERS_ALONE: Final = {spec.name for spec in names.SPECS if spec.by is By.LEADER and spec.kind is Kind.GAUGE}
WORKERS_ALONE: Final = {spec.name for spec in names.SPECS if spec.by is By.WORKER and spec.kind is Kind.GAUGE}
DUTIES: Final = {
    "settings", "agents", "outbox", "recorder", "writer", "assigner", "undertaker", "fallback", "canceller", "control",
    "retention", "reconciler", "planner", "declarations", "queue look",
}  # fmt: skip

# (metric, attributes without their prefix) -> what the sum of its points must be; of a histogram, of its counts.
EXPECTED: Final[dict[tuple[str, str], Callable[[float], bool]]] = {
    ("messaging.client.sent.messages", ""): lambda n: n == 10,
    ("messaging.client.operation.duration", ""): lambda n: n == 10,
    ("messaging.client.consumed.messages", ""): lambda n: n >= 15,
    ("messaging.process.duration", "handler=echo outcome=succeeded"): lambda n: n == 3,
    ("messaging.process.duration", "outcome=timed_out"): lambda n: n == 1,
    ("jobmaster.attempts", "handler=echo outcome=succeeded lane=default priority=medium"): lambda n: n == 3,
    ("jobmaster.attempts", "handler=always_fails outcome=failed error.type=RuntimeError"): lambda n: n == 2,
    ("jobmaster.attempts", "handler=process_raises error.type=NeedsArguments"): lambda n: n == 2,
    ("jobmaster.attempts", "handler=asks_for_no_retry error.type=NoRetry"): lambda n: n == 1,
    ("jobmaster.attempts", "handler=sleeper outcome=timed_out error.type=timed_out"): lambda n: n == 1,
    ("jobmaster.jobs.quarantined", "lane=mail priority=high"): lambda n: n == 1,
    ("jobmaster.start.latency", "lane=default priority=medium"): lambda n: n == 11,  # first starts, due at once
    ("jobmaster.start.lateness", "lane=default priority=medium"): lambda n: n >= 14,  # retries, too
    ("jobmaster.slots", "worker=metered"): lambda n: n == 100,
    ("jobmaster.slots.running", "worker=metered"): lambda n: n == 1,
    ("jobmaster.jobs.held", "worker=metered"): lambda n: n == 0,
    ("jobmaster.heartbeat.lateness", ""): lambda n: n >= 5,
    ("jobmaster.fetch.age", "lane=default priority=medium"): lambda s: 0 <= s < 12.5,
    ("jobmaster.events.waiting", ""): lambda n: n == 0,
    ("jobmaster.clock.offset", ""): lambda s: abs(s) < 1,
    ("jobmaster.adoption.duration", "role=worker"): lambda n: n == 1,
    ("jobmaster.loop.lag", "role=worker"): lambda n: n >= 3,
    ("jobmaster.loop.lag", "role=coordinator"): lambda n: n >= 3,
    ("jobmaster.stalls", "role=worker stall=loop"): lambda n: n >= 1,
    ("jobmaster.stalls", "role=worker stall=handler_blocks"): lambda n: n >= 1,
    ("jobmaster.stalls", "role=coordinator stall=loop"): lambda n: n >= 1,
    ("jobmaster.connected", "role=worker store=nats"): lambda n: n == 1,
    ("jobmaster.connected", "role=coordinator store=nats"): lambda n: n == 1,
    ("jobmaster.connected", "role=coordinator store=postgres"): lambda n: n == 1,
    ("jobmaster.group.health", "role=worker"): lambda n: n == 0,
    ("jobmaster.group.health", "role=coordinator"): lambda n: n == 0,
    ("jobmaster.invariant.violations", ""): lambda n: n == 0,  # shown, and none; see test_health_board
    ("jobmaster.leader", ""): lambda n: n == 1,
    ("jobmaster.leadership.changes", ""): lambda n: n == 1,
    ("jobmaster.leadership.term", ""): lambda n: n == 1,
    ("jobmaster.queue.depth", "lane=unserved priority=medium state=due"): lambda n: n == 1,
    ("jobmaster.queue.depth", "lane=default priority=medium state=processing"): lambda n: n == 1,
    ("jobmaster.queue.oldest_due_age", "lane=unserved priority=medium"): lambda s: 1 < s < 120,
    ("jobmaster.queue.oldest_due_age", "lane=mail"): lambda s: s == 0,
    ("jobmaster.pending", ""): lambda n: 0 <= n < 5,
    ("jobmaster.events.pending", ""): lambda n: 0 <= n < 5,
    ("jobmaster.writer.batch.size", "stage=save"): lambda n: n >= 14,
    ("jobmaster.writer.batch.size", "stage=record"): lambda n: n >= 5,
    ("jobmaster.assign.duration", ""): lambda n: n >= 1,
    ("jobmaster.writer.lag", "stage=save"): lambda n: n >= 14,
    ("jobmaster.writer.lag", "stage=record"): lambda n: n >= 5,
    ("jobmaster.outbox.size", ""): lambda n: 0 <= n < 5,
    ("jobmaster.jobs.saved", ""): lambda n: n == 14,
    ("jobmaster.jobs.rejected", ""): lambda n: n == 1,
    ("jobmaster.jobs.duplicates", ""): lambda n: n == 1,
    ("jobmaster.jobs.dispatched", ""): lambda n: n >= 15,
    ("jobmaster.outcomes.stale", ""): lambda n: n == 1,
    ("jobmaster.buckets", "state=active"): lambda n: n == 10,
    ("jobmaster.buckets", "state=fallback"): lambda n: n == 0,
    ("jobmaster.buckets.lost", ""): lambda n: n == 1,
    ("jobmaster.workers", "health=healthy"): lambda n: n == 1,
    ("jobmaster.schedules.planned", ""): lambda n: n >= 1,
    ("jobmaster.schedules.lag", ""): lambda n: n >= 1,
    ("jobmaster.schedules.disabled", ""): lambda n: n == 1,
    ("jobmaster.schedules.skipped", "schedule=overlaps reason=overlap"): lambda n: n >= 1,
    ("jobmaster.schedules.skipped", "schedule=overlaps reason=paused"): lambda n: n >= 1,
    ("jobmaster.duty.succeeded", "duty=planner"): lambda at: abs(at - time.time()) < 300,
    ("jobmaster.retention.removed", ""): lambda n: n == 5,
    ("jobmaster.kinds.unserved", ""): lambda n: n == 1,
}  # fmt: skip


async def metered(nats_server: NatsServer, database: str, cluster: str) -> dict[str, Any]:
    return await said_by(
        "-m",
        "tests.support.metered",
        nats_server.url,
        database,
        cluster,
        env=environment(nats_server.url, database, cluster),
        timeout_s=100,
    )


def matching(shown: dict[str, Any], name: str, wanted: str) -> list[dict[str, Any]]:
    pairs = dict(word.split("=") for word in wanted.split())
    full = {key if "." in key else f"jobmaster.{key}": value for key, value in pairs.items()}
    points = shown.get(name, {"points": []})["points"]
    return [point for point in points if full.items() <= point["attributes"].items()]


@pytest.mark.slow
async def test_every_metric_of_the_table_is_measured(nats_server: NatsServer, database: str, cluster_name: str) -> None:
    assert {name for name, _ in EXPECTED} == {spec.name for spec in names.SPECS}
    said = await metered(nats_server, database, cluster_name)
    shown = said["shown"]
    assert shown.keys() == {spec.name for spec in names.SPECS}
    for (name, wanted), is_right in EXPECTED.items():
        found = matching(shown, name, wanted)
        assert found, f"{name}: no point with {wanted}; there are {shown[name]['points']}"
        total = sum(point.get("value", point.get("count")) for point in found)
        assert is_right(total), f"{name} with {wanted} is {total}"
    check_against_the_table(shown, cluster_name)
    check_amounts(shown)
    # Nothing of the last second is lost: the job that was cancelled at the end is recorded, too.
    ended = [point["value"] for point in said["all_stopped"][names.ATTEMPTS.name]["points"]]
    recorded = [point["count"] for point in said["all_stopped"][names.PROCESS_DURATION.name]["points"]]
    assert sum(ended) == sum(recorded) > 0
    assert {point["attributes"][names.DUTY] for point in shown["jobmaster.duty.succeeded"]["points"]} == DUTIES
    # What is gone says nothing any more; what counted goes on.
    gone = shown.keys() - said["coordinator_stopped"].keys()
    assert gone == LEADERS_ALONE | {names.LEADER.name}
    assert said["coordinator_stopped"].keys() - said["all_stopped"].keys() == WORKERS_ALONE | {
        names.CONNECTED.name,
        names.GROUP_HEALTH.name,
    }


def check_against_the_table(shown: dict[str, Any], cluster: str) -> None:
    """Unit, description, attributes and boundaries are the table's; so the page's."""
    for spec in names.SPECS:
        metric = shown[spec.name]
        assert (metric["unit"], metric["description"]) == (spec.unit, spec.description)
        for point in metric["points"]:
            assert point["attributes"][names.CLUSTER] == cluster
            assert point["attributes"].keys() - {names.CLUSTER} <= set(spec.attributes), spec.name
            if spec.kind is Kind.HISTOGRAM:
                assert tuple(point["bounds"]) == spec.bounds
    stalls = {point["attributes"][names.STALL] for point in shown[names.STALLS.name]["points"]}
    assert stalls == set(STALL_KINDS)
    invariants = {point["attributes"][names.INVARIANT] for point in shown[names.VIOLATIONS.name]["points"]}
    assert invariants == {invariant.value for invariant in Invariant}


def check_amounts(shown: dict[str, Any]) -> None:
    """Of what is timed: the largest value, in seconds."""
    for name, wanted, least, most in [
        ("messaging.client.operation.duration", "", 0.0001, 5),
        ("messaging.process.duration", "handler=blocks", 2.8, 10),
        ("messaging.process.duration", "outcome=timed_out", 0.2, 5),
        ("jobmaster.start.latency", "", 0.0005, 10),
        ("jobmaster.loop.lag", "role=worker", 1.0, 5),
        ("jobmaster.writer.lag", "stage=save", 0.0001, 10),
        ("jobmaster.writer.batch.size", "stage=save", 1, 1),
        ("jobmaster.adoption.duration", "", 0.005, 10),
        ("jobmaster.schedules.lag", "", 0.0, 10),
        ("jobmaster.heartbeat.lateness", "", 0.0001, 10),
    ]:
        largest = max(point["max"] for point in matching(shown, name, wanted))
        assert least <= largest <= most, f"{name} with {wanted} is {largest} at most"
        assert math.isfinite(largest)


# -- what a deposed leader said


def values_of(spec: names.Spec, cluster: str) -> dict[tuple[tuple[str, str], ...], float]:
    found = instruments.gauge(spec).observe()
    return {tuple(sorted(o.attributes.items())): o.value for o in found if o.attributes.get(names.CLUSTER) == cluster}


async def test_what_a_deposed_leader_said_is_gone_while_it_lives_on(
    nats_server: NatsServer, database: str, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry.Active, "metering", True)
    monkeypatch.setattr(telemetry, "refresh", lambda: None)
    specs = [spec for spec in names.SPECS if spec.by is By.LEADER and spec.kind is Kind.GAUGE]
    async with (
        coordinating(nats_server.url, database, cluster_name) as coordinator,
        linked(nats_server.url, cluster_name) as bench,
    ):
        await wait_until(lambda: values_of(names.DUTY_SUCCEEDED, cluster_name), what="a duty has passed")
        await wait_until(lambda: values_of(names.PENDING, cluster_name), what="the streams were looked at")
        assert list(values_of(names.LEADER, cluster_name).values()) == [1]
        kv = CasKv(bench.link, bench.names.cluster_kv)
        lasting = asyncio.create_task(lead_elsewhere(kv))
        try:
            await wait_until(lambda: list(values_of(names.LEADER, cluster_name).values()) == [0], what="it is deposed")
            assert not coordinator.board.is_halted
            assert {spec.name: values_of(spec, cluster_name) for spec in specs} == {spec.name: {} for spec in specs}
            assert values_of(names.GROUP_HEALTH, cluster_name)
        finally:
            lasting.cancel()
    assert not values_of(names.GROUP_HEALTH, cluster_name)


async def test_each_duty_of_a_term_counts_from_its_start_and_passes(
    nats_server: NatsServer, database: str, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A term that begins with a duty that hangs shows it, with the age of the term (here: since 1970)."""
    monkeypatch.setattr(telemetry.Active, "metering", True)
    monkeypatch.setattr(telemetry, "refresh", lambda: None)
    begin = telemetry.enter_term

    def long_ago(gauges: Gauges, term: int, duties: tuple[str, ...]) -> None:
        begin(gauges, term, duties)
        gauges.say_all(names.DUTY_SUCCEEDED, {((names.DUTY, duty),): 0.0 for duty in duties})

    monkeypatch.setattr(telemetry, "enter_term", long_ago)
    locker = await asyncpg.connect(database)
    try:
        async with coordinating(nats_server.url, database, cluster_name):
            await wait_until(lambda: stale_duties(cluster_name) == set(), what="each has passed")
        async with locker.transaction():
            await locker.execute("LOCK TABLE jobmaster.schedule IN ACCESS EXCLUSIVE MODE")
            async with coordinating(nats_server.url, database, cluster_name):
                hang = {"planner", "declarations"}
                await wait_until(lambda: stale_duties(cluster_name) == hang, what="all others have passed")
    finally:
        await locker.close()


def stale_duties(cluster: str) -> set[str] | None:
    """None: nobody leads."""
    values = values_of(names.DUTY_SUCCEEDED, cluster)
    shown = {dict(key)[names.DUTY]: at for key, at in values.items()}
    assert not shown or set(shown) == DUTIES
    return {duty for duty, at in shown.items() if at == 0} if shown else None


async def lead_elsewhere(kv: CasKv) -> None:
    """Another coordinator has the key, and renews it."""
    while True:
        await kv.put(KEY, wire.encode(LeaderRecord("somebody else", 99)))
        await asyncio.sleep(0.1)


# -- a pull that is not heard of


class Deaf(PullReader):
    """Gets nothing of what NATS sends, and does not know."""

    async def _on_message(self, message: Msg) -> None:
        pass


def pull_stalls(cluster: str) -> int:
    wanted = {names.CLUSTER: cluster, names.STALL: "pull"}
    points = instruments.counter(names.STALLS).observe()
    return int(sum(point.value for point in points if wanted.items() <= (point.attributes or {}).items()))


async def test_a_pull_that_is_not_heard_of_is_a_stall_and_its_age_grows(
    nats_server: NatsServer, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-203: the process is up and its consumer is dead."""
    monkeypatch.setattr(telemetry.Active, "metering", True)
    times = {"expires_s": 2, "idle_heartbeat_s": 0.2}
    async with linked(nats_server.url, cluster_name) as bench:
        await ensure_bucket(bench.link, bench.names, "b")
        stream = bench.names.bucket_stream("b")
        with telemetry.as_group(telemetry.Group(cluster_name, "worker", "w1")):
            async with PullReader(bench.link, stream, RUN_CONSUMER, batch=10, max_bytes=1 << 20, **times) as hears:
                await asyncio.sleep(1)
                assert hears.unheard_s < 0.6
                assert pull_stalls(cluster_name) == 0
            async with Deaf(bench.link, stream, RUN_CONSUMER, batch=10, max_bytes=1 << 20, **times) as deaf:
                await wait_until(lambda: pull_stalls(cluster_name) >= 2, what="it is asked anew, and again")
                assert deaf.unheard_s >= 2 * 2.5 * 0.2, "to ask is no answer"


# -- what the scenario above has no room for


async def test_a_bucket_that_the_leader_empties_itself_is_measured_from_its_loss_on(
    nats_server: NatsServer, database: str, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained: list[tuple[str, float]] = []
    note = lambda s: drained.append((telemetry.current_group().role, s))  # noqa: E731
    monkeypatch.setattr(telemetry, "bucket_drained", note)
    async with coordinating(nats_server.url, database, cluster_name), linked(nats_server.url, cluster_name) as bench:
        async with bench.worker() as fake:
            began_s = time.monotonic()
            await fake.die()
            await wait_until(lambda: drained, what="its bucket is emptied")
        [(role, took_s)] = drained
        assert role == "coordinator"
        assert 0 < took_s < time.monotonic() - began_s, "it was lost only when its lease had run out"


def test_an_instant_that_met_its_unique_key_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """BR-202."""
    skipped: list[tuple[str, str, int]] = []
    monkeypatch.setattr(telemetry, "instants_skipped", lambda *what: skipped.append(what))
    instant = datetime(2030, 1, 1, tzinfo=UTC)
    skips = [Skip(SkipReason.MISFIRE, instant, instant, 7), Skip(SkipReason.CANCELLED, instant, instant)]
    plan = Plan([instant] * 3, skips, None, None, None, is_done=False, steps=0)

    def planned(name: str, key: str | None) -> Planned:
        job = NewJob("x", "h", b"{}", None, "default", Priority.LOW, 1, 1.0, unique_key=key)
        return Planned(name, 1, 1, plan, job, [JobId(f"{name}{n}") for n in range(3)], [instant] * 3)

    count_skips([planned("keyed", "k"), planned("free", None)], frozenset({"keyed0", "free0"}))
    assert skipped == [
        ("keyed", "misfire", 7),
        ("keyed", "cancelled", 1),
        ("keyed", "duplicate", 2),
        ("free", "misfire", 7),
        ("free", "cancelled", 1),
    ]
