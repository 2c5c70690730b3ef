"""Operations on the cluster itself: what is set, by whom, and to set it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Raw

from jm_core import api
from jm_core.cluster import (
    AgentGivenUp,
    AgentGiveUp,
    ChangeView,
    ClusterChange,
    ClusterView,
    archived_text,
)
from jm_core.control import NOBODY, check_words
from jm_core.model import PRIORITY_BY_LABEL, Priority
from jm_core.waiting import why_waiting
from jm_master.agents import AgentAliveError, AgentUnknownError
from jm_master.api_errors import RefusedError, decoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jm_master.agents import Agents
    from jm_master.cluster_duty import ClusterDuty
    from jm_master.ledger import Ledger
    from jm_master.registry_view import RegistryView
    from jm_master.service import Operation


class ClusterApi:
    def __init__(  # noqa: PLR0917 - what it looks at
        self,
        cluster: str,
        view: RegistryView,
        duty: ClusterDuty,
        agents: Agents,
        ledger: Ledger,
        unserved: Callable[[], list[api.UnservedKind]],
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._duty = duty
        self._agents = agents
        self._ledger = ledger
        self._unserved = unserved
        self.operations: Mapping[str, Operation] = {
            api.OP_CLUSTER_GET: self._get,
            api.OP_CLUSTER_SET: self._set,
            api.OP_AGENT_GIVE_UP: self._give_up,
        }

    def archived(self) -> str | None:
        """Why nothing may be changed; None where it may."""
        settings = self._view.cluster
        return None if settings.plans else archived_text(self._cluster, settings)

    def waits(self, job: api.JobView) -> str | None:
        """Why this job has not started; None when it has, or is not due."""
        kind = job.lane, self._view.served_as(PRIORITY_BY_LABEL[job.priority]).label, job.handler
        unserved = [u.reason for u in self._unserved() if (u.lane, u.priority, u.handler) == kind]
        return why_waiting(
            job,
            due_in_s=job.run_at.timestamp() - time.time(),
            settings=self._view.cluster,
            backlogs=self._ledger.backlogs,
            unserved=unserved[0] if unserved else None,
        )

    async def _get(self, _: bytes) -> ClusterView:
        return await self._shown()

    async def _set(self, data: bytes) -> ClusterView:
        await self._duty.change(decoded(data, ClusterChange))
        return await self._shown()

    async def _give_up(self, data: bytes) -> AgentGivenUp:
        request = decoded(data, AgentGiveUp)
        by, reason = check_words(request.by or NOBODY, request.reason)
        try:
            jobs = await self._agents.give_up(request.agent, by=by, reason=reason)
        except AgentAliveError as error:
            raise RefusedError("refused", str(error)) from None
        except AgentUnknownError as error:
            raise RefusedError("not_found", str(error)) from None
        return AgentGivenUp(request.agent, jobs)

    async def _shown(self) -> ClusterView:
        changes = [
            ChangeView(row["changed_at"], row["changed_by"], row["reason"], _raw(row["before"]), _raw(row["after"]))
            for row in await self._duty.changes()
        ]
        backlogs = [(lane, Priority(priority).label) for lane, priority in sorted(self._ledger.backlogs)]
        return ClusterView(
            self._cluster, self._agents.name, self._view.cluster, changes, await self._agents.all(), backlogs
        )


def _raw(text: str) -> Raw:
    return Raw(text.encode())
