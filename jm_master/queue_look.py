"""The leader's look at what waits where, for the gauges (docs/metrics.md): every ten seconds, and only for an SDK.

Nothing decides by it, so it rides nothing out: what cannot be seen now is not shown, rather than shown as it was.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

import anyio

from jm_core.errors import JmError
from jm_core.model import BucketKind, BucketStatus, JobStatus, Priority
from jm_master.queries import named
from jm_nats import telemetry
from jm_nats.errors import AgentError
from jm_nats.telemetry import Gauges, Values, names

if TYPE_CHECKING:
    import asyncpg

    from jm_core.wire import BucketRecord
    from jm_master.database import Database
    from jm_master.registry_view import RegistryView
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
PATIENCE_S: Final = 5.0  # a look that takes longer is given up: it must never be what Postgres is busy with
ALL_KINDS_MAX: Final = 5 * names.DEPTH_MAX


class QueueLook:
    """One term's."""

    def __init__(
        self, link: NatsLink, cluster_names: Names, database: Database, view: RegistryView, gauges: Gauges
    ) -> None:
        self._link = link
        self._names = cluster_names
        self._database = database
        self._view = view
        self._gauges = gauges
        self._sql = named("look", database.schema)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if telemetry.Active.metering:
                await self.look_once()
            await anyio.sleep(LOOK_S)

    async def look_once(self) -> None:
        self._say_registry()
        await self._look_at_postgres()
        await self._look_at_streams()

    def _say_registry(self) -> None:
        states = Counter(_state_of(record) for record in self._view.buckets.values())
        zeros = dict.fromkeys([*(status.value for status in SHOWN), BucketKind.FALLBACK.value], 0)
        self._gauges.say_all(names.BUCKETS, {((names.STATE, state),): n for state, n in (zeros | states).items()})
        health = Counter(record.health for record in self._view.workers.values())
        shown = {level: health.get(level, 0) for level in ("healthy", "degraded", "unhealthy")}
        self._gauges.say_all(names.WORKERS, {((names.HEALTH, level),): n for level, n in shown.items()})

    async def _look_at_postgres(self) -> None:
        prefix, most = self._database.prefix, names.DEPTH_MAX
        try:
            with anyio.fail_after(PATIENCE_S):
                due = await self._database.fetch(self._sql["queue_due"], most, ALL_KINDS_MAX)
                out = await self._database.fetch(self._sql["queue_out"], most, prefix)
                outbox = await self._database.fetchval(self._sql["outbox_size"], most, prefix)
        except (JmError, TimeoutError) as problem:
            log.debug("queues cannot be looked at", extra={"problem": str(problem)})
            for spec in (names.QUEUE_DEPTH, names.OLDEST_DUE_AGE, names.OUTBOX_SIZE):
                self._gauges.say_all(spec, {})
            return
        depth, age = queues(due, out, self._view.proper_routes())
        self._gauges.say_all(names.QUEUE_DEPTH, depth)
        self._gauges.say_all(names.OLDEST_DUE_AGE, age)
        self._gauges.say(names.OUTBOX_SIZE, outbox)

    async def _look_at_streams(self) -> None:
        """What has been read and not acked yet counts, too."""
        streams = (
            (names.PENDING, self._names.pending_stream, "writer"),
            (names.EVENTS_PENDING, self._names.events_stream, "recorder"),
        )
        for spec, stream, duty in streams:
            try:
                info = await self._link.api(f"STREAM.INFO.{stream}")
            except AgentError as problem:
                log.debug("a stream cannot be looked at", extra={"stream": stream, "problem": str(problem)})
                self._gauges.say_all(spec, {})
                continue
            messages = info["state"]["messages"]
            self._gauges.say(spec, messages)
            if not messages:  # who has nothing to do has done it all
                telemetry.duty_passed(duty)


SHOWN: Final = [status for status in BucketStatus if status is not BucketStatus.DELETED]


def _state_of(record: BucketRecord) -> str:
    is_stand_in = record.status == BucketStatus.ACTIVE and record.kind == BucketKind.FALLBACK
    return BucketKind.FALLBACK.value if is_stand_in else str(record.status)


def queues(due: list[asyncpg.Record], out: list[asyncpg.Record], routes: set[tuple[str, int]]) -> tuple[Values, Values]:
    """Depth by route and state, oldest due age by route; routes that are served show their zeros, too."""
    depth: Values = {}
    age: Values = {}
    for lane, priority in routes:
        route = telemetry.route(lane, Priority(priority).label)
        age[route] = 0.0
        for state in ("due", JobStatus.IN_BUCKET.label, JobStatus.PROCESSING.label):
            depth[*route, (names.STATE, state)] = 0
    for rows in (due, out):
        for row in rows:
            route = telemetry.route(row["lane"], Priority(row["priority"]).label)
            state = JobStatus(row["status"]).label if rows is out else "due"
            key = (*route, (names.STATE, state))
            depth[key] = depth.get(key, 0) + row["jobs"]
            age[route] = max(age.get(route, 0.0), row["age_s"] or 0.0)
    return depth, age
