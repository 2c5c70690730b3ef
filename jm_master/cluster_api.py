"""Operations on the cluster itself: what is set, by whom, and to set it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw

from jm_core import api
from jm_core.cluster import ChangeView, ClusterChange, ClusterView, archived_text
from jm_master.api_errors import decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jm_master.cluster_duty import ClusterDuty
    from jm_master.registry_view import RegistryView
    from jm_master.service import Operation


class ClusterApi:
    def __init__(self, cluster: str, view: RegistryView, duty: ClusterDuty) -> None:
        self._cluster = cluster
        self._view = view
        self._duty = duty
        self.operations: Mapping[str, Operation] = {api.OP_CLUSTER_GET: self._get, api.OP_CLUSTER_SET: self._set}

    def archived(self) -> str | None:
        """Why nothing may be changed; None where it may."""
        settings = self._view.cluster
        return None if settings.plans else archived_text(self._cluster, settings)

    async def _get(self, _: bytes) -> ClusterView:
        return await self._shown()

    async def _set(self, data: bytes) -> ClusterView:
        await self._duty.change(decoded(data, ClusterChange))
        return await self._shown()

    async def _shown(self) -> ClusterView:
        changes = [
            ChangeView(row["changed_at"], row["changed_by"], row["reason"], _raw(row["before"]), _raw(row["after"]))
            for row in await self._duty.changes()
        ]
        return ClusterView(self._cluster, "main", self._view.cluster, changes)


def _raw(text: str) -> Raw:
    return Raw(text.encode())
