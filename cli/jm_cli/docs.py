"""Two pages of the documents, printed from the command tree itself.

``python -m jm_cli.docs > docs/configuration.md``: every setting.
``python -m jm_cli.docs cli > docs/cli.md``: every command.
"""

import dataclasses
import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import typer

from jm_cli.app import app
from jm_cli.exits import MEANING

INTRODUCTION: Final = """\
# Configuration

<!-- Printed by `python -m jm_cli.docs > docs/configuration.md`; a test compares the two. -->

Every setting has a flag and a variable. A flag comes before the variable, the variable before the default. Lists in a
variable are separated by blanks or commas. Secrets (`SECRET`, and the passwords inside URLs and DSNs) are never shown
in a message, a log or a traceback; give them by the variable, because other users of a machine can read command lines.

**Without any NATS setting** the commands look for `.jm/env` in the current folder (`$JM_DATA/env`, if `JM_DATA` is
set): `jm up` writes it, so that a second terminal needs no settings. As soon as a server or credentials are given, by
flag or variable, that file is not read.

**In an application**, `JobMaster("name")` reads the same `JM_NATS_*` variables; arguments of `JobMaster(...)` come
before them, flags of `jm worker` before both.
"""

CLI_INTRODUCTION: Final = """\
# Command line

<!-- Printed by `python -m jm_cli.docs cli > docs/cli.md`; a test compares the two. -->

Every command, its arguments and options. `--help` says the same; the settings that several commands share are in
[configuration](configuration.md). With `--json` a command prints JSON on stdout and nothing else there; messages for
people go to stderr.
"""
EXAMPLES_ARE_PARSED: Final = "<!-- parsed: examples of a reference; the pages about each subject run theirs -->"

OTHER_VARIABLES: Final = {
    "JM_DEBUG": "`1`: tracebacks and the libraries' logs, on stderr; secrets are taken out of them, too",
    "JM_NATS_SERVER": "the nats-server that `jm up` and the tests run, instead of the one from the wheel",
    "JM_POSTGRES_BIN": "folder of `postgres` and `initdb`, instead of those from the wheel",
    "OTEL_*": "as soon as one of them is set, `jm worker` and `jm coordinator` send traces and metrics with "
    "OpenTelemetry's SDK; `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` name the exporter (`otlp` by default: "
    "`pip install 'jobmaster-nats[telemetry]'`; `console`, `none`), `OTEL_SDK_DISABLED=true` keeps it off. "
    "`--otlp-endpoint` comes before their endpoints and protocols, `none` before it; `OTEL_SERVICE_NAME` and "
    "`OTEL_RESOURCE_ATTRIBUTES` come before what we would say of ourselves. With `--prometheus-port` alone, only those "
    "with `EXPORTER` in their name start an export",
    "TRACEPARENT": "`jm submit`: W3C trace context that the jobs' runs become part of; ignored when malformed",
}


def main() -> None:
    sys.stdout.write(cli_document() if sys.argv[1:] == ["cli"] else document())


def document() -> str:
    """The settings: those that several commands share, and those of each command."""
    commands, users = _tree()
    shared = _shared(users)
    lines = [INTRODUCTION, "## Settings that several commands share\n"]
    for group in shared:
        lines += [f"### {group.TITLE}\n", f"{inspect.getdoc(group)}\n"]
        lines += [*_table(_params(users[group][0], _names(group))), ""]
    lines += ["## Settings of one command\n"]
    lines += ["Arguments, options without a variable, and examples are in the [command line reference](cli.md).\n"]
    for path, command in commands:
        own = [param for param in _own(command, shared) if param.envvar]
        lines += [f"### `{path}`\n", *_table(own), ""] if own else []
    lines += ["## Other variables\n", "| variable | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {text} |" for name, text in OTHER_VARIABLES.items()]
    return "\n".join(lines).rstrip() + "\n"


def cli_document() -> str:
    """The commands: usage, what it does, examples, options; and how they end."""
    commands, users = _tree()
    lines = [CLI_INTRODUCTION, "## Exit codes\n", "| code | meaning |", "| --- | --- |"]
    lines += [f"| {code.value} | {text} |" for code, text in MEANING.items()]
    nouns: dict[str, list[tuple[str, Any]]] = {}
    for path, command in commands:
        nouns.setdefault(" ".join(path.split()[:2]), []).append((path, command))
    for noun, of_it in nouns.items():
        alone = [path for path, _ in of_it] == [noun]
        lines += [""] if alone else [f"\n## {noun}\n"]
        for path, command in of_it:
            lines += _command(path, command, _shared(users), level="##" if alone else "###")
    return "\n".join(lines).rstrip() + "\n"


