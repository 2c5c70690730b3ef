"""The agent's fingerprint: is this NATS store the one that the jobs in Postgres were dispatched to?

Where it is not, jobs that the record calls *in a bucket* lie in no bucket of this NATS, and leading would mean to wait
for them for ever, or, with a mistyped JM_NATS_URL, to run the jobs of two clusters through one. So nobody leads until
a person has said which it is.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

from jm_core.agent_identity import Verdict, judge
from jm_core.agent_names import MAIN, parse_agent
from jm_core.errors import JmError
from jm_core.kv_records import fingerprint_at
from jm_master.queries import named
from jm_master.terms import LostTermError
from jm_nats.kv import CasKv, Stale, Written
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    import asyncpg

    from jm_core.ids import Term
    from jm_master.database import Database
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

KEY: Final = "agent"  # in the cluster KV; in table setting for the first agent, ``agent.<name>`` for others
BATCH_JOBS: Final = 2_000
STORE_LOST: Final = "the NATS store that it was dispatched to was lost"


def key_of(agent: str) -> str:
    """In table ``setting``."""
    return KEY if agent == MAIN else f"{KEY}.{parse_agent(agent)}"


class SharedAgentError(JmError):
    """Two agents are to use one NATS. Trying again does not help."""

    def __init__(self, server: str, agent: str, other: str) -> None:
        super().__init__(
            f"NATS at {server} is that of agent {other!r}, and this coordinator is of agent {agent!r}; "
            "each agent has a NATS of its own: correct JM_NATS_URL or JM_AGENT"
        )


class AgentStoreChangedError(JmError):
    """NATS is not the one that the recorded jobs were dispatched to. Trying again does not help."""

    def __init__(
        self, server: str, postgres: str, *, cluster: str, recorded: str, found: str | None, jobs: int, in_buckets: int
    ) -> None:
        has = f"has the fingerprint {found}" if found else "has no fingerprint: its store is empty or was lost"
        super().__init__(
            f"NATS at {server} is not the one that cluster {cluster!r} was recorded with: it {has}, "
            f"Postgres at {postgres} has {recorded}; check JM_NATS_URL, or, if the NATS store is gone for good, start "
            f"once with --accept-agent-loss (JM_ACCEPT_AGENT_LOSS=1), which dispatches what is recorded and unfinished "
            f"again: {jobs} jobs, {in_buckets} of them in buckets"
        )
        self.server = server
        self.postgres = postgres
        self.cluster = cluster
        self.recorded = recorded
        self.found = found
        self.jobs = jobs
        self.in_buckets = in_buckets


class AgentStore:
    """Compares, and with ``accept_loss`` takes over, the fingerprint."""

    def __init__(self, link: NatsLink, names: Names, database: Database, *, accept_loss: bool) -> None:
        self._link = link
        self._names = names
        self._database = database
        self._kv = CasKv(link, names.cluster_kv)
        self._accept_loss = accept_loss
        self._sql = named("agent", database.schema)
        self._key = key_of(database.agent)

    async def check(self) -> tuple[Verdict, str, str | None]:
        """Return when the two belong together, or will be made to by ``settle``. At first use the fingerprint is made.

        Returns:
            Verdict, what Postgres has, what NATS has.

        Raises:
            AgentStoreChangedError: they do not, and nobody has accepted that.
            AgentError: nobody can say at the moment.
        """
        recorded, found = await self._look()
        verdict = judge(recorded, found)
        if verdict.is_changed and not self._accept_loss:
            raise await self._changed(recorded, found)
        return verdict, recorded, found

    async def settle(self, term: Term) -> int:
        """As ``check``, by who leads from now on; an accepted loss is made good here, before anything is dispatched.

        Returns:
            How many jobs were put back on the master.

        Raises:
            LostTermError: somebody else leads.
        """
        verdict, recorded, found = await self.check()
        if not verdict.is_changed:
            return 0
        mine = found or await self._made()
        await self._check_only_ours(mine)
        log.warning(
            "the NATS store was changed, and that is accepted: what is recorded and unfinished is dispatched again",
            extra={"nats": self._link.server, "verdict": verdict.value, "recorded": recorded, "found": mine},
        )
        jobs = await self._put_back(term)
        await self._take_over(term, mine)
        log.warning("the NATS store is taken over", extra={"agent": mine, "jobs_put_back": jobs})
        return jobs

    async def _look(self) -> tuple[str, str | None]:
        """(what Postgres has, what NATS has), once Postgres has one."""
        while (recorded := await self._recorded()) is None:
            found = await self._found(None) or await self._made()
            await self._check_only_ours(found)
            await self._record_first(found)  # where somebody was quicker, what is there counts: it is read again
        return recorded, await self._found(recorded)

    async def _check_only_ours(self, found: str) -> None:
        """Raises: SharedAgentError."""
        sql = self._sql["find_agent"]
        other = await self._database.ride_out(lambda: self._database.fetchval(sql, found, self._key))
        if other is not None:
            raise SharedAgentError(self._link.server, self._database.agent, other.removeprefix(KEY).lstrip(".") or MAIN)

    async def _recorded(self) -> str | None:
        value = await self._database.ride_out(lambda: self._database.fetchval(self._sql["get_setting"], self._key))
        return None if value is None else str(value)

    async def _record_first(self, found: str) -> None:
        sql = self._sql["make_setting"]
        await self._database.ride_out(lambda: self._database.fetch(sql, self._key, found))

    async def _found(self, recorded: str | None) -> str | None:
        """What is there and is no fingerprint at all was written by somebody who is none of us: it says nothing of a
        change of the store, which has none (then the key is absent) or another. So what is recorded is written again.
        """
        while (entry := await self._kv.get(KEY)) is not None:
            if (found := fingerprint_at(entry.value)) is not None:
                return found
            trouble(log, "the NATS store's fingerprint cannot be read; written again", {"nats": self._link.server})
            await self._kv.update(KEY, (recorded or uuid.uuid4().hex).encode(), revision=entry.revision)
        return None

    async def _made(self) -> str:
        """NATS first: what a crash leaves then is a fingerprint that Postgres takes over."""
        while True:
            mine = uuid.uuid4().hex
            match await self._kv.create(KEY, mine.encode()):
                case Written():
                    log.info("the NATS store gets its fingerprint", extra={"nats": self._link.server, "agent": mine})
                    return mine
                case Stale():
                    if (found := await self._found(None)) is not None:
                        return found

    async def _put_back(self, term: Term) -> int:
        total = 0
        while True:
            row = await self._database.ride_out(
                lambda: self._database.fetchrow(
                    self._sql["put_back"], term, BATCH_JOBS, STORE_LOST, self._database.prefix
                )
            )
            jobs = int(_in_term(row, term)["jobs"])
            if not jobs:
                return total
            total += jobs

    async def _take_over(self, term: Term, mine: str) -> None:
        row = await self._database.ride_out(
            lambda: self._database.fetchrow(
                self._sql["take_over_setting"], term, self._key, mine, self._database.prefix
            )
        )
        _in_term(row, term)

    async def _changed(self, recorded: str, found: str | None) -> AgentStoreChangedError:
        row = await self._database.ride_out(
            lambda: self._database.fetchrow(self._sql["count_unfinished"], self._database.prefix)
        )
        return AgentStoreChangedError(
            self._link.server,
            self._database.where,
            cluster=self._names.cluster,
            recorded=recorded,
            found=found,
            jobs=row["unfinished"] if row else 0,
            in_buckets=row["in_buckets"] if row else 0,
        )


def _in_term(row: asyncpg.Record | None, term: Term) -> asyncpg.Record:
    if row is None or not row["terms"]:
        raise LostTermError(term)
    return row
