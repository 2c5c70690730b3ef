"""Our side of the instruments: sums, samples, owners of gauges, bounds; and that names, page and Prometheus agree."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import pairwise

import pytest
from opentelemetry import metrics as otel_metrics
from opentelemetry import trace

from jm_cli import docs_metrics
from jm_core import limits
from jm_core.health import Invariant
from jm_nats import loop_lag, telemetry
from jm_nats.board_gauges import measured
from jm_nats.config import NatsConfig
from jm_nats.health import HealthBoard
from jm_nats.subjects import Names
from jm_nats.telemetry import active, instruments, metrics, names
from jm_nats.telemetry.instruments import SAMPLES_PER_S, Gauges, Group, Sampled, bounded
from jm_nats.telemetry.names import Kind
from jm_nats.worker.heartbeat import Heartbeat
from tests.support.processes import ROOT

WORKER = Group("blue", "worker", "w1")


@pytest.fixture
def metering(monkeypatch):
    monkeypatch.setattr(telemetry.Active, "metering", True)
    monkeypatch.setattr(instruments, "_seen", instruments.defaultdict(set))
    with telemetry.as_group(WORKER):
        yield


def sums(spec, **wanted):
    """Points of the counter, by what of their attributes is not asked for."""
    full = {f"jobmaster.{key}": value for key, value in wanted.items()}
    found = instruments.counter(spec).observe()
    return sum(point.value for point in found if full.items() <= point.attributes.items())


class Recorded:
    def __init__(self):
        self.values = []

    def record(self, value, _attributes):
        self.values.append(value)


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


# -- names, page, Prometheus


def test_the_page_is_the_table():
    """If not: python -m jm_cli.docs_metrics > docs/metrics.md."""
    assert (ROOT / "docs" / "metrics.md").read_text() == docs_metrics.document()


def test_every_name_is_once_and_well_formed():
    assert len({spec.name for spec in names.SPECS}) == len(names.SPECS) == 47
    for spec in names.SPECS:
        assert re.fullmatch(r"(jobmaster|messaging)(\.[a-z][a-z_]*)+", spec.name)
        assert spec.unit == "s" or re.fullmatch(r"\{[a-z]+\}", spec.unit)
        assert set(spec.attributes) <= names.ATTRIBUTES.keys()
        assert bool(spec.bounds) == (spec.kind is Kind.HISTOGRAM)
        assert list(spec.bounds) == sorted(set(spec.bounds))


def test_no_name_of_a_metric_is_anywhere_but_in_the_table():
    literal = re.compile(r"""create_(counter|histogram|gauge|up_down)|create_observable|["']jobmaster_\w+_total""")
    allowed = {"jm_nats/telemetry/instruments.py"}
    found = set()
    for folder in ("jm_core", "jm_nats", "jm_master", "cli/jm_cli"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            quoted = any(f'"{spec.name}"' in text for spec in names.SPECS)
            if path.name != "names.py" and (literal.search(text) or quoted):
                found.add(str(path.relative_to(ROOT)))
    assert found == allowed


PROMETHEUS = """
import json
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest

metrics.set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()]))
from jm_nats import telemetry
from jm_nats.telemetry import instruments, names

telemetry.refresh()
telemetry.enter_group(telemetry.Group("blue", "worker", "w1"))
with telemetry.Gauges(telemetry.current_group()) as gauges:
    for spec in names.SPECS:
        if spec.kind == "counter":
            instruments.counter(spec).add(1)
        elif spec.kind == "histogram":
            instruments.histogram(spec).record(1)
        else:
            gauges.say(spec, 1)
    lines = [line for line in generate_latest().decode().splitlines() if not line.startswith("#")]
print(json.dumps(sorted({line.split("{")[0].split(" ")[0] for line in lines})))
"""


def test_the_exporter_for_prometheus_gives_the_names_of_the_page():
    out = subprocess.run([sys.executable, "-c", PROMETHEUS], capture_output=True, cwd=ROOT, check=True, timeout=60)
    shown = {
        re.sub("_(bucket|sum|count)$", "", name) for name in json.loads(out.stdout) if name.startswith(("job", "mess"))
    }
    assert shown == {names.prometheus_name(spec) for spec in names.SPECS}


# -- counters


@pytest.mark.usefixtures("metering")
def test_a_counter_adds_up_by_group_and_attributes():
    before = sums(names.STALLS, stall="pull", cluster="blue", role="worker")
    telemetry.stalled("pull")
    telemetry.stalled("pull")
    with telemetry.as_group(Group("green", "worker", "w2")):
        telemetry.stalled("pull")
    with telemetry.as_group(Group("blue", "coordinator")):
        telemetry.stalled("pull")
    assert sums(names.STALLS, stall="pull", cluster="blue", role="worker") == before + 2
    assert sums(names.STALLS, stall="pull", cluster="green") == 1
    assert sums(names.STALLS, stall="pull", cluster="blue", role="coordinator") == 1


def test_without_an_sdk_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(telemetry.Active, "metering", False)
    before = sums(names.DISABLED)
    telemetry.schedule_disabled()
    telemetry.jobs_taken(3, "default", "low")
    assert sums(names.DISABLED) == before


@pytest.mark.usefixtures("metering")
def test_a_counter_loses_nothing_of_several_threads():
    counter = instruments.Counter(names.STALE._replace(name="jobmaster.test.threads"))
    threads = [threading.Thread(target=lambda: [counter.add(1) for _ in range(5_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [point.value for point in counter.observe()] == [20_000]


@pytest.mark.usefixtures("metering")
def test_attempts_are_counted_one_by_one_however_many_are_sampled():
    before = sums(names.ATTEMPTS, handler="flood")
    measures, again = (telemetry.RouteMeasures("default", "low") for _ in range(2))  # of two buckets of one route
    for n in range(3 * SAMPLES_PER_S):
        (measures, again)[n % 2].ended("flood", "succeeded", "", 0.01)
    assert sums(names.ATTEMPTS, handler="flood", cluster="blue") == before + 3 * SAMPLES_PER_S
    assert list(telemetry.flush(WORKER)) == [None]  # one histogram
    assert list(telemetry.flush(WORKER)) == []
    assert sums(names.ATTEMPTS, handler="flood", cluster="blue") == before + 3 * SAMPLES_PER_S


@pytest.mark.usefixtures("metering")
def test_workers_that_come_and_go_leave_nothing_behind_but_their_sums():
    before, recorded = sums(names.ATTEMPTS, handler="passing"), Counter()

    def held():
        kept = sum(len(counter._kept) for counter in instruments._counters.values())
        return len(instruments._kept), kept, len(metrics._runs), len(metrics._starts)

    at_first = held()
    for n in range(50):
        group = Group("blue", "worker", f"passing{n}")
        with telemetry.as_group(group):
            measures = telemetry.RouteMeasures("default", "low")
            measures.started(0.1, was_due_at_once=True)
            measures.ended("passing", "succeeded", "", 0.1)
            for kept in instruments._kept[group]:
                kept._instrument = Tally(recorded)
        telemetry.group_ended(group)
    assert held() == at_first
    assert sums(names.ATTEMPTS, handler="passing") == before + 50
    assert recorded["values"] == 3 * 50, "the last ones are recorded, not dropped"


class Tally:
    def __init__(self, counts):
        self._counts = counts

    def record(self, *_):
        self._counts["values"] += 1


@pytest.mark.usefixtures("metering")
def test_a_workers_route_shows_that_nothing_is_quarantined():
    telemetry.RouteMeasures("zeros", "low")
    found = instruments.counter(names.QUARANTINED).observe()
    assert [point.value for point in found if point.attributes.get(names.LANE) == "zeros"] == [0]


# -- samples


@pytest.mark.parametrize("count", [1, SAMPLES_PER_S, SAMPLES_PER_S + 1, 7 * SAMPLES_PER_S, 20_000])
def test_what_is_kept_for_a_second_is_recorded_evenly(count):
    recorded = Recorded()
    kept = instruments.Kept(recorded, {})
    kept.values += range(count)
    assert kept.total == count
    kept.flush()
    assert (kept.total, kept.values) == (count, [])
    assert len(recorded.values) == min(count, SAMPLES_PER_S)
    assert recorded.values == sorted(set(recorded.values))
    gaps = [b - a for a, b in pairwise(recorded.values)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_every_value_is_recorded_up_to_the_limit():
    recorded, clock = Recorded(), Clock()
    sampled = Sampled(recorded, {}, clock=clock)
    for n in range(10 * SAMPLES_PER_S):
        clock.now_s += 1.01 / SAMPLES_PER_S
        sampled.record(n)
    assert len(recorded.values) == 10 * SAMPLES_PER_S


@pytest.mark.parametrize("per_s", [1_000, 5_000, 20_000])
def test_a_flood_is_sampled_evenly_and_quiet_times_are_whole_again(per_s):
    recorded, clock = Recorded(), Clock()
    sampled = Sampled(recorded, {}, clock=clock)
    for n in range(10 * per_s):
        clock.now_s += 1 / per_s
        sampled.record(n)
    by_second = Counter(n // per_s for n in recorded.values)
    assert by_second[0] <= 10 * SAMPLES_PER_S  # it comes as a surprise
    assert all(0.9 * SAMPLES_PER_S <= by_second[second] <= 1.2 * SAMPLES_PER_S for second in range(2, 10)), by_second
    recorded.values.clear()
    for n in range(20):  # one a minute: each counts, at once
        clock.now_s += 60
        sampled.record(n)
    assert recorded.values == list(range(20))


# -- gauges


def shown(spec, cluster="blue"):
    return [point.value for point in instruments.gauge(spec).observe() if point.attributes[names.CLUSTER] == cluster]


def test_a_gauge_is_gone_with_its_owner():
    with Gauges(WORKER) as gauges:
        gauges.say(names.PENDING, 3)
        gauges.ask(names.HELD, lambda: 7)
        assert (shown(names.PENDING), shown(names.HELD)) == ([3], [7])
    assert (shown(names.PENDING), shown(names.HELD)) == ([], [])
    gauges.say(names.PENDING, 4)  # by a straggler of the term
    assert shown(names.PENDING) == []


def test_values_that_are_not_said_again_are_gone():
    with Gauges(WORKER) as gauges:
        gauges.say_all(names.BUCKETS, {((names.STATE, "lost"),): 1, ((names.STATE, "active"),): 2})
        gauges.say_all(names.BUCKETS, {((names.STATE, "active"),): 3})
        assert shown(names.BUCKETS) == [3]


def test_workers_and_clusters_of_one_process_are_told_apart():
    with (
        Gauges(WORKER) as one,
        Gauges(Group("green", "worker", "w2")) as two,
        Gauges(Group("blue", "worker", "w3")) as three,
    ):
        for gauges, value in ((one, 1), (two, 2), (three, 3)):
            gauges.say(names.SLOTS, value)
        points = {
            (p.attributes[names.CLUSTER], p.attributes[names.WORKER]): p.value
            for p in instruments.gauge(names.SLOTS).observe()
        }
    assert points == {("blue", "w1"): 1, ("green", "w2"): 2, ("blue", "w3"): 3}


def test_an_agent_with_a_name_is_told_apart():
    with Gauges(Group("blue", "coordinator", agent="east")) as gauges:
        gauges.say(names.LEADER, 1)
        (point,) = instruments.gauge(names.LEADER).observe()
    assert point.attributes == {names.CLUSTER: "blue", names.AGENT: "east"}


@pytest.mark.usefixtures("metering")
def test_an_owner_that_cannot_answer_hides_no_other(caplog):
    def fails():
        raise KeyError("no parts yet")

    with Gauges(WORKER) as broken, Gauges(Group("green", "worker", "w2")) as other:
        broken.ask(names.HELD, fails)
        other.ask(names.HELD, lambda: 7)
        assert [shown(names.HELD), shown(names.HELD, "green")] == [[], [7]]
    assert "a gauge cannot be asked" in caplog.text


def test_a_term_begins_with_the_age_of_every_duty():
    """One that never succeeds in it must grow old, too."""
    with Gauges(WORKER) as gauges:
        began_s = time.time()
        contextvars.copy_context().run(telemetry.enter_term, gauges, 7, ["planner", "writer"])
        points = list(instruments.gauge(names.DUTY_SUCCEEDED).observe())
        assert {point.attributes[names.DUTY] for point in points} == {"planner", "writer"}
        assert all(began_s <= point.value <= time.time() for point in points)
        assert shown(names.LEADERSHIP_TERM) == [7]
    assert shown(names.DUTY_SUCCEEDED) == shown(names.LEADERSHIP_TERM) == []


# -- bounds


@pytest.mark.usefixtures("metering")
def test_what_outsiders_make_up_does_not_make_series_without_end():
    values = {bounded(names.LANE, f"lane{n}") for n in range(10 * names.VALUES_MAX)}
    assert len(values) == names.VALUES_MAX + 1
    assert names.OTHER in values
    assert bounded(names.LANE, "lane0") == "lane0"
    assert bounded(names.ERROR_TYPE, "ValueError") == "ValueError"  # each attribute for itself
    series = sum(1 for _ in instruments.counter(names.ATTEMPTS).observe())
    for n in range(10 * names.VALUES_MAX):
        telemetry.RouteMeasures("default", "low").ended("h", "failed", f"Error{n}", 0.1)
    assert sum(1 for _ in instruments.counter(names.ATTEMPTS).observe()) - series <= names.VALUES_MAX + 1


# -- what hardly ever happens


@pytest.mark.usefixtures("metering")
def test_a_loop_without_progress_is_one_stall_until_it_has_succeeded_again():
    clock = Clock()
    board = HealthBoard("w1", "worker", clock=clock)
    board.group = Group("stalls", "worker", "w1")
    board.cycle("slots", 10)
    for _ in range(4):
        clock.now_s += 9
        board.verdict()
    assert sums(names.STALLS, stall="no_progress", cluster="stalls") == 1
    board.cycle("slots", 10)
    board.verdict()
    clock.now_s += 11
    board.verdict()
    assert sums(names.STALLS, stall="no_progress", cluster="stalls") == 2


@pytest.mark.usefixtures("metering")
def test_a_violation_is_counted_for_the_group_whoever_notices_it():
    board = HealthBoard("w1", "worker")
    board.group = Group("violated", "worker", "w1")
    with telemetry.as_group(instruments.NOBODY):
        board.violated(Invariant.TERM_WENT_BACK, "5 to 4")
    assert sums(names.VIOLATIONS, cluster="violated", role="worker", invariant="term_went_back") == 1


@pytest.mark.usefixtures("metering")
def test_a_loop_that_is_late_by_more_than_a_second_is_a_stall():
    before = sums(names.STALLS, stall="loop", cluster="blue")
    loop_lag.note_lag(0.9)
    assert sums(names.STALLS, stall="loop", cluster="blue") == before
    loop_lag.note_lag(1.1)
    assert sums(names.STALLS, stall="loop", cluster="blue") == before + 1


async def test_a_coordinator_whose_loop_is_late_says_so(caplog, monkeypatch):
    monkeypatch.setattr(loop_lag, "STALL_S", 0.2)
    ticked = asyncio.Event()
    watching = asyncio.create_task(loop_lag.watch_loop(ticked.set))
    try:
        await asyncio.sleep(0)
        time.sleep(2)  # noqa: ASYNC251 - past the tick, which is half a second away or one and a half
        async with asyncio.timeout(5):
            await ticked.wait()
    finally:
        watching.cancel()
    assert next(record.late_s for record in caplog.records if record.message == "event loop turned late") >= 0.2


# -- how a group is


def fails(board, group):
    with measured(board, group, {"nats": "nats"}) as gauges:
        gauges.say(names.SLOTS, 100)
        assert (shown(names.GROUP_HEALTH, "halted"), shown(names.CONNECTED, "halted")) == ([0], [1])
        board.trouble("nats", "away")
        assert (shown(names.GROUP_HEALTH, "halted"), shown(names.CONNECTED, "halted")) == ([1], [0])
        raise RuntimeError("a bug")


@pytest.mark.usefixtures("metering")
def test_a_group_that_failed_stop_says_so_for_as_long_as_its_board_is_there():
    group = Group("halted", "worker", "w1")
    board = HealthBoard("w1", "worker")
    with pytest.raises(RuntimeError, match="bug"):
        fails(board, group)
    board.halt("a bug")
    assert shown(names.GROUP_HEALTH, "halted") == [2]
    assert (shown(names.CONNECTED, "halted"), shown(names.SLOTS, "halted")) == ([], [])
    del board
    gc.collect()
    assert shown(names.GROUP_HEALTH, "halted") == []


@pytest.mark.usefixtures("metering")
def test_a_group_that_ended_in_order_says_nothing():
    board = HealthBoard("w1", "worker")
    with measured(board, Group("ended", "worker", "w1"), {}):
        assert shown(names.GROUP_HEALTH, "ended") == [0]
    assert shown(names.GROUP_HEALTH, "ended") == []


# -- heartbeats


def a_heartbeat(**settings):
    options = {"period_s": 0.05, "lease_s": 5, "snapshot": lambda: None, "last_tick_s": time.monotonic} | settings
    return Heartbeat(NatsConfig(), Names("blue"), **options)


@pytest.mark.usefixtures("metering")
async def test_a_withheld_heartbeat_is_one_stall_however_long_it_lasts():
    heartbeat = a_heartbeat(last_tick_s=lambda: time.monotonic() - 2 * limits.STALL_LIMIT_S)
    before = sums(names.STALLS, stall="heartbeat_withheld")
    for _ in range(3):
        assert not await heartbeat._try_beat(None)
    assert sums(names.STALLS, stall="heartbeat_withheld", cluster="blue") == before + 1


async def test_a_heartbeat_is_late_since_the_first_that_was_not_acknowledged(monkeypatch):
    heartbeat, late_s = a_heartbeat(), []
    heartbeat._stopping, heartbeat._beat_now = asyncio.Event(), asyncio.Event()
    answers = iter([True, False, False, True])

    async def beat(_):
        confirmed = next(answers)
        if confirmed and late_s:
            heartbeat._stopping.set()
        return confirmed

    monkeypatch.setattr(heartbeat, "_try_beat", beat)
    monkeypatch.setattr(telemetry, "heartbeat_acknowledged", late_s.append)
    await heartbeat._go_on(None)
    on_time_s, after_two_failures_s = late_s
    assert on_time_s < after_two_failures_s
    assert after_two_failures_s >= 2 * 0.05


# -- whether an SDK is there


class Vendors:
    """A provider of nobody that we know."""


@pytest.mark.parametrize("signal", ["tracing", "metering"])
def test_any_provider_but_the_apis_own_counts(signal, monkeypatch):
    api, name = (trace, "get_tracer_provider") if signal == "tracing" else (otel_metrics, "get_meter_provider")
    none = trace.NoOpTracerProvider() if signal == "tracing" else otel_metrics.NoOpMeterProvider()
    for kept in ("tracing", "metering"):
        monkeypatch.setattr(telemetry.Active, kept, getattr(telemetry.Active, kept))
    for provider, is_real in ((getattr(api, name)(), False), (none, False), (Vendors(), True)):
        with monkeypatch.context() as patched:
            patched.setattr(api, name, lambda found=provider: found)
            active.refresh()
            assert getattr(telemetry.Active, signal) is is_real, provider
