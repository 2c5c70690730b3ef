"""What ``jm top`` makes of the records, without any server."""

import io
from datetime import UTC, datetime

import pytest
from msgspec import structs
from rich.console import Console

from jm_cli.top_feed import Rates, TopView, TopWorker
from jm_cli.top_frame import frame
from jm_core.api import UnservedKind
from jm_nats.census import BucketView, GoneWorker, Unreadable, WorkerView

WORKER = WorkerView(
    "w-1",
    "serving",
    "execution",
    "healthy",
    [],
    "host",
    1,
    "i-1",
    4,
    2,
    1,
    100,
    0.5,
    60.0,
    0.0,
    0.0,
    [],
    [],
    [],
    [],
    [],
)
BUCKET = BucketView(
    "b-1", "active", "default", "high", "proper", "high", "w-1", "alive", "w-1", "i-1", 1, 1, "", 60.0, 1.0
)
VIEW = TopView(
    cluster="shop",
    connected=True,
    problem="",
    data_age_s=0.1,
    jobs={"on_master": 3, "succeeded": 12_345, "failed": 0},
    rejected=1,
    jobs_age_s=0.1,
    jobs_problem="",
    finished_per_s=12.5,
    workers=[TopWorker(**structs.asdict(WORKER), finished_per_s=12.5)],
    gone=[],
    buckets=[BUCKET, structs.replace(BUCKET, bucket="b-2")],
    unreadable=[],
)


def beat(finished, age_s, worker="w-1", incarnation="i-1"):
    return structs.replace(WORKER, worker=worker, finished=finished, beat_age_s=age_s, incarnation=incarnation)


def drawn(view, **more):
    console = Console(file=io.StringIO(), width=160)
    console.print(frame(view, **more))
    return console.file.getvalue()


def test_a_speed_is_what_was_finished_between_two_heartbeats():
    rates = Rates()
    assert rates.update([beat(100, 1.0)], at=11.0) == {}
    assert rates.update([beat(120, 0.5)], at=12.5) == {"w-1": 10.0}


def test_a_speed_stays_until_the_next_heartbeat():
    rates = Rates()
    rates.update([beat(100, 0.0)], at=10.0)
    rates.update([beat(120, 0.0)], at=12.0)
    assert rates.update([beat(120, 1.001)], at=13.0) == {"w-1": 10.0}
    assert rates.update([beat(120, 0.0)], at=14.0) == {"w-1": 0.0}


def test_another_process_under_the_name_starts_anew_and_one_that_left_is_forgotten():
    rates = Rates()
    rates.update([beat(100, 0.0), beat(5, 0.0, worker="w-2")], at=10.0)
    assert rates.update([beat(3, 0.0, incarnation="i-2")], at=12.0) == {}
    assert rates.update([beat(7, 0.0, incarnation="i-2")], at=14.0) == {"w-1": 2.0}
    assert rates.update([], at=16.0) == {}


def test_a_frame_has_the_workers_the_buckets_the_speed_and_the_counts():
    shown = drawn(VIEW)
    for part in ("shop   1 workers   2/4 slots in use   1 held   12.5 jobs/s", "succeeded 12,345", "rejected 1", "w-1"):
        assert part in shown
    assert "2 buckets" in shown
    assert "failed" not in shown
    assert "does not answer" not in shown


def test_old_data_says_how_old_it_is():
    away = structs.replace(VIEW, connected=False, problem="no connection to NATS", data_age_s=75.0)
    assert "NATS does not answer; this is 75 s old: no connection to NATS" in drawn(away)
    never = structs.replace(away, data_age_s=None, workers=[], buckets=[], jobs=None)
    assert "nothing is known yet: no connection to NATS" in drawn(never)


def test_counts_without_a_coordinator_say_so():
    assert "jobs: no coordinator answers" in drawn(
        structs.replace(VIEW, jobs=None, jobs_problem="no coordinator answers")
    )
    old = structs.replace(VIEW, jobs_age_s=30.0, jobs_problem="no coordinator answers")
    assert "30 s old: no coordinator answers" in drawn(old)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"status": "lost", "owner": "gone", "reason": "no heartbeat"}, "lost, owner gone"),
        ({"kind": "fallback", "serves": "low", "reason": "nobody serves it"}, "active, fallback"),
    ],
)
def test_a_bucket_that_wants_a_look_has_a_line_of_its_own(change, part):
    shown = drawn(structs.replace(VIEW, buckets=[BUCKET, structs.replace(BUCKET, bucket="b-9", **change)]))
    [line] = [line for line in shown.splitlines() if "b-9" in line]
    assert part in line
    assert change["reason"] in line


def test_what_does_not_fit_is_counted_and_trouble_comes_first():
    workers = [structs.replace(VIEW.workers[0], worker=f"w-{n}") for n in range(50)]
    workers[40] = structs.replace(workers[40], health="degraded", reasons=["slow disk"])
    shown = drawn(structs.replace(VIEW, workers=workers, gone=[GoneWorker("dead", "i", ["b"])]), lines=24)
    assert len(shown.splitlines()) <= 24
    assert "more workers" in shown
    lines = shown.splitlines()
    assert lines.index(next(x for x in lines if "dead" in x)) + 1 == lines.index(next(x for x in lines if "w-40" in x))
    assert "slow disk" in shown


def test_jobs_that_nobody_takes_are_mentioned():
    kind = UnservedKind("mail", "low", "typo", datetime(2026, 1, 1, tzinfo=UTC), "no live worker knows the handler")
    shown = drawn(structs.replace(VIEW, unserved=[kind]))
    assert "jobs of handler 'typo', lane 'mail', priority low" in shown
    assert "no live worker knows the handler" in shown


def test_what_others_wrote_steers_no_terminal():
    hostile = structs.replace(VIEW.workers[0], reasons=["\x1b[2J[red]"])
    shown = drawn(structs.replace(VIEW, workers=[hostile], unreadable=[Unreadable("kv", "\x9bk", 1.0, "x")]))
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert "\\x1b[2J[red]" in shown
