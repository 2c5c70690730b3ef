"""One term of leadership: takes the term, finds out what is out, and runs the duties."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from jm_master.leadership import take_term
from jm_master.ledger import LATER_HORIZON_S, Ledger
from jm_master.reconcile import follow_hints
from jm_master.wiring import Wiring
from jm_nats import telemetry
from jm_nats.provision import delete_consumer, ensure_cluster
from jm_nats.publisher import JetPublisher
from jm_nats.pull import PullReader
from jm_nats.subjects import PENDING_CONSUMER, RECORDER_CONSUMER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jm_master.agent_store import AgentStore
    from jm_master.config import CoordinatorConfig
    from jm_master.database import Database
    from jm_master.duties import Duties
    from jm_master.registry import Registry
    from jm_master.watch import Watch
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

READ_BYTES_MAX: Final = 8 * 1024 * 1024  # of one stream, here or on the way here
EVENT_MESSAGES_MAX: Final = 256
DUTIES: Final = (  # that complete a pass once a minute at least
    "settings", "agents", "outbox", "recorder", "writer", "assigner", "undertaker", "fallback", "canceller", "control",
    "retention", "reconciler", "planner", "declarations", "queue look",
)  # fmt: skip


class Leader:
    def __init__(
        self,
        config: CoordinatorConfig,
        names: Names,
        link: NatsLink,
        database: Database,
        registry: Registry,
        *,
        watch: Watch,
        agent_store: AgentStore,
        duties: Duties,
    ) -> None:
        self._config = config
        self._names = names
        self._link = link
        self._database = database
        self._registry = registry
        self._watch = watch
        self._agent_store = agent_store
        self._duties = duties
        self._ledger = Ledger(registry.view)

    async def run(self, holder: str, on_leading: Callable[[], None]) -> None:
        """Lead until cancelled. ``on_leading`` is called when every duty runs.

        Raises:
            LostTermError, AgentError, StoreUnavailableError: a duty could not go on.
            AgentStoreChangedError: NATS is another one than recorded; nothing was dispatched.
        """
        known = self._duties.terms.latest
        term = await take_term(self._database, holder, after=known, on_older=self._duties.older_term)
        self._duties.terms.latest = term
        await self._agent_store.settle(term)
        async with AsyncExitStack() as stack:
            gauges = stack.enter_context(telemetry.Gauges(telemetry.current_group()))
            telemetry.enter_term(gauges, term, DUTIES)
            publisher = await stack.enter_async_context(JetPublisher(self._link))
            wired = Wiring(
                self._config,
                self._names,
                self._link,
                self._database,
                self._registry,
                watch=self._watch,
                ledger=self._ledger,
                publisher=publisher,
                term=term,
                gauges=gauges,
            )
            await self._look_around(wired)
            await self._take_consumers()
            pending = await stack.enter_async_context(self._pending())
            events = await stack.enter_async_context(self._events())
            await self._serve(wired, pending, events, partial(self._lead, holder, on_leading, wired))

    async def _look_around(self, wired: Wiring) -> None:
        """What has to be known before the first job is saved or assigned."""
        await wired.settings.load()
        await wired.agents.look_once()
        await self._database.ride_out(wired.ahead.load)
        counts = await self._database.ride_out(lambda: wired.dispatch.count_in_buckets(later_s=LATER_HORIZON_S))
        self._ledger.seed(counts)

    async def _serve(
        self, wired: Wiring, pending: PullReader, events: PullReader, on_leading: Callable[[], None]
    ) -> None:
        recorder, fallback, control = wired.recorder(events), wired.fallback(), wired.control()
        retainer, reconciler = wired.retainer(), wired.reconciler(recorder)
        duties: dict[str, Callable[[], Awaitable[None]]] = {
            "settings": wired.settings.run,
            "agents": wired.agents.run,
            "outbox": wired.outbox.run,
            "recorder": recorder.run,
            "writer": wired.writer(pending).run,
            "assigner": wired.assigner().run,
            "undertaker": wired.undertaker(recorder).run,
            "fallback": fallback.run,
            "canceller": wired.canceller.run,
            "control": control.run,
            "retention": retainer.run,
            "reconciler": reconciler.run,
            "planner": wired.planner().run,
            "declarations": wired.declarations().run,
            "queue look": wired.queue_look().run,
            "hints": partial(follow_hints, self._link, self._names, reconciler),
        }
        async with anyio.create_task_group() as tasks:
            for name, work in duties.items():
                tasks.start_soon(self._duties.run, name, work)
            await tasks.start(wired.service(fallback, control, retainer).run)
            on_leading()

    def _lead(self, holder: str, on_leading: Callable[[], None], wired: Wiring) -> None:
        log.info("leading", extra={"holder": holder, "term": wired.term})
        self._duties.all_run()
        on_leading()

    async def _take_consumers(self) -> None:
        """Make the two consumers anew.

        What the leader before us had read and not acked comes to us at once instead of after the ack wait, and its
        readers, should it still be there, find out that they are over.
        """
        for stream, consumer in (
            (self._names.pending_stream, PENDING_CONSUMER),
            (self._names.events_stream, RECORDER_CONSUMER),
        ):
            await delete_consumer(self._link, stream, consumer)
        config = self._config
        await ensure_cluster(self._link, self._names, lease_s=config.lease_s, replicas=config.replicas)

    def _pending(self) -> PullReader:
        # Twice what the workers hold: the next batches lie here when they come back for them.
        batch = 2 * self._config.save_workers * self._config.save_batch_jobs
        stream = self._names.pending_stream
        return PullReader(self._link, stream, PENDING_CONSUMER, batch=batch, max_bytes=READ_BYTES_MAX)

    def _events(self) -> PullReader:
        stream = self._names.events_stream
        return PullReader(self._link, stream, RECORDER_CONSUMER, batch=EVENT_MESSAGES_MAX, max_bytes=READ_BYTES_MAX)
