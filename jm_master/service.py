"""Answers to ``jm.<c>.api.<operation>``: so that clients and the command line need NATS only.

Plain subscriptions with a queue group instead of nats.py's ``micro``: that one handles the requests of an endpoint one
after the other, and here some wait for seconds.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import nats.errors

from jm_core import api, wire
from jm_core.api_archived import is_answered
from jm_core.errors import InvalidJobError, InvalidNameError, InvalidScheduleError, InvalidSettingError
from jm_master.api_errors import RefusedError, decoded, within
from jm_master.database import GUESTS_MAX, as_guest
from jm_master.ends_service import EndsService
from jm_master.pg_errors import RowRefusedError, StoreContentionError, StoreUnavailableError
from jm_master.terms import LostTermError
from jm_nats.errors import AgentError
from jm_nats.subjects import INBOX_RULE, is_reply
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup, TaskStatus
    from msgspec import Struct
    from nats.aio.msg import Msg

    from jm_master.job_store import JobStore
    from jm_master.waiters import ResultWaiters
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

    Operation = Callable[[bytes], Awaitable[Struct]]

log = logging.getLogger(__name__)
RequestT = TypeVar("RequestT")

QUEUE: Final = "jm-api"
REQUESTS_MAX: Final = 10_000  # waiting at once; each is a few hundred bytes and no connection
READ_TIMEOUT_S: Final = 5.0
OPERATION_TIMEOUT_S: Final = 40.0  # of the further ones, as far as they do not bound themselves
UNBOUNDED: Final = {api.OP_AGENT_GIVE_UP}  # in small steps, and not half done
REPLY_MARGIN_BYTES: Final = 1024


class Service:
    """Every request gets a reply; what is wrong with it is said in there.

    Args:
        operations: further ones, by name.
        archived: why nothing may be changed, or None where it may.
        waits: why a job has not started.
        others: whether there are other agents, whose recorders tell us of no end.
        guests_max: connections that all requests together may have at once.
    """

    def __init__(
        self,
        link: NatsLink,
        names: Names,
        store: JobStore,
        waiters: ResultWaiters,
        *,
        unserved: Callable[[], list[api.UnservedKind]] = list,
        operations: Mapping[str, Operation] | None = None,
        archived: Callable[[], str | None] = lambda: None,
        waits: Callable[[api.JobView], str | None] = lambda _: None,
        others: Callable[[], bool] = lambda: False,
        guests_max: int = GUESTS_MAX,
    ) -> None:
        self._link = link
        self._names = names
        self._store = store
        self._unserved_now = unserved
        self._guests = anyio.Semaphore(guests_max)
        self._open = 0
        self._archived = archived
        self._waits = waits
        self._ends = EndsService(store, waiters, self._read, others=others)
        self._operations: dict[str, Operation] = {
            **{name: _bounded(name, work) for name, work in (operations or {}).items()},
            api.OP_JOB_GET: self._job,
            api.OP_JOB_LIST: self._jobs,
            api.OP_JOB_ATTEMPTS: self._attempts,
            api.OP_JOB_COUNT: self._counts,
            api.OP_REJECTED_LIST: self._rejected,
            api.OP_REJECTED_GET: self._rejected_one,
            api.OP_UNSERVED: self._unserved,
            **self._ends.operations(),
        }

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled; started once NATS knows that we do."""
        async with anyio.create_task_group() as tasks:

            async def on_request(message: Msg) -> None:
                self._accept(message, tasks)

            subscription = await self._link.nc.subscribe(self._names.api_any, queue=QUEUE, cb=on_request)
            try:
                await self._link.round_trip()
                tasks.start_soon(self._ends.run)
                task_status.started()
                await anyio.sleep_forever()
            finally:
                with anyio.move_on_after(2, shield=True):
                    await self._link.retire(subscription)

    def _accept(self, message: Msg, tasks: TaskGroup) -> None:
        """Whoever asks names the subject of the answer, and we publish with rights that they may not have."""
        if is_reply(message.reply):
            self._open += 1
            tasks.start_soon(self._reply, message)
        elif message.reply:
            trouble(log, "reply not sent", {"subject": message.reply[:100], "rule": INBOX_RULE})

    async def _reply(self, message: Msg) -> None:
        try:
            with as_guest(self._guests):
                reply = await self._answer(message)
        except Exception as error:  # noqa: BLE001 - the edge of the service: whatever it is, it gets an answer
            reply = _encoded_error(error, message.subject)
        finally:
            self._open -= 1
        try:
            await self._link.nc.publish(message.reply, reply)
        except nats.errors.Error as error:  # costs its asker a wait, and nobody else anything
            trouble(log, "reply not sent", {"subject": message.reply, "problem": repr(error)})

    async def _answer(self, message: Msg) -> bytes:
        if self._open > REQUESTS_MAX:
            raise RefusedError("unavailable", f"{REQUESTS_MAX} requests are open already; ask again later")
        operation = message.subject.rpartition(".")[2]
        handle = self._operations.get(operation)
        if handle is None:
            known = ", ".join(sorted(self._operations))
            raise RefusedError("bad_request", f"operation {operation!r} is unknown; this version answers {known}")
        if not is_answered(operation) and (why := self._archived()) is not None:
            raise RefusedError("archived", why)
        return self._fitting(await handle(message.data))

    def _fitting(self, data: Struct) -> bytes:
        """The reply; a list that is too long for one message is cut, and says that there is more."""
        size_max = self._link.nc.max_payload - REPLY_MARGIN_BYTES
        while True:
            reply = wire.encode({"data": data})
            if len(reply) <= size_max:
                return reply
            shorter = _half(data)
            if shorter is None:
                message = f"the answer is {len(reply)} bytes, the NATS server takes {size_max}; raise its max_payload"
                raise RefusedError("too_large", message)
            data = shorter

    # Operations.

    async def _job(self, data: bytes) -> Struct:
        request = decoded(data, api.JobRef)
        view = await self._read(lambda: self._store.get(request.id))
        if view is None:
            raise RefusedError("not_found", f"no job {request.id} on the master (one that is only queued is not there)")
        view.waits = self._waits(view)
        return view

    async def _jobs(self, data: bytes) -> Struct:
        query = decoded(data, api.JobQuery)
        return await self._read(lambda: self._store.find(query))

    async def _attempts(self, data: bytes) -> Struct:
        request = decoded(data, api.JobRef)
        return await self._read(lambda: self._store.attempts(request.id))

    async def _counts(self, _: bytes) -> Struct:
        return await self._read(self._store.counts)

    async def _rejected(self, data: bytes) -> Struct:
        query = decoded(data, api.RejectedQuery)
        return await self._read(lambda: self._store.rejected(query))

    async def _rejected_one(self, data: bytes) -> Struct:
        request = decoded(data, api.RejectedRef)
        view = await self._read(lambda: self._store.rejected_one(request.rejected_id))
        if view is None:
            raise RefusedError("not_found", f"nothing rejected has the number {request.rejected_id}")
        return view

    async def _unserved(self, _: bytes) -> Struct:
        return api.UnservedList(self._unserved_now())

    async def _read(self, ask: Callable[[], Awaitable[RequestT]]) -> RequestT:
        with within(READ_TIMEOUT_S, "Postgres"):
            return await ask()


