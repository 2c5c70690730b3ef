"""Messages that were committed and may never have reached NATS: left by an earlier leader, or by an outage."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import anyio

from jm_nats import telemetry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jm_master.database import Database
    from jm_master.dispatch_store import DispatchStore
    from jm_master.runs import RunSender

log = logging.getLogger(__name__)

SWEEP_S: Final = 5.0


class Outbox:
    """Sends them again. Their message id is the same, so that what NATS has already is dropped there."""

    def __init__(self, database: Database, store: DispatchStore, sender: RunSender, *, age_s: float) -> None:
        self._database = database
        self._store = store
        self._sender = sender
        self._age_s = age_s

    async def run(self) -> None:
        """First all that is there, whatever its age: we lead now, so nobody else will send it."""
        await self._sweep(age_s=0.0)
        while True:
            telemetry.duty_passed()
            await anyio.sleep(SWEEP_S)
            # A younger row may belong to a batch of ours that is just being sent.
            await self._sweep(age_s=self._age_s)

    async def sweep_now(self) -> None:
        """All that is there, also what a batch of ours is just sending: NATS drops it the second time."""
        await self._sweep(age_s=0.0)

    async def resend(self, ids: Sequence[str]) -> None:
        """These now, as far as they are there."""
        await self._send(ids=ids, age_s=0.0, but=set())

    async def _sweep(self, *, age_s: float) -> None:
        failed: set[str] = set()  # their bucket is gone or NATS away: they must not hide the others
        while await self._send(age_s=age_s, ids=None, but=failed):
            pass

    async def _send(self, *, age_s: float, ids: Sequence[str] | None, but: set[str]) -> bool:
        """One pass; adds to ``but`` what could not be sent. False when there was nothing."""
        found = await self._database.ride_out(lambda: self._store.load_outbox(age_s=age_s, ids=ids, but=list(but)))
        if not found:
            return False
        needed = [message for message, is_needed in found if is_needed]
        sent = await self._sender.send_all(needed, now_s=time.time())
        moved_on = [message.outbox_id for message, is_needed in found if not is_needed]
        await self._database.ride_out(lambda: self._store.delete_outbox([*sent, *moved_on]))
        but.update(message.outbox_id for message in needed)
        but.difference_update(sent)
        log.info("outbox swept", extra={"found": len(found), "sent": len(sent), "moved_on": len(moved_on)})
        return True
