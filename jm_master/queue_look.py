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
from jm_nats.pace import tick
from jm_nats.telemetry import Gauges, Values, names
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jm_core.wire import BucketRecord
    from jm_master.database import Database
    from jm_master.registry_view import RegistryView
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

DUTY: Final = "queue look"
LOOK_S: Final = 10.0
PATIENCE_S: Final = 5.0  # a look that takes longer is given up: it must never be what Postgres is busy with
ALL_KINDS_MAX: Final = 2 * names.DEPTH_MAX


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
            await tick(LOOK_S)

    async def look_once(self) -> None:
        self._say_registry()
        seen = [await self._look_at_queues(), await self._look_at_outbox(), await self._look_at_streams()]
        if all(seen):
            telemetry.duty_passed(DUTY)

    def _say_registry(self) -> None:
        states = Counter(_state_of(record) for record in self._view.buckets.values())
        zeros = dict.fromkeys([*(status.value for status in SHOWN), BucketKind.FALLBACK.value], 0)
        self._gauges.say_all(names.BUCKETS, {((names.STATE, state),): n for state, n in (zeros | states).items()})
        health = Counter(record.health for record in self._view.workers.values())
        shown = {level: health.get(level, 0) for level in ("healthy", "degraded", "unhealthy")}
        self._gauges.say_all(names.WORKERS, {((names.HEALTH, level),): n for level, n in shown.items()})

    async def _look_at_queues(self) -> bool:
        """What is due, and what is out in buckets: each shown without the other if that cannot be seen."""
        due = await self._asked("queue_due", names.DEPTH_MAX, ALL_KINDS_MAX)
        out = await self._asked("queue_out", names.DEPTH_MAX, self._database.prefix)
        depth, age = queues(due, out, self._view.proper_routes())
        self._gauges.say_all(names.QUEUE_DEPTH, depth)
        self._gauges.say_all(names.OLDEST_DUE_AGE, age)
        return due is not None and out is not None

    async def _look_at_outbox(self) -> bool:
        found = await self._asked("outbox_size", names.DEPTH_MAX, self._database.prefix)
        self._gauges.say_all(names.OUTBOX_SIZE, {} if found is None else {(): found[0]["count"]})
        return found is not None

    async def _asked(self, query: str, *arguments: object) -> list[asyncpg.Record] | None:
        """None: it cannot be seen now."""
        try:
            with anyio.fail_after(PATIENCE_S):
                return await self._database.fetch(self._sql[query], *arguments)
        except (JmError, TimeoutError) as problem:
            facts = {"query": query, "problem": str(problem) or f"no answer within {PATIENCE_S:g} s"}
            trouble(log, "queues cannot be looked at", facts, about=query)
            return None

    async def _look_at_streams(self) -> bool:
        """What has been read and not acked yet counts, too."""
        is_seen = True
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
                is_seen = False
                continue
            messages = info["state"]["messages"]
            self._gauges.say(spec, messages)
            if not messages:  # who has nothing to do has done it all
                telemetry.duty_passed(duty)
        return is_seen


SHOWN: Final = [status for status in BucketStatus if status is not BucketStatus.DELETED]


def _state_of(record: BucketRecord) -> str:
    is_stand_in = record.status == BucketStatus.ACTIVE and record.kind == BucketKind.FALLBACK
    return BucketKind.FALLBACK.value if is_stand_in else str(record.status)


DUE: Final = "due"
OUT: Final = (JobStatus.IN_BUCKET.label, JobStatus.PROCESSING.label)


def queues(
    due: Sequence[asyncpg.Record] | None, out: Sequence[asyncpg.Record] | None, routes: set[tuple[str, int]]
) -> tuple[Values, Values]:
    """Depth by route and state, oldest due age by route; routes that are served show their zeros, too.

    Args:
        due, out: None where it cannot be seen: then its states are not shown, and no age, which both make up.
    """
    rows = [(row, DUE) for row in due or ()] + [(row, JobStatus(row["status"]).label) for row in out or ()]
    lanes = _lanes_named([row for row, _ in rows], {lane for lane, _ in routes})
    depth: Values = {}
    age: Values = {}
    states = (() if due is None else (DUE,)) + (() if out is None else OUT)
    for lane, priority in routes:
        route = _route(lane, priority, lanes)
        age.setdefault(route, 0.0)
        for state in states:
            depth.setdefault((*route, (names.STATE, state)), 0)
    for row, state in rows:
        route = _route(row["lane"], row["priority"], lanes)
        key = (*route, (names.STATE, state))
        depth[key] = depth.get(key, 0) + row["jobs"]
        age[route] = max(age.get(route, 0.0), row["age_s"] or 0.0)
    return depth, age if due is not None and out is not None else {}


def _lanes_named(rows: Sequence[asyncpg.Record], served: set[str]) -> set[str]:
    """Those that go by their name: of too many the ones that have workers, then those that wait longest. By what there
    is now, so that a lane that is gone keeps no other from its name.
    """
    age: dict[str, float] = dict.fromkeys(served, 0.0)
    for row in rows:
        age[row["lane"]] = max(age.get(row["lane"], 0.0), row["age_s"] or 0.0)
    ranked = sorted(age, key=lambda lane: (lane not in served, -age[lane], lane))
    return set(ranked[: names.VALUES_MAX])


def _route(lane: str, priority: int, lanes: set[str]) -> tuple[tuple[str, str], tuple[str, str]]:
    name = lane if lane in lanes else names.OTHER
    return (names.LANE, name), (names.PRIORITY, Priority(priority).label)
