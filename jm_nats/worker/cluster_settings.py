"""The cluster's settings as a worker follows them: whether anything starts, and which buckets are open."""

import logging
from typing import Final

import msgspec

from jm_core.cluster import DEFAULT, KEY, ClusterSettings, buckets_wanted, decode_settings
from jm_nats.kv import CasKv, Changed, Removed, Snapshot
from jm_nats.subjects import Names
from jm_nats.troubles import trouble
from jm_nats.worker.config import WorkerConfig
from jm_nats.worker.parts import Parts

log = logging.getLogger("jobmaster.worker")

NOT_WANTED: Final = "the cluster's settings want fewer buckets of its priority"


class ClusterSettingsFollower:
    def __init__(self, parts: Parts, names: Names, lanes: tuple[str, ...], config: WorkerConfig) -> None:
        self._parts = parts
        self._kv = CasKv(parts.link, names.cluster_kv)
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
                    case Changed(entry=entry) if entry.key == KEY:
                        await self._change(entry.value)
                    case Removed(key=key) if key == KEY:
                        await self._change(None)
                    case _:
                        pass  # a handler's defaults, the leader

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
        try:
            settings = self._settings if value is None else decode_settings(value)
        except msgspec.DecodeError as error:  # of a newer version
            trouble(log, "cluster settings cannot be read; the last ones stay", {"problem": str(error)})
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
