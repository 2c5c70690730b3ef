"""The cluster's settings as a worker follows them: whether anything starts, and which buckets are open."""

import logging
from collections.abc import Iterable
from typing import Final

from jm_core.cluster import DEFAULT, KEY, ClusterSettings, buckets_wanted
from jm_core.kv_records import settings_at
from jm_nats.app import JobMaster
from jm_nats.errors import AgentError
from jm_nats.kv import CasKv, Changed, Entry, Removed, Snapshot
from jm_nats.troubles import trouble
from jm_nats.worker.config import WorkerConfig
from jm_nats.worker.parts import Parts
from jm_nats.worker.registration import mend_defaults

log = logging.getLogger("jobmaster.worker")

NOT_WANTED: Final = "the cluster's settings want fewer buckets of its priority"


class ClusterSettingsFollower:
    def __init__(self, parts: Parts, app: JobMaster, lanes: tuple[str, ...], config: WorkerConfig) -> None:
        self._parts = parts
        self._kv = CasKv(parts.link, app.names.cluster_kv)
        self._app = app
        self._lanes = lanes
        self._config = config
        self._settings = DEFAULT

    async def begin(self) -> None:
        """What holds now, before the first bucket is opened.

        Raises:
            AgentError: NATS does not answer.
        """
        entry = await self._kv.get(KEY)
        self._take(entry.value if entry else None)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with self._kv.watch() as changes:
            async for change in changes:
                match change:
                    case Snapshot(entries=entries):
                        values = [entry.value for entry in entries if entry.key == KEY]
                        await self._change(values[0] if values else None)
                        await self._mend(entries)
                    case Changed(entry=entry) if entry.key == KEY:
                        await self._change(entry.value)
                    case Changed(entry=entry):  # a handler's defaults, the leader
                        await self._mend([entry])
                    case Removed(key=key) if key == KEY:
                        await self._change(None)
                    case _:
                        pass

    async def _mend(self, entries: Iterable[Entry]) -> None:
        try:
            for entry in entries:
                await mend_defaults(self._kv, self._app, entry)
        except AgentError as error:
            log.debug("defaults of a handler not written again", extra={"problem": str(error)})

    async def _change(self, value: bytes | None) -> None:
        if not self._take(value):
            return
        buckets = self._parts.buckets
        for bucket in buckets.surplus():
            bucket.port.closed = True  # now, so that a second change does not count it again
            self._parts.tasks.start(buckets.retire(bucket, reason=NOT_WANTED), f"retires {bucket.name}", ends=True)
        await buckets.replace_lost()

    def _take(self, value: bytes | None) -> bool:
        """False: nothing changes for us. Settings are never taken away: where there are none any more the KV was lost,
        the leader will write them again, and a passive cluster must not start jobs meanwhile.
        """
        settings = self._settings if value is None else settings_at(value)
        if settings is None:  # of a newer version, or of somebody who is none of us: the leader writes them again
            trouble(log, "cluster settings cannot be read; the last ones stay", {"found": repr(value)[:100]})
            return False
        wanted = buckets_wanted(self._lanes, self._config.priorities, self._config.buckets, settings)
        is_news = settings.starts is self._parts.engine.paused or wanted != self._parts.buckets.wanted
        self._settings, self._parts.buckets.wanted = settings, wanted
        if settings.starts is self._parts.engine.paused:
            self._say(settings)
            self._parts.engine.pause(on=not settings.starts)
        return is_news

    def _say(self, settings: ClusterSettings) -> None:
        engine = self._parts.engine
        extra = {
            "mode": settings.mode.value,
            "running": engine.running,
            "handed_back": 0 if settings.starts else engine.held,
        }
        extra |= {"by": settings.changed_by, "reason": settings.reason}
        if settings.starts:
            log.info("the cluster starts jobs again", extra=extra)
        else:
            log.info("the cluster starts nothing now", extra=extra)
