"""JobMaster for applications: declare handlers, submit jobs, wait for results.

from jm_nats import JobMaster, JobContext, Priority
"""

from jm_core.api_control import Change, JobFilter
from jm_core.control import Action
from jm_core.errors import (
    ActionRefusedError,
    ClusterUnknownError,
    InvalidJobError,
    InvalidNameError,
    InvalidSettingError,
    JmError,
    JobFailedError,
    NoSuchJobError,
    RejectedError,
    ResultTimeoutError,
)
from jm_core.model import Priority
from jm_core.retry import Delays, Exponential, Fixed
from jm_core.wire import Submission
from jm_nats.app import JobMaster
from jm_nats.client import JobClient, Receipt, ReceiptTimeoutError, submission
from jm_nats.config import NatsConfig
from jm_nats.context import JobContext, NoRetry, Retry
from jm_nats.handlers import ArgumentsError, Handler

__all__ = [
    "Action",
    "ActionRefusedError",
    "ArgumentsError",
    "Change",
    "ClusterUnknownError",
    "Delays",
    "Exponential",
    "Fixed",
    "Handler",
    "InvalidJobError",
    "InvalidNameError",
    "InvalidSettingError",
    "JmError",
    "JobClient",
    "JobContext",
    "JobFailedError",
    "JobFilter",
    "JobMaster",
    "NatsConfig",
    "NoRetry",
    "NoSuchJobError",
    "Priority",
    "Receipt",
    "ReceiptTimeoutError",
    "RejectedError",
    "ResultTimeoutError",
    "Retry",
    "Submission",
    "submission",
]
