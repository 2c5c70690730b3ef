"""Changes of schedules in the record of operator actions, beside those of jobs (docs/control.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import uuid_utils

from jm_core import wire
from jm_core.control import SCHEDULE_ACTION
from jm_master.queries import named

if TYPE_CHECKING:
    from jm_master.database import Connection
    from jm_master.schedule_store import ScheduleWrite

NOBODY = "unknown"


class ScheduleAudit:
    def __init__(self, schema: str) -> None:
        self._sql = named("control", schema)

    async def record(self, connection: Connection, write: ScheduleWrite) -> None:
        """In the transaction of the change: neither is there without the other."""
        parameters: dict[str, Any] = {"changed": write.changed} if write.changed else {}
        parameters |= {"cancelled": write.cancelled} if write.cancelled else {}
        await connection.execute(
            self._sql["note_action"],
            str(uuid_utils.uuid7()),
            write.by or NOBODY,
            SCHEDULE_ACTION + write.action,
            write.reason,
            wire.encode({"schedule": write.name} | ({"job": write.job_id} if write.job_id else {})).decode(),
            wire.encode(parameters).decode(),
            1,
            1,
            0,
        )
