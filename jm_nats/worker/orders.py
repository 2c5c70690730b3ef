"""What can be asked of a running worker and ordered (jm_core/rpc.py), carried out."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from jm_core import limits, rpc
from jm_core.api_schedules import ScheduleSpec
from jm_core.model import BucketKind, WorkerState
from jm_nats.worker.parts import Parts
from jm_nats.worker.rpc import RefusedOrderError


class WorkerOrders:
    """Args: state: what the worker is doing now, as others are told."""

    def __init__(
        self,
        parts: Parts,
        state: Callable[[], WorkerState],
        *,
        runs_jobs: bool,
        schedules: Sequence[ScheduleSpec] = (),
    ) -> None:
        self._parts = parts
        self._state = state
        self._runs_jobs = runs_jobs
        self._schedules = schedules
        self.stop_asked = asyncio.Event()
        self.hurry_asked = asyncio.Event()
        self.drain_changed = asyncio.Event()
        self.drain_asked = False

    async def holds(self, bucket: str, jobs: list[tuple[str, int]]) -> list[str]:
        if bucket not in self._parts.buckets.own:
            raise RefusedOrderError(f"bucket {bucket!r} is not one of ours")
        return await self._parts.buckets.holds(bucket, jobs)

    async def open_fallback(self, lane: str, serves: int, reason: str) -> str:
        if not self._runs_jobs or self._state() is not WorkerState.SERVING:
            raise RefusedOrderError(f"the worker is {self._state().value}, it opens no bucket")
        return await self._parts.buckets.open_fallback(lane, serves, reason)

    async def retire(self, bucket: str, reason: str) -> None:
        own = self._parts.buckets.own.get(bucket)
        if own is None:
            raise RefusedOrderError(f"bucket {bucket!r} is not one of ours")
        if own.value.kind is not BucketKind.FALLBACK:
            raise RefusedOrderError(f"bucket {bucket!r} is no fallback bucket; drain its worker instead")
        if not own.port.closed:
            work = self._parts.buckets.retire(own, reason=reason)
            self._parts.tasks.start(work, f"retires {bucket}", ends=True)

    def drain(self, undo: bool) -> None:  # noqa: FBT001 - the words of jm_core.rpc.Drain
        if self.stop_asked.is_set() or self._state() in (WorkerState.STOPPING, WorkerState.HALTED):
            raise RefusedOrderError(f"the worker is {self._state().value} already")
        self.drain_asked = not undo
        self.drain_changed.set()

    def stop(self, hurry: bool) -> None:  # noqa: FBT001 - the words of jm_core.rpc.Stop
        self.stop_asked.set()
        if hurry:
            self.hurry_asked.set()

    def status(self) -> rpc.WorkerStatus:
        return self._parts.engine.status(self._state().value)

    def declared(self, start: int) -> tuple[list[ScheduleSpec], bool]:
        size, end = 0, max(start, 0)
        while end < len(self._schedules) and size < limits.MESSAGE_BYTES_MAX:
            size += len(msgspec.json.encode(self._schedules[end]))
            end += 1
        return list(self._schedules[max(start, 0) : end]), end < len(self._schedules)
