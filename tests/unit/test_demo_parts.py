"""The pure parts of ``jm demo``. The whole of it runs in tests/integration/test_demo.py."""

import ast
import io

import pytest
from msgspec import structs

from jm_cli.demo.accounting import SHOWN_MAX, Record, Submitted, problems, shown
from jm_cli.demo.app import STDLIB
from jm_cli.demo.chaos import Chaos
from jm_cli.demo.chaos_report import ChaosReport, FaultRow
from jm_cli.demo.display import console_of
from jm_cli.demo.executions import END, EXECUTIONS_VARIABLE, START, note, read_executions
from jm_cli.demo.report import Lateness, Report, Retries, Totals, add_chaos
from jm_cli.demo.source_facts import Function, source_facts
from jm_cli.demo.tables import tables
from jm_cli.demo.workload import reminder_delays_s, stdlib_files, workload
from jm_core.model import JobStatus

SOURCE = b"""
class A:
    def one(self):
        if self:
            def inner():
                return lambda: None
        return 1

    async def two(self): ...

def three():
    try:
        pass
    except E:
        class B: ...
"""


def record(job_id, *, handler="parse", path="a.py", status=JobStatus.SUCCEEDED, attempt=1, error=None):
    return Record(job_id, handler, path, status, attempt, error)


# -- source_facts


def test_functions_and_classes_are_found_at_any_depth():
    facts = source_facts(SOURCE)
    assert (facts.functions, facts.classes, facts.lines) == (4, 2, 15)
    assert facts.longest == [
        Function("A.one", 3, 5),
        Function("three", 11, 5),
        Function("A.one.inner", 5, 2),
        Function("A.two", 9, 1),
    ]


def test_only_the_ten_longest_are_kept():
    source = "\n".join(f"def f{n}():" + "\n    pass" * (n + 1) for n in range(30)).encode()
    assert [f.name for f in source_facts(source).longest] == [f"f{n}" for n in range(29, 19, -1)]


def test_counts_are_those_of_a_walk_over_every_node():
    for path in ("asyncio/tasks.py", "typing.py", "ast.py"):
        source = (STDLIB / path).read_bytes()
        nodes = list(ast.walk(ast.parse(source)))
        facts = source_facts(source)
        assert facts.functions == sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in nodes)
        assert facts.classes == sum(isinstance(n, ast.ClassDef) for n in nodes)


@pytest.mark.parametrize("source", [b"def", b"# coding: nonsense\n", b"\xff", b"a\0b"])
def test_what_python_cannot_parse_is_a_syntax_or_value_error(source):
    with pytest.raises((SyntaxError, ValueError)):
        source_facts(source)


# -- workload


def test_every_file_is_in_exactly_one_list():
    files = stdlib_files()
    work = workload(files)
    assert sorted([*work.plain, *work.flaky, *work.raw]) == files
    assert work.flaky
    assert work.raw


def test_a_limited_set_of_files_is_spread_over_the_library():
    files = stdlib_files()
    chosen = stdlib_files(50)
    assert len(set(chosen)) == 50
    assert set(chosen) <= set(files)
    assert files.index(chosen[-1]) > len(files) * 0.9
    assert stdlib_files(10**9) == files


def test_third_party_packages_are_not_part_of_the_library():
    assert not [path for path in stdlib_files() if "-packages" in path]


def test_reminders_are_due_one_after_the_other():
    delays = reminder_delays_s(40)
    assert delays == sorted(set(delays))
    assert len(delays) == 40


# -- accounting

SUBMITTED = Submitted(flaky={"1"}, plain={"2": "parse", "3": "ping"}, raw=["c.py"])
RECORDS = [
    record("1", attempt=2),
    record("2", path="b.py"),
    record("3", handler="ping", path=None),
    record("4", path="c.py"),
]


def test_a_complete_record_has_no_problems():
    assert problems(SUBMITTED, RECORDS) == []


def test_a_file_that_cannot_be_parsed_may_fail_without_a_retry():
    broken = record("2", path="b.py", status=JobStatus.FAILED, error="NoRetry: this Python cannot parse b.py: bad")
    assert problems(SUBMITTED, [RECORDS[0], broken, *RECORDS[2:]]) == []


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_job_that_is_not_there_is_named(missing):
    found = problems(SUBMITTED, [r for i, r in enumerate(RECORDS) if i != missing])
    assert len(found) == 1
    assert ("not in Postgres" in found[0]) or ("recorded 0 times" in found[0])


