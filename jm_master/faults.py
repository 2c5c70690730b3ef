"""What an error in a coordinator calls for: the master's own, and else the agent's. By type, never by text."""

from __future__ import annotations

from jm_core.health import Fault, worst_fault
from jm_master import pg_errors
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


def classify(error: BaseException) -> Fault:
    """What ``error`` calls for; of an exception group, the worst of what is in it."""
    return worst_fault(error, classify_one)


def classify_one(error: BaseException) -> Fault:
    match error:
        # To lose an election is no fault at all; whoever lost begins anew.
        case StoreUnavailableError() | StoreContentionError() | MigrationBlockedError() | LostTermError():
            return Fault.TRANSIENT
        case StoreMisconfiguredError():
            return Fault.MISCONFIGURED
        case AgentStoreChangedError():
            return Fault.INVARIANT
        case RowRefusedError():  # who sends rows to Postgres handles it; one that got away is a bug
            return Fault.UNKNOWN
    match pg_errors.fault_of(error):  # not translated: from outside class Database
        case pg_errors.Fault.AWAY | pg_errors.Fault.CONTENTION:
            return Fault.TRANSIENT
    return agent_faults.classify_one(error)
