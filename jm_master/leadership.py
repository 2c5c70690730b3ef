"""Who leads: a lease in the cluster KV, renewed by compare-and-set, and a term in Postgres that stops a stale leader.

The lease decides who works; the term decides whose work counts. Without the second, a leader that was frozen for a
minute could wake up in the middle of a statement and commit it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import anyio

from jm_core import wire
from jm_core.agent_names import MAIN
from jm_core.ids import Term
from jm_core.kv_records import leader_at
from jm_core.lease import LeaderRecord, Seen, may_take_over, observe, trusted_until_s
from jm_master.queries import named
from jm_nats.errors import AgentError, NoSuchStreamError
from jm_nats.kv import Stale, Written
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from jm_master.database import Database
    from jm_nats.kv import CasKv, Entry

log = logging.getLogger(__name__)

KEY: Final = "leader"


class Terms:
    """The latest term that this process has led in, or has seen somebody lead in: the next one must be later, whatever
    a Postgres that was restored from a copy says.
    """

    def __init__(self) -> None:
        self.latest = 0


class Leadership:
    """One coordinator's part in the election, from its start to its end: it may win and lose many times.

    Args:
        holder: unique to this process; a restarted one must not be taken for its predecessor.
        answered: called whenever the election has got an answer, also while another one leads.
    """

    def __init__(
        self,
        kv: CasKv,
        holder: str,
        *,
        lease_s: float,
        renew_s: float,
        margin_s: float,
        answered: Callable[[], None] = lambda: None,
        terms: Terms | None = None,
    ) -> None:
        self._kv = kv
        self._holder = holder
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._margin_s = margin_s
        self._answered = answered
        self._terms = terms or Terms()
        self._revision = 0
        self._renewed_s = 0.0
        self._seen: Seen | None = None

    async def win(self) -> None:
        """Return when the key is ours. Survives NATS being away."""
        while True:
            try:
                won = await self._try_to_win()
                self._answered()
                if won:
                    return
            except NoSuchStreamError:
                raise  # the store was lost: the streams have to be made anew
            except AgentError as error:
                self._seen = None  # blind time: silence during an outage says nothing about the leader
                log.debug("election waits for NATS", extra={"problem": str(error)})
            await anyio.sleep(self._renew_s / 2)

    async def keep(self, on_lost: Callable[[], None]) -> None:
        """Renew until the lease is lost. A leader distrusts itself before anyone else may take over."""
        while True:
            trusted_s = trusted_until_s(self._renewed_s, lease_s=self._lease_s, margin_s=self._margin_s)
            wait_s = min(self._renew_s, max(0.0, trusted_s - time.monotonic()))
            await anyio.sleep(wait_s)
            left_s = trusted_s - time.monotonic()
            if left_s <= 0 or not await self._renew(left_s):
                log.warning("leadership lost", extra={"holder": self._holder})
                on_lost()
                return

    async def resign(self) -> None:
        """Delete the key if it is ours: the next one waits a full lease otherwise."""
        try:
            with anyio.move_on_after(self._renew_s, shield=True):
                await self._kv.delete(KEY, revision=self._revision)
        except AgentError as error:
            log.info("could not resign", extra={"problem": str(error)})

    async def _try_to_win(self) -> bool:
        entry = await self._kv.get(KEY)
        if entry is None:
            self._seen = None
            return await self._claim(None)
        leader = leader_at(entry.value)
        if leader is None:
            # Whoever leads writes it again. If nobody does, it is like any leader that has gone: it is over in a lease.
            trouble(log, "the leader's key cannot be read", {"revision": entry.revision})
        else:
            self._terms.latest = max(self._terms.latest, leader.term)
        if leader is not None and entry.revision == self._revision and leader.holder == self._holder:
            # What we wrote last, and could not take back because NATS was away: nobody has led since.
            return await self._claim(entry.revision)
        self._seen = observe(self._seen, entry.revision, now_s=time.monotonic())
        if may_take_over(self._seen, now_s=time.monotonic(), lease_s=self._lease_s):
            return await self._claim(entry.revision)
        return False

    def _record(self) -> bytes:
        return wire.encode(LeaderRecord(self._holder, self._terms.latest))

    async def _claim(self, revision: int | None) -> bool:
        now_s = time.monotonic()
        value = self._record()
        if revision is None:
            answer = await self._kv.create(KEY, value)
        else:
            answer = await self._kv.update(KEY, value, revision=revision)
        match answer:
            case Written(revision=new):
                self._revision, self._renewed_s, self._seen = new, now_s, None
                return True
            case Stale():
                return False

    async def _renew(self, left_s: float) -> bool:
        """One renewal; False when the key is not ours any more, or time ran out."""
        now_s = time.monotonic()
        try:
            with anyio.fail_after(left_s):
                answer = await self._kv.update(KEY, self._record(), revision=self._revision)
                match answer:
                    case Written(revision=new):
                        self._revision, self._renewed_s = new, now_s
                        self._answered()
                        return True
                    case Stale(current=current):
                        return await self._is_still_ours(current, now_s)
        except (AgentError, TimeoutError) as error:
            trouble(log, "leadership not renewed", {"problem": str(error)})
        return True  # the next turn of `keep` looks at the time

    async def _is_still_ours(self, entry: Entry | None, now_s: float) -> bool:
        """A renewal whose answer was lost moved the revision without our knowing; or somebody has written over it what
        nobody can read, and nobody can have taken over since: that takes a lease, and ours is not over.
        """
        if entry is None:
            return False
        leader = leader_at(entry.value)
        if leader is None:
            trouble(log, "the leader's key could not be read; written again", {"revision": entry.revision})
            answer = await self._kv.update(KEY, self._record(), revision=entry.revision)
            if isinstance(answer, Stale):
                return True  # the next turn of `keep` looks again
            self._revision = answer.revision
        elif leader.holder == self._holder:
            self._revision = entry.revision
        else:
            return False
        self._renewed_s = now_s
        return True


async def take_term(
    database: Database,
    holder: str,
    *,
    after: int = 0,
    on_older: Callable[[int], None] = lambda _: None,
    agent: str | None = None,
) -> Term:
    """A new term: from now on no statement of an earlier leader of this agent commits.

    Args:
        agent: whose; the database's own if it is left out.
        after: the latest one that we know of; ours will be later.
        on_older: told the term that Postgres knew, when it is older than that: it was restored from a copy, or is a
            standby that was promoted before it had everything.
    """
    sql, agent = named("leader", database.schema), agent or database.agent
    if agent != MAIN:
        await database.ride_out(lambda: database.fetch(sql["make_agent"], agent))
    row = await database.ride_out(lambda: database.fetchrow(sql["take_term"], holder, after, agent))
    assert row is not None
    if row["found"] < after:
        on_older(row["found"])
    return Term(row["term"])
