"""The parts of the command line that need no process and no server."""

import io
import json
import logging
import sys
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from jm_cli import redaction, render
from jm_cli.exits import CliError, ExitCode, UsageError, exit_code_of, report
from jm_cli.loading import load_app
from jm_cli.log_format import ConsoleFormatter, JsonFormatter
from jm_cli.ndjson import BadLineError, read_jobs
from jm_cli.piped import piped_in
from jm_cli.plain_text import one_line
from jm_cli.times import parse_delay, parse_instant
from jm_core.errors import InvalidJobError, InvalidSettingError, JobFailedError, NoSuchJobError
from jm_core.limits import MESSAGE_BYTES_MAX
from jm_master.pg_errors import StoreUnavailableError
from jm_nats.api_client import MasterUnavailableError, NoCoordinatorError
from jm_nats.errors import AgentAuthError, AgentUnavailableError

# -- exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AgentUnavailableError("nats://x", "no", remedy="start it"), ExitCode.NATS),
        (AgentAuthError("nats://x", "no", remedy="check"), ExitCode.NATS),
        (StoreUnavailableError("host/db", "refused"), ExitCode.POSTGRES),
        (NoCoordinatorError("nobody"), ExitCode.NO_COORDINATOR),
        (MasterUnavailableError("nobody"), ExitCode.POSTGRES),
        (NoSuchJobError("no job"), ExitCode.NOT_FOUND),
        (JobFailedError("id", "failed", "x"), ExitCode.OUTCOME),
        (InvalidJobError("args", "bad", remedy="mend"), ExitCode.USAGE),
        (InvalidSettingError("bad"), ExitCode.USAGE),
        (CliError(ExitCode.ALREADY_RUNNING, "x"), ExitCode.ALREADY_RUNNING),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (ZeroDivisionError(), ExitCode.UNEXPECTED),
        (ConnectionRefusedError(), ExitCode.UNEXPECTED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_s_type_decides_the_exit_code(error, code):
    assert exit_code_of(error) is code


def test_of_a_group_the_error_that_is_ours_is_reported(capsys):
    group = ExceptionGroup("tasks", [ZeroDivisionError(), ExceptionGroup("more", [NoSuchJobError("no job 7")])])
    assert report(group) is ExitCode.NOT_FOUND
    assert capsys.readouterr().err == "error: no job 7\n"


def test_an_error_is_one_harmless_line():
    assert one_line("a\nb\r\n\n  c\x1b[31m\x9b1m\u202e") == "a | b | c\\x1b[31m\\x9b1m\\u202e"


# -- times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("1.5h", 5400),
        ("0", 0),
        (" 5M ", 300),
        ("1h30m", 5400),
        ("5 m", 300),
    ],
)
def test_a_delay_is_a_number_with_a_unit(text, seconds):
    assert parse_delay(text, "--in") == seconds


