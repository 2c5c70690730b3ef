"""Agents by name: several NATS stores under one master, and whose a bucket in Postgres is.

An agent is a NATS connection with its own streams. Within it a bucket has its plain name; in Postgres, where the rows
of all agents lie in one table, it carries its agent's name before it: ``east/default-high-0f3a9c21``. The first agent,
``main``, writes plain names, so that nothing changes for who has only one.
"""

import re
from collections.abc import Iterable
from typing import Final

from jm_core.errors import InvalidNameError

MAIN: Final = "main"
AGENT_PATTERN: Final = "[a-z0-9]{1,20}"
SEPARATOR: Final = "/"  # in no bucket's own name
_is_agent = re.compile(AGENT_PATTERN).fullmatch


def parse_agent(text: str) -> str:
    """``text`` unchanged when it can be an agent's name.

    Raises:
        InvalidNameError.
    """
    if not _is_agent(text):
        raise InvalidNameError("agent", text, AGENT_PATTERN)
    return text


def first_of(agents: Iterable[str]) -> str:
    """Who does what is done once for all of them: ``main``, or else the first by name."""
    return min(agents, key=lambda agent: (agent != MAIN, agent))


def prefix_of(agent: str) -> str:
    """What stands before the names of its buckets in Postgres."""
    return "" if agent == MAIN else f"{parse_agent(agent)}{SEPARATOR}"


def agent_of(stored: str) -> str:
    """Whose the bucket is, by its name in Postgres."""
    agent, separator, _ = stored.partition(SEPARATOR)
    return agent if separator else MAIN
