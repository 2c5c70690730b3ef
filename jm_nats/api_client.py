"""Calls to the leading coordinator over NATS request/reply (subjects ``jm.<c>.api.<operation>``)."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
import nats.errors
from msgspec import Struct

from jm_core import api, api_retention, wire
from jm_core.cluster import AgentGivenUp, AgentGiveUp, ClusterChange, ClusterView
from jm_core.errors import (
    ActionRefusedError,
    ClusterArchivedError,
    InvalidJobError,
    JmError,
    NoSuchAgentError,
    NoSuchJobError,
)
from jm_nats.connection import NatsLink
from jm_nats.subjects import Names

CALL_TIMEOUT_S: Final = 7.0  # the coordinator itself gives up on Postgres after 5, and says so
ANSWER_MARGIN_S: Final = 2.0
GIVE_UP_TIMEOUT_S: Final = 120.0  # 2,000 jobs at a time
NO_ANSWER_PAUSE_S: Final = 0.25

ReplyT = TypeVar("ReplyT")
_decode_reply = msgspec.json.Decoder(api.Reply).decode


class NoCoordinatorError(JmError):
    """Nobody leads the cluster at this moment, or the leader did not answer in time."""


class MasterUnavailableError(NoCoordinatorError):
    """A coordinator leads, but Postgres does not answer it."""


class BadRequestError(InvalidJobError):
    """The coordinator found something wrong with a request; the message is its own and says what, limit and remedy."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)
        self.field, self.problem, self.remedy = "request", message, ""


class ApiClient:
    """One method per operation. Every call is bounded; errors of the service become ours."""

    def __init__(self, link: NatsLink, names: Names) -> None:
        self._link = link
        self._names = names

    async def job(self, job_id: str) -> api.JobView:
        return await self.call(api.OP_JOB_GET, api.JobRef(job_id), api.JobView)

    async def jobs(self, query: api.JobQuery) -> api.JobList:
        return await self.call(api.OP_JOB_LIST, query, api.JobList)

    async def attempts(self, job_id: str) -> api.AttemptList:
        return await self.call(api.OP_JOB_ATTEMPTS, api.JobRef(job_id), api.AttemptList)

    async def counts(self) -> api.CountReply:
        return await self.call(api.OP_JOB_COUNT, {}, api.CountReply)

    async def rejected(self, query: api.RejectedQuery) -> api.RejectedList:
        return await self.call(api.OP_REJECTED_LIST, query, api.RejectedList)

    async def rejected_one(self, rejected_id: int) -> api.RejectedView:
        return await self.call(api.OP_REJECTED_GET, api.RejectedRef(rejected_id), api.RejectedView)

    async def unserved(self) -> api.UnservedList:
        """What due jobs nobody takes, as of the leader's last look."""
        return await self.call(api.OP_UNSERVED, {}, api.UnservedList)

    async def cluster(self) -> ClusterView:
        """The cluster's settings, and who changed them lately."""
        return await self.call(api.OP_CLUSTER_GET, {}, ClusterView)

    async def change_cluster(self, change: ClusterChange) -> ClusterView:
        """Change them; in force for this agent's leader when it returns."""
        return await self.call(api.OP_CLUSTER_SET, change, ClusterView)

    async def give_up_agent(self, request: AgentGiveUp) -> AgentGivenUp:
        """Put back what lies in the buckets of an agent whose NATS is gone for good.

        Raises:
            NoSuchAgentError.
            ActionRefusedError: it is alive, or the one that answers.
        """

        def errors(error: api.ApiError) -> JmError | None:
            return NoSuchAgentError(error.message) if error.code == "not_found" else None

        return await self.call(api.OP_AGENT_GIVE_UP, request, AgentGivenUp, timeout_s=GIVE_UP_TIMEOUT_S, errors=errors)

    async def result(self, job_id: str, wait_s: float) -> api.ResultReply | None:
        """The job's end, or its state after ``wait_s``; None when no coordinator answered (one may come)."""
        return await self._wait(api.OP_JOB_RESULT, api.ResultRequest(job_id, wait_s), api.ResultReply, wait_s)

    async def results(self, job_ids: list[str], wait_s: float) -> api.ResultsReply | None:
        """Those that have ended, as soon as one has; else None, or nobody, after ``wait_s``."""
        return await self._wait(api.OP_JOB_RESULTS, api.ResultsRequest(job_ids, wait_s), api.ResultsReply, wait_s)

    async def progress(self, job_id: str, seen: api.ProgressReply | None, wait_s: float) -> api.ProgressReply | None:
        """The job's state once it is another than ``seen``, or after ``wait_s``; None when no coordinator answered."""
        request = api.ProgressRequest(job_id, seen, wait_s)
        return await self._wait(api.OP_JOB_PROGRESS, request, api.ProgressReply, wait_s)

    async def retention(self) -> api_retention.RetentionView:
        """What the leader keeps how long, and what it has removed."""
        return await self.call(api_retention.OP_RETENTION_GET, {}, api_retention.RetentionView)

    async def begin_retention(self) -> api_retention.RetentionView:
        """A pass begins now; it is over when ``passes`` is larger than in the answer."""
        return await self.call(api_retention.OP_RETENTION_RUN, {}, api_retention.RetentionView)

    async def count_retention(self, chunk: int = 0) -> api_retention.RetentionCount:
        """What would go, of a part of the table; ask again from ``next_chunk`` on."""
        request = api_retention.RetentionCountRequest(chunk)
        return await self.call(api_retention.OP_RETENTION_COUNT, request, api_retention.RetentionCount)

    async def _wait(self, operation: str, request: Struct, reply_type: type[ReplyT], wait_s: float) -> ReplyT | None:
        try:
            return await self.call(operation, request, reply_type, timeout_s=wait_s + ANSWER_MARGIN_S)
        except NoCoordinatorError:
            await asyncio.sleep(min(NO_ANSWER_PAUSE_S, wait_s))
            return None

    async def call(
        self,
        operation: str,
        request: Struct | dict[str, Any],
        reply_type: type[ReplyT],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        errors: Callable[[api.ApiError], JmError | None] = lambda _: None,
    ) -> ReplyT:
        """One request.

        Args:
            errors: what the service said, as an error of its kind; None: as below.

        Raises:
            NoCoordinatorError: nobody answered, or (``MasterUnavailableError``) nobody who can reach Postgres.
            NoSuchJobError, InvalidJobError, JmError: what the service said.
            AgentDeniedError: NATS does not let this user ask that.
        """
        try:
            message = await self._link.request(self._names.api(operation), wire.encode(request), timeout_s=timeout_s)
        except (TimeoutError, nats.errors.NoRespondersError, nats.errors.TimeoutError):
            raise NoCoordinatorError(
                f"no coordinator of cluster {self._names.cluster!r} answered; start one with 'jm coordinator', "
                "or check with 'jm doctor' why it does not lead"
            ) from None
        reply = _decode_reply(message.data)
        if reply.error is not None:
            raise errors(reply.error) or _translated(reply.error)
        return msgspec.json.decode(bytes(reply.data or b"null"), type=reply_type)


def _translated(error: api.ApiError) -> JmError:
    match error.code:
        case "not_found":
            return NoSuchJobError(error.message)
        case "bad_request":
            return BadRequestError(error.message)
        case "archived":
            return ClusterArchivedError(error.message)
        case "refused":
            return ActionRefusedError(error.message)
        case "unavailable" | "timeout":
            return MasterUnavailableError(f"the coordinator cannot ask Postgres: {error.message}")
        case _:
            return JmError(error.message)
