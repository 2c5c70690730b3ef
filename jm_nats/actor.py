"""Who asks, for the record."""

import getpass
import os
import socket
from typing import Final

from jm_core.control import ACTOR_CHARS_MAX

ACTOR_VARIABLE: Final = "JM_ACTOR"


def default_actor() -> str:
    """``JM_ACTOR``, else user and host. Recorded as claimed; nobody verifies it."""
    given = os.environ.get(ACTOR_VARIABLE, "").strip()
    if given:
        return given[:ACTOR_CHARS_MAX]
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:ACTOR_CHARS_MAX]
