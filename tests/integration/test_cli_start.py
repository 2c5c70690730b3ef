"""What every command shares: help, exit codes, one line on stderr, a quick start."""

import resource
import subprocess
import sys
import time

import pytest

from jm_cli.exits import MEANING, ExitCode
from tests.support.cli import commands, environment, jm, jm_many

HELP_LIMIT_S = 0.4
TRIES = 8
HEAVY = ("nats", "asyncpg", "opentelemetry", "rich", "asyncio", "msgspec", "uvloop")


COMMANDS = commands()


def test_help_starts_in_under_four_tenths_of_a_second():
    """The best of several: other work on the machine may only make it slower."""
    best_s = best_cpu_s = 10.0
    for _ in range(TRIES):
        before, cpu_before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        assert jm("--help").returncode == 0
        cpu_after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best_s = min(best_s, time.monotonic() - before)
        best_cpu_s = min(
            best_cpu_s, cpu_after.ru_utime + cpu_after.ru_stime - cpu_before.ru_utime - cpu_before.ru_stime
        )
        if best_s < HELP_LIMIT_S:
            return
    assert best_cpu_s < HELP_LIMIT_S, f"{best_s:.2f} s, of it {best_cpu_s:.2f} s at work"


def test_help_imports_nothing_heavy():
    code = "import sys, jm_cli.app\nprint(*[name for name in sys.argv[1:] if name in sys.modules])"
    command = [sys.executable, "-c", code, *HEAVY]
    assert subprocess.check_output(command, env=environment(), text=True).split() == []


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_command_has_help_with_an_example(path, command):
    assert f"jm {path[0]}" in command.help.partition("Example")[2], "no example"
    assert all(param.help for param in command.params if param.param_type_name == "option")


def test_every_command_prints_its_help(tmp_path):
    for done in jm_many([[*path, "--help"] for path, _ in COMMANDS], cwd=tmp_path):
        assert (done.returncode, done.stderr) == (0, ""), done.args
        assert "\b" not in done.stdout
        assert "Example" in done.stdout


def test_jm_alone_shows_its_help():
    done = jm()
    assert done.returncode == 0
    assert "Usage: jm" in done.stdout


def test_every_exit_code_has_its_meaning():
    assert set(MEANING) == set(ExitCode)
    help_text = " ".join(jm("--help").stdout.split())
    assert all(f" {code.value} " in help_text for code in ExitCode)


