"""The command line as a test needs it: real processes of ``jm``, and its command tree."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import typer

from jm_cli.app import app
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
JM: Final = [sys.executable, "-P", "-m", "jm_cli"]


def environment(**variables: str) -> dict[str, str]:
    """This process's, with no setting of ours but ``variables``."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("JM_", "OTEL_"))}
    return inherited | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli")])} | variables


def jm(
    *arguments: str, cwd: Path | None = None, stdin: str | bytes = b"", timeout_s: float = 60, **variables: str
) -> subprocess.CompletedProcess[str]:
    """``jm`` run to its end."""
    done = subprocess.run(
        [*JM, *arguments],
        cwd=cwd,
        env=environment(**variables),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


# Many commands in one process: each of them costs milliseconds then, and not a start of Python.
_DRIVER: Final = """
import io, json, sys
from jm_cli.app import run
ends = []
for arguments, given in json.load(sys.stdin):
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    sys.stdout, sys.stderr = out, err
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
    try:
        code = run(arguments)
    except SystemExit as end:
        code = end.code
    out.flush(), err.flush()
    ends.append([int(code), out.buffer.getvalue().decode(), err.buffer.getvalue().decode()])
sys.__stdout__.write(json.dumps(ends))
"""


def jm_many(
    commands: Sequence[Sequence[str]], *, cwd: Path, stdin: str = "", **variables: str
) -> list[subprocess.CompletedProcess[str]]:
    """How each of ``commands`` ends, run one after the other; for those that end by themselves."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _DRIVER],
        cwd=cwd,
        env=environment(**variables),
        input=json.dumps([[list(command), stdin] for command in commands]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    ends = zip(commands, json.loads(done.stdout), strict=True)
    return [subprocess.CompletedProcess(["jm", *command], code, out, err) for command, (code, out, err) in ends]


class Running:
    """``jm`` as a process that goes on, in a session of its own; killed on leaving, if it has not ended by then."""

    def __init__(self, *arguments: str, cwd: Path, **variables: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="jm-test-cli-"))
        with (self._folder / "out").open("wb") as out, (self._folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*JM, *arguments],
                cwd=cwd,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def out(self) -> str:
        return (self._folder / "out").read_text()

    def err(self) -> str:
        return (self._folder / "err").read_text()

    async def wait_for(self, text: str, timeout_s: float = 30) -> None:
        """Return when it has said so, on either side."""
        await wait_until(
            lambda: text in self.out() + self.err() or self.process.poll() is not None,
            timeout_s,
            what=f"{text!r} of jm",
            shown=lambda: self.out() + self.err(),
        )
        assert text in self.out() + self.err(), f"ended with {self.process.poll()}\n{self.out()}{self.err()}"

    async def wait_exit(self, timeout_s: float = 45) -> int:
        await wait_until(
            lambda: self.process.poll() is not None, timeout_s, what="the end of jm", shown=lambda: self.err()[-3000:]
        )
        return self.process.returncode

    async def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 45) -> int:
        """Its exit code, after a signal."""
        self.process.send_signal(number)
        return await self.wait_exit(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        print(f"--- jm (exit {self.process.returncode})\n{self.out()}{self.err()}"[-6000:])  # noqa: T201
        shutil.rmtree(self._folder, ignore_errors=True)


def commands() -> list[tuple[tuple[str, ...], Any]]:
    """The leaves of the command tree, each with its path."""
    return _leaves(typer.main.get_command(app), ())


def is_command(line: str) -> str:
    """What is wrong with a command of ``jm`` (nothing: an empty text): it is parsed with its options, and not run.

    Of a pipe each command of ours is looked at; variables before it, redirections and comments are left out.
    """
    text = re.sub(r"<(\w+)>", r"\1", line.replace("\\\n", " "))  # <id> stands for one
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;"):
            commands.append([])
        else:
            commands[-1].append(word)
    ours = [words[words.index("jm") :] + ["ID"] * ("xargs" in words) for words in commands if "jm" in words]
    said = [_parsed(list(takewhile(lambda word: not word.startswith(">"), words))) for words in ours]
    return "; ".join(filter(None, said)) if ours else f"is no command of jm: {line}"


def _parsed(words: list[str]) -> str:
    command = typer.main.get_command(app)
    path, rest = ["jm"], words[1:]
    try:
        with redirect_stdout(StringIO()):  # --help is printed where it is met
            context = command.make_context("jm", rest) if rest else None
            while (
                context is not None and hasattr(command, "resolve_command") and context._protected_args + context.args
            ):
                name, command, rest = command.resolve_command(context, context._protected_args + context.args)
                path.append(name)
                context = command.make_context(" ".join(path), list(rest), parent=context)
    except typer.Exit as end:  # of --help and --version, which have said what they say
        return "" if end.exit_code == 0 else f"ends with {end.exit_code}"
    except Exception as error:  # noqa: BLE001 - whatever the parser says is the answer
        return f"{type(error).__name__}: {error}"
    return ""


def _leaves(command: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        return [(path, command)]
    return [leaf for name, child in children.items() for leaf in _leaves(child, (*path, name))]