def _tree() -> tuple[list[tuple[str, Any]], dict[Any, list[Any]]]:
    """The commands, and by group of settings those that use it."""
    commands = list(_commands(typer.main.get_command(app), "jm"))
    users: dict[Any, list[Any]] = {}
    for _, command in commands:
        for group in _groups(command):
            users.setdefault(group, []).append(command)
    return commands, users


def _shared(users: dict[Any, list[Any]]) -> list[Any]:
    return [group for group, by in users.items() if len(by) > 1]


def _own(command: Any, shared: list[Any]) -> list[Any]:
    """Its parameters but for those that are shared."""
    groups = [group for group in shared if group in _groups(command)]
    return _params(command, exclude=frozenset().union(*map(_names, groups)))


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The leaves of the tree, with what to type for them."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    default = getattr(command, "default_name", None)
    for name in children:
        yield from _commands(children[name], path if name == default else f"{path} {name}")


def _command(path: str, command: Any, every_shared: list[Any], level: str) -> Iterator[str]:
    shared = [group for group in every_shared if group in _groups(command)]
    own = _own(command, every_shared)
    arguments = [param for param in own if param.param_type_name == "argument"]
    usage = " ".join([path, *(_metavar(a) if a.required else f"[{_metavar(a)}]" for a in arguments)])
    yield f"{level} `{usage}`\n"
    yield from _help(command.help or "")
    options = [param for param in own if param.param_type_name != "argument"]
    yield from _table(arguments + options)
    if shared:
        links = ", ".join(
            f"[{group.TITLE}](configuration.md#{group.TITLE.lower().replace(' ', '-')})" for group in shared
        )
        yield f"\nAnd those of {links}." if own else f"Its settings are those of {links}."
    yield ""


def _help(text: str) -> Iterator[str]:
    """Paragraphs; the ones that keep their line ends as code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if not paragraph.startswith("\b"):
            yield f"{paragraph}\n"
            continue
        title, *lines = paragraph.removeprefix("\b\n").splitlines()
        code = inspect.cleandoc("\n" + "\n".join(lines)).splitlines()
        if code[0].startswith("{"):
            yield "\n".join([f"{title}\n", "```json", *code, "```\n"])
            continue
        prompted = [line if line.startswith((" ", ">")) else f"$ {line}" for line in code]
        yield "\n".join([f"{title}\n", EXAMPLES_ARE_PARSED, "```console", *prompted, "```\n"])


def _table(params: Iterable[Any]) -> Iterator[str]:
    rows = [f"| {_flag(p)} | {_code(p.envvar)} | {_default(p)} | {_text(p)} |" for p in params]
    if rows:
        yield from ("| flag | variable | default | meaning |", "| --- | --- | --- | --- |", *rows)


def _params(command: Any, only: frozenset[str] | None = None, exclude: frozenset[str] = frozenset()) -> list[Any]:
    return [
        p for p in command.params if (only is None or p.name in only) and p.name not in exclude and p.name != "help"
    ]


def _groups(command: Any) -> list[Any]:
    """The dataclasses that its options come from; of a combined one, its parts."""
    groups = getattr(command.callback, "option_groups", [])
    return [part for group in groups for part in (_bases(group) or [group])]


def _bases(group: Any) -> list[Any]:
    return [base for base in group.__bases__ if dataclasses.is_dataclass(base)]


def _names(group: Any) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(group))


def _flag(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{_metavar(param)}`"
    flags = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    return flags if getattr(param, "is_flag", False) else f"{flags} {_metavar(param)}".strip()


def _metavar(param: Any) -> str:
    return (param.metavar or "").replace("|", "\\|")


def _default(param: Any) -> str:
    shown = param.show_default if param.param_type_name != "argument" else False
    if isinstance(shown, str):
        return shown
    if not shown or param.default is None or param.default is False:
        return ""
    value = getattr(param.default, "value", param.default)
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _text(param: Any) -> str:
    return " ".join((param.help or "").split()).replace("|", "\\|")


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    main()
