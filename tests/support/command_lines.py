"""A command line and an environment as a deployment file has them, read by ``jm``'s own parser without running it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import typer

from jm_cli.app import app
from tests.support.cli import commands

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JM_PREFIXES: Final = ("JM_", "OTEL_")


def variables(role: str = "") -> set[str]:
    """Every environment variable that some command reads, or that ``jm coordinator``, ``jm worker``, ... reads."""
    found: set[str] = set()
    for path, command in commands():
        if role and path not in ((role,), (role, "run")):
            continue
        for param in command.params:
            given = param.envvar or ()
            found.update([given] if isinstance(given, str) else given)
    return found


def parsed(arguments: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """The parameters that ``jm`` with ``arguments`` has under ``env``, by name.

    Raises:
        click's usage error: an option, a command or a value that does not exist.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith(JM_PREFIXES)}
    command, rest = typer.main.get_command(app), list(arguments)
    with mock.patch.dict(os.environ, {**others, **env}, clear=True):
        while hasattr(command, "commands"):
            given = rest[0] if rest else ""
            if given not in command.commands and "run" in command.commands:
                rest.insert(0, "run")  # `jm worker MODULE:APP`
            command = command.commands[rest.pop(0)]
        return dict(command.make_context("jm", rest).params)
