"""Variables that look like settings and are none: a misspelt one must not be ignored in silence (BR-209)."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

PREFIX: Final = "JM_"
OTHERS: Final = ("JM_DEBUG", "JM_NATS_SERVER", "JM_POSTGRES_BIN")  # read elsewhere than by an option
LIKENESS_MIN: Final = 0.8  # JM_TEST_… and whatever others call theirs are none of our business


def misspelt(variables: Iterable[str], command_tree: Any) -> dict[str, str]:
    """Each variable that is nearly one of ours, with the one that it is probably meant to be."""
    known = {*OTHERS, *_variables(command_tree)}
    unknown = sorted(name for name in variables if name.startswith(PREFIX) and name not in known)
    near = {name: get_close_matches(name, known, n=1, cutoff=LIKENESS_MIN) for name in unknown}
    return {name: matches[0] for name, matches in near.items() if matches}


def _variables(command: Any) -> set[str]:
    found = {param.envvar for param in command.params if param.envvar}
    for child in getattr(command, "commands", {}).values():
        found |= _variables(child)
    return found
