"""Many commands of ``jm``, each in a process of its own that begins with everything imported.

A fork of a prepared process instead of a start of Python: a page of the documents has dozens of commands, and each
would spend a second of a core on its imports.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DRIVER: Final = """
import importlib, json, os, pkgutil, sys
import jm_cli
from jm_cli.app import run
for module in pkgutil.walk_packages(jm_cli.__path__, "jm_cli."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("ready", flush=True)
for line in sys.stdin:
    words, folder, environment, out, err = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
            os.dup2(os.open(path, flags), number)
        code = 1
        try:
            code = run(words)
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(code or 0))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
_SHELL: Final = set("|&;<>$`")


class Done(NamedTuple):
    code: int
    out: str
    err: str


class ForkedJm:
    """Use as ``async with ForkedJm(environment, folder)``."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = dict(environment)
        self._folder = folder
        self._driver: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._driver is not None and self._driver.returncode is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            await self._driver.wait()

    @staticmethod
    def words_of(command: str) -> list[str] | None:
        """The words of a plain command of ``jm``; None for whatever needs a shell."""
        words = shlex.split(command, comments=True)
        plain = not _SHELL & set(command.partition(" #")[0])
        return words[1:] if plain and words and words[0] == "jm" else None

    async def run(self, words: list[str], environment: Mapping[str, str], timeout_s: float) -> Done:
        """To its end.

        Raises:
            TimeoutError: it did not end in time; it is killed when the page is left.
        """
        driver = await self._started()
        assert driver.stdin
        assert driver.stdout
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            order = [words, str(self._folder), dict(environment), out.name, err.name]
            driver.stdin.write(f"{json.dumps(order)}\n".encode())
            code = await asyncio.wait_for(driver.stdout.readline(), timeout_s)
            return Done(int(code), out.read(), err.read())

    async def _started(self) -> asyncio.subprocess.Process:
        if self._driver is None:
            self._driver = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", _DRIVER),
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            assert self._driver.stdout
            assert await self._driver.stdout.readline() == b"ready\n"
        return self._driver
