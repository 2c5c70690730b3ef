"""The operations about retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jm_core import api_retention as api
from jm_master.api_errors import RefusedError, decoded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from msgspec import Struct

    from jm_master.retention import Retainer


class RetentionService:
    def __init__(self, retainer: Retainer) -> None:
        self._retainer = retainer

    def operations(self) -> dict[str, Callable[[bytes], Awaitable[Struct]]]:
        return {
            api.OP_RETENTION_GET: self._get,
            api.OP_RETENTION_RUN: self._run,
            api.OP_RETENTION_COUNT: self._count,
        }

    async def _get(self, _: bytes) -> Struct:
        return await self._retainer.view()

    async def _run(self, _: bytes) -> Struct:
        """The state before the pass: it is over when ``passes`` has grown."""
        view = await self._retainer.view()
        if view.agent is not None:
            raise RefusedError("refused", f"agent {view.agent!r} sees to retention; ask one of its coordinators")
        self._retainer.begin_pass()
        return view

    async def _count(self, data: bytes) -> Struct:
        request = decoded(data, api.RetentionCountRequest)
        return await self._retainer.count(max(0, request.chunk))
