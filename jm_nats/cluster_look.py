"""What a client knows of its cluster's mode: asked for once, then told by every change.

A KV's values are ordinary messages on ``$KV.<kv>.<key>``, so that a plain subscription hears of changes and costs the
server no consumer per client. What is missed while the connection is down is asked for again. A client that may do
neither takes the cluster for open: the writer refuses what must be refused, whoever sent it.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import nats.errors
from nats.aio.msg import Msg

from jm_core.cluster import DEFAULT, KEY, ClusterSettings, archived_text
from jm_core.errors import ClusterArchivedError
from jm_core.kv_records import settings_at
from jm_nats import js_api
from jm_nats.connection import NatsLink
from jm_nats.errors import AgentError
from jm_nats.kv import OPERATION_HEADER
from jm_nats.subjects import Names

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

log = logging.getLogger(__name__)

PATIENCE_S: Final = 1.0
STATUS_HEADER: Final = "Status"  # of an answer that is no message


class ClusterLook:
    """Looks at the first submission, not before: who only asks needs no look."""

    def __init__(self, link: NatsLink, names: Names) -> None:
        self._link = link
        self._names = names
        self._settings: ClusterSettings = DEFAULT
        self._looked = False
        self._one_by_one = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._forget = link.on_reconnect(self._connected_again)

    @property
    def is_open(self) -> bool:
        """Whether jobs may be sent, as far as is known; False: ``check`` has to say."""
        return self._looked and self._settings.plans

    async def check(self) -> None:
        """Raises: ClusterArchivedError."""
        async with self._one_by_one:
            if not self._looked:
                await self._look()
        if not self._settings.plans:
            raise ClusterArchivedError(archived_text(self._names.cluster, self._settings))

    def close(self) -> None:
        """The subscription ends with the connection."""
        self._forget()

    def _connected_again(self) -> None:
        self._looked = False

    async def _look(self) -> None:
        self._looked = True  # a change from here on is heard, and overrides an answer that is older
        before = self._settings
        try:
            subject = f"$KV.{self._names.cluster_kv}.{KEY}"
            if self._subscription is None:
                self._subscription = await self._link.nc.subscribe(subject, cb=self._heard)
            # A direct get, which a permission can narrow to this one key: the rest is no business of who only submits.
            asked = f"{js_api.PREFIX}.DIRECT.GET.KV_{self._names.cluster_kv}.{subject}"
            found = await self._link.request(asked, timeout_s=PATIENCE_S)
        except (AgentError, nats.errors.Error, TimeoutError) as error:
            log.debug("the cluster's mode is not known", extra={"problem": str(error)})
            return
        if self._settings is before and STATUS_HEADER not in (found.headers or {}):  # else there is no such key
            await self._heard(found)

    async def _heard(self, message: Msg) -> None:
        if OPERATION_HEADER not in (message.headers or {}):  # a removal: the KV was lost, and will be written again
            self._take(message.data)

    def _take(self, value: bytes) -> None:
        settings = settings_at(value)
        if settings is None:  # of a newer version, or of somebody who is none of us: the writer knows
            log.debug("cluster settings cannot be read", extra={"found": repr(value)[:100]})
        else:
            self._settings = settings
