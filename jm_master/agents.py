"""Agents beside each other: what each one's leader lets the others know by Postgres.

They share what waits on the master: whoever has a worker with room takes it. So none of them may take a job for one
that nobody serves, or quarantine it because its own workers do not know the handler, while another agent's do.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
import uuid_utils
from msgspec import Struct

from jm_core import wire
from jm_core.agent_names import parse_agent, prefix_of
from jm_core.cluster import AgentView
from jm_core.errors import JmError
from jm_core.fallback import Neighbour
from jm_core.wire import HandlerDefaults
from jm_master.agent_store import key_of
from jm_master.leadership import take_term
from jm_master.queries import named
from jm_master.registry_view import Elsewhere
from jm_master.terms import LostTermError
from jm_nats import telemetry

if TYPE_CHECKING:
    from jm_core.ids import Term
    from jm_master.database import Database
    from jm_master.registry_view import RegistryView

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
SAY_S: Final = 5.0
LIVE_S: Final = 15.0  # who has said nothing for so long serves nobody
BATCH_JOBS: Final = 2_000


class Serves(Struct, frozen=True):
    routes: list[tuple[str, int]]
    handlers: dict[str, HandlerDefaults]


class AgentAliveError(JmError):
    """It cannot be given up."""


class AgentUnknownError(JmError):
    """There is none of this name."""


_decode = msgspec.json.Decoder(Serves).decode


class Agents:
    """One term's."""

    def __init__(self, database: Database, view: RegistryView, *, term: Term) -> None:
        self._database = database
        self._view = view
        self._term = term
        self._sql = named("agents", database.schema)
        self._said: bytes | None = None
        self._said_s = float("-inf")

    @property
    def name(self) -> str:
        return self._database.agent

    async def run(self) -> None:
        """Say what we serve, and look what others do, until cancelled.

        Raises:
            LostTermError: somebody else leads.
        """
        while True:
            await self.look_once()
            telemetry.duty_passed()
            await anyio.sleep(LOOK_S)

    async def look_once(self) -> None:
        await self._say()
        sql, agent = self._sql["load_other_agents"], self._database.agent
        rows = await self._database.ride_out(lambda: self._database.fetch(sql, agent, LIVE_S))
        live: dict[str, Neighbour] = {}
        handlers: dict[str, HandlerDefaults] = {}
        for row in rows:
            try:
                serves = _decode(row["serves"])
            except msgspec.DecodeError as error:  # of another version
                log.debug("what another agent serves cannot be read", extra={"problem": str(error)})
                serves = Serves([], {})
            # Handlers are remembered: while their agent is away their jobs wait for it, rather than be quarantined.
            handlers |= serves.handlers
            if row["is_live"]:
                live[row["agent"]] = Neighbour(frozenset(serves.routes), frozenset(serves.handlers))
        away = frozenset(row["agent"] for row in rows if not row["is_live"])
        self._view.set_elsewhere(Elsewhere(handlers, live, away))

    async def _say(self) -> None:
        serves = wire.encode(Serves(sorted(self._view.proper_routes()), self._view.known_handlers()))
        now_s = time.monotonic()
        if serves == self._said and now_s - self._said_s < SAY_S:
            return
        row = await self._database.ride_out(
            lambda: self._database.fetchrow(
                self._sql["say_agent"],
                self._term,
                self._database.agent,
                None if serves == self._said else serves.decode(),
            )
        )
        if row is None or not row["terms"]:
            raise LostTermError(self._term)
        self._said, self._said_s = serves, now_s

    async def all(self) -> list[AgentView]:
        rows = await self._database.fetch(self._sql["list_agents"])
        return [
            AgentView(row["agent"], row["term"], row["holder"], row["seen_at"], row["jobs_in_buckets"]) for row in rows
        ]

    async def give_up(self, agent: str, *, by: str, reason: str) -> int:
        """Another agent's NATS is gone for good: put what lies in its buckets back, for others to run.

        Its fence is taken first: should its leader still be there, nothing of it commits any more. Its fingerprint is
        made unlike any, so that its NATS, should it come back, is not led again before somebody has accepted the loss.

        Returns:
            How many jobs were put back.

        Raises:
            AgentAliveError: it is our own, or was heard of just now.
            AgentUnknownError.
        """
        known = {view.agent: view for view in await self.all()}
        if parse_agent(agent) == self._database.agent:
            raise AgentAliveError(
                f"agent {agent!r} is the one that answers; ask another agent's coordinator to give it up"
            )
        if agent not in known:
            raise AgentUnknownError(f"agent {agent!r} is unknown; known are {', '.join(sorted(known))}")
        if await self._database.fetchval(self._sql["is_agent_live"], agent, LIVE_S):
            raise AgentAliveError(
                f"agent {agent!r} has a leader, heard of within {LIVE_S:g} s; stop its coordinators and workers first"
            )
        term = await take_term(self._database, f"given up by {by}"[:200], agent=agent)
        jobs = await self._put_back(term, agent)
        gone, action_id = f"given-up-{uuid.uuid4().hex}", str(uuid_utils.uuid7())
        text = f"gave up agent {agent}, {jobs} jobs put back. {reason}".strip()
        done = await self._database.ride_out(
            lambda: self._database.fetch(
                self._sql["forget_agent"],
                agent,
                prefix_of(agent),
                key_of(agent),
                gone,
                by,
                text,
                term,
                action_id,
                reason,
                jobs,
            )
        )
        if not done:
            raise LostTermError(term)
        log.warning("agent given up", extra={"agent": agent, "by": by, "jobs_put_back": jobs})
        return jobs

    async def _put_back(self, term: Term, agent: str) -> int:
        sql, total = named("agent", self._database.schema)["put_back"], 0
        why = f"its agent {agent!r} was given up"
        while True:
            row = await self._database.ride_out(
                lambda: self._database.fetchrow(sql, term, BATCH_JOBS, why, prefix_of(agent))
            )
            if row is None or not row["terms"]:
                raise LostTermError(term)
            if not row["jobs"]:
                return total
            total += row["jobs"]
