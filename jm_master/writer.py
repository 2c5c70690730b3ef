"""The save path: front door, one transaction, buckets, receipts, ack. DESIGN, sections 4 and 6."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import anyio
import nats.errors
from msgspec import Struct

from jm_core.cluster import archived_text
from jm_core.intake import ClusterDefaults, Rejection
from jm_master.in_hand import InHand
from jm_master.saver import Saver, Work
from jm_master.submissions import accepted, in_batches, read, receipts_for, refusals_of, refuse_all
from jm_nats import telemetry
from jm_nats.crashpoints import reach
from jm_nats.pace import tick
from jm_nats.pull import ack
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_master.registry_view import RegistryView
    from jm_master.submissions import Submitted
    from jm_nats.connection import NatsLink
    from jm_nats.pull import PullReader

log = logging.getLogger(__name__)

TIDY_S: Final = 1.0


class WriterConfig(Struct, frozen=True):
    """``workers`` batches of about ``batch_jobs`` jobs are under way at once: one is read while another commits."""

    workers: int
    batch_jobs: int
    defaults: ClusterDefaults = ClusterDefaults()
    agent_prefix: str = ""


class Writer:
    def __init__(
        self,
        link: NatsLink,
        reader: PullReader,
        saver: Saver,
        *,
        view: RegistryView,
        cluster: str,
        config: WriterConfig,
    ) -> None:
        self._link = link
        self._reader = reader
        self._saver = saver
        self._view = view
        self._cluster = cluster
        self._origin = (
            config.agent_prefix + reader.stream
        )  # where ids are derived from: two agents' streams have one name
        self._config = config
        self._in_hand = InHand(reader)
        self._saved_at_s = 0.0

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LostTermError: somebody else leads.
            ConsumerGoneError: the front door's consumer was deleted.
        """
        async with anyio.create_task_group() as tasks:
            for _ in range(self._config.workers):
                tasks.start_soon(self._serve)
            tasks.start_soon(self._tidy)
            tasks.start_soon(self._in_hand.keep_alive)

    async def save(self, batch: list[Submitted]) -> None:
        """One batch, to its ack."""
        self._turn_away(batch)
        reach("writer.after_read")
        work = Work(batch, [submitted.queued_at for submitted in batch])
        await self._saver.save(work, accepted(batch), refusals_of(batch))
        self._saved_at_s = time.monotonic()
        _measure(work)
        telemetry.duty_passed()
        reach("writer.after_commit")
        await self._saver.send(work)
        reach("writer.after_publish")
        await self._answer(work)
        for submitted in batch:
            ack(submitted.message)
        reach("writer.after_ack")

    def _turn_away(self, batch: Sequence[Submitted]) -> None:
        """What came to an archived cluster is refused, with its bytes kept in table ``rejected``."""
        settings = self._view.cluster
        if settings.plans:
            return
        for submitted in batch:
            if not settings.accepts(submitted.queued_at):
                refuse_all(submitted, archived_text(self._cluster, settings))

    async def _serve(self) -> None:
        while True:
            messages = await self._reader.take(self._config.batch_jobs)
            with self._in_hand.holding(messages):
                read_now = read(messages, self._origin, self._view.all_handlers, self._config.defaults)
                for batch in in_batches(read_now, self._config.batch_jobs):
                    await self.save(batch)

    async def _answer(self, work: Work) -> None:
        """An answer that cannot be sent costs its asker a wait, and nobody else anything."""
        for submitted in work.batch:
            if to := submitted.receipt_to:
                try:
                    await self._link.nc.publish(to, receipts_for(submitted, work.fates))
                except nats.errors.Error as error:
                    trouble(log, "receipt not sent", {"subject": to, "problem": repr(error)})

    async def _tidy(self) -> None:
        """Delete the outbox rows of sent messages when no next batch comes along to do it."""
        while True:
            await tick(TIDY_S)
            if self._saver.sent and time.monotonic() - self._saved_at_s >= TIDY_S:
                await self._saver.save(Work(), [], [])


def _measure(work: Work) -> None:
    if not telemetry.Active.metering:
        return
    jobs = sum(len(submitted.parsed) for submitted in work.batch)
    refused = sum(1 for submitted in work.batch for job in submitted.parsed if type(job) is Rejection)
    rejected, duplicates = refused + len(work.fates.refused), len(work.fates.duplicates)
    telemetry.batch_committed("save", jobs, min(work.queued_at, default=time.time()))
    telemetry.jobs_saved(jobs - rejected - duplicates, rejected=rejected, duplicates=duplicates)
