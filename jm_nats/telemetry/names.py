"""Every name of a metric."""

from typing import Final

METRIC_FINISHED: Final = "jobmaster.attempts"
METRIC_DURATION: Final = "jobmaster.attempt.duration"
METRIC_START_DELAY: Final = "jobmaster.start.delay"
METRIC_SAVED: Final = "jobmaster.jobs.saved"
METRIC_REJECTED: Final = "jobmaster.jobs.rejected"
METRIC_DUPLICATES: Final = "jobmaster.jobs.duplicates"
METRIC_DISPATCHED: Final = "jobmaster.jobs.dispatched"
METRIC_STALE: Final = "jobmaster.outcomes.stale"
METRIC_UNSERVED: Final = "jobmaster.kinds.unserved"
METRIC_REMOVED: Final = "jobmaster.retention.removed"
METRIC_RETENTION_LOOKED: Final = "jobmaster.retention.looked"
METRIC_VIOLATIONS: Final = "jobmaster.invariant.violations"
METRIC_PLANNED: Final = "jobmaster.schedules.planned"
METRIC_PLANNER_LAG: Final = "jobmaster.schedules.lag"
METRIC_DISABLED: Final = "jobmaster.schedules.disabled"
