"""A worker's numbers for the metrics, asked for when somebody collects, by the exporter's thread: plain reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jm_nats import telemetry
from jm_nats.telemetry import Gauges, Values, names

if TYPE_CHECKING:
    from collections.abc import Callable

    from jm_nats.worker.parts import Parts
    from jm_nats.worker.runtime import Worker


class WorkerGauges:
    """Args: parts: None before the worker has begun to serve."""

    def __init__(self, worker: Worker, parts: Callable[[], Parts | None]) -> None:
        self._worker = worker
        self._parts = parts

    def ask_with(self, gauges: Gauges) -> None:
        worker = self._worker
        gauges.ask(names.SLOTS, lambda: worker.config.slots if worker.runs_jobs else 0)
        gauges.ask(names.CLOCK_OFFSET, lambda: worker.clock.offset_s)
        gauges.ask(names.RUNNING, lambda: parts.engine.running if (parts := self._parts()) else 0)
        gauges.ask(names.HELD, lambda: parts.engine.held if (parts := self._parts()) else 0)
        gauges.ask(names.EVENTS_WAITING, self._events_waiting)
        gauges.ask_all(names.FETCH_AGE, self._fetch_age)

    def _events_waiting(self) -> int:
        parts = self._parts()
        return sum(bucket.port.reporter.waiting for bucket in list(parts.buckets.own.values())) if parts else 0

    def _fetch_age(self) -> Values:
        """Of several buckets of one lane and priority the worst."""
        parts = self._parts()
        ages: Values = {}
        for bucket in list(parts.buckets.own.values()) if parts else ():
            route = telemetry.route(bucket.port.lane, bucket.port.priority.label)
            ages[route] = max(ages.get(route, 0.0), bucket.intake.unheard_s)
        return ages
