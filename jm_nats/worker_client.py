"""Asks one worker something, or orders it to do something (jm_core/rpc.py): one request, one answer, never for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from nats import errors

from jm_core import rpc, wire
from jm_core.errors import JmError
from jm_nats.errors import AgentUnavailableError

if TYPE_CHECKING:
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

__all__ = ["NoSuchWorkerError", "WorkerRefusedError", "accepted", "ask"]

CHECK_WORKER = "it may be busy, stopped or cut off: 'jm worker list' shows its last heartbeat; ask again"


class NoSuchWorkerError(JmError, LookupError):
    """Nobody listens under this worker id: it never lived, has ended, or is not connected at this moment."""

    def __init__(self, worker: str, cluster: str) -> None:
        super().__init__(f"no worker {worker!r} of cluster {cluster!r} listens; see 'jm worker list'")
        self.worker = worker
        self.cluster = cluster


class WorkerRefusedError(JmError):
    """The worker answered, and will not do it."""

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(f"worker {worker!r} refuses: {reason}")
        self.worker = worker
        self.reason = reason


async def ask(link: NatsLink, names: Names, worker_id: str, request: rpc.Request, timeout_s: float) -> rpc.Answer:
    """The worker's answer, which may be a refusal (``Answer.error``; ``accepted`` raises it).

    No answer does not mean that nothing was done: an order is one that may be given twice.

    Raises:
        NoSuchWorkerError: NATS knows nobody who listens there.
        AgentUnavailableError: no answer in time, or none that can be read.
        InvalidNameError: ``worker_id`` cannot be one.
        AgentDeniedError: NATS does not let this user ask workers.
    """
    subject = names.worker_rpc(worker_id)
    try:
        reply = await link.request(subject, wire.encode(request), timeout_s=timeout_s)
        return rpc.decode_answer(reply.data)
    except errors.NoRespondersError:
        raise NoSuchWorkerError(worker_id, names.cluster) from None
    except (errors.TimeoutError, TimeoutError):
        problem = f"no answer of worker {worker_id!r} in {timeout_s:g} s"
    except errors.Error as error:
        problem = f"worker {worker_id!r} could not be asked: {error!r}"
    except msgspec.MsgspecError as error:
        problem = f"worker {worker_id!r} gave an answer that cannot be read: {error}"
    raise AgentUnavailableError(link.server, problem, remedy=CHECK_WORKER)


def accepted(worker_id: str, answer: rpc.Answer) -> rpc.Answer:
    """``answer`` unless it is a refusal.

    Raises:
        WorkerRefusedError.
    """
    if answer.error:
        raise WorkerRefusedError(worker_id, answer.error)
    return answer
