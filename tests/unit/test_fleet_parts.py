"""The parts of ``jm worker`` and ``jm bucket`` that need no server."""

import pytest
import typer

from jm_cli import exits
from jm_cli.app import app
from jm_cli.default_command import DefaultCommandGroup
from jm_cli.exits import CliError, ExitCode
from jm_cli.fleet import age, near_matches, not_found, size
from jm_nats.census import Census, Unreadable
from tests.support.cli import jm, jm_many

EMPTY = Census("c", 0.0, [], [], [], [])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (10, "10 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_an_age_is_as_exact_as_anybody_wants_to_know(seconds, text):
    assert age(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1024.0 GiB")])
def test_a_size_has_its_unit(count, text):
    assert size(count) == text


def test_near_matches_are_those_that_begin_so_or_look_like_it():
    known = ["web-1-aa", "web-2-bb", "mail-3-cc"]
    assert near_matches("WEB", known) == ["web-1-aa", "web-2-bb"]
    assert near_matches("mial-3-cc", known) == ["mail-3-cc"]
    assert near_matches("", known) == []
    assert near_matches("zzz", known) == []


def test_what_is_not_there_is_told_from_what_cannot_be_read():
    with pytest.raises(CliError, match=r"no worker 'x'; did you mean xy\?") as caught:
        not_found("worker", "x", EMPTY, ["xy"], "kv")
    assert caught.value.code is ExitCode.NOT_FOUND
    damaged = Census("c", 0.0, [], [], [], [Unreadable("kv", "x", 1.0, "truncated")])
    with pytest.raises(CliError, match="cannot be read: truncated") as caught:
        not_found("worker", "x", damaged, [], "kv")
    assert caught.value.code is ExitCode.UNEXPECTED


# -- the group that is a command, too


@pytest.fixture
def called(monkeypatch):
    """What a small application of the same shape was called with."""
    calls = []
    small = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
    group = typer.Typer(cls=DefaultCommandGroup, rich_markup_mode=None)

    @small.callback()
    def root():
        pass

    @group.command("run")
    def run(target: str = typer.Argument(envvar="JM_TEST_APP"), lane: str = typer.Option("")):
        calls.append(("run", target, lane))

    @group.command("list")
    def listed(verbose: bool = False):
        calls.append(("list", verbose))

    small.add_typer(group, name="worker")

    def call(*arguments):
        calls.clear()
        typer.main.get_command(small).main(["worker", *arguments], prog_name="jm", standalone_mode=False)
        return calls

    yield call
    exits._hints.clear()


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (["shop:jm"], ("run", "shop:jm", "")),
        (["shop:jm", "--lane", "x"], ("run", "shop:jm", "x")),
        (["--lane", "x", "shop:jm"], ("run", "shop:jm", "x")),
        (["--lane", "list", "shop:jm"], ("run", "shop:jm", "list")),
        (["run", "list"], ("run", "list", "")),
        (["list"], ("list", False)),
        (["list", "--verbose"], ("list", True)),
    ],
)
def test_what_does_not_begin_with_a_subcommand_is_for_the_default_one(called, arguments, call):
    assert called(*arguments) == [call]


def test_the_default_command_takes_its_argument_from_the_environment(called, monkeypatch):
    monkeypatch.setenv("JM_TEST_APP", "shop:jm")
    assert called() == [("run", "shop:jm", "")]


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_of_the_group_has_the_default_s_options_too(called, capsys, flag):
    called(flag)
    shown = capsys.readouterr().out
    assert "list" in shown
    assert "--lane" in shown
    assert "jm worker run [OPTIONS]" in shown


def test_jm_worker_alone_misses_its_argument_and_a_near_word_is_mentioned(tmp_path):
    alone, near, unlike = jm_many([["worker"], ["worker", "lits"], ["worker", "--lane"]], cwd=tmp_path)
    assert (alone.returncode, near.returncode, unlike.returncode) == (2, 2, 2)
    assert "Missing argument 'MODULE:APP'" in alone.stderr
    assert "or did you mean 'jm worker list'?" in near.stderr


def test_jm_worker_help_shows_subcommands_and_the_options_to_run_one():
    shown = jm("worker", "--help").stdout
    for part in ("list", "drain", "stop", "--slots", "MODULE:APP"):
        assert part in shown


def test_undo_has_no_end_to_wait_for():
    done = jm("worker", "drain", "w-1", "--undo", "--wait")
    assert done.returncode == ExitCode.USAGE
    assert "--undo" in done.stderr


def test_every_command_is_in_the_tree():
    tree = typer.main.get_command(app)
    assert list(tree.commands["worker"].commands) == ["run", "list", "show", "drain", "stop"]
    assert list(tree.commands["bucket"].commands) == ["list", "show"]
