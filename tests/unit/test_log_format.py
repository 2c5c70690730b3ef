"""Whatever is logged, by whomever: one line, valid JSON, no secret, and whose it is."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from contextvars import copy_context

import pytest

from jm_cli import redaction
from jm_cli.log_format import LINE_CHARS_MAX, ConsoleFormatter, JsonFormatter
from jm_cli.logs import NowAndThen
from jm_nats import log_context, troubles
from jm_nats.log_context import JobFacts, current_job, set_group
from jm_nats.worker.processes import Logged

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


LOOP: list[object] = []
LOOP.append(LOOP)
NASTY = {
    "newlines": "a\nb\r\nc\x0bd\x85e\u2028f",
    "NUL": "a\x00b",
    "half a surrogate": "a\ud800b",
    "controls": "\x1b[31mred\x9b",
    "quotes": '"}\n{"level":"error"}',
    "password in quotes": 'password=abc"def postgresql://u:se"cret@h/d',
    "huge": "x" * 3_000_000,
    "bytes": b"\xff\x00",
    "not a number": float("nan"),
    "endless": float("inf"),
    "a large number": 10**5_000,
    "itself": LOOP,
    "broken": Broken(),
    "keys": {"a\nb": {1: {2: {3: {4: {5: "deep"}}}}}, None: b"x"},
    "many": list(range(100_000)),
    "emoji": "😀",
    "backwards": "\u202etxt.exe",
}


def record(message="it happened", *arguments, exc_info=None, **extra):
    made = logging.getLogger("shop").makeRecord("shop", logging.INFO, "f", 1, message, arguments, exc_info, extra=extra)
    JobFacts().filter(made)
    return made


def raised(value):
    error = ValueError(value)
    return type(error), error, None


def one_json(made):
    line = JsonFormatter().format(made)
    assert not set(line) & set("\n\r\x0b\x85\u2028\x00")
    assert len(line.encode()) < 4 * LINE_CHARS_MAX
    return json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
@pytest.mark.parametrize("place", ["message", "extra", "exception", "logger", "argument"])
def test_a_line_is_one_line_of_valid_json_whatever_is_in_it(place, value):
    text = value if isinstance(value, str) else "x"
    match place:
        case "message":
            made = record(value)
        case "extra":
            made = record(**{"what": value, text[:50]: 1})
        case "argument":
            made = record("so %s", value)
        case "logger":
            made = record()
            made.name = text
        case _:
            made = record(exc_info=raised(value))
    assert one_json(made)["level"] == "info"
    shown = ConsoleFormatter().format(made)
    assert place == "exception" or "\n" not in shown
    assert "\x1b" not in shown


def test_wrong_arguments_of_a_library_cost_no_line():
    assert one_json(record("%d of %d", "one"))["message"] == "%d of %d"


def test_a_thousand_facts_do_not_hide_the_event():
    entry = one_json(record(**{f"fact_{number}": "x" * 4_000 for number in range(1_000)}))
    assert (entry["message"], entry["cut"] > LINE_CHARS_MAX) == ("it happened", True)


def test_a_secret_is_taken_out_of_every_part_of_a_line():
    redaction.learn("sesame-0815")
    error = raised("with sesame-0815")
    made = record("sesame-0815 %s", "sesame-0815", exc_info=error, a={"sesame-0815": ["sesame-0815"]})
    for formatter in (JsonFormatter(), ConsoleFormatter()):
        assert "sesame-0815" not in formatter.format(made)


# -- whose it is


@pytest.fixture
def job():
    """As inside of a handler."""

    def run(body):
        def inside():
            set_group("worker", "w-1", "shop")
            current_job.set(Logged("job-1", 2, TRACE, None))
            return body()

        return copy_context().run(inside)

    return run


def test_a_line_in_a_handler_names_job_attempt_worker_and_trace(job):
    entry = one_json(job(record))
    facts = {"job_id": "job-1", "attempt": 2, "worker": "w-1", "cluster": "shop", "trace_id": TRACE[3:35]}
    assert {name: entry[name] for name in facts} == facts


def test_what_a_line_says_itself_stays_and_about_another_job_nothing_is_added(job):
    entry = one_json(job(lambda: record(job_id="job-7", worker="w-9")))
    assert (entry["job_id"], entry["worker"], entry["cluster"]) == ("job-7", "w-9", "shop")
    assert not {"attempt", "trace_id"} & set(entry)
    assert one_json(job(lambda: record(job_id="job-1")))["attempt"] == 2


def test_outside_of_everything_nothing_is_claimed():
    assert not {"job_id", "attempt", "worker", "trace_id"} & set(one_json(record()))


# -- what repeats


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(troubles.time, "monotonic", lambda: now[0])
    return now


def test_a_trouble_is_said_once_a_minute_with_how_many_were_left_out(caplog, clock):
    log = logging.getLogger("jm_nats.test")
    caplog.set_level(logging.DEBUG, "jm_nats.test")
    for clock[0] in (0.0, 1.0, 59.0, 60.0, 61.0):
        troubles.trouble(log, "it waits", {"bucket": f"b-{clock[0]:.0f}"})
    said = [(record.levelname, record.bucket, getattr(record, "left_out", 0)) for record in caplog.records]
    assert said == [("WARNING", "b-0", 0), ("DEBUG", "b-1", 0), ("DEBUG", "b-59", 0), ("WARNING", "b-60", 2),
                    ("DEBUG", "b-61", 0)]  # fmt: skip


def test_what_is_about_another_thing_or_is_worse_is_said_at_once(caplog, clock):
    log = logging.getLogger("jm_nats.test")
    clock[0] = 500.0
    for about, level in (("a", 30), ("b", 30), ("a", 30), ("a", 40), ("b", 40), ("a", 40)):
        troubles.trouble(log, "it waits", {"about": about}, about=about, level=level)
    said = [(record.about, record.levelno) for record in caplog.records if record.levelno > logging.DEBUG]
    assert said == [("a", 30), ("b", 30), ("a", 40), ("b", 40)]


def test_troubles_that_are_over_are_forgotten(clock):
    log = logging.getLogger("jm_nats.test")
    for clock[0] in range(5 * troubles.KEYS_MAX):
        troubles.trouble(log, "it waits", about=f"{clock[0]}", level=logging.DEBUG)
    assert len(troubles._said_s) <= troubles.KEYS_MAX
    assert len(troubles._left_out) == 0


def test_each_worker_of_a_process_says_its_own_troubles(caplog):
    log = logging.getLogger("jm_nats.test")

    def of(worker):
        set_group("worker", worker, "shop")
        troubles.trouble(log, "it waits")

    for worker in ("a", "b", "a"):
        copy_context().run(of, worker)
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["WARNING"] * 2


def test_of_an_exporter_one_line_a_minute_is_shown_and_of_others_all(clock):
    filters = NowAndThen()

    def shown(name, level=logging.WARNING):
        made = logging.getLogger(name).makeRecord(name, level, "f", 1, "again", (), None)
        return filters.filter(made) and getattr(made, "left_out", 0)

    clock[0] = 100.0
    said = [shown("opentelemetry.exporter.x"), shown("opentelemetry.sdk.y"), shown("opentelemetry.z", logging.ERROR)]
    assert said == [0, False, 0]
    assert [shown("shop"), shown("shop"), shown("opentelemetry.sdk", logging.DEBUG)] == [0, 0, 0]
    clock[0] = 161.0
    assert shown("opentelemetry.sdk.y") == 1


def test_the_thread_pool_shows_handlers_the_context_they_were_started_in(job):
    from jm_nats.worker.threads import DaemonPool  # noqa: PLC0415

    async def ask():
        pool = DaemonPool()
        try:
            return await pool.run(lambda: (log_context.facts(), threading.current_thread().name))
        finally:
            pool.close()

    facts, thread = job(lambda: asyncio.run(ask()))
    assert thread.startswith("jm-handler")
    assert (facts["job_id"], facts["worker"]) == ("job-1", "w-1")
