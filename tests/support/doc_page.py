"""Runs a page of the documents from top to bottom, as a reader would who types everything: in one folder, one cluster.

Not with a library (sybil, pytest-examples): those run Python in Markdown, and half of our blocks are commands that
start servers, go on beside others, and end with a certain exit code.

A page's cluster is started by the page itself (``jm up`` in the background), or, where ``tests/support/doc_apps`` has
an application of the page's name, beside it; its ``names(client)`` makes the variables of the page's snippets.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import importlib.util
import inspect
import json
import os
import re
import signal
import socket
import sys
import tempfile
import tomllib
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import yaml

from jm_core.lifecycle import diagrams
from tests.support.cli import environment, is_command
from tests.support.doc_blocks import troubles
from tests.support.forked_jm import Done, ForkedJm
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import ModuleType

    from tests.support.doc_blocks import Block, Step

APPS: Final = Path(__file__).with_name("doc_apps")
UP_IS_READY: Final = "Ctrl-C stops everything in order"
URL_VARIABLE: Final = "JM_NATS_URL"
COMMAND_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
# Whoever writes to a `head` that has read enough is ended by SIGPIPE, and that is no fault.
CLOSED_PIPE: Final = 128 + signal.SIGPIPE
_CUT_OFF: Final = re.compile(r"\| head( -n? ?\d+)?$")
_FILE: Final = re.compile(r"# ([\w/]+\.py)\n")
_ID: Final = "<id>"


class BlockError(AssertionError):
    """What a block did that the page does not say."""

    def __init__(self, block: Block, what: str) -> None:
        super().__init__(f"{block.name} ({block.language}): {what}")


class Page:
    """What has happened on it so far: a folder with files, commands that go on, variables."""

    def __init__(self, folder: Path, stack: AsyncExitStack, env: dict[str, str], jm: ForkedJm) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {}
        self.started: list[asyncio.subprocess.Process] = []
        self._stack = stack
        self.env = env
        self.jm = jm

    async def run(self, block: Block) -> None:
        """Raise if it does not do what the page says."""
        if said := troubles(block):
            raise BlockError(block, "; ".join(said))
        if not block.runs:
            if block.note("parsed"):
                parse_commands(block)
            return
        by_language: dict[str, Callable[[Block], Any]] = {
            "python": self._python,
            "console": self._console,
            "sql": self._sql,
            "mermaid": check_diagram,
            "json": parse_data,
            "yaml": parse_data,
            "toml": parse_data,
            "ini": parse_data,
        }
        outcome = by_language[block.language](block)
        if inspect.isawaitable(outcome):
            await outcome

    async def start_app(self, source: str) -> None:
        """The cluster of a page that starts none, with the page's application."""
        (self.folder / "app.py").write_text(source)
        await self._go_on("jm up --app app:jm", UP_IS_READY)
        module = load(self.folder / "app.py")
        self._use_cluster()
        client = await self._stack.enter_async_context(module.jm.client())
        self.names = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        self.names |= {"client": client} | await module.names(client)

    def _use_cluster(self) -> None:
        """Snippets find it by the variable that applications read; ``opened`` puts the variable back."""
        if (self.folder / ".jm" / "env").exists():
            os.environ[URL_VARIABLE] = self._local()[URL_VARIABLE]

    # Python: a file, or a snippet that goes on with the variables of those before it

    async def _python(self, block: Block) -> None:
        if named := _FILE.match(block.text):
            (self.folder / named[1]).write_text(block.text)
            compile(block.text, named[1], "exec")
            return
        self._use_cluster()
        code = compile(block.text, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                outcome = eval(code, self.names)
                if inspect.isawaitable(outcome):
                    await outcome
        except Exception as error:
            raise BlockError(block, f"{type(error).__name__}: {error}") from error

    # Commands

    async def _console(self, block: Block) -> None:
        for step in block.steps:
            if block.note("not run", step.command):
                continue
            until = block.note("background", step.command)
            if until is not None:
                await self._go_on(step.command, until)
                continue
            await self._command(block, step)

    async def _command(self, block: Block, step: Step) -> None:
        expected = int(block.note("exit", step.command) or 0)
        cut_off = _CUT_OFF.search(step.command) is not None
        command = await self._filled_in(step.command)
        words = ForkedJm.words_of(command)
        try:
            if words is None:
                done = await self.in_a_shell(command)
            else:
                done = await self.jm.run(words, self.env, COMMAND_TIMEOUT_S)
        except TimeoutError:
            raise BlockError(block, f"{command!r} did not end within {COMMAND_TIMEOUT_S:g} s") from None
        if done.code != expected and not (cut_off and done.code == CLOSED_PIPE):
            raise BlockError(block, f"{command!r} ended with {done.code}, not with {expected}\n{done.out}{done.err}")
        if step.shown and not matches(step.shown, done.out):
            raise BlockError(block, f"{command!r} did not print what the page shows:\n{done.out}{done.err}")

    async def in_a_shell(self, command: str) -> Done:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-o", "pipefail", "-c", command),
            cwd=self.folder,
            env=self._env_of(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), COMMAND_TIMEOUT_S)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    async def _filled_in(self, command: str) -> str:
        """``<id>`` stands for the newest job that waits, else the newest that has not ended, else the newest."""
        command = command.removeprefix("uv run ")
        if _ID not in command:
            return command
        connection = await asyncpg.connect(self._local()["JM_POSTGRES_DSN"])
        try:
            newest = "SELECT id FROM jobmaster.job ORDER BY status = 1 DESC, status < 4 DESC, id DESC LIMIT 1"
            return command.replace(_ID, str(await connection.fetchval(newest)))
        finally:
            await connection.close()

    async def _go_on(self, command: str, until: str) -> None:
        """Start it beside the rest of the page, and return when it has said ``until``."""
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".log", delete=False) as out:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-c", f"exec {command.removeprefix('uv run ')}"),
                cwd=self.folder,
                env=self.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        self._stack.push_async_callback(self._stop, process)
        said = Path(out.name).read_text
        await wait_until(
            lambda: until in said() or process.returncode is not None,
            COMMAND_TIMEOUT_S,
            what=f"{until!r} of {command!r}",
            shown=said,
        )
        assert process.returncode is None, f"{command!r} ended with {process.returncode}\n{said()}"

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            raise

    def _local(self) -> dict[str, str]:
        """What ``jm up`` wrote for other commands."""
        lines = (self.folder / ".jm" / "env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def _env_of(self, command: str) -> dict[str, str]:
        """A program of the reader's does not look for .jm/env: on the usual port 4222 it needs no setting."""
        return self.env | (self._local() if command.startswith("python ") else {})

    async def _sql(self, block: Block) -> None:
        """In a transaction that is rolled back: the next block finds what the page has made, no more."""
        connection = await asyncpg.connect(self._local()["JM_POSTGRES_DSN"])
        try:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(block.text)
            await transaction.rollback()
        except asyncpg.PostgresError as error:
            raise BlockError(block, str(error)) from error
        finally:
            await connection.close()


def reader_environment() -> dict[str, str]:
    """Of somebody who has set nothing, and has ``jm`` and ``python`` of this environment on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    port = str(free_port())
    return environment(JM_UP_NATS_PORT=port, NO_COLOR="1", COLUMNS="160", JM_ACTOR="anna@web-7") | {"PATH": path}


@asynccontextmanager
async def opened(stem: str) -> AsyncIterator[Page]:
    """A page before its first block; everything it starts has ended on leaving."""
    before = set(sys.modules)
    source = app.read_text() if (app := APPS / f"{stem}.py").exists() else ""
    with tempfile.TemporaryDirectory(prefix="jm-test-docs-") as folder:
        sys.path.insert(0, folder)
        url = os.environ.pop(URL_VARIABLE, None)
        try:
            async with AsyncExitStack() as stack:
                env = reader_environment()
                page = Page(Path(folder), stack, env, await stack.enter_async_context(ForkedJm(env, Path(folder))))
                if source:
                    await page.start_app(source)
                yield page
        finally:
            sys.path.remove(folder)
            os.environ.pop(URL_VARIABLE, None)
            if url is not None:
                os.environ[URL_VARIABLE] = url
            for name in set(sys.modules) - before:
                if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
                    del sys.modules[name]


def load(path: Path) -> ModuleType:
    """As ``app``, which is what ``jm up`` calls it; gone from ``sys.modules`` with the page."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def matches(shown: list[str], out: str) -> bool:
    """Whether it printed these lines; ``…`` is anything, alone in a line any lines."""
    pattern = "\n".join(".*".join(re.escape(part) for part in line.rstrip().split("…")) for line in shown)
    printed = "\n".join(line.rstrip() for line in out.rstrip().splitlines())
    return re.fullmatch(pattern.rstrip("\n"), printed, re.DOTALL) is not None


def parse_commands(block: Block) -> None:
    for step in block.steps:
        if trouble := is_command(step.command):
            raise BlockError(block, f"{step.command!r}: {trouble}")


def check_diagram(block: Block) -> None:
    if block.text.rstrip("\n") not in diagrams():
        raise BlockError(block, "is none of those that jm_core.lifecycle.diagrams() prints")


def parse_data(block: Block) -> None:
    readers: dict[str, Callable[[str], Any]] = {
        "json": json.loads,
        "yaml": lambda text: list(yaml.safe_load_all(text)),
        "toml": tomllib.loads,
        "ini": configparser.RawConfigParser(strict=False).read_string,
    }
    try:
        readers[block.language](block.text)
    except (ValueError, yaml.YAMLError, configparser.Error) as error:
        raise BlockError(block, str(error)) from error


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