BAD_INPUT = [
    (["coordinator", "--otlp-endpoint", "collector:4318"], "like http://collector:4318"),
    (["coordinator", "--otlp-endpoint", "http://u:sesame@[::1"], "no http(s) URL"),
    (["coordinator", "--otlp-endpoint", "http://h:port"], "no http(s) URL"),
    (["coordinator", "--otlp-endpoint", "http://h:4318/v1/traces"], "appended by itself"),
    (["coordinator", "--prometheus-port", "70000"], "--prometheus-port"),
    (["worker", "jm_cli.example:jm", "--processes", "3", "--prometheus-port", "65534"], "the limit is 65535"),
    (["up", "--prometheus-port", "65535"], "the limit is 65535"),
    (["jobb"], "Did you mean 'job'"),
    (["job"], "jm job --help"),
    (["job", "list", "--limt", "3"], "--limt"),
    (["job", "list", "--limit", "0"], "--limit"),
    (["job", "list", "--limit", "x"], "--limit"),
    (["job", "list", "--status", "done"], "'done'"),
    (["job", "list", "--priority", "urgent"], "'urgent'"),
    (["job", "list", "--lane", "a.b"], "lane"),
    (["job", "list", "--before", "7"], "'7'"),
    (["job", "show", "7"], "'7'"),
    (["job", "list", "--nats-inbox-prefix", "inbox"], "begins with '_INBOX'"),
    (["job", "attempts", "a\x1b[31mb"], "UUID"),
    (["job", "cancel", "0198c1c6"], "give the whole id"),
    (["job", "cancel"], "--all"),
    (["job", "cancel", "7"], "'7'"),
    (["job", "cancel", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--handler", "h"], "not both"),
    (["job", "cancel", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--expect", "2"], "--expect says 2"),
    (["job", "cancel", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--wait", "soon"], "10m"),
    (["job", "cancel", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--reason", "r" * 501], "reason"),
    (["job", "cancel", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--by", "n" * 101], "by"),
    (["job", "cancel", "--handler", "a b"], "handler"),
    (["job", "cancel", "--handler", "h", "--wait", "1s"], "--wait"),
    (["job", "cancel", "--status", "done"], "'done'"),
    (["job", "cancel", "--status", "succeeded"], "cancel does nothing to succeeded jobs"),
    (["job", "cancel", "--due-before", "2030-01-01T00:00:00"], "--due-before"),
    (["job", "cancel", "--meta", "novalue"], "--meta"),
    (["job", "cancel", "--ids-from", "nowhere.txt"], "nowhere.txt"),
    (["job", "cancel", "--ids-from", "-"], "no id"),
    (["job", "requeue", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--args", "[1]"], "args"),
    (["job", "requeue", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--max-attempts", "0"], "max_attempts"),
    (["job", "requeue", "--status", "processing"], "requeue does nothing to processing jobs"),
    (["job", "reschedule", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e"], "--at"),
    (
        ["job", "reschedule", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--at", "2030-01-01T00:00:00"],
        "2030-01-01T00:00:00Z",
    ),
    (["job", "priority", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e"], "priority or lane"),
    (["job", "priority", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--to", "urgent"], "urgent"),
    (["job", "priority", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--lane", "a.b"], "lane"),
    (["job", "history", "7"], "'7'"),
    (["audit", "list", "--action", "undo"], "'undo'"),
    (["audit", "list", "--limit", "0"], "--limit"),
    (["audit", "show", "7"], "'7'"),
    (["job", "wait"], "ID"),
    (["job", "wait", "7"], "'7'"),
    (["job", "wait", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "x"], "'x'"),
    (["job", "wait", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--timeout", "-1"], "--timeout"),
    (["job", "wait", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--timeout", "nan"], "--timeout"),
    (["job", "watch", "7"], "'7'"),
    (["job", "watch", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--timeout", "inf"], "--timeout"),
    (["retention", "run", "--timeout", "soon"], "--timeout"),
    (["job", "wait", "0198c1c6-6d2e-7b7a-a0d5-6a1f0b1c2d3e", "--timeout", "10m1h"], "--timeout"),
    (["retention", "run", "--timeout", "0"], "--timeout"),
    (["coordinator", "--dsn", "postgresql://u@h/d", "--retention", "soon"], "'soon' is no duration"),
    (["coordinator", "--dsn", "postgresql://u@h/d", "--retention", "done=1d"], "there is no kind 'done'"),
    (["rejected", "show", "x"], "NUMBER"),
    (["cluster", "mode"], "active|passive|archived"),
    (["cluster", "mode", "asleep"], "active, passive, archived"),
    (["cluster", "give-up-agent", "east"], "--yes"),
    (["cluster", "give-up-agent", "East/1", "--yes"], "[a-z0-9]{1,20}"),
    (["coordinator", "--dsn", "postgresql://u@h/d", "--agent", "East"], "[a-z0-9]{1,20}"),
    (["coordinator", "--dsn", "postgresql://u@h/d", "--cluster", "a,b"], "{cluster}"),
    (["coordinator", "--dsn", "postgresql://u@h/d", "--cluster", "a,b,a"], "twice"),
    (["coordinator", "--dsn", "postgresql://u@h/d", "--cluster", "a,A", "--schema", "j_{cluster}"], "would share"),
    (["coordinator", "--dsn", "postgresql://u@h/d", "--cluster", "a.b"], "cluster"),
    (["coordinator", "--dsn", "postgresql://u@h/d", "--schema", "{clutser}"], "schema"),
    (["cluster", "set"], "--disable"),
    (["cluster", "set", "--disable", "medium"], "cannot be disabled"),
    (["cluster", "set", "--disable", "urgent"], "'urgent'"),
    (["cluster", "set", "--disable", "low", "--enable", "low"], "at once"),
    (["cluster", "set", "--buckets", "high"], "high=2"),
    (["cluster", "set", "--buckets", "high=99"], "0 to 16"),
    (["cluster", "set", "--buckets", "high=2,high=3"], "twice"),
    (["worker", "tests.support.app:jm", "--buckets", "high=0"], "1 to 16"),
    (["rejected", "list", "--limit", "9999999"], "--limit"),
    (["submit"], "HANDLER"),
    (["submit", "a b"], "handler"),
    (["submit", "h", "{"], "args"),
    (["submit", "h", "[1]"], "args"),
    (["submit", "h", '{"n": NaN}'], "args"),
    (["submit", "h", '{"n": 1e400}'], "args"),
    (["submit", "h", '{"n": "\\u0000"}'], "args.n"),
    (["submit", "h", "[" * 100_000], "args"),
    (["submit", "h", '{"a":' * 500 + "1" + "}" * 500], "args"),
    (["submit", "h", '{}, "priority": "high"'], "args"),
    (["submit", "h", '{"text": "' + "x" * 131_000 + '"}', "--meta", "a=" + "x" * 9000], "metadata"),
    (["submit", "h", "--at", "2030-01-01T09:00:00"], "2030-01-01T09:00:00Z"),
    (["submit", "h", "--at", "2024-02-30T00:00:00Z"], "--at"),
    (["submit", "h", "--at", "0001-01-01T00:00:00Z"], "run_at"),
    (["submit", "h", "--at", "9999-01-01T00:00:00Z"], "run_at"),
    (["submit", "h", "--in", "-5"], "--in"),
    (["submit", "h", "--in", "soon"], "10m"),
    (["submit", "h", "--in", "999999d"], "delay_s"),
    (["submit", "h", "--in", "5", "--at", "2030-01-01T09:00:00Z"], "run_at"),
    (["submit", "h", "--lane", "a.b"], "lane"),
    (["submit", "h", "--lane", "$JS.API"], "lane"),
    (["submit", "h", "--priority", "urgent"], "priority"),
    (["submit", "h", "--max-attempts", "0"], "max_attempts"),
    (["submit", "h", "--timeout", "0"], "timeout_s"),
    (["submit", "h", "--timeout", "x"], "--timeout"),
    (["submit", "h", "--unique-key", " "], "unique_key"),
    (["submit", "h", "--unique-for", "1h"], "unique_key"),
    (["submit", "h", "--unique-key", "k", "--unique-for", "soon"], "--unique-for"),
    (["submit", "h", "--unique-key", "k", "--unique-for", "0"], "unique_for_s"),
    (["submit", "h", "--unique-key", "k", "--unique-for", "9999999d"], "unique_for_s"),
    (["submit", "h", "--on-conflict", "replace"], "unique_key"),
    (["submit", "h", "--unique-key", "k", "--on-conflict", "ignore"], "return_existing"),
    (["submit", "h", "--unique-key", "k", "--on-conflict", "reject"], "--wait recorded"),
    (["submit", "h", "--id", "00123"], "'00123'"),
    (["submit", "h", "--meta", "novalue"], "--meta"),
    (["submit", "h", "--meta", "a=1", "--meta", "a=2"], "--meta"),
    (["submit", "h", "--wait", "never"], "--wait"),
    (["submit", "h", "--file", "x"], "--file"),
    (["submit", "--file", "x", "--lane", "mail"], "lane"),
    (["submit", "--file", "x", "--wait", "result"], "--wait result"),
    (["submit", "--file", "no/such/file"], "no/such/file"),
    (["submit", "h", "--cluster", "a.b"], "cluster"),
    (["submit", "h", "--nats-url", "http://x"], "scheme"),
    (["submit", "h", "--nats-user", "u"], "JM_NATS_PASSWORD"),
    (["submit", "h", "--nats-creds", "/no/such"], "JM_NATS_CREDS"),
    (["schedule", "preview", "61 * * * *"], "position 1"),
    (["schedule", "preview", "0 9,24 * * *"], "position 5"),
    (["schedule", "preview", "0 0 31 2 *"], "never fires"),
    (["schedule", "preview", "*/90 * * * *"], "--every"),
    (["schedule", "preview", "0 9 L-3 * *"], "BYMONTHDAY"),
    (["schedule", "preview", "0 9 * *"], "4 fields"),
    (["schedule", "preview", "a b c d e f g h"], "quotes"),
    (["schedule", "preview", ""], "empty"),
    (["schedule", "preview", "0 9 * * *\x1b[31m"], "ASCII"),
    (["schedule", "preview", "0," * 5_000 + "1 * * * *"], "1000"),
    (["schedule", "preview", "every fortnight"], "position 7"),
    (["schedule", "preview", "every day at 9:00 in Europe/Berln"], "Europe/Berlin"),
    (["schedule", "preview", "FREQ=DAILY;BYHOUR=24"], "position 19"),
    (["schedule", "preview", "FREQ=DAILY;UNTIL=20200101"], "never fires"),
    (["schedule", "preview", "0.5s"], "1s"),
    (["schedule", "preview", "15m", "--kind", "crn"], "plain"),
    (["schedule", "preview", "0 9 * * *", "--tz", "berlin"], "Europe/Berlin"),
    (["schedule", "preview", "0 9 * * *", "--tz", "../../etc/passwd"], "zone"),
    (["schedule", "preview", "0 9 * * *", "--after", "2030-01-01T09:00:00"], "2030-01-01T09:00:00Z"),
    (["schedule", "preview", "0 9 * * *", "--after", "noon"], "--after"),
    (["schedule", "preview", "0 9 * * *", "--after", "0001-01-01T00:00:00Z"], "1970"),
    (["schedule", "preview", "0 9 * * *", "--start", "9999-01-01T00:00:00Z"], "--start"),
    (["schedule", "preview", "0 9 * * *", "--count", "0"], "--count"),
    (["schedule", "preview", "0 9 * * *", "--count", "1000000"], "--count"),
    (["schedule", "preview", "0 9 * * *", "--count", "many"], "--count"),
    (["schedule", "add", "x"], "HANDLER"),
    (["schedule", "add", "x", "h"], "--cron"),
    (["schedule", "add", "a b", "h", "--every", "5m"], "schedule"),
    (["schedule", "add", "x", "a b", "--every", "5m"], "handler"),
    (["schedule", "add", "x", "h", "--every", "5m", "--cron", "* * * * *"], "--cron and --every"),
    (["schedule", "add", "x", "h", "--cron", "0 0 30 2 *"], "never fires"),
    (["schedule", "add", "x", "h", "--rrule", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"], "never fires"),
    (["schedule", "add", "x", "h", "--cron", "0 9 * * *", "--end", "2020-01-01T00:00:00Z"], "ends_at"),
    (["schedule", "add", "x", "h", "--cron", "0 9 * * *", "--tz", "Mars/Phobos"], "zone"),
    (["schedule", "add", "x", "h", "--every", "5m", "--args", "[1]"], "args"),
    (["schedule", "add", "x", "h", "--every", "5m", "--args", '{"n": NaN}'], "args"),
    (["schedule", "add", "x", "h", "--every", "5m", "--args-file", "no/such/file"], "no/such/file"),
    (["schedule", "add", "x", "h", "--every", "5m", "--args", "{}", "--args-file", "f"], "--args-file"),
    (["schedule", "add", "x", "h", "--every", "5m", "--metadata", "novalue"], "--meta"),
    (["schedule", "add", "x", "h", "--every", "5m", "--lane", "a.b"], "lane"),
    (["schedule", "add", "x", "h", "--every", "5m", "--priority", "urgent"], "'urgent'"),
    (["schedule", "add", "x", "h", "--every", "5m", "--misfire", "sometimes"], "run_all"),
    (["schedule", "add", "x", "h", "--every", "5m", "--misfire-limit", "0"], "misfire_limit"),
    (["schedule", "add", "x", "h", "--every", "5m", "--misfire-window", "5s"], "misfire_window_s"),
    (["schedule", "add", "x", "h", "--every", "5m", "--overlap", "never"], "queue_one"),
    (["schedule", "add", "x", "h", "--every", "5m", "--jitter", "10m"], "jitter_s"),
    (["schedule", "add", "x", "h", "--every", "5m", "--jitter", "x"], "--jitter"),
    (["schedule", "add", "x", "h", "--every", "5m", "--max-runs", "0"], "max_runs"),
    (["schedule", "add", "x", "h", "--every", "5m", "--max-attempts", "0"], "max_attempts"),
    (["schedule", "add", "x", "h", "--every", "5m", "--unique-key", " "], "unique_key"),
    (["schedule", "list", "--state", "asleep"], "'asleep'"),
    (["schedule", "list", "--origin", "code"], "'code'"),
    (["schedule", "list", "--handler", "a b"], "handler"),
    (["schedule", "list", "--limit", "0"], "--limit"),
    (["schedule", "show", "a b"], "schedule"),
    (["schedule", "show", "x", "--count", "101"], "--count"),
    (["schedule", "skips", "--reason", "tired"], "'tired'"),
    (["schedule", "edit", "x"], "nothing to change"),
    (["schedule", "edit", "x", "--cron", "61 * * * *"], "position 1"),
    (["schedule", "edit", "x", "--tz", "berlin"], "Europe/Berlin"),
    (["schedule", "edit", "x", "--clear", "handler"], "'handler'"),
    (["schedule", "edit", "x", "--lane", "a", "--clear", "lane"], "--clear"),
    (["schedule", "pause", "a\x1b[31mb"], "schedule"),
    (["schedule", "delete", "x"], "--yes"),
    (["schedule", "run-now", "x", "--args", "[1]"], "args"),
    (["migrate"], "JM_POSTGRES_DSN"),
    (["migrate", "--dsn", "mysql://x"], "postgresql://"),
    (["migrate", "--dsn", "postgresql://x/y", "--schema", 'a"b'], "schema"),
    (["worker"], "MODULE:APP"),
    (["worker", "no_such_module"], "no_such_module"),
    (["worker", "os:path"], "JobMaster"),
    (["worker", "jm_cli.example:jm", "--slots", "0"], "slots"),
    (["worker", "jm_cli.example:jm", "--lease", "3"], "lease"),
    (["worker", "jm_cli.example:jm", "--lane", "a.b"], "lane"),
    (["worker", "jm_cli.example:jm", "--priority", "urgent"], "'urgent'"),
    (["worker", "jm_cli.example:jm", "--name", "web:1"], "worker"),
    (["worker", "jm_cli.example:jm", "--mode", "drian"], "'drian' is not one of 'execution', 'drain', 'full'"),
    (["up", "--app", "no_such_module"], "no_such_module"),
]


def test_bad_input_ends_with_code_2_and_one_line_that_names_it(tmp_path):
    """No server is needed to find out; nothing was sent anywhere (BR-104, BR-105, BR-108, BR-109, BR-115, BR-224)."""
    ends = jm_many([arguments for arguments, _ in BAD_INPUT], cwd=tmp_path)
    for (_, part), done in zip(BAD_INPUT, ends, strict=True):
        assert done.returncode == ExitCode.USAGE, done
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert len(done.stderr) < 1000
        assert part in done.stderr
        assert "Value error" not in done.stderr, "how the parser was built is no word for a user"
        assert "\x1b" not in done.stderr


def test_json_leaves_stdout_empty_when_it_fails(tmp_path):
    done = jm("job", "list", "--status", "done", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")


def test_a_traceback_is_shown_only_to_those_who_debug(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_like_this\n")
    quiet = jm("worker", "broken", cwd=tmp_path)
    assert quiet.stderr.count("\n") == 1
    assert "nothing_like_this" in quiet.stderr
    assert "broken.py, line 1" in quiet.stderr
    loud = jm("worker", "broken", cwd=tmp_path, JM_DEBUG="1")
    assert "Traceback" in loud.stderr
    assert quiet.returncode == loud.returncode == ExitCode.USAGE


def test_a_closed_pipe_is_no_error(tmp_path):
    """As in ``jm --help | head -1``."""
    command = f"'{sys.executable}' -P -m jm_cli worker --help | head -n 1"
    done = subprocess.run(
        ["/bin/bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert "Usage: jm worker" in done.stdout
    assert done.stderr == ""
