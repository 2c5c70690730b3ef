"""The cluster's settings, kept in Postgres: followed by every agent's leader, told to its workers and clients by KV.

Postgres is the truth, because it is what all agents share and what outlives a NATS store. The leader that changes them
acts on them before it answers; those of other agents see the change within ``POLL_S``.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
import uuid_utils
from msgspec.structs import replace

from jm_core import wire
from jm_core.cluster import DEFAULT, KEY, ClusterSettings, changed, decode_settings
from jm_master.queries import named
from jm_master.terms import LostTermError
from jm_nats import telemetry
from jm_nats.connection import server_clock_offset
from jm_nats.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jm_core.cluster import ClusterChange
    from jm_core.ids import Term
    from jm_master.database import Database
    from jm_master.registry_view import RegistryView
    from jm_master.wake import Wake
    from jm_nats.connection import NatsLink
    from jm_nats.kv import CasKv

log = logging.getLogger(__name__)

POLL_S: Final = 1.0
CHANGES_SHOWN: Final = 20


class ClusterDuty:
    """One term's. What holds is ``view.cluster``: placement and the front door look there."""

    def __init__(
        self, link: NatsLink, kv: CasKv, database: Database, view: RegistryView, *, assign: Wake, term: Term
    ) -> None:
        self._link = link
        self._kv = kv
        self._database = database
        self._view = view
        self._assign = assign
        self._term = term
        self._sql = named("cluster", database.schema)
        self._one_by_one = anyio.Lock()
        self._unreadable = ""

    async def load(self) -> None:
        """What holds now. A leader does nothing before it knows: it must not start jobs of a passive cluster."""
        text, settings = await self._read()
        self._view.set_cluster(settings)
        log.debug("cluster settings", extra={"settings": text})

    async def run(self) -> None:
        """Follow what other agents' leaders write, and keep the KV true, until cancelled."""
        while True:
            await self.look_once()
            telemetry.duty_passed()
            await anyio.sleep(POLL_S)

    async def look_once(self) -> None:
        async with self._one_by_one:
            _, settings = await self._read()
            await self._take_up(settings)

    async def change(self, change: ClusterChange) -> ClusterSettings:
        """Change and act on it; what holds then.

        Raises:
            InvalidSettingError: nothing was changed.
            LostTermError: somebody else leads.
        """
        now_s = await self._nats_time()
        asked, action_id = wire.encode(replace(change, by="", reason="")).decode(), str(uuid_utils.uuid7())
        async with self._one_by_one:
            while True:
                text, before = await self._read()
                after = changed(before, change, now_s=now_s)
                if after is before or await self._write(text, after, action_id, asked):
                    break
            if after is not before:
                extra = {"mode": after.mode.value, "disabled": " ".join(after.disabled), "by": after.changed_by}
                log.warning("cluster settings changed", extra=extra | {"reason": after.reason})
            await self._take_up(after)
        return after

    async def changes(self) -> Sequence[asyncpg.Record]:
        """The last ones, the newest first."""
        return await self._database.fetch(self._sql["list_cluster_changes"], CHANGES_SHOWN)

    async def _nats_time(self) -> float:
        """By the clock that stamps submissions, so that what had its receipt before the change is told apart."""
        try:
            return time.time() + (await server_clock_offset(self._link, samples=1)).correction_s
        except AgentError as error:
            log.debug("clock not measured", extra={"problem": str(error)})
            return time.time()

    async def _read(self) -> tuple[str | None, ClusterSettings]:
        text = await self._database.ride_out(lambda: self._database.fetchval(self._sql["load_cluster"]))
        if text is None:
            return None, DEFAULT
        try:
            return text, decode_settings(text)
        except msgspec.DecodeError as error:  # of a newer version, or written by hand
            if text != self._unreadable:
                self._unreadable = text
                log.error("cluster settings cannot be read; the last ones stay", extra={"problem": str(error)})  # noqa: TRY400
            return text, self._view.cluster

    async def _write(self, before: str | None, after: ClusterSettings, action_id: str, asked: str) -> bool:
        """False: somebody was quicker."""
        value = wire.encode(after).decode()
        row = await self._database.ride_out(
            lambda: self._database.fetchrow(
                self._sql["change_cluster"],
                self._term,
                before,
                value,
                after.changed_by,
                after.reason,
                action_id,
                asked,
            )
        )
        if row is None or not row["terms"]:
            raise LostTermError(self._term)
        # Not kept, and there all the same: the answer to a first try was lost.
        return bool(row["kept"]) or (await self._read())[0] == value

    async def _take_up(self, settings: ClusterSettings) -> None:
        """Act on it. Before workers start again they are told, before they stop we stop giving: so that what is
        handed out does not come back at once.
        """
        if settings.starts:
            await self._tell(settings)
        if settings != self._view.cluster:
            self._view.set_cluster(settings)
            self._assign.set()
        if not settings.starts:
            await self._tell(settings)

    async def _tell(self, settings: ClusterSettings) -> None:
        """Put it into the KV where that says something else; after a loss of the KV it is there again by this."""
        told = self._view.told
        if (settings == DEFAULT and told is None) or told == (value := wire.encode(settings)):
            return
        try:
            await self._kv.put(KEY, value)
        except AgentError as error:
            log.warning("cluster settings not told to workers yet", extra={"problem": str(error)})
        else:
            self._view.told = value