def _bounded(name: str, work: Operation) -> Operation:
    async def answer(data: bytes) -> Struct:
        with anyio.fail_after(None if name in UNBOUNDED else OPERATION_TIMEOUT_S):
            return await work(data)

    return answer


def _half(page: Struct) -> Struct | None:
    """The first half of a list that can say that there is more."""
    rows = getattr(page, page.__struct_fields__[0], None)
    if not isinstance(rows, list) or len(rows) < 2 or "more" not in page.__struct_fields__:
        return None
    return type(page)(rows[: len(rows) // 2], more=True)


def _encoded_error(error: Exception, subject: str) -> bytes:
    code, text = _describe(error)
    if code == "internal":
        log.error("api request failed", extra={"subject": subject}, exc_info=error)
    return wire.encode(api.Reply(error=api.ApiError(code, text)))


def _describe(error: Exception) -> tuple[str, str]:
    match error:
        case RefusedError():
            return error.code, str(error)
        case (
            InvalidJobError() | InvalidNameError() | InvalidScheduleError() | InvalidSettingError() | RowRefusedError()
        ):
            return "bad_request", str(error)
        case StoreUnavailableError() | StoreContentionError() | LostTermError() | AgentError():
            return "unavailable", str(error)
        case TimeoutError():
            return "timeout", "what this operation asks (Postgres, or a worker) did not answer in time; ask again later"
        case _:
            return "internal", f"internal error: {type(error).__name__}; the coordinator's log has the details"
