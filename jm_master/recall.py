"""Jobs that lie in a bucket unstarted, asked back from their workers.

The worker decides, because it alone knows what it has started. What it gives back it will not start; the record is
changed next, and should that fail, the reconciler finds out and dispatches again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import anyio

from jm_core import rpc
from jm_master.applied import events_recorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_master.registry_view import RegistryView
    from jm_master.worker_rpc import WorkerRpc
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

Dispatched = tuple[str, int]  # job id, dispatch


class Recaller:
    def __init__(self, link: NatsLink, names: Names, rpc_to: WorkerRpc, view: RegistryView) -> None:
        self._link = link
        self._names = names
        self._rpc = rpc_to
        self._view = view

    async def recall(self, jobs: Sequence[tuple[str, int, str]]) -> list[Dispatched]:
        """Of these (id, dispatch, bucket), those that their workers have given back. A worker that does not answer
        gives nothing back.

        Raises:
            AgentError: NATS is away.
        """
        by_bucket: defaultdict[str, list[Dispatched]] = defaultdict(list)
        for job_id, dispatch, bucket in jobs:
            by_bucket[bucket].append((job_id, dispatch))
        back: list[Dispatched] = []
        async with anyio.create_task_group() as tasks:
            for bucket, of_bucket in by_bucket.items():
                tasks.start_soon(self._ask, bucket, of_bucket, back)
        if back:
            # A job that has ended may have been forgotten by its worker; its end must not be overtaken.
            await events_recorded(self._link, self._names)
        return back

    async def _ask(self, bucket: str, jobs: list[Dispatched], back: list[Dispatched]) -> None:
        worker = self._view.worker_of(bucket)
        if not worker:
            return
        answer = await self._rpc.ask(worker, rpc.Recall(bucket, jobs))
        if answer is not None:
            recalled = set(answer.recalled)
            back += [(job_id, dispatch) for job_id, dispatch in jobs if job_id in recalled]
