"""The leader's questions to workers, where no answer is an answer: nothing is decided, and it is asked again later."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from jm_core.errors import InvalidNameError
from jm_nats.errors import AgentUnavailableError
from jm_nats.troubles import trouble
from jm_nats.worker_client import NoSuchWorkerError, ask

if TYPE_CHECKING:
    from jm_core import rpc
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

ANSWER_S: Final = 5.0


class WorkerRpc:
    def __init__(self, link: NatsLink, names: Names, *, timeout_s: float = ANSWER_S) -> None:
        self._link = link
        self._names = names
        self._timeout_s = timeout_s

    async def ask(self, worker: str, request: rpc.Request) -> rpc.Answer | None:
        """Its answer, which may be a refusal; None when there is none in time."""
        try:
            answer = await ask(self._link, self._names, worker, request, self._timeout_s)
        except (NoSuchWorkerError, AgentUnavailableError, InvalidNameError) as error:  # a record may say anything
            trouble(log, "no answer of a worker", {"worker": worker, "problem": str(error)}, level=logging.INFO)
            return None
        if answer.error:
            log.info("a worker refuses", extra={"worker": worker, "problem": answer.error})
        return answer
