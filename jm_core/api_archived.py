"""What an archived cluster still answers: whatever changes nothing, and what takes the cluster up again."""

from typing import Final

from jm_core import api, api_control, api_retention, api_schedules

ANSWERED_WHEN_ARCHIVED: Final = frozenset(
    {
        api.OP_JOB_GET,
        api.OP_JOB_LIST,
        api.OP_JOB_ATTEMPTS,
        api.OP_JOB_RESULT,
        api.OP_JOB_RESULTS,
        api.OP_JOB_PROGRESS,
        api.OP_JOB_COUNT,
        api.OP_REJECTED_LIST,
        api.OP_REJECTED_GET,
        api.OP_UNSERVED,
        api.OP_CLUSTER_GET,
        api.OP_CLUSTER_SET,  # takes it up again
        api.OP_AGENT_GIVE_UP,  # what a dead agent held has to wait somewhere else
        api_control.OP_JOB_HISTORY,
        api_control.OP_AUDIT_LIST,
        api_control.OP_AUDIT_GET,
        api_retention.OP_RETENTION_GET,
        api_retention.OP_RETENTION_COUNT,
        api_schedules.OP_SCHEDULE_LIST,
        api_schedules.OP_SCHEDULE_GET,
        api_schedules.OP_SCHEDULE_SKIPS,
    }
)
# A dry run of these changes nothing: they look themselves whether it is one.
LOOK_THEMSELVES: Final = frozenset(api_control.OP_OF.values())


def is_answered(operation: str) -> bool:
    """Whether the service hands it on although the cluster is archived; unknown operations are not."""
    return operation in ANSWERED_WHEN_ARCHIVED or operation in LOOK_THEMSELVES