@pytest.mark.parametrize("text", ["", "m", "-5", "5x", "1e3", "inf", "nan", "30m1h", "5 m 5", "٣"])
def test_anything_else_is_no_delay(text):
    with pytest.raises(InvalidJobError, match="10m"):
        parse_delay(text, "--in")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2030-01-01T09:00:00+01:00", datetime(2030, 1, 1, 8, tzinfo=UTC)),
        ("2030-01-01T09:00:00Z", datetime(2030, 1, 1, 9, tzinfo=UTC)),
        ("2030-01-01t09:00:00z", datetime(2030, 1, 1, 9, tzinfo=UTC)),
        ("2030-01-01 09:00:00-00:00", datetime(2030, 1, 1, 9, tzinfo=UTC)),
        ("2030-01-01T09:00:00+05:45", datetime(2030, 1, 1, 9, tzinfo=timezone(timedelta(hours=5, minutes=45)))),
        ("2030-01-01T09:00:00.123456Z", datetime(2030, 1, 1, 9, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_an_instant_has_an_offset(text, at):
    assert parse_instant(text) == at


@pytest.mark.parametrize("text", ["2030-01-01T09:00:00", "2030-01-01", "0001-01-01T00:00", "9999-12-31T23:59:59"])
def test_a_time_without_an_offset_is_refused_with_the_remedy(text):
    with pytest.raises(InvalidJobError, match="Z for UTC"):
        parse_instant(text)


@pytest.mark.parametrize("text", ["", "tomorrow", "2024-02-30T00:00:00Z", "2030-13-01T00:00:00Z", "1893484800"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(InvalidJobError, match="2030-01-01T09:00:00"):
        parse_instant(text)


# -- ndjson


def jobs_of(*lines, skip=0):
    return list(read_jobs(io.BytesIO(b"\n".join(lines)), skip=skip))


def test_a_file_s_jobs_keep_their_order_and_get_ids():
    jobs = jobs_of(
        b'\xef\xbb\xbf{"handler": "a", "args": {"n": 12345678901234567890}}', b"", b'{"handler": "b"}\r', b""
    )
    assert [job.handler for job in jobs] == ["a", "b"]
    assert bytes(jobs[0].args) == b'{"n": 12345678901234567890}'
    assert len({job.id for job in jobs}) == 2


def test_jobs_can_be_passed_over():
    lines = [b'{"handler": "a"}', b"", b"nonsense", b'{"handler": "b"}']
    assert [job.handler for job in jobs_of(*lines, skip=2)] == ["b"]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b'{"handler": "a", "prioritty": "high"}', ["'prioritty'", "did you mean 'priority'"]),
        (b'{"handler": "a", "colour": "red"}', ["'colour'", "use one of handler"]),
        (b'{"handler": "a", "priority": "urgent"}', ["'priority'", "critical"]),
        (b'{"handler": "a", "max_attempts": "5"}', ["'max_attempts'"]),
        (b'{"handler": "a", "max_attempts": -1}', ["'max_attempts'"]),
        (b'{"handler": "a", "max_attempts": true}', ["'max_attempts'"]),
        (b'{"handler": "a", "delay_s": NaN}', ["no job"]),
        (b'{"handler": "a", "timeout_s": 1e309}', ["timeout_s"]),
        (b'{"handler": "a", "run_at": "2030-01-01T00:00:00"}', ["'run_at'", "timezone"]),
        (b'{"handler": "a", "args": [1]}', ["args"]),
        (b'{"handler": "a", "args": "x"}', ["args"]),
        (b'{"handler": "a b"}', ["handler"]),
        (b'{"args": {}}', ["handler"]),
        (b'[{"handler": "a"}]', ["no job", "jq"]),
        (b'{"handler": "a"', ["no job"]),
        (b"nonsense", ["no job"]),
        (b"[" * 200_000, ["no job"]),
        (b'{"handler": "a", "args": {"a": "\xff"}}', ["line 2"]),
        (b'{"handler": "a", "args": {"a": "' + b"x" * MESSAGE_BYTES_MAX + b'"}}', [str(MESSAGE_BYTES_MAX)]),
    ],
    ids=lambda value: value[:50].decode(errors="replace") if isinstance(value, bytes) else "",
)
def test_a_bad_line_is_named_with_its_field(line, parts):
    with pytest.raises(BadLineError) as caught:
        jobs_of(b'{"handler": "good"}', line, b'{"handler": "good"}')
    assert caught.value.number == 2
    for part in ["line 2: ", *parts]:
        assert part in str(caught.value)


def test_null_means_absent():
    [job] = jobs_of(b'{"handler": "a", "args": null, "lane": null, "priority": null, "delay_s": null, "id": null}')
    assert (job.lane, job.priority, job.delay_s) == (None, None, None)


# -- redaction


@pytest.fixture
def secrets(monkeypatch):
    monkeypatch.setattr(redaction, "_secrets", set())


@pytest.mark.parametrize(
    "text",
    [
        "p@ss/w:rd%21",
        "p%40ss%2Fw%3Ard%2521",
        "p@ss/w:rd!",
        "p%40ss%2Fw%3Ard%21",
        "connecting to postgresql://jm:p@ss/w:rd%21@db:5432/jobs failed",
        "nats://other:never-learnt@host:4222",
        "dsn='postgresql://h/d?password=never-learnt&sslmode=require'",
    ],
)
@pytest.mark.usefixtures("secrets")
def test_a_secret_is_taken_out_in_every_spelling(text):
    redaction.learn_url("postgresql://jm:p@ss/w:rd%21@db:5432/jobs")
    shown = redaction.redact(text)
    assert "***" in shown
    for part in ("ss/w", "ss%2Fw", "rd%21", "rd!", "never-learnt"):
        assert part not in shown


@pytest.mark.usefixtures("secrets")
def test_of_several_servers_every_password_is_known():
    redaction.learn_url("nats://a:first-secret@h1,nats://b:second-secret@h2,nats://a-token@h3")
    assert redaction.redact("first-secret second-secret a-token") == "*** *** ***"


@pytest.mark.usefixtures("secrets")
def test_a_user_s_name_is_no_secret():
    redaction.learn_url("postgresql://postgres@127.0.0.1/d")
    assert redaction.redact("postgres away") == "postgres away"


@pytest.mark.usefixtures("secrets")
def test_ordinary_text_is_left_alone():
    text = "NATS at nats://127.0.0.1:4222: no connection; mail a@b.c about it"
    assert redaction.redact(text) == text


# -- render


def test_numbers_keep_their_digits(capsys):
    args = b'{"id":1970670598291982290,"n":9007199254740993,"x":1.10,"big":1e400}'
    render.print_json({"args": msgspec.Raw(args)})
    assert capsys.readouterr().out == '{"args":' + args.decode() + "}\n"


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "\x9b31m", "a\rb", "\u202eevil", "\x07", "[red]markup[/red]"])
def test_text_from_jobs_steers_neither_terminal_nor_markup(hostile, capsys):
    render.print_table(("A", "B"), [("1", hostile)])
    render.print_record([("a", hostile)])
    render.print_json({"a": hostile})
    shown = capsys.readouterr().out
    assert not any(char in shown for char in "\x1b\x9b\r\u202e\x07")
    if hostile.startswith("["):
        assert shown.count("[red]markup[/red]") == 3
    assert json.loads(shown.splitlines()[-1]) == {"a": hostile}


