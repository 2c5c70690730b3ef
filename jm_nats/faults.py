"""What an error of the agent's side calls for. By type, never by text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nats import errors

from jm_core.errors import InvalidNameError, InvalidSettingError
from jm_core.health import Fault, InvariantViolatedError, worst_fault
from jm_nats.errors import (
    AgentAuthError,
    AgentUnavailableError,
    AgentUnsupportedError,
    ConfigConflictError,
    ConsumerGoneError,
    JetStreamError,
    LeaseConflictError,
    NoSuchConsumerError,
    NoSuchStreamError,
    PayloadTooLargeError,
    WorkerNameTakenError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER_SIDE_CODE: Final = 500  # from here on JetStream speaks of its own state, not of our request

# What was deleted is made anew by whoever owns it; whether the store itself is another one, an invariant tells.
_TRANSIENT: Final = (
    AgentUnavailableError,
    NoSuchStreamError,
    NoSuchConsumerError,
    ConsumerGoneError,
    OSError,
    TimeoutError,
    EOFError,
    errors.TimeoutError,
    errors.NoServersError,
    errors.NoRespondersError,
    errors.ConnectionClosedError,
    errors.ConnectionReconnectingError,
    errors.StaleConnectionError,
    errors.OutboundBufferLimitError,
    errors.SlowConsumerError,
    errors.UnexpectedEOF,
)
_MISCONFIGURED: Final = (
    AgentAuthError,
    AgentUnsupportedError,
    ConfigConflictError,
    LeaseConflictError,
    PayloadTooLargeError,
    WorkerNameTakenError,
    InvalidSettingError,
    InvalidNameError,
    errors.AuthorizationError,
)
_BY_TYPE: Final[Mapping[tuple[type[BaseException], ...], Fault]] = {
    (InvariantViolatedError,): Fault.INVARIANT,
    _TRANSIENT: Fault.TRANSIENT,
    _MISCONFIGURED: Fault.MISCONFIGURED,
}


def classify(error: BaseException) -> Fault:
    """What ``error`` calls for; of an exception group, the worst of what is in it."""
    return worst_fault(error, classify_one)


def classify_one(error: BaseException) -> Fault:
    for kinds, fault in _BY_TYPE.items():
        if isinstance(error, kinds):
            return fault
    if isinstance(error, JetStreamError):  # refused: limits or rights, unless the server is busy with itself
        return Fault.TRANSIENT if error.code >= SERVER_SIDE_CODE else Fault.MISCONFIGURED
    return Fault.UNKNOWN
