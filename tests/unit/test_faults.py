"""What every kind of error calls for: the table of the agent's side, and of the master's."""

import asyncpg
import pytest
from nats import errors

from jm_core.errors import IllegalMoveError, InvalidSettingError
from jm_core.health import Fault, Invariant, InvariantViolatedError
from jm_master import faults as master_faults
from jm_master.agent_store import AgentStoreChangedError
from jm_master.migrate import MigrationBlockedError
from jm_master.pg_errors import (
    RowRefusedError,
    StoreContentionError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from jm_master.terms import LostTermError
from jm_nats import faults as agent_faults
from jm_nats.errors import (
    AgentAuthError,
    AgentUnavailableError,
    AgentUnsupportedError,
    ConfigConflictError,
    ConsumerGoneError,
    JetStreamError,
    NoSuchStreamError,
)

BROKEN = InvariantViolatedError(Invariant.AGENT_STORE_CHANGED, "x")
AGENT = [
    (AgentUnavailableError("here", "no answer", remedy="wait"), Fault.TRANSIENT),
    (NoSuchStreamError("STREAM.INFO.X", 404, 10059, "stream not found"), Fault.TRANSIENT),
    (ConsumerGoneError("s", "c", "deleted"), Fault.TRANSIENT),
    (JetStreamError("STREAM.CREATE.X", 503, 10008, "no leader"), Fault.TRANSIENT),
    (JetStreamError("STREAM.CREATE.X", 400, 10026, "limit reached"), Fault.MISCONFIGURED),
    (AgentAuthError("here", "refused", remedy="mend"), Fault.MISCONFIGURED),
    (AgentUnsupportedError("here", "old", remedy="upgrade"), Fault.MISCONFIGURED),
    (ConfigConflictError("stream 'X'", (), "no"), Fault.MISCONFIGURED),
    (InvalidSettingError("x"), Fault.MISCONFIGURED),
    (ConnectionResetError(), Fault.TRANSIENT),
    (TimeoutError(), Fault.TRANSIENT),
    (errors.TimeoutError(), Fault.TRANSIENT),
    (errors.ConnectionClosedError(), Fault.TRANSIENT),
    (errors.OutboundBufferLimitError(), Fault.TRANSIENT),
    (errors.JsonParseError(), Fault.UNKNOWN),
    (IllegalMoveError("x"), Fault.UNKNOWN),
    (KeyError("timeout"), Fault.UNKNOWN),
    (RuntimeError("connection closed, no answer, transient"), Fault.UNKNOWN),  # never by text
    (BROKEN, Fault.INVARIANT),
]
MASTER = [
    (StoreUnavailableError("here", "gone"), Fault.TRANSIENT),
    (StoreContentionError("deadlock"), Fault.TRANSIENT),
    (LostTermError(3), Fault.TRANSIENT),
    (asyncpg.CannotConnectNowError(), Fault.TRANSIENT),
    (StoreMisconfiguredError("x"), Fault.MISCONFIGURED),
    (MigrationBlockedError("here", 3, []), Fault.TRANSIENT),
    (RowRefusedError("x"), Fault.UNKNOWN),
    (asyncpg.UndefinedFunctionError(), Fault.UNKNOWN),
    (
        AgentStoreChangedError("n", "p", cluster="c", recorded="a", found="b", jobs=1, in_buckets=0),
        Fault.INVARIANT,
    ),
]


@pytest.mark.parametrize(("error", "fault"), AGENT, ids=repr)
def test_an_agent_s_error_by_its_type(error, fault):
    assert agent_faults.classify(error) is fault
    assert master_faults.classify(error) is fault


@pytest.mark.parametrize(("error", "fault"), MASTER, ids=repr)
def test_a_master_s_error_by_its_type(error, fault):
    assert master_faults.classify(error) is fault


@pytest.mark.parametrize(
    ("inside", "fault"),
    [
        ([TimeoutError(), InvalidSettingError("x")], Fault.MISCONFIGURED),
        ([TimeoutError(), KeyError()], Fault.UNKNOWN),
        ([KeyError(), ExceptionGroup("", [TimeoutError(), BROKEN])], Fault.INVARIANT),
        ([TimeoutError(), StoreUnavailableError("h", "p")], Fault.TRANSIENT),
    ],
)
def test_of_several_the_worst_decides(inside, fault):
    assert master_faults.classify(ExceptionGroup("", inside)) is fault