def test_a_table_is_not_cut_where_nobody_looks_at_it(capsys):
    render.print_table(("A", "B"), [("x" * 300, "y")])
    assert "x" * 300 in capsys.readouterr().out


def test_a_narrow_terminal_gets_the_columns_that_matter(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    row = ("0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "a handler with a long name", "mail", "h" * 40)
    columns, minor = ("ID", "HANDLER", "LANE", "LAST"), ("LANE",)
    shown = {}
    for width in ("200", "90", "60"):
        monkeypatch.setenv("COLUMNS", width)
        render.print_table(columns, [row], minor=minor)
        shown[width] = capsys.readouterr().out
        assert row[0] in shown[width]
        assert len(shown[width].splitlines()) == 2
    assert "mail" in shown["200"]
    assert "mail" not in shown["90"]
    assert "…" in shown["60"]


# -- logs


def record(message="bucket lost", error=None, **extra):
    made = logging.LogRecord("jobmaster.worker", logging.INFO, "f.py", 1, message, (), error)
    vars(made).update(extra)
    return made


@pytest.mark.usefixtures("secrets")
def test_a_console_line_shows_the_extras():
    line = ConsoleFormatter().format(record(epoch=3, bucket="b 1", note=""))
    assert line.endswith('INFO    worker: bucket lost  epoch=3 bucket="b 1" note=""')


@pytest.mark.usefixtures("secrets")
def test_a_json_line_is_one_object_with_the_extras():
    entry = json.loads(JsonFormatter().format(record(epoch=3, at=datetime(2030, 1, 1, tzinfo=UTC))))
    assert (entry["level"], entry["message"], entry["epoch"]) == ("info", "bucket lost", 3)
    assert entry["at"].startswith("2030-01-01")


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("formatter", [ConsoleFormatter(), JsonFormatter()], ids=lambda f: type(f).__name__)
def test_no_log_shows_a_secret_or_steers_a_terminal(formatter):
    redaction.learn("sesame-open")
    try:
        int("sesame-open in a traceback \x1b[31m")
    except ValueError:
        shown = formatter.format(record("with sesame-open", sys.exc_info(), dsn="x://u:sesame-open@h\x1b[0m"))
    assert "sesame" not in shown
    assert "\x1b" not in shown
    assert "Traceback" in shown


# -- loading


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


ONE_APP = "from jm_nats import JobMaster\njm = JobMaster('shop')\nalias = jm\nother = 3\n"


def test_a_module_with_one_app_is_enough(here):
    (here / "shop_one.py").write_text(ONE_APP)
    assert load_app("shop_one").cluster == "shop"
    assert load_app("shop_one:jm") is load_app("shop_one:alias")


def test_a_package_s_module_is_found(here):
    (here / "shop_pkg").mkdir()
    (here / "shop_pkg" / "jobs.py").write_text(ONE_APP)
    assert load_app("shop_pkg.jobs:jm").cluster == "shop"


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("shop_two", "shop_two:a or shop_two:b"),
        ("shop_ona", "did you mean shop_one"),
        ("shop_one:jn", "did you mean shop_one:jm"),
        ("shop_one:other", "is no JobMaster but a int; did you mean shop_one:jm"),
        ("shop_none", "has no JobMaster"),
        ("shop_bad", "ZeroDivisionError: division by zero (shop_bad.py, line 2)"),
        ("shop_exit", "SystemExit"),
        ("shop_import", "No module named 'absent_thing'"),
        ("shop_twice", "handler 'a' is already"),
        ("shop_one.jm", "no module"),
        ("shop/one.py", "shop.jobs:jm"),
        (":jm", "shop.jobs:jm"),
        ("shop_one:", "shop.jobs:jm"),
        ("shop one", "no module"),
    ],
)
def test_what_cannot_be_loaded_is_explained(here, target, part):
    (here / "shop_one.py").write_text(ONE_APP)
    (here / "shop_two.py").write_text("from jm_nats import JobMaster\na = JobMaster('a')\nb = JobMaster('b')\n")
    (here / "shop_none.py").write_text("x = 1\n")
    (here / "shop_bad.py").write_text("x = 1\nx / 0\n")
    (here / "shop_exit.py").write_text("raise SystemExit(0)\n")
    (here / "shop_import.py").write_text("import absent_thing\n")
    (here / "shop_twice.py").write_text(ONE_APP + "f = lambda: None\njm.handler('a')(f)\njm.handler('a')(f)\n")
    with pytest.raises(UsageError) as caught:
        load_app(target)
    assert part in str(caught.value)


def test_a_closed_stdin_is_told_from_an_empty_one(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="'-' reads stdin, which is closed"):
        piped_in()
