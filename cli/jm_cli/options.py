"""Groups of options: a command takes one dataclass where typer wants twenty parameters."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with the fields of every dataclass among its parameters as options of their own.

    Typer reads names, annotations and defaults from the signature; this one shows it the fields, and puts the
    dataclasses together again before the command is called. Of the docstring, paragraphs with an indented line (the
    examples) keep their line ends in ``--help``.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in dataclasses.fields(group)})
        command(**values)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        annotated = parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY)
        parameters += [annotated] if group is None else _fields_of(group)
    run.__name__, run.__module__ = command.__name__, command.__module__
    run.__doc__ = "\n\n".join(map(_kept_as_it_is, (inspect.getdoc(command) or "").split("\n\n")))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.option_groups = list(groups.values())  # type: ignore[attr-defined]  # for jm_cli.docs
    return run


def _kept_as_it_is(paragraph: str) -> str:
    return f"\b\n{paragraph}" if "\n " in paragraph else paragraph


def _fields_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
