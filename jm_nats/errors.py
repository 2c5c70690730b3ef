"""What can go wrong between us and a NATS server. Driver errors are translated into these once, at our edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jm_core.errors import JmError

if TYPE_CHECKING:
    from jm_core.wire import WorkerRecord


class AgentError(JmError):
    """Root of the agent layer's errors."""


class AgentUnavailableError(AgentError):
    """No answer from the servers: unreachable, in the middle of an election, or too late. Trying later may help.

    Args:
        server: where, without credentials.
        problem: what was seen.
        remedy: what to look at, one clause.
    """

    def __init__(self, server: str, problem: str, *, remedy: str) -> None:
        super().__init__(f"NATS at {server}: {problem}; {remedy}")
        self.server = server
        self.problem = problem
        self.remedy = remedy


class AgentAuthError(AgentError):
    """The server refuses who we are. Trying again with the same credentials does not help."""

    def __init__(self, server: str, problem: str, *, remedy: str) -> None:
        super().__init__(f"NATS at {server}: {problem}; {remedy}")
        self.server = server
        self.problem = problem
        self.remedy = remedy


class AgentDeniedError(AgentAuthError):
    """The server knows us, and does not let us use a subject.

    Args:
        server: where, without credentials.
        user: who we are to it.
        verb: "publish" or "subscribe".
        subject: what was refused.
        is_own_inbox: it is where all answers to us arrive.
    """

    def __init__(self, server: str, user: str, verb: str, subject: str, *, is_own_inbox: bool = False) -> None:
        remedy = "use a user whose role may, or allow it in the server's accounts (deploy/nats/accounts.conf)"
        if is_own_inbox:
            remedy = "set JM_NATS_INBOX_PREFIX to the inbox that this user may subscribe to (deploy/nats/accounts.conf)"
        super().__init__(server, f"{user} may not {verb} to '{subject}'", remedy=remedy)
        self.user = user
        self.verb = verb
        self.subject = subject
        self.is_own_inbox = is_own_inbox


class AgentUnsupportedError(AgentError):
    """The server is too old or has no JetStream."""

    def __init__(self, server: str, problem: str, *, remedy: str) -> None:
        super().__init__(f"NATS at {server}: {problem}; {remedy}")
        self.server = server
        self.problem = problem
        self.remedy = remedy


class JetStreamError(AgentError):
    """JetStream's own refusal of one request.

    Args:
        asked: what we wanted, e.g. ``STREAM.INFO.JM_prod_PENDING``.
        code: HTTP-like class of the error; 500 and more are the server's state, not our request.
        err_code: the server's number for it (https://github.com/nats-io/nats-server/blob/main/server/errors.json).
        description: the server's words.
    """

    def __init__(self, asked: str, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{asked}: JetStream refused: {description} (code {code}, err_code {err_code})")
        self.asked = asked
        self.code = code
        self.err_code = err_code
        self.description = description


class NoSuchStreamError(JetStreamError):
    """The stream is not there; where it should be, something deleted it or nobody has made it yet."""


class NoSuchConsumerError(JetStreamError):
    """The stream is there, the consumer is not."""


class ConsumerGoneError(AgentError):
    """The consumer that was read from exists no more; the owner recreates it or leaves the bucket."""

    def __init__(self, stream: str, consumer: str, reason: str) -> None:
        super().__init__(f"consumer '{consumer}' of stream '{stream}' is gone ({reason}); recreate it or stop reading")
        self.stream = stream
        self.consumer = consumer
        self.reason = reason


class ConfigConflictError(AgentError):
    """A live stream or consumer differs from the wanted one in a way that the server does not let us change.

    Args:
        what: e.g. ``stream 'JM_prod_PENDING'``.
        diff: one line a field, ``field: live -> wanted``.
        reason: the server's words.
    """

    def __init__(self, what: str, diff: tuple[str, ...], reason: str) -> None:
        lines = "".join(f"\n  {line}" for line in diff)
        super().__init__(
            f"{what} cannot be changed to what this version needs (live -> wanted):{lines}\n"
            f"NATS says: {reason}; change the setting back, or drain and delete the {what.split(' ', 1)[0]}"
        )
        self.what = what
        self.diff = diff
        self.reason = reason


class LeaseConflictError(AgentError, ValueError):
    """Our lease is not that of the cluster's living workers."""

    def __init__(self, worker: str, live_s: float, lease_s: float) -> None:
        super().__init__(
            f"the lease here is {lease_s:g} s, that of the cluster {live_s:g} s (worker {worker!r} lives by it); "
            f"set JM_LEASE_S={live_s:g}, or stop every worker, wait that long, and start all with the new one"
        )
        self.worker = worker
        self.live_s = live_s
        self.lease_s = lease_s


class WorkerNameTakenError(AgentError):
    """Another process beats under our worker id."""

    def __init__(self, other: WorkerRecord) -> None:
        super().__init__(
            f"the worker id {other.worker!r} is taken: process {other.pid} on {other.host} beats under it; "
            "stop that one, or choose another --name"
        )
        self.other = other


class PayloadTooLargeError(AgentError, ValueError):
    """A message that the server would not take; nothing was sent."""

    def __init__(self, subject: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"message for '{subject}' is {size_bytes} bytes, the limit of the NATS server is {limit_bytes}; "
            "send less at once, or raise max_payload on the server"
        )
        self.subject = subject
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
