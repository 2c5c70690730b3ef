"""JobMaster for applications: declare handlers, submit jobs, wait for results.

from jm_nats import JobMaster, JobContext, Priority
"""

from jm_core.api_control import ActionView, AuditQuery, Change, JobFilter, JobVerdict
from jm_core.api_schedules import MisfirePolicy, OverlapPolicy, ScheduleView
from jm_core.control import Action
from jm_core.errors import (
    ActionRefusedError,
    ClusterArchivedError,
    ClusterUnknownError,
    DuplicateJobError,
    InvalidJobError,
    InvalidNameError,
    InvalidScheduleError,
    InvalidSettingError,
    JmError,
    JobFailedError,
    NoSuchJobError,
    NoSuchScheduleError,
    RejectedError,
    ResultTimeoutError,
    ResultTypeError,
    ScheduleConflictError,
    ScheduleRefusedError,
)
from jm_core.model import OnConflict, Priority
from jm_core.retry import Delays, Exponential, Fixed
from jm_core.wire import Submission
from jm_nats.api_client import MasterUnavailableError, NoCoordinatorError
from jm_nats.app import JobMaster
from jm_nats.client import JobClient, Receipt, ReceiptTimeoutError, submission
from jm_nats.config import NatsConfig
from jm_nats.context import JobContext, NoRetry, Retry
from jm_nats.handle import JobHandle
from jm_nats.handlers import ArgumentsError, Handler
from jm_nats.results import EndedJob, JobProgress
from jm_nats.schedule_client import ScheduleClient

__all__ = [
    "Action",
    "ActionRefusedError",
    "ActionView",
    "ArgumentsError",
    "AuditQuery",
    "Change",
    "ClusterArchivedError",
    "ClusterUnknownError",
    "Delays",
    "DuplicateJobError",
    "EndedJob",
    "Exponential",
    "Fixed",
    "Handler",
    "InvalidJobError",
    "InvalidNameError",
    "InvalidScheduleError",
    "InvalidSettingError",
    "JmError",
    "JobClient",
    "JobContext",
    "JobFailedError",
    "JobFilter",
    "JobHandle",
    "JobMaster",
    "JobProgress",
    "JobVerdict",
    "MasterUnavailableError",
    "MisfirePolicy",
    "NatsConfig",
    "NoCoordinatorError",
    "NoRetry",
    "NoSuchJobError",
    "NoSuchScheduleError",
    "OnConflict",
    "OverlapPolicy",
    "Priority",
    "Receipt",
    "ReceiptTimeoutError",
    "RejectedError",
    "ResultTimeoutError",
    "ResultTypeError",
    "Retry",
    "ScheduleClient",
    "ScheduleConflictError",
    "ScheduleRefusedError",
    "ScheduleView",
    "Submission",
    "submission",
]