@pytest.mark.parametrize(
    ("place", "wrong", "said"),
    [
        (0, record("1", attempt=1), "at attempt 1, which was made to fail"),
        (1, record("2", path="b.py", status=JobStatus.FAILED, error="OSError: gone\ntrace"), "failed, OSError: gone"),
        (2, record("3", handler="ping", path=None, status=JobStatus.PROCESSING), "processing"),
        (3, record("4", path="c.py", status=JobStatus.QUARANTINED), "quarantined"),
    ],
)
def test_a_job_that_ended_otherwise_is_named(place, wrong, said):
    (found,) = problems(SUBMITTED, [*RECORDS[:place], wrong, *RECORDS[place + 1 :]])
    assert said in found


def test_a_job_that_nobody_submitted_is_named():
    (found,) = problems(SUBMITTED, [*RECORDS, record("5", path="d.py")])
    assert "nobody submitted" in found


def test_a_socket_publish_that_was_recorded_twice_is_named():
    (found,) = problems(SUBMITTED, [*RECORDS, record("5", path="c.py")])
    assert "recorded 2 times" in found


def test_only_the_first_of_many_problems_are_listed():
    assert shown(["x"] * SHOWN_MAX) == ["x"] * SHOWN_MAX
    assert shown(["x"] * (SHOWN_MAX + 5))[-1] == "… and 5 more"


# -- chaos


FAULT = FaultRow("kill -9", "worker-1", lasted_s=2.0, hit=9, moved=9, recovery_s=3.1, promised_s=5.0)
CHAOS = ChaosReport(
    3.0, [FAULT], jobs=100, lost=0, recorded_twice=0, stale_refused=4, twice_run=4, twice_started=7, lost_attempts=3
)


def demo_report():
    return Report(
        ok=True,
        problems=[],
        submitted=100,
        made_to_fail=0,
        handlers=[],
        lateness=Lateness(0, 0, None, None),
        retries=Retries(0, 0, 0),
        rejected={},
        totals=Totals(0, 0, 0, 0),
        longest=[],
        unparsable=[],
        postgres="18",
        python="3",
    )


def test_a_fault_that_was_recovered_from_in_time_breaks_no_promise():
    report = demo_report()
    add_chaos(report, CHAOS, "")
    assert (report.ok, report.problems) == (True, [])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lost": 1}, "1 jobs that NATS had acknowledged were lost"),
        ({"recorded_twice": 2}, "2 jobs have more than one recorded effect"),
        ({"faults": [structs.replace(FAULT, recovery_s=5.1)]}, "after 5.1 s, promised are 5 s"),
    ],
)
def test_a_broken_promise_is_a_problem_and_the_demo_fails(change, says):
    report = demo_report()
    add_chaos(report, structs.replace(CHAOS, **change), "")
    assert not report.ok
    assert says in report.problems[0]


def test_a_fault_that_could_not_be_carried_out_is_a_problem():
    report = demo_report()
    add_chaos(report, CHAOS, Chaos(console_of(io.StringIO())).trouble)
    assert (report.ok, report.problems) == (False, ["the faults were not all carried out"])


def test_the_tables_name_every_fault_and_promise():
    report = demo_report()
    add_chaos(report, CHAOS, "")
    console = console_of(io.StringIO())
    console.print(tables(report))
    drawn = console.file.getvalue()
    for part in ("kill -9", "3.1 s", "5 s", "lost", "effects recorded more than once", "stale effects refused"):
        assert part in drawn


def test_executions_are_read_as_they_were_noted(tmp_path, monkeypatch):
    path = tmp_path / "executions.txt"
    assert read_executions(path) == []
    note(START, "nobody asked", 1)  # without the variable: nothing
    monkeypatch.setenv(EXECUTIONS_VARIABLE, str(path))
    note(START, "a", 1)
    note(START, "a", 2)
    note(END, "a", 2)
    killed, ended = read_executions(path)
    assert (killed.job_id, killed.dispatch, killed.ended_at) == ("a", 1, None)
    assert ended.started_at <= ended.ended_at
