"""JetStream's API as plain JSON: nats.py's dataclasses drop the fields they do not know, and we compare and keep all.

Driver and server errors are translated here, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from nats import errors

from jm_nats.errors import (
    AgentUnavailableError,
    AgentUnsupportedError,
    JetStreamError,
    NoSuchConsumerError,
    NoSuchStreamError,
)

if TYPE_CHECKING:
    from nats.aio.client import Client

PREFIX: Final = "$JS.API"
API_TIMEOUT_S: Final = 5.0
CHECK_SERVER: Final = "look at the server's log and at /healthz; it is retried where we can wait"

# https://github.com/nats-io/nats-server/blob/main/server/errors.json
ERR_CONSUMER_NOT_FOUND: Final = 10014
ERR_STREAM_NOT_FOUND: Final = 10059
ERR_NOT_ENABLED: Final = frozenset({10039, 10076})
ERR_NOT_READY: Final = frozenset({10008, 10009, 10041})  # no leader at the moment


async def ask(
    nc: Client, server: str, path: str, body: object = None, *, timeout_s: float = API_TIMEOUT_S
) -> dict[str, Any]:
    """The answer of ``$JS.API.<path>``.

    Raises:
        NoSuchStreamError, NoSuchConsumerError: what the path names is not there.
        AgentUnsupportedError: JetStream is off, for the server or for our account.
        AgentUnavailableError: no answer in time, or no leader at the moment.
        JetStreamError: any other refusal.
    """
    payload = b"" if body is None else msgspec.json.encode(body)
    try:
        reply = await nc.request(f"{PREFIX}.{path}", payload, timeout=timeout_s)
    except errors.NoRespondersError:
        raise AgentUnavailableError(server, f"nobody answers {path}", remedy=CHECK_SERVER) from None
    except errors.TimeoutError:
        raise AgentUnavailableError(server, f"no answer to {path} in {timeout_s:g} s", remedy=CHECK_SERVER) from None
    except errors.Error as problem:
        raise AgentUnavailableError(server, f"{path}: {problem}", remedy=CHECK_SERVER) from problem
    answer: dict[str, Any] = msgspec.json.decode(reply.data)
    if "error" in answer:
        raise translate(server, path, answer["error"])
    return answer


def translate(server: str, asked: str, error: dict[str, Any]) -> Exception:
    """JetStream's error object as one of ours."""
    code, err_code = int(error.get("code", 0)), int(error.get("err_code", 0))
    description = str(error.get("description", ""))
    if err_code in ERR_NOT_ENABLED:
        return AgentUnsupportedError(server, description, remedy="enable JetStream for this server and account")
    if err_code in ERR_NOT_READY:
        return AgentUnavailableError(server, f"{asked}: {description}", remedy=CHECK_SERVER)
    kinds = {ERR_STREAM_NOT_FOUND: NoSuchStreamError, ERR_CONSUMER_NOT_FOUND: NoSuchConsumerError}
    return kinds.get(err_code, JetStreamError)(asked, code, err_code, description)
