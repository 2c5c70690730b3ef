"""Stand-ins for lanes and priorities that nobody serves, and a loud word where there can be none. DESIGN 7; the rules
are in ``jm_core.fallback``.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from jm_core import fallback as rules
from jm_core import rpc
from jm_core.api import UnservedKind
from jm_core.fallback import ASKED_S, Kind, Order
from jm_core.model import Priority
from jm_nats import telemetry

if TYPE_CHECKING:
    from jm_core.fallback import Picture, Route
    from jm_core.wire import BucketRecord
    from jm_master.database import Database
    from jm_master.dispatch_store import DispatchStore
    from jm_master.registry_view import RegistryView
    from jm_master.wake import Wake
    from jm_master.watch import Watch
    from jm_master.worker_rpc import WorkerRpc

log = logging.getLogger(__name__)
KeyT = TypeVar("KeyT")

PASS_MAX_S: Final = 2.0
SAID_AGAIN_S: Final = 600.0
PROPER_IS_BACK: Final = "a proper bucket serves its lane and priority"


class FallbackDuty:
    """One term's. What it remembers are waiting times only: all else is in the registry."""

    def __init__(
        self,
        database: Database,
        store: DispatchStore,
        view: RegistryView,
        rpc_to: WorkerRpc,
        *,
        assign: Wake,
        watch: Watch,
        threshold_s: float,
    ) -> None:
        self._database = database
        self._store = store
        self._view = view
        self._rpc = rpc_to
        self._assign = assign
        self._watch = watch
        self._threshold_s = threshold_s
        self._since_s: dict[Route, float] = {}
        self._asked: dict[tuple[Route, str], float] = {}  # when each agreed, until its bucket must be there
        self._silent: dict[str, float] = {}  # workers that refused or did not answer
        self._said_s: dict[Kind, float] = {}
        self._unserved: list[UnservedKind] = []

    def unserved(self) -> list[UnservedKind]:
        """As of the last pass."""
        return self._unserved

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look_once(now_s=time.monotonic())
            telemetry.duty_passed()
            await anyio.sleep(min(PASS_MAX_S, self._threshold_s / 10))

    async def look_once(self, *, now_s: float) -> None:
        """One pass. Postgres being away holds it up: nothing can be assigned then anyway."""
        waiting_s = await self._due_kinds()
        if not self._watch.may_judge(now_s=time.monotonic()) or not self._view.cluster.starts:
            # That nobody was seen while we could not see says nothing about who serves what; and where nothing is to
            # start, nobody needs to serve it.
            self._since_s, self._unserved = {}, []
            telemetry.kinds_unserved(0)
            return
        picture, elsewhere = self._view.picture(), self._view.elsewhere
        others = elsewhere.neighbours
        due_s = {kind: s for kind, s in waiting_s.items() if not rules.left_to_others(kind, picture, others)}
        away = sorted(kind for kind in waiting_s if rules.waits_for_away(kind, picture, others, elsewhere.handlers))
        known = self._view.buckets.values()
        self._since_s = rules.without_proper(self._since_s, due_s, picture, known, now_s=now_s)
        kinds = [kind for kind in rules.unserved(due_s, picture) if kind not in away]
        reasons = {kind: rules.why(kind, picture) for kind in kinds} | dict.fromkeys(away, rules.NOBODY_HERE)
        self._publish(reasons, waiting_s)
        self._complain(kinds, picture, now_s)
        for order in self._orders(kinds, picture, now_s):
            await self._open(order, now_s)
        for bucket in rules.retired(picture, self._view.cluster.off, others):
            await self._retire(bucket)

    async def _due_kinds(self) -> dict[Kind, float]:
        """By kind, for how long its first job has been due. A disabled priority's are others' (``served_as``)."""
        due_s: dict[Kind, float] = {}
        for w in await self._database.ride_out(self._store.waiting):
            kind = Kind(w.lane, self._view.served_as(w.priority), w.handler)
            if w.due_in_s <= 0:
                due_s[kind] = max(due_s.get(kind, 0.0), -w.due_in_s)
        return due_s

    def _orders(self, kinds: list[Kind], picture: Picture, now_s: float) -> list[Order]:
        self._asked = _lately(self._asked, now_s)
        self._silent = _lately(self._silent, now_s)
        asked: dict[Route, set[str]] = {}
        for route, worker in self._asked:
            asked.setdefault(route, set()).add(worker)
        threshold_s = self._threshold_s
        return rules.orders(kinds, self._since_s, picture, asked, self._silent, now_s=now_s, threshold_s=threshold_s)

    async def _open(self, order: Order, now_s: float) -> None:
        lane, priority = order.route
        handlers = ", ".join(kind.handler for kind in order.kinds)[:200]
        reason = f"nobody served lane {lane!r} at priority {Priority(priority).label} (handlers: {handlers})"
        answer = await self._rpc.ask(order.worker, rpc.OpenFallback(lane, priority, reason))
        if answer is None or answer.error:
            self._silent[order.worker] = now_s
            return
        self._asked.setdefault((order.route, order.worker), now_s)
        extra = {"lane": lane, "priority": priority, "worker": order.worker, "bucket": answer.bucket}
        log.warning("a fallback bucket was asked for", extra=extra)
        self._assign.set()

    async def _retire(self, bucket: BucketRecord) -> None:
        answer = await self._rpc.ask(bucket.worker, rpc.Retire(bucket.bucket, PROPER_IS_BACK))
        if answer is not None and not answer.error:
            log.info("a fallback bucket retires", extra={"bucket": bucket.bucket, "worker": bucket.worker})

    # What people see.

    def _publish(self, reasons: dict[Kind, str], due_s: dict[Kind, float]) -> None:
        wall_s = time.time()
        self._unserved = [
            UnservedKind(
                kind.lane,
                Priority(kind.priority).label,
                kind.handler,
                datetime.fromtimestamp(wall_s - due_s[kind], UTC),
                reason,
            )
            for kind, reason in sorted(reasons.items())
        ]
        telemetry.kinds_unserved(len(self._unserved))

    def _complain(self, kinds: list[Kind], picture: Picture, now_s: float) -> None:
        """Once a kind, and every ten minutes while it lasts."""
        hopeless = [
            kind
            for kind in kinds
            if now_s - self._since_s[kind.route] >= self._threshold_s and not rules.has_candidate(kind, picture)
        ]
        self._said_s = {kind: at_s for kind, at_s in self._said_s.items() if kind in hopeless}
        for kind in hopeless:
            if now_s - self._said_s.get(kind, -SAID_AGAIN_S) >= SAID_AGAIN_S:
                self._said_s[kind] = now_s
                extra = {"lane": kind.lane, "priority": kind.priority, "handler": kind.handler}
                log.error("due jobs wait and nobody can run them: %s", rules.why(kind, picture), extra=extra)


def _lately(at_s: dict[KeyT, float], now_s: float) -> dict[KeyT, float]:
    return {key: then_s for key, then_s in at_s.items() if now_s - then_s < ASKED_S}
